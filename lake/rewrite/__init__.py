"""Rewrite topics in bulk by jobs: small objects become large ones, at no cost for brokers."""

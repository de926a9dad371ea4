"""Bulk rewrite of topics by jobs: small objects into large ones, while brokers spend nothing."""

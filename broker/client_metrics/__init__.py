"""Metrics that clients push (KIP-714): who pushes what, and how it goes to a receiver of OTLP."""

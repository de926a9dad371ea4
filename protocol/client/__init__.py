"""Clients of the Kafka protocol."""

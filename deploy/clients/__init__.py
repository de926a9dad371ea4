"""Clients of a cluster for commands: Kafka, controller, metadata."""

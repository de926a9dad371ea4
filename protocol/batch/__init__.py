"""Kafka record batches: headers are read without copies, and records only where needed."""

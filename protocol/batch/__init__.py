"""Kafka record batches: headers without copies, records only where they are needed."""

"""Bytes by key: one small port over S3, a local directory and memory; knows nothing of streams or
Kafka.
"""

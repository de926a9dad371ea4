"""Store bytes by key: one small port over S3, a local directory and memory. Must not know streams
or Kafka.
"""

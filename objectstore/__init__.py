"""Store bytes by key: one small port over S3, a local directory and memory. Must not know streams
or Kafka.
"""

if not __name__.startswith("penstock."):
    raise ImportError(
        "import penstock.objectstore: the folder objectstore is no package of its own"
    )

"""The reference pipeline: flights from Penstock through PySpark to Iceberg (README.md)."""

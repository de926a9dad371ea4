"""Let Spark find the data source `penstock` without registration.

Spark looks for data sources by the names of modules, and finds this one if it is on the path.

Must not contain anything else. Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from penstock.lake.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]

"""Spark finds its Python data sources by the names of modules: with this one on the path,
`format("penstock")` needs no registration.

Must not contain anything else. Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from lake.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]

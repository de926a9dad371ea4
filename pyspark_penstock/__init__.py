"""Entry points through which Spark finds the data source `penstock` without registration, and
pytest finds the plugin.

Spark discovers data sources in modules whose names start with `pyspark_`.
Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.lake.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.lake.spark.source import PenstockSource

    return PenstockSource

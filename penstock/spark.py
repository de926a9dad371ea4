"""Use Penstock as a data source of Spark. This needs the extra `spark` and Java 17 or newer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register the data source `penstock` in a Spark session, and let Spark push filters down to
    it.

    Spark finds the source without this call, but does not push filters down by default.

    Args:
        spark: The session.

    Raises:
        ImportError: The extra `spark` is not installed.

    Example:
        >>> import penstock.spark
        >>> penstock.spark.register(spark)
        >>> reader = spark.read.format("penstock").option("store", "s3://my-bucket")
        >>> reader.option("subscribe", "orders").load().count()
        1000
    """
    try:
        from penstock.lake.spark import source
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"numpy", "pyarrow", "pyspark"}:
            raise
        from penstock.base.extras import install_hint

        raise ImportError(
            f"penstock.spark needs the package {package}: {install_hint('spark')}", name=package
        ) from error
    source.register(spark)

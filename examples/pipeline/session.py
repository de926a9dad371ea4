"""The Spark session: one session reads Penstock and writes Iceberg."""

import os
import sys

from pyspark.sql import SparkSession

from penstock.spark import register
from pipeline.config import ICEBERG, Config

CATALOG = "lake"


def start(config: Config, **settings: str) -> SparkSession:
    """Start a session, or use the session of `spark-submit`."""
    # Python workers run this interpreter, which has Penstock, unless the cluster has its own.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    catalog = f"spark.sql.catalog.{CATALOG}"
    known = {
        "spark.jars.packages": ICEBERG,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": config.catalog_type,
        f"{catalog}.warehouse": config.warehouse,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # A restarted driver must not wait for tasks of the stopped one.
        "spark.sql.streaming.stopTimeout": "60s",
    }
    if config.catalog_uri:
        known[f"{catalog}.uri"] = config.catalog_uri
    builder = SparkSession.builder.appName("flights")
    if config.master:
        builder = builder.master(config.master)
    for name, value in (known | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark

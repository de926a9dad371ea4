"""A Spark session in this process whose workers use this interpreter instead of any `python3`, and
find `pyspark_penstock` in the checkout.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession, datasource

HAS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="Spark 4.2 limits micro-batches first")
needs_pushdown = pytest.mark.skipif(
    not hasattr(datasource, "Filter"), reason="Spark 4.1 pushes filters first"
)


def limits(**options: str) -> dict[str, str]:
    """Return the limits of a micro-batch if this version of Spark applies them."""
    return options if HAS_LIMITS else {}


@contextmanager
def spark_session() -> Generator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    # The docs recommend the Unix domain socket. Jobs in separate processes use the default, so that
    # both are tested.
    with TemporaryDirectory() as warehouse:
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", warehouse)
            .config("spark.python.unix.domain.socket.enabled", "true")
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()

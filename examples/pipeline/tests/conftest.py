"""One Spark session and one cluster of real brokers for all tests, because each takes seconds to
start.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.deploy.local.handle import LocalCluster
from pipeline import local, registry, session
from pipeline.config import Config


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    store = ("--brokers", "2", "--store", f"file:{directory}")
    patient = ("--set", "broker.session.timeout.ms=30s")  # for busy machines
    with LocalCluster((*store, *patient, "--log-level", "error")) as started:
        yield started


@pytest.fixture(scope="session")
def config(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    with registry.serving() as url:
        yield local.configured(cluster, tmp_path_factory.mktemp("tables"), "local[2]", url)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["SPARK_CONF_DIR"] = str(Path(local.__file__).parent / "conf")
    warehouse = tmp_path_factory.getbasetemp() / "warehouse"
    started = session.start(
        Config(
            store="",
            bootstrap="",
            warehouse=warehouse.as_uri(),
            checkpoints="",
            master="local[1]",  # starting a Python worker takes seconds of CPU
        ),
        **{"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "1"},
    )
    yield started
    started.stop()

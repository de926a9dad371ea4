"""Share one Spark session and one cluster among these tests, because each takes seconds
to start.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import spark_session
from tests.support.threaded_cluster import ThreadedCluster


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started

"""Share the jars and one Kafka 4.2 process among these tests. Skip them on machines without a JDK
or Maven, except in CI.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from benchmarks.kafka import LIGHT_JVM, KafkaMissing, kafka
from tests.interop.both import Both
from tests.support.apicurio import fetch_apicurio
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.java_tools import ToolRunner, tool_runner
from tests.support.marked_cluster import marked_cluster
from tests.support.missing import missing


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaHome:
    try:
        return JavaHome(tmp_path_factory.mktemp("java"))
    except KafkaMissing as error:
        missing(str(error))


@pytest.fixture(scope="session")
def tools(java: JavaHome) -> Iterator[ToolRunner]:
    """Start the JVM that runs Kafka's command line tools."""
    with tool_runner(java) as runner:
        yield runner


@pytest.fixture(scope="session")
def apicurio() -> Path:
    """Return the path of the Apicurio registry; download it if it is missing."""
    return fetch_apicurio()


@pytest.fixture(scope="session")
def peer(java: JavaHome) -> Iterator[str]:
    """Run Kafka and return its address."""
    assert java.class_path
    replicas = (
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    )
    # With verification, Kafka would refuse records of transactions that the coordinator does not
    # know.
    settings = dict.fromkeys(replicas, "1") | {
        "transaction.partition.verification.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.streams.initial.rebalance.delay.ms": "0",
    }
    with kafka(settings, jvm=LIGHT_JVM) as process:
        yield process.bootstrap


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a cluster whose first broker has the id of Kafka's only broker."""
    async with marked_cluster(request, tmp_path, first_id=1) as cluster:
        yield cluster


@pytest.fixture
def both(java: JavaHome, peer: str, cluster: Cluster) -> Both:
    return Both(java, peer, cluster)

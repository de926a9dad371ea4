"""Compare admin APIs with Apache Kafka 4.2: the same requests and tools go to both."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.kafka import kafka
from broker.wire import apis
from broker.wire.apis import ApiSpec
from broker.wire.codecs import CODECS
from broker.wire.gen import describe_topic_partitions
from deploy.clients.wire import WireClient
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.java import JavaHome

TOPICS = "org.apache.kafka.tools.TopicCommand"
NODE_ID = 1
"""Of the only broker on both sides."""


@pytest.fixture(scope="module")
def peer(java: JavaHome) -> Iterator[str]:
    """Return the address of Kafka, which all tests of this module share."""
    assert java.class_path
    replicas = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
    with kafka(dict.fromkeys(replicas, "1")) as process:
        yield process.bootstrap


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, brokers=0) as cluster:
        await cluster.start_broker(NODE_ID)
        yield cluster


class Both:
    """Kafka and Penstock. Results come as a pair in this order."""

    def __init__(self, java: JavaHome, peer: str, cluster: Cluster) -> None:
        self._java = java
        self.addresses = (peer, cluster.bootstrap)

    async def create(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        for address in self.addresses:
            await asyncio.to_thread(create_topic, address, topic, partitions, **configs)

    async def ask(self, api: ApiSpec, request: object) -> tuple[Any, Any]:
        kafka_answer, answer = [
            await asyncio.to_thread(_ask, address, api, request) for address in self.addresses
        ]
        return kafka_answer, answer

    async def tool(self, main: str, *arguments: str) -> tuple[str, str]:
        """Return what a tool prints."""
        done = [
            await asyncio.to_thread(
                self._java.tool, main, "--bootstrap-server", address, *arguments
            )
            for address in self.addresses
        ]
        return done[0].stdout + done[0].stderr, done[1].stdout + done[1].stderr


def _ask(address: str, api: ApiSpec, request: object) -> Any:
    codec = CODECS[api.key]
    with WireClient(address) as client:
        answer = client.ask(api, request, codec.encode_request, codec.decode_response)
    return msgspec.to_builtins(answer)


@pytest.fixture
def both(java: JavaHome, peer: str, cluster: Cluster) -> Both:
    return Both(java, peer, cluster)


# --- DescribeTopicPartitions ----------------------------------------------------------------------


def _topics(answer: Any) -> Any:
    """The answer without what differs: ids of topics, and the bits of epochs."""
    for topic in answer["topics"]:
        topic["topic_id"] = topic["topic_id"] is not None
        for part in topic["partitions"]:
            part["leader_epoch"] = part["leader_epoch"] >= 0
    return answer


@pytest.mark.long
async def test_topics_are_described_as_by_kafka(both: Both) -> None:
    names = {"pages-a": 3, "pages-b": 2, "pages-c": 5}
    for name, partitions in names.items():
        await both.create(name, partitions, retention_ms="1000000")
    asked: list[tuple[list[str], int, tuple[str, int] | None]] = [
        ([*names, "pages-a", "none", "bad name", "__consumer_offsets"], 2_000, None),
        *(([*names], limit, None) for limit in (-1, 0, 3, 4)),
        *(([*names], 4, ("pages-a", index)) for index in (-1, 3, 9)),
        ([*names], 4, ("pages-b", 1)),
        ([*names], 4, ("pages-bb", 1)),
        (["none", "pages-a"], 1, ("none", 0)),
        ([], 4, ("pages-bb", 1)),
        ([], 4, ("pages-b", -1)),
    ]
    for topics, limit, cursor in asked:
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(topic) for topic in topics],
            limit,
            cursor and describe_topic_partitions.Cursor(*cursor),
        )
        expected, answer = await both.ask(apis.DESCRIBE_TOPIC_PARTITIONS, request)
        assert _topics(answer) == _topics(expected), (topics, limit, cursor)

    expected, shown = await both.tool(TOPICS, "--describe", "--topic", "pages-.*")
    assert len(shown.splitlines()) == len(names) + sum(names.values())
    # Kafka sets this config for the whole cluster.
    expected = expected.replace("min.insync.replicas=1,", "")
    assert _without_topic_ids(shown) == _without_topic_ids(expected)


def _without_topic_ids(shown: str) -> list[list[str]]:
    return [
        [cell for cell in line.split("\t") if not cell.startswith("TopicId: ")]
        for line in sorted(shown.splitlines())
    ]

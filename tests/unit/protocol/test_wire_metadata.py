"""Metadata responses built from cached bytes equal those of the generated codec, after
any change.
"""

from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.broker.handlers.metadata import PartitionCache, partition_metadata
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    NodeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
    WalRecord,
)
from penstock.protocol import apis
from penstock.protocol.gen.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    encode_response,
)
from penstock.protocol.metadata import (
    EncodedMetadata,
    EncodedTopic,
    encode_metadata,
    encode_partition,
)
from penstock.protocol.primitives import Writer

VERSIONS = range(apis.METADATA.served_min, apis.METADATA.max + 1)
TOPIC = UUID(int=7)


def partition(index: int) -> MetadataResponsePartition:
    replicas = list(range(index % 4))
    return MetadataResponsePartition(
        5 if index % 3 else 0, index, index - 1, index * 7, replicas, replicas[:1], replicas[1:]
    )


def whole(topics: list[MetadataResponseTopic]) -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(1, "h", 9092, None),
        MetadataResponseBroker(2, "other", 1, "rack"),
    ]
    return MetadataResponse(0, brokers, "cluster", 2, topics, 0, 17)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("counts", [[], [0], [1], [200, 0, 3]])
def test_cached_bytes_equal_those_of_the_generated_codec(version: int, counts: list[int]) -> None:
    heads = [
        MetadataResponseTopic(nth, f"topic-{nth}", UUID(int=nth), nth == 0, [], 9, b"x" * 200 * nth)
        for nth in range(len(counts))
    ]
    rows = [[partition(index) for index in range(count)] for count in counts]
    expected, written = Writer(), Writer()
    full = [
        msgspec.structs.replace(head, partitions=row) for head, row in zip(heads, rows, strict=True)
    ]
    encode_response(expected, whole(full), version)
    topics = [
        EncodedTopic(head, [encode_partition(item, version) for item in row])
        for head, row in zip(heads, rows, strict=True)
    ]
    encode_metadata(written, EncodedMetadata(whole([]), topics), version)
    assert bytes(written) == bytes(expected)


def node(node_id: int, *, fenced: bool = False, draining: bool = False) -> NodeRecord:
    return NodeRecord(
        NodeId(node_id),
        NodeEpoch(node_id),
        UUID(int=node_id),
        "h",
        9092,
        "m",
        None,
        fenced=fenced,
        draining=draining,
    )


def led(index: int, leader: int, epoch: int = 0) -> PartitionRecord:
    replicas = (NodeId(1), NodeId(2))
    streams = (StreamId(3 * index), StreamId(3 * index + 1), StreamId(3 * index + 2))
    return PartitionRecord(
        TOPIC, index, replicas, NodeId(leader), NodeEpoch(leader), StreamEpoch(epoch), *streams
    )


def test_the_cache_follows_changes_of_records_and_brokers() -> None:
    image, cache = MetadataImage(), PartitionCache()
    image.apply_all(
        [
            node(1),
            node(2),
            *(WalRecord(NodeId(n), NodeEpoch(n), WalSequence(0)) for n in (1, 2)),
            TopicRecord(TOPIC, "t"),
        ]
    )
    image.apply_all([led(index, 1) for index in range(3)])
    changes: list[list[Record]] = [
        [],
        [led(1, 2, 1)],
        [node(1, draining=True)],
        [node(2, fenced=True)],
        [node(2)],
        [led(3, 1)],
        [led(0, -1, 1), led(2, 2, 4)],
    ]
    for change in changes:
        image.apply_all(change)
        topic = image.topics.by_id(TOPIC)
        assert topic is not None
        live = {item.node_id for item in image.nodes if not item.fenced}
        for version in (1, 12):
            fresh = [
                encode_partition(partition_metadata(image, item, live, None), version)
                for item in topic.partitions
            ]
            assert list(cache.partitions(image, topic, version)) == fresh


def test_the_size_of_the_cache_is_limited() -> None:
    image, cache = MetadataImage(), PartitionCache(partitions_max=5)
    image.apply_all(
        [node(1), WalRecord(NodeId(1), NodeEpoch(1), WalSequence(0)), TopicRecord(TOPIC, "t")]
    )
    image.apply_all([led(index, 1) for index in range(4)])
    topic = image.topics.by_id(TOPIC)
    assert topic is not None
    for version in (0, 1, 5, 7, 9, 12):
        assert len(cache.partitions(image, topic, version)) == 4
        assert cache.kept_count <= 8

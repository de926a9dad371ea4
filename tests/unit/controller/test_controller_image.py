"""The metadata image: lookups, snapshots, deltas and the codec. It rejects
contradictory records.
"""

from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.controller.managers import objects
from penstock.controller.managers.nodes import fence_brokers
from penstock.controller.metadata.codec import decode_record, encode_raw, encode_record
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ConfigRecord,
    IdsReserved,
    KeyValueRecord,
    MetadataOffset,
    ObjectCommitted,
    ObjectDestroyed,
    PartitionRecord,
    RangesReplaced,
    Record,
    StreamOpened,
    StreamTrimmed,
    TopicRemoved,
    WalEnded,
    WalRemoved,
)
from penstock.controller.metadata.snapshot import RANGES_PER_RECORD_MAX, ImageCopy
from penstock.controller.metadata.topics import PartitionKey
from penstock.stream.errors import FormatUnknown
from penstock.stream.ports import BrokerIncarnation, ObjectRole
from tests.support.managers_cluster import ManagersCluster, part, slot, snapshot_of


@pytest.fixture
def cluster() -> ManagersCluster:
    """Return a cluster in which broker 1 is leader of t-0, and stream 1 has the ranges [0,5) [5,9)
    [9,12).
    """
    cluster = ManagersCluster()
    node = cluster.broker(1)
    cluster.topic("t")
    cluster.open_led(node)
    cluster.commit(
        node,
        *(
            slot(node, n, part(1, low, high))
            for n, (low, high) in enumerate([(0, 5), (5, 9), (9, 12)])
        ),
    )
    return cluster


@pytest.mark.parametrize(
    ("start", "end", "limit", "found"),
    [
        (0, 12, 9, [0, 5, 9]),
        (4, 5, 9, [0]),
        (5, 6, 9, [5]),
        (4, 6, 9, [0, 5]),
        (0, 12, 2, [0, 5]),
        (12, 20, 9, []),
        (3, 3, 9, []),
    ],
)
def test_ranges_are_found_by_offset(
    cluster: ManagersCluster, start: int, end: int, limit: int, found: list[int]
) -> None:
    ranges = cluster.image.find_ranges(StreamId(1), Offset(start), Offset(end), limit)
    assert [item.range.start_offset for item in ranges] == found
    assert all(item.role == ObjectRole.WAL and item.key.startswith("wal/1/") for item in ranges)


def test_an_unknown_stream_has_no_ranges(cluster: ManagersCluster) -> None:
    assert cluster.image.find_ranges(StreamId(77), Offset(0), Offset(9), 9) == []


def test_ids_of_removed_entries_are_not_reused_after_a_snapshot(
    cluster: ManagersCluster,
) -> None:
    node = cluster.broker(2)
    item = cluster.prepare(node)[0]
    cluster.delete("t")
    cluster.now_ms = Millis(cluster.now_ms + objects.PREPARED_TTL_MS)
    cluster.tick()
    cluster.apply(objects.objects_removed(cluster.image, [item.object_id]))
    copy = snapshot_of(cluster.image)
    assert copy == cluster.image
    assert (copy.next_stream_id, copy.next_object_id, copy.next_node_epoch) == (
        3,
        item.object_id + 1,
        3,
    )


def test_a_snapshot_consists_of_chunks_of_limited_size(cluster: ManagersCluster) -> None:
    records = list(ImageCopy.of(cluster.image).records())
    chunks = list(ImageCopy.of(cluster.image).chunks(4))
    assert [record for chunk in chunks for record in chunk] == records
    assert {len(chunk) for chunk in chunks[:-1]} == {4}


def test_an_object_with_very_many_ranges_takes_several_records() -> None:
    cluster = ManagersCluster()
    node = cluster.broker(1)
    cluster.topic("t", partitions=RANGES_PER_RECORD_MAX // 3 + 1)
    cluster.open_led(node)
    cluster.commit(
        node, slot(node, 0, *(part(stream.stream_id, 0, 1) for stream in cluster.image.streams))
    )
    sizes = [
        len(record.ranges)
        for record in ImageCopy.of(cluster.image).records()
        if isinstance(record, ObjectCommitted)
    ]
    assert sizes == [RANGES_PER_RECORD_MAX, 2]
    assert snapshot_of(cluster.image) == cluster.image


def test_a_snapshot_contains_configs_keys_and_ended_wals(cluster: ManagersCluster) -> None:
    dead = cluster.broker(2)
    cluster.apply(
        [
            ConfigRecord(2, "t", "retention.ms", "5"),
            KeyValueRecord("k", b"\x00\xff"),
            WalEnded(dead.node_id, dead.node_epoch, WalSequence(3)),
        ]
    )
    copy = snapshot_of(cluster.image)
    assert copy == cluster.image
    assert copy.configs.topic("t") == {"retention.ms": "5"}
    cluster.apply([ConfigRecord(2, "t", "retention.ms", None), KeyValueRecord("k", None)])
    assert snapshot_of(cluster.image) == cluster.image
    assert copy != cluster.image


def test_a_snapshot_can_be_loaded_only_into_an_empty_image(cluster: ManagersCluster) -> None:
    with pytest.raises(InvariantBroken):
        cluster.image.load([])


def test_a_copy_does_not_change_with_the_image() -> None:
    """A copy is encoded while the image changes, so it must not share mutable state."""
    cluster = ManagersCluster()
    node, other = cluster.broker(1), cluster.broker(2)
    cluster.topic("t", partitions=2)
    cluster.open_led(node)
    cluster.open_led(other)
    cluster.commit(node, slot(node, 0, part(0, 0, 4), part(1, 0, 4)))
    cluster.apply([KeyValueRecord("k", b"1"), ConfigRecord(2, "t", "retention.ms", "5")])
    cluster.prepare(node)
    before, end_offset = snapshot_of(cluster.image), cluster.image.end_offset
    copied = ImageCopy.of(cluster.image)
    cluster.commit(node, slot(node, 1, part(0, 4, 8)))
    cluster.apply(
        [
            StreamTrimmed(StreamId(1), Offset(4)),
            KeyValueRecord("k", b"2"),
            ConfigRecord(2, "t", "retention.ms", None),
        ]
    )
    cluster.now_ms = Millis(cluster.now_ms + objects.PREPARED_TTL_MS)
    cluster.tick()
    cluster.move("t", 0, 2)
    cluster.apply(fence_brokers(cluster.image, [node]))
    cluster.delete("t")
    cluster.tick()
    loaded = MetadataImage()
    loaded.load(copied.records())
    loaded.loaded(end_offset)
    assert loaded == before
    assert loaded != snapshot_of(cluster.image)


def test_a_copy_excludes_ranges_added_to_its_objects_later() -> None:
    """A commit of many ranges takes several records, and the next record may contain the first
    range of a stream.
    """
    cluster = ManagersCluster()
    node = cluster.broker(1)
    cluster.topic("t", partitions=2)
    cluster.open_led(node)
    cluster.commit(node, slot(node, 0, part(1, 0, 4)))
    before, end_offset = snapshot_of(cluster.image), cluster.image.end_offset
    copied = ImageCopy.of(cluster.image)
    committed = next(record for record in copied.records() if isinstance(record, ObjectCommitted))
    cluster.apply([msgspec.structs.replace(committed, ranges=(part(4, 0, 2),))])
    loaded = MetadataImage()
    loaded.load(copied.records())
    loaded.loaded(end_offset)
    assert loaded == before
    assert loaded != snapshot_of(cluster.image)


def test_a_delta_contains_the_changed_entries(cluster: ManagersCluster) -> None:
    topic = cluster.partitions("t")[0]
    node = cluster.image.nodes.get(NodeId(1))
    assert node is not None
    committed = ObjectCommitted(ObjectId(9), "k", 3, 1, Millis(0), (part(1, 0, 1),))
    replaced = RangesReplaced(StreamId(0), (ObjectId(4),), ObjectId(9), part(0, 0, 1))
    records: list[Record] = [
        topic,
        node,
        committed,
        replaced,
        ConfigRecord(2, "t", "n", "v"),
        KeyValueRecord("k", b""),
        WalEnded(NodeId(1), NodeEpoch(1), WalSequence(0)),
        TopicRemoved(UUID(int=9)),
    ]
    delta = MetadataDelta.of(records)
    assert delta == MetadataDelta(
        topic_ids={topic.topic_id, UUID(int=9)},
        removed_topic_ids={UUID(int=9)},
        partitions={PartitionKey(topic.topic_id, 0)},
        node_ids={NodeId(1)},
        wals={BrokerIncarnation(NodeId(1), NodeEpoch(1))},
        stream_ids={StreamId(0), StreamId(1)},
        object_ids={ObjectId(4), ObjectId(9)},
        configs={(2, "t")},
        keys={"k"},
    )


def test_records_survive_a_round_trip_and_unknown_ones_are_rejected(
    cluster: ManagersCluster,
) -> None:
    for record in ImageCopy.of(cluster.image).records():
        assert decode_record(encode_record(record)) == record
    assert decode_record(
        encode_raw([IdsReserved(StreamId(1), ObjectId(2), NodeEpoch(3))])[0]
    ) == IdsReserved(StreamId(1), ObjectId(2), NodeEpoch(3))
    with pytest.raises(FormatUnknown, match="'from-the-future', which this version"):
        decode_record(msgspec.msgpack.encode(["from-the-future", 1]))
    for rubbish in (["topic"], [], 7, ["topic", b"no id", "t"]):
        with pytest.raises(msgspec.ValidationError):
            decode_record(msgspec.msgpack.encode(rubbish))


def test_fields_added_by_later_versions_are_ignored(cluster: ManagersCluster) -> None:
    for record in ImageCopy.of(cluster.image).records():
        longer = [*msgspec.msgpack.decode(encode_record(record)), "added", 7]
        assert decode_record(msgspec.msgpack.encode(longer)) == record


@pytest.mark.parametrize(
    "record",
    [
        StreamOpened(StreamId(77), 0, NodeId(1), NodeEpoch(1)),
        StreamOpened(StreamId(1), -1, NodeId(1), NodeEpoch(1)),
        TopicRemoved(UUID(int=99)),
        ObjectDestroyed(ObjectId(0), Millis(1), MetadataOffset(0)),
        ObjectDestroyed(ObjectId(99), Millis(1), MetadataOffset(0)),
        WalEnded(NodeId(9), NodeEpoch(9), WalSequence(0)),
        WalRemoved(NodeId(1), NodeEpoch(1)),
        PartitionRecord(
            UUID(int=99),
            0,
            (NodeId(1),),
            NodeId(1),
            NodeEpoch(1),
            0,
            StreamId(0),
            StreamId(1),
            StreamId(2),
        ),
    ],
)
def test_a_contradictory_record_raises_an_error(cluster: ManagersCluster, record: Record) -> None:
    with pytest.raises(InvariantBroken):
        cluster.image.apply(record, cluster.image.end_offset)


def test_applying_a_record_advances_the_end_offset() -> None:
    image = MetadataImage()
    image.apply(KeyValueRecord("k", b""), MetadataOffset(41))
    assert image.end_offset == 42


@pytest.mark.parametrize(
    "broken",
    [
        ObjectCommitted(ObjectId(50), "gap", 3, 1, Millis(0), (part(1, 13, 14),)),
        ObjectCommitted(ObjectId(50), "overlap", 3, 1, Millis(0), (part(1, 3, 7),)),
        RangesReplaced(StreamId(1), (ObjectId(1),), ObjectId(2), part(1, 6, 9)),
        WalEnded(NodeId(1), NodeEpoch(1), WalSequence(3)),
    ],
)
def test_invariant_checks_detect_broken_images(cluster: ManagersCluster, broken: Record) -> None:
    cluster.image.apply(broken, cluster.image.end_offset)
    with pytest.raises(InvariantBroken):
        cluster.image.check_invariants()

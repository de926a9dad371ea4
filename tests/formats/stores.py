"""Conformance vectors of whole stores: a bucket as controllers and brokers leave it, and what a
reader without brokers must find in it, or the kind of error.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import msgspec

from penstock.base.ids import Millis, NodeEpoch, NodeId, ObjectId, WalSequence
from penstock.stream.format.builder import BuiltObject, fence_object
from penstock.stream.format.keys import data_key, manifest_key, wal_key
from penstock.stream.format.manifest.codec import Draft, encode_entries, encode_shard
from penstock.stream.format.manifest.model import (
    Entries,
    LiveWal,
    ManifestRoot,
    PageRef,
    PartitionEntry,
    SectionRef,
    Shard,
    StreamEntry,
    TopicEntry,
)
from penstock.stream.ports import IN_STORE, OWN_STREAM, BrokerIncarnation, ObjectRole
from tests.formats.batches import (
    BASE_MS,
    CREATED_MS,
    Batch,
    append_time,
    batch,
    build,
    event,
    gap,
    joined,
    marker,
    record,
    row_json,
    run,
    transactional,
)
from tests.support.newer_formats import (
    MANIFEST_OPTIONAL_AT,
    MANIFEST_REQUIRED_AT,
    REQUIRED_AT,
    with_footer_field,
    with_header_field,
)

CLUSTER = "vectors"
ONE, TWO = BrokerIncarnation(NodeId(1), NodeEpoch(7)), BrokerIncarnation(NodeId(2), NodeEpoch(8))
DEFAULTS = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}

_SHARD_LENGTH = 5
"""Number of elements in an encoded shard section. A page has fewer, a root more."""

Streams = dict[int, Sequence[Batch]]


@dataclass(frozen=True)
class StoreVector:
    """The objects of a store by key, and the expected result of a reader."""

    name: str
    objects: dict[str, bytes]
    expected: dict[str, Any]


class LongerDraft(Draft):
    """A manifest of a later version, with more elements in every extensible array."""

    def add(self, raw: bytes) -> SectionRef:
        section: list[Any] = msgspec.msgpack.decode(raw)
        growing = [section]
        if len(section) == _SHARD_LENGTH:
            growing.append(section[4])
        elif len(section) > _SHARD_LENGTH:
            growing += [*section[5], *section[6]]
        for array_ in growing:
            array_ += ["added", 7, None]
        return super().add(msgspec.msgpack.encode(section))


@dataclass
class Log:
    """A stream as the manifest describes it: its committed ranges in order."""

    stream_id: int
    log_start: int = 0
    ranges: list[tuple[str, ObjectRole, int, Any]] = field(
        default_factory=list[tuple[str, ObjectRole, int, Any]]
    )

    def entries(self, low: int = 0, high: int | None = None) -> Entries:
        chosen = self.ranges[low:high]
        parts = [part for *_, part in chosen]
        bounds = [part.start_offset for part in parts] + [self._end(parts)]
        return Entries(
            array("q", bounds),
            array("q", [part.record_count for part in parts]),
            array("q", [part.size_bytes for part in parts]),
            array("q", [part.max_timestamp_ms for part in parts]),
            array("q", [size_bytes for _, _, size_bytes, _ in chosen]),
            array("q", [self._stored_as(part) for part in parts]),
            bytes([role for _, role, *_ in chosen]),
            [key for key, *_ in chosen],
        )

    def _stored_as(self, part: Any) -> int:
        return OWN_STREAM if part.stream_id == self.stream_id else part.stream_id

    def _end(self, parts: Sequence[Any]) -> int:
        return parts[-1].end_offset if parts else self.log_start

    def entry(self, draft: Draft, paged: int) -> StreamEntry:
        """Return the stream's manifest entry, with its first `paged` ranges in a page."""
        pages: tuple[PageRef, ...] = ()
        if paged:
            page = self.entries(0, paged)
            ref = PageRef(
                page.start_offset,
                page.end_offset,
                len(page),
                sum(page.record_counts),
                sum(page.sizes_bytes),
                page.max_timestamp_ms,
                draft.add(encode_entries(page)),
            )
            pages = (ref,)
        parts = [part for *_, part in self.ranges]
        inline = self.entries(paged)
        return StreamEntry(self.stream_id, self.log_start, self._end(parts), pages, inline)


@dataclass
class Topic:
    """A topic. Partition k has data stream 10 n + 2 k and transaction stream 10 n + 2 k + 1."""

    name: str
    number: int
    leaders: Sequence[int] = (1,)
    configs: dict[str, str] = field(default_factory=dict[str, str])
    is_internal: bool = False
    paged: int = 0

    @property
    def topic_id(self) -> UUID:
        return UUID(int=0xFEED << 64 | self.number)

    def data(self, partition: int = 0) -> int:
        return 10 * self.number + 2 * partition

    def txn(self, partition: int = 0) -> int:
        return self.data(partition) + 1


class Bucket:
    """A store that grows object by object and then gets a manifest."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = topics
        self.objects: dict[str, bytes] = {}
        self.logs = {
            stream_id: Log(stream_id)
            for topic in topics
            for partition in range(len(topic.leaders))
            for stream_id in (topic.data(partition), topic.txn(partition))
        }

    def commit(self, key: str, role: ObjectRole, built: BuiltObject) -> None:
        self.objects[key] = joined(built)
        for part in built.ranges:
            self.logs[part.stream_id].ranges.append((key, role, built.size_bytes, part))

    def commit_object(self, object_id: int, streams: Streams) -> None:
        role = ObjectRole.STREAM if len(streams) == 1 else ObjectRole.STREAM_SET
        self.commit(data_key(ObjectId(object_id)), role, build(role, streams, writer=ONE))

    def slot(
        self,
        sequence: int,
        streams: Streams,
        *,
        depth: int = 1,
        writer: BrokerIncarnation = ONE,
        committed: bool = False,
    ) -> str:
        built = build(ObjectRole.WAL, streams, sequence=sequence, depth=depth, writer=writer)
        key = wal_key(writer, WalSequence(sequence), IN_STORE)
        self.objects[key] = joined(built)
        if committed:
            self.commit(key, ObjectRole.WAL, built)
        return key

    def fork(self, source: int, stream_id: int, end: int) -> None:
        """Let a stream start with the ranges of another stream below `end`."""
        for key, role, size_bytes, part in self.logs[source].ranges:
            if part.start_offset < end:
                kept = replace(part, end_offset=min(end, part.end_offset))
                self.logs[stream_id].ranges.append((key, role, size_bytes, kept))

    def fence(self, sequence: int) -> None:
        key = wal_key(ONE, WalSequence(sequence), IN_STORE)
        self.objects[key] = fence_object(TWO, WalSequence(sequence), CREATED_MS)

    def publish(self, *, version: int = 1, first_slot: int = 0, draft: type[Draft] = Draft) -> str:
        return self._publish(draft(version), version, first_slot)

    def _publish(self, draft: Draft, version: int, first_slot: int) -> str:
        entries: list[TopicEntry] = []
        for topic in self.topics:
            partitions = tuple(
                PartitionEntry(
                    number,
                    leader,
                    4,
                    self.logs[topic.data(number)].entry(draft, 0 if number else topic.paged),
                    self.logs[topic.txn(number)].entry(draft, 0),
                )
                for number, leader in enumerate(topic.leaders)
            )
            section = draft.add(encode_shard(Shard(topic.topic_id, 0, partitions)))
            entries.append(
                TopicEntry(
                    topic.name,
                    topic.topic_id,
                    len(partitions),
                    (section,),
                    topic.configs,
                    topic.is_internal,
                )
            )
        wals = (LiveWal(*ONE, WalSequence(first_slot)), LiveWal(*TWO, WalSequence(0)))
        root = ManifestRoot(
            CLUSTER, 3, version, 500, Millis(BASE_MS), wals, tuple(entries), 60_000, DEFAULTS
        )
        key = manifest_key(CLUSTER, version)
        self.objects[key] = b"".join(draft.finish(root))
        return key

    def expected(self, partitions: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
        return {
            "cluster_id": CLUSTER,
            "config_defaults": DEFAULTS,
            "topics": [
                {
                    "name": topic.name,
                    "topic_id": str(topic.topic_id),
                    "configs": topic.configs,
                    "is_internal": topic.is_internal,
                    "partitions": [
                        {"partition": number, **partitions[topic.name, number]}
                        for number in range(len(topic.leaders))
                    ],
                }
                for topic in self.topics
            ],
        }


def found(
    batches: Sequence[Batch],
    *,
    log_start: int = 0,
    stable_end: int | None = None,
    aborted: Sequence[Batch] = (),
) -> dict[str, Any]:
    """Return the expected result for a partition whose log consists of these batches."""
    end = batches[-1].end_offset if batches else log_start
    stable = end if stable_end is None else stable_end
    rows = [row for item in batches for row in item.rows if row.offset >= log_start]
    left_out = {row.offset for item in aborted for row in item.rows}
    committed = [row for row in rows if row.offset < stable and row.offset not in left_out]
    response: dict[str, Any] = {
        "log_start": log_start,
        "end_offset": end,
        "last_stable_offset": stable,
        "rows": [row_json(row) for row in rows],
    }
    if committed != rows:
        response["committed_offsets"] = [row.offset for row in committed]
    return response


def stores() -> Iterator[StoreVector]:
    yield _plain()
    yield _transactions()
    yield _compacted()
    yield _forked()
    yield _snapshot_topic()
    yield _longer_arrays()
    yield from _tails()
    yield from _broken()


# --- valid stores ---------------------------------------------------------------------------------


def _plain() -> StoreVector:
    orders = Topic("orders", 1, (1, 2), {"retention.ms": "-1"}, paged=2)
    stamped = Topic("stamped", 2, (2,), {"message.timestamp.type": "LogAppendTime"})
    offsets = Topic("__consumer_offsets", 3, (-1,), {"cleanup.policy": "compact"}, True)
    bucket = Bucket(orders, stamped, offsets)
    first, second = [run(0, 4), run(4, 6)], [run(0, 3)]
    stamps = [append_time(0, 2, BASE_MS + 7)]
    bucket.commit_object(6699, {orders.data(0): first})
    bucket.commit_object(6700, {orders.data(0): [run(6, 8)], orders.data(1): second})
    bucket.slot(0, {orders.data(0): [run(8, 9)], stamped.data(): stamps}, committed=True)
    # The next slot was uploaded too, but the manifest does not contain its commit; no record may be
    # read twice.
    bucket.slot(1, {orders.data(0): [run(9, 11)]})
    bucket.slot(2, {orders.data(0): [run(11, 12)]}, depth=2)
    bucket.slot(0, {orders.data(1): [run(3, 5)]}, writer=TWO)
    bucket.logs[orders.data(0)].log_start = 2
    bucket.publish(version=41)
    bucket.publish(version=42, first_slot=1)
    whole = [*first, run(6, 8), run(8, 9), run(9, 11), run(11, 12)]
    parts = {
        ("orders", 0): found(whole, log_start=2),
        ("orders", 1): found([*second, run(3, 5)]),
        ("stamped", 0): found(stamps),
        ("__consumer_offsets", 0): found([]),
    }
    return StoreVector("plain", bucket.objects, bucket.expected(parts))


def _transactions() -> StoreVector:
    topic = Topic("payments", 1)
    bucket = Bucket(topic)
    one, two, open_one = (
        transactional(0, 2, 100),
        transactional(2, 4, 200),
        transactional(7, 9, 100),
    )
    data = [
        one,
        two,
        run(4, 5),
        marker(5, 100, committed=False),
        marker(6, 200, committed=True),
        open_one,
    ]
    events = [
        event(0, 2, 0),
        event(2, 6, 2, (100, 0, 5)),
        event(6, 7, -1),
        event(7, 9, 7),
    ]
    bucket.commit_object(20, {topic.data(): data[:3], topic.txn(): events[:1]})
    bucket.slot(4, {topic.data(): data[3:4], topic.txn(): events[1:2]})
    bucket.slot(5, {topic.data(): data[4:], topic.txn(): events[2:]})
    bucket.publish(first_slot=4)
    parts = {("payments", 0): found(data, stable_end=7, aborted=[one])}
    return StoreVector("transactions", bucket.objects, bucket.expected(parts))


def _forked() -> StoreVector:
    source, fork = Topic("orders", 1), Topic("orders-test", 2)
    bucket = Bucket(source, fork)
    data = [run(0, 4), run(4, 6), run(6, 8)]
    bucket.commit_object(31, {source.data(): data[:1]})
    bucket.commit_object(32, {source.data(): data[1:]})
    # The fork ends between two batches of the second object.
    bucket.fork(source.data(), fork.data(), 6)
    own = run(6, 9)
    bucket.commit_object(33, {fork.data(): [own]})
    bucket.slot(0, {fork.data(): [run(9, 10)]})
    bucket.publish()
    parts = {
        ("orders", 0): found(data),
        ("orders-test", 0): found([*data[:2], own, run(9, 10)]),
    }
    return StoreVector("forked", bucket.objects, bucket.expected(parts))


def _snapshot_topic() -> StoreVector:
    orders, frozen = Topic("orders", 1), Topic("orders@nightly", 2, (-1,))
    bucket = Bucket(orders, frozen)
    data = [run(0, 4), run(4, 6), run(6, 8)]
    bucket.commit_object(41, {orders.data(): data[:2]})
    bucket.slot(0, {orders.data(): data[2:]}, committed=True)
    # The snapshot was taken when the log had two batches, the first of which has since been
    # deleted.
    bucket.fork(orders.data(), frozen.data(), 6)
    bucket.logs[orders.data()].log_start = 4
    bucket.slot(1, {orders.data(): [run(8, 9)]})
    bucket.publish()
    parts = {
        ("orders", 0): found([*data, run(8, 9)], log_start=4),
        ("orders@nightly", 0): found(data[:2]),
    }
    return StoreVector("snapshot-topic", bucket.objects, bucket.expected(parts))


def _longer_arrays() -> StoreVector:
    """Return a store whose manifest has elements unknown to readers in every extensible array."""
    topic = Topic("t", 1, paged=1)
    bucket = Bucket(topic)
    bucket.commit_object(1, {topic.data(): [run(0, 2)]})
    bucket.commit_object(2, {topic.data(): [run(2, 4)]})
    bucket.slot(0, {topic.data(): [run(4, 5)]})
    bucket.publish(draft=LongerDraft)
    whole = found([run(0, 2), run(2, 4), run(4, 5)])
    return StoreVector("longer-arrays", bucket.objects, bucket.expected({("t", 0): whole}))


def _compacted() -> StoreVector:
    topic = Topic("latest", 1, (1,), {"cleanup.policy": "compact,delete"})
    bucket = Bucket(topic)
    holed = batch(record(1), record(3, None), last_offset=5)
    data = [gap(0, 1), holed, gap(6, 9)]
    bucket.commit_object(7, {topic.data(): data})
    bucket.slot(0, {topic.data(): [run(9, 10)]})
    bucket.publish()
    parts = {("latest", 0): found([*data, run(9, 10)])}
    return StoreVector("compacted", bucket.objects, bucket.expected(parts))


def _one_topic() -> tuple[Topic, Bucket]:
    topic = Topic("t", 1)
    bucket = Bucket(topic)
    bucket.commit_object(1, {topic.data(): [run(0, 2)]})
    return topic, bucket


def _tails() -> Iterator[StoreVector]:
    """Yield tails that end at a missing slot or at a fence."""
    topic, bucket = _one_topic()
    bucket.slot(0, {topic.data(): [run(2, 3)]})
    # Slot 2 was written before slot 1 was durable, so nothing proves that slot 1 exists.
    bucket.slot(2, {topic.data(): [run(4, 5)]}, depth=2)
    bucket.publish()
    whole = found([run(0, 2), run(2, 3)])
    yield StoreVector("tail-with-hole", bucket.objects, bucket.expected({("t", 0): whole}))
    topic, bucket = _one_topic()
    bucket.slot(0, {topic.data(): [run(2, 3)]})
    bucket.fence(1)
    bucket.slot(2, {topic.data(): [run(3, 4)]}, depth=2)
    bucket.publish()
    yield StoreVector("tail-with-fence", bucket.objects, bucket.expected({("t", 0): whole}))
    topic, bucket = _one_topic()
    bucket.slot(0, {topic.data(): [run(0, 2), run(2, 3)]})
    bucket.slot(1, {topic.data(): [run(4, 5)]})
    bucket.publish()
    yield StoreVector("tail-with-overlap", bucket.objects, bucket.expected({("t", 0): whole}))


# --- invalid stores -------------------------------------------------------------------------------


def _broken() -> Iterator[StoreVector]:
    topic, other = Topic("t", 1), Topic("other", 2, (2,))
    for name, error in (("lost-slot", "lost"), ("damaged-slot", "damaged")):
        bucket = Bucket(topic, other)
        bucket.commit_object(1, {topic.data(): [run(0, 2)]})
        bucket.slot(0, {topic.data(): [run(2, 3)]})
        key = bucket.slot(1, {topic.data(): [run(3, 4)]})
        bucket.slot(2, {topic.data(): [run(4, 5)]}, depth=1)
        bucket.slot(0, {other.data(): [run(0, 2)]}, writer=TWO)
        bucket.publish()
        if error == "lost":
            del bucket.objects[key]
        else:
            bucket.objects[key] = _flipped(bucket.objects[key], len(bucket.objects[key]) - 20)
        parts = {("t", 0): {"error": error}, ("other", 0): found([run(0, 2)])}
        yield StoreVector(name, bucket.objects, bucket.expected(parts))
    topic, bucket = _one_topic()
    key = data_key(ObjectId(1))
    bucket.publish()
    whole = bucket.objects[key]
    for name, error, data in (
        ("lost-object", "lost", None),
        ("damaged-object", "damaged", _flipped(whole, 80)),
        ("newer-object", "newer", with_header_field(whole, REQUIRED_AT, b"\x00\x00\x00\x02")),
    ):
        objects = {**bucket.objects, key: data or b""}
        if data is None:
            del objects[key]
        partition = {"log_start": 0, "end_offset": 2, "last_stable_offset": 2, "error": error}
        yield StoreVector(name, objects, bucket.expected({("t", 0): partition}))
    manifest = manifest_key(CLUSTER, 1)
    published = bucket.objects[manifest]
    for name, error, data in (
        ("damaged-manifest", "damaged", _flipped(published, len(published) - 20)),
        ("truncated-manifest", "damaged", published[:-7]),
        (
            "newer-manifest",
            "newer",
            with_footer_field(published, MANIFEST_REQUIRED_AT, b"\x00\x00\x01\x00"),
        ),
    ):
        yield StoreVector(name, {**bucket.objects, manifest: data}, {"error": error})
    objects = {
        **bucket.objects,
        manifest: with_footer_field(published, MANIFEST_OPTIONAL_AT, b"\xff\xff\xff\xff"),
    }
    expected = bucket.expected({("t", 0): found([run(0, 2)])})
    yield StoreVector("optional-features-manifest", objects, expected)
    topic, bucket = _one_topic()
    key = bucket.slot(0, {topic.data(): [run(2, 3)]})
    bucket.objects[key] = with_header_field(bucket.objects[key], REQUIRED_AT, b"\x00\x00\x00\x02")
    bucket.publish()
    yield StoreVector("newer-slot", bucket.objects, {"error": "newer"})


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

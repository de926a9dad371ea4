"""Conformance vectors of store objects without records: metadata snapshots, the metadata log and
leases.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.backup.format import MetadataFormat
from penstock.controller.backup.layout import HISTORY_GAP, LogObject, pack
from penstock.controller.metadata.codec import encode_raw
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    FeatureRecord,
    FrozenTopicRecord,
    GroupOffsets,
    MetadataOffset,
    NodeRecord,
    ObjectCommitted,
    ObjectPrepared,
    PartitionRecord,
    QuotaRecord,
    QuotaTarget,
    RangeEntry,
    Record,
    StreamCreated,
    StreamForked,
    StreamOpened,
    StreamTrimmed,
    TopicRecord,
    TrimGrace,
    WalRecord,
)
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.messages import Base, Endpoint, Members
from penstock.stream.format.keys import backup_key, data_key, lease_key, snapshot_key
from penstock.stream.format.manifest.lease import LEASE_MS_MAX
from penstock.stream.ports import ObjectRole
from tests.formats.batches import BASE_MS
from tests.support.newer_formats import with_metadata_version

CLUSTER = "vectors"
TERM = 3
_SNAPSHOT = MetadataFormat(b"PNSTSNAP", version=2)
_TOPIC, _FROZEN = UUID(int=0xFEED << 64 | 1), UUID(int=0xFEED << 64 | 2)
_MEMBERS = Members((0, 2), (1,), (Endpoint(0, "127.0.0.1:9093", "a" * 22),), 4)
_KEY = data_key(ObjectId(6699))


@dataclass(frozen=True)
class MetadataVector:
    """An object with its contents, or with the reason to refuse it."""

    name: str
    data: bytes
    expected: dict[str, Any]


@dataclass(frozen=True)
class ChainVector:
    """A store with snapshots and log objects, and the records that a reader must have after reading
    them.
    """

    name: str
    objects: dict[str, bytes]
    expected: dict[str, Any]


RECORDS: Sequence[Record] = (
    ClusterRecord(CLUSTER),
    FeatureRecord("transaction.version", 2),
    ConfigRecord(2, "orders", "retention.ms", "-1"),
    NodeRecord(NodeId(1), NodeEpoch(7), UUID(int=9), "broker-1", 9092, "10.0.0.1", "rack-a", False),
    WalRecord(NodeId(1), NodeEpoch(7), WalSequence(5)),
    TopicRecord(_TOPIC, "orders"),
    StreamCreated(StreamId(10), _TOPIC, 0, "meta"),
    StreamCreated(StreamId(11), _TOPIC, 0, "data"),
    StreamCreated(StreamId(12), _TOPIC, 0, "txn"),
    PartitionRecord(
        _TOPIC,
        0,
        (NodeId(1),),
        NodeId(1),
        NodeEpoch(7),
        StreamEpoch(4),
        StreamId(10),
        StreamId(11),
        StreamId(12),
    ),
    StreamOpened(StreamId(11), StreamEpoch(4), NodeId(1), NodeEpoch(7)),
    ObjectPrepared(ObjectId(6699), _KEY, 3_600_000, MetadataOffset(11)),
    ObjectCommitted(
        ObjectId(6699),
        _KEY,
        ObjectRole.STREAM,
        293,
        Millis(BASE_MS),
        (RangeEntry(StreamId(11), Offset(0), Offset(6), 6, 77, Millis(BASE_MS)),),
    ),
    StreamCreated(StreamId(20), _FROZEN, 0, "data"),
    StreamForked(StreamId(20), StreamId(11), Offset(6)),
    FrozenTopicRecord(
        _FROZEN,
        "orders",
        "nightly",
        (("retention.ms", "-1"),),
        Millis(BASE_MS),
        -1,
        MetadataOffset(13),
        (GroupOffsets("g", ((0, Offset(3)),)),),
    ),
    StreamTrimmed(
        StreamId(11), Offset(2), TrimGrace(MetadataOffset(16), Millis(BASE_MS), 3_600_000)
    ),
)
"""The start of a metadata history, in log order."""

QUOTAS: Sequence[Record] = (
    QuotaRecord((QuotaTarget("user", "alice"),), "producer_byte_rate", 1_000_000.0),
    QuotaRecord(
        (QuotaTarget("client-id", None), QuotaTarget("user", "alice")), "request_percentage", 12.5
    ),
    QuotaRecord((QuotaTarget("ip", "10.0.0.1"),), "connection_creation_rate", 5.0),
    QuotaRecord((QuotaTarget("user", "alice"),), "producer_byte_rate", None),
)
"""Records that were added after formats 1.0."""


def vectors() -> Iterator[MetadataVector]:
    yield from _snapshots()
    yield from _log()
    yield from _leases()


def _snapshots() -> Iterator[MetadataVector]:
    offset = len(RECORDS)
    records = image_records(RECORDS)
    data = snapshot(offset, records)
    key = snapshot_key(CLUSTER, offset, TERM)
    found = {
        "kind": "snapshot",
        "key": key,
        **_base(offset),
        "cluster_id": CLUSTER,
        "records": _shown(records),
    }
    yield MetadataVector("snapshot", data, found)
    yield from _refused("snapshot", key, data, version=3)


def _log() -> Iterator[MetadataVector]:
    item = log_object(4, 9)
    key, data = backup_key(CLUSTER, 4), b"".join(pack(item))
    yield MetadataVector("log", data, {**_log_json(item), "records": _shown(RECORDS[4:9])})
    yield from _refused("log", key, data, version=2)
    base = Base(101, TERM, 17 + len(QUOTAS), _MEMBERS)
    quotas = LogObject(17, base, BASE_MS, CLUSTER, False, encode_raw(QUOTAS))
    packed = b"".join(pack(quotas))
    yield MetadataVector("log-quotas", packed, {**_log_json(quotas), "records": _shown(QUOTAS)})
    fence = fence_at(9)
    yield MetadataVector("log-fence", b"".join(pack(fence)), {**_log_json(fence), "records": []})
    longer = msgspec.msgpack.decode(msgspec.msgpack.encode(item))
    longer[1] += ["added"]
    longer[5] = [[*record, "added"] for record in longer[5]]
    sealed = MetadataFormat(b"PNSTMLOG", version=1).pack(msgspec.msgpack.encode([*longer, "added"]))
    yield MetadataVector(
        "log-longer-arrays",
        b"".join(sealed),
        {**_log_json(item), "records": _shown(RECORDS[4:9])},
    )
    longer[5][0][0] = "from-a-later-version"
    sealed = MetadataFormat(b"PNSTMLOG", version=1).pack(msgspec.msgpack.encode(longer))
    wrong = {"kind": "log", "key": key, "error": "newer"}
    yield MetadataVector("log-unknown-record", b"".join(sealed), wrong)


def _refused(kind: str, key: str, data: bytes, *, version: int) -> Iterator[MetadataVector]:
    newer = with_metadata_version(data, version)
    flipped = data[:11] + bytes([data[11] ^ 0x10]) + data[12:]
    for what, error, wrong in (
        ("newer", "newer", newer),
        ("damaged", "damaged", data[:-9] + bytes([data[-9] ^ 0x10]) + data[-8:]),
        ("damaged-version", "damaged", flipped),
        ("truncated", "damaged", data[:-1]),
    ):
        yield MetadataVector(f"{kind}-{what}", wrong, {"kind": kind, "key": key, "error": error})


def _leases() -> Iterator[MetadataVector]:
    lease_id = UUID(int=0xBEEF << 64 | 7)
    fields = {
        "owner": "a reader",
        "ttl_ms": 600_000,
        "manifest_version": 42,
        "metadata_offset": 500,
        "published_ms": BASE_MS,
    }
    found = {
        "kind": "lease",
        "key": lease_key(CLUSTER, lease_id, 12),
        "lease_id": str(lease_id),
        "serial": 12,
        **fields,
    }
    yield MetadataVector("lease", json.dumps(fields).encode(), {**found, "holds_from": 500})
    more = json.dumps({"added": [1], **fields}).encode()
    yield MetadataVector("lease-more-fields", more, {**found, "holds_from": 500})
    everything = {"kind": "lease", "key": found["key"], "error": "damaged", "holds_from": 0}
    yield MetadataVector("lease-truncated", json.dumps(fields).encode()[:-2], everything)
    # The manifest referenced by the lease is older than seven days when the reader looks.
    old = fields | {"published_ms": BASE_MS - LEASE_MS_MAX}
    yield MetadataVector(
        "lease-of-an-old-manifest",
        json.dumps(old).encode(),
        {**found, **old, "holds_from": None},
    )


def chains() -> Iterator[ChainVector]:
    """Chains: a snapshot in the middle, a late copy that overlaps, an object after the fence."""
    objects = {snapshot_key(CLUSTER, 7, TERM): snapshot(7, image_records(RECORDS[:7]))}
    whole = (log_object(0, 4), log_object(4, 9), log_object(9, 12), log_object(12, 17))
    for item in (*whole, log_object(6, 8), log_object(8, 11), fence_at(17)):
        objects[backup_key(CLUSTER, item.first_offset)] = b"".join(pack(item))
    expected = {
        "cluster_id": CLUSTER,
        "snapshot_offset": 7,
        "end_offset": 17,
        "ended_by_fence": True,
        "next_history": 17 + HISTORY_GAP,
        "records_behind_the_snapshot": _shown(RECORDS[7:]),
    }
    yield ChainVector("metadata-log", objects, expected)


def image_records(log: Sequence[Record]) -> list[Record]:
    """Return the records of a snapshot after this log: the same state in a different order."""
    image = MetadataImage()
    image.apply_all(log)
    return list(ImageCopy.of(image).records())


def snapshot(offset: int, records: Sequence[Record]) -> bytes:
    body = (Base(90, TERM, offset, _MEMBERS), CLUSTER, encode_raw(records))
    return b"".join(_SNAPSHOT.pack(msgspec.msgpack.encode(body)))


def log_object(first: int, end: int) -> LogObject:
    base = Base(70 + end, TERM, end, _MEMBERS)
    return LogObject(first, base, BASE_MS, CLUSTER, False, encode_raw(RECORDS[first:end]))


def fence_at(offset: int) -> LogObject:
    base = Base(1 << 20, TERM + 1, offset + HISTORY_GAP, Members((0,)))
    return LogObject(offset, base, BASE_MS, CLUSTER, True, [])


def _log_json(item: LogObject) -> dict[str, Any]:
    return {
        "kind": "log",
        "key": backup_key(CLUSTER, item.first_offset),
        "first_offset": item.first_offset,
        **_base_json(item.base),
        "created_ms": item.created_ms,
        "cluster_id": item.cluster_id,
        "is_fence": item.is_fence,
        "end_offset": item.end_offset,
    }


def _base(offset: int) -> dict[str, Any]:
    return _base_json(Base(90, TERM, offset, _MEMBERS))


def _base_json(base: Base) -> dict[str, Any]:
    return {
        "index": base.index,
        "term": base.term,
        "offset": base.offset,
        "members": msgspec.to_builtins(base.members),
    }


def _shown(records: Sequence[Record]) -> list[Any]:
    """Return the records as arrays, in the form of the expected results."""
    return [_plain(msgspec.msgpack.decode(raw)) for raw in encode_raw(records)]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, list) else value

"""The records of consumer, share and streams groups in `__consumer_offsets`, in Kafka's format.

Keys: version 3 = group, 4 = partition metadata (written before Kafka 4.1; skipped), 5 = member
metadata, 6 = target assignment epoch, 7 = target assignment of a member, 8 = current assignment of
a member, 16 = topics of a regular expression. Share groups have 10 = member metadata, 11 = group,
12 = target assignment epoch, 13 = target assignment of a member, 14 = current assignment of a
member, 15 = partitions with a state. Streams groups have 17 = group, 19 = member metadata, 20 =
target assignment epoch, 21 = target assignment of a member, 22 = current assignment of a member,
23 = topology. All values have version 0, which is flexible. A null value is a tombstone.
Source: Kafka `ConsumerGroup*Key.json`, `ConsumerGroup*Value.json`, `ShareGroup*.json`,
`StreamsGroup*.json`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, TypeAlias

from penstock.broker.groups.consumer.fields import (
    read_names,
    read_partitions,
    write_names,
    write_partitions,
)
from penstock.broker.groups.consumer.model import (
    Assignment,
    ClassicMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
)
from penstock.broker.groups.consumer.share_records import (
    read_share_assignment,
    read_share_epoch,
    read_share_metadata,
    read_share_partitions,
    write_share_assignment,
    write_share_epoch,
    write_share_metadata,
    write_share_partitions,
)
from penstock.broker.groups.consumer.share_values import (
    ShareAssignment,
    ShareEpoch,
    ShareMetadata,
    SharePartitions,
)
from penstock.broker.groups.consumer.streams_records import (
    read_streams_assignment,
    read_streams_epoch,
    read_streams_metadata,
    read_streams_target,
    read_topology,
    write_streams_assignment,
    write_streams_epoch,
    write_streams_metadata,
    write_streams_target,
    write_topology,
)
from penstock.broker.groups.consumer.streams_values import (
    StreamsAssignment,
    StreamsEpoch,
    StreamsMetadata,
    Tasks,
    Topology,
)
from penstock.broker.groups.model import GroupType
from penstock.broker.groups.records import MalformedGroupRecord
from penstock.broker.wire.errors import WireError
from penstock.broker.wire.primitives import Reader, Writer

_VALUE_VERSION: Final = 0
_METADATA_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0


class ConsumerRecordKind(IntEnum):
    """The version of the key."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    SHARE_MEMBER = 10
    SHARE_GROUP = 11
    SHARE_TARGET_EPOCH = 12
    SHARE_TARGET = 13
    SHARE_CURRENT = 14
    SHARE_PARTITIONS = 15
    REGEX = 16
    STREAMS_GROUP = 17
    STREAMS_MEMBER = 19
    STREAMS_TARGET_EPOCH = 20
    STREAMS_TARGET = 21
    STREAMS_CURRENT = 22
    STREAMS_TOPOLOGY = 23

    @property
    def group_type(self) -> GroupType:
        """Return the type of the groups that have such records."""
        if self >= ConsumerRecordKind.STREAMS_GROUP:
            return GroupType.STREAMS
        if ConsumerRecordKind.SHARE_MEMBER <= self <= ConsumerRecordKind.SHARE_PARTITIONS:
            return GroupType.SHARE
        return GroupType.CONSUMER


_KINDS: Final = {kind.value: kind for kind in ConsumerRecordKind}
_NAMED: Final = frozenset(
    {
        ConsumerRecordKind.MEMBER,
        ConsumerRecordKind.TARGET,
        ConsumerRecordKind.CURRENT,
        ConsumerRecordKind.SHARE_MEMBER,
        ConsumerRecordKind.SHARE_TARGET,
        ConsumerRecordKind.SHARE_CURRENT,
        ConsumerRecordKind.REGEX,
        ConsumerRecordKind.STREAMS_MEMBER,
        ConsumerRecordKind.STREAMS_TARGET,
        ConsumerRecordKind.STREAMS_CURRENT,
    }
)


@dataclass(frozen=True, slots=True)
class ConsumerRecordKey:
    kind: ConsumerRecordKind
    group_id: str
    name: str = ""
    """The member id or the regular expression."""


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    epoch: int
    metadata_hash: int
    """Of the subscribed topics: it changes with their partitions. 0: there are none."""


ConsumerValue: TypeAlias = (
    GroupEpoch
    | MemberMetadata
    | int
    | Assignment
    | CurrentAssignment
    | ShareMetadata
    | ShareEpoch
    | ShareAssignment
    | SharePartitions
    | ResolvedRegex
    | StreamsEpoch
    | StreamsMetadata
    | Tasks
    | StreamsAssignment
    | Topology
)
"""In the order of ConsumerRecordKind; the target assignment epochs are ints."""
ConsumerRecord: TypeAlias = tuple[ConsumerRecordKey, ConsumerValue | None]


def encode_consumer_key(key: ConsumerRecordKey) -> bytes:
    writer = Writer()
    writer += int(key.kind).to_bytes(2, "big")
    writer.string(key.group_id, False)
    if key.kind in _NAMED:
        writer.string(key.name, False)
    return bytes(writer)


def decode_consumer_key(data: bytes) -> ConsumerRecordKey | None:
    """Decode a key. None: a key of another kind of group. Raises MalformedGroupRecord."""
    try:
        reader = Reader(data)
        kind = _KINDS.get(reader.i16())
        if kind is None:
            return None
        group_id = reader.string(False)
        return ConsumerRecordKey(kind, group_id, reader.string(False) if kind in _NAMED else "")
    except WireError as error:
        raise MalformedGroupRecord(str(error)) from error


def encode_consumer_value(value: ConsumerValue) -> bytes:
    writer = Writer(_VALUE_VERSION.to_bytes(2, "big"))
    _WRITERS.get(type(value), _write_target)(writer, value)
    return bytes(writer)


def decode_consumer_value(kind: ConsumerRecordKind, data: bytes) -> ConsumerValue:
    """Decode the value of a key of this kind. Raises MalformedGroupRecord."""
    try:
        reader = Reader(data)
        version = reader.i16()
        if version != _VALUE_VERSION:
            raise MalformedGroupRecord(
                f"unknown version {version} of a {kind.name} value ({_VALUE_VERSION} is known)"
            )
        return _READERS[kind](reader)
    except (WireError, ValueError) as error:
        raise MalformedGroupRecord(str(error)) from error


def _write_group(writer: Writer, value: GroupEpoch) -> None:
    writer += value.epoch.to_bytes(4, "big", signed=True)
    if value.metadata_hash == 0:
        writer.append(0)
        return
    writer.uvarint(1)
    writer.tagged(_METADATA_HASH_TAG, Writer(value.metadata_hash.to_bytes(8, "big", signed=True)))


def _read_group(reader: Reader) -> GroupEpoch:
    epoch, metadata_hash = reader.i32(), 0
    for _ in range(reader.tag_count()):
        tag, stop = reader.tag()
        if tag == _METADATA_HASH_TAG:
            metadata_hash = reader.i64()
        else:
            reader.pos = stop
        reader.end_tag(stop)
    return GroupEpoch(epoch, metadata_hash)


def _write_member(writer: Writer, value: MemberMetadata) -> None:
    writer.nullable_string(value.instance_id, True)
    writer.nullable_string(value.rack_id, True)
    writer.string(value.client_id, True)
    writer.string(value.client_host, True)
    write_names(writer, value.subscribed_names)
    writer.nullable_string(value.subscribed_regex, True)
    writer += value.rebalance_timeout_ms.to_bytes(4, "big", signed=True)
    writer.nullable_string(value.server_assignor, True)
    writer.uvarint(1)
    writer.tagged(_CLASSIC_TAG, _classic(value.classic))


def _read_member(reader: Reader) -> MemberMetadata:
    metadata = MemberMetadata(
        reader.nullable_string(True),
        reader.nullable_string(True),
        reader.string(True),
        reader.string(True),
        tuple(read_names(reader)),
        reader.nullable_string(True) or "",
        reader.i32(),
        reader.nullable_string(True),
    )
    classic: ClassicMetadata | None = None
    for _ in range(reader.tag_count()):
        tag, stop = reader.tag()
        if tag == _CLASSIC_TAG and reader.i8() > 0:
            classic = _read_classic(reader)
        else:
            reader.pos = stop
        reader.end_tag(stop)
    return replace(metadata, classic=classic)


def _classic(value: ClassicMetadata | None) -> Writer:
    """Return the tagged struct behind a byte that is 0 for null, as Kafka writes it."""
    if value is None:
        return Writer(b"\x00")
    writer = Writer(b"\x01")
    writer += value.session_timeout_ms.to_bytes(4, "big", signed=True)
    writer.length(len(value.protocols), True)
    for name, subscription in value.protocols:
        writer.string(name, True)
        writer.byte_string(subscription, True)
        writer.append(0)
    writer.append(0)
    return writer


def _read_classic(reader: Reader) -> ClassicMetadata:
    session_timeout_ms = reader.i32()
    protocols: list[tuple[str, bytes]] = []
    for _ in range(reader.count(True, 3)):
        protocols.append((reader.string(True), bytes(reader.byte_string(True))))
        reader.skip_tags()
    reader.skip_tags()
    return ClassicMetadata(session_timeout_ms, tuple(protocols))


def _write_epoch(writer: Writer, epoch: int) -> None:
    writer += epoch.to_bytes(4, "big", signed=True)
    writer.append(0)


def _read_epoch(reader: Reader) -> int:
    epoch = reader.i32()
    reader.skip_tags()
    return epoch


def _write_current(writer: Writer, value: CurrentAssignment) -> None:
    writer += value.epoch.to_bytes(4, "big", signed=True)
    writer += value.previous_epoch.to_bytes(4, "big", signed=True)
    writer.append(value.state.value)
    write_partitions(writer, value.assigned)
    write_partitions(writer, value.pending_revocation)
    writer.append(0)


def _read_current(reader: Reader) -> CurrentAssignment:
    value = CurrentAssignment(
        reader.i32(),
        reader.i32(),
        MemberState(reader.i8()),
        read_partitions(reader),
        read_partitions(reader),
    )
    reader.skip_tags()
    return value


def _write_regex(writer: Writer, value: ResolvedRegex) -> None:
    write_names(writer, sorted(value.topics))
    writer += value.version.to_bytes(8, "big", signed=True)
    writer += value.timestamp_ms.to_bytes(8, "big", signed=True)
    writer.append(0)


def _read_regex(reader: Reader) -> ResolvedRegex:
    value = ResolvedRegex(frozenset(read_names(reader)), reader.i64(), reader.i64())
    reader.skip_tags()
    return value


def _write_target(writer: Writer, value: Assignment) -> None:
    write_partitions(writer, value)
    writer.append(0)


def _read_target(reader: Reader) -> Assignment:
    partitions = read_partitions(reader)
    reader.skip_tags()
    return partitions


def _skip(reader: Reader) -> int:
    return 0


_WRITERS: Final[dict[type, Callable[[Writer, Any], None]]] = {
    GroupEpoch: _write_group,
    MemberMetadata: _write_member,
    int: _write_epoch,
    CurrentAssignment: _write_current,
    ResolvedRegex: _write_regex,
    ShareMetadata: write_share_metadata,
    ShareEpoch: write_share_epoch,
    ShareAssignment: write_share_assignment,
    SharePartitions: write_share_partitions,
    StreamsEpoch: write_streams_epoch,
    StreamsMetadata: write_streams_metadata,
    Tasks: write_streams_target,
    StreamsAssignment: write_streams_assignment,
    Topology: write_topology,
}
"""Other values are target assignments."""

_READERS: Final[dict[ConsumerRecordKind, Callable[[Reader], ConsumerValue]]] = {
    ConsumerRecordKind.GROUP: _read_group,
    ConsumerRecordKind.PARTITION_METADATA: _skip,
    ConsumerRecordKind.MEMBER: _read_member,
    ConsumerRecordKind.TARGET_EPOCH: _read_epoch,
    ConsumerRecordKind.TARGET: _read_target,
    ConsumerRecordKind.CURRENT: _read_current,
    ConsumerRecordKind.SHARE_MEMBER: read_share_metadata,
    ConsumerRecordKind.SHARE_GROUP: read_share_epoch,
    ConsumerRecordKind.SHARE_TARGET_EPOCH: _read_epoch,
    ConsumerRecordKind.SHARE_TARGET: _read_target,
    ConsumerRecordKind.SHARE_CURRENT: read_share_assignment,
    ConsumerRecordKind.SHARE_PARTITIONS: read_share_partitions,
    ConsumerRecordKind.REGEX: _read_regex,
    ConsumerRecordKind.STREAMS_GROUP: read_streams_epoch,
    ConsumerRecordKind.STREAMS_MEMBER: read_streams_metadata,
    ConsumerRecordKind.STREAMS_TARGET_EPOCH: _read_epoch,
    ConsumerRecordKind.STREAMS_TARGET: read_streams_target,
    ConsumerRecordKind.STREAMS_CURRENT: read_streams_assignment,
    ConsumerRecordKind.STREAMS_TOPOLOGY: read_topology,
}

"""The record keys of consumer, share and streams groups, and common fields of their values, in
Kafka's format.

The version of a key identifies the kind of record. All values have version 0, which is flexible. A
null value is a tombstone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import Assignment, GroupType
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

NULL_UUID: Final = UUID(int=0)


class MalformedGroupRecord(Exception):
    """Raised for a key or value in an unknown format. When a partition is loaded, such records are
    counted and skipped.
    """


class ConsumerRecordKind(IntEnum):
    """The kind of a record, which is the version of its key."""

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
        """Return the type of the groups that use this kind of record."""
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
    """The member id or the regular expression, depending on the kind."""


ConsumerValue: TypeAlias = object
"""The value of a record; its class depends on the kind of the key."""
ConsumerRecord: TypeAlias = tuple[ConsumerRecordKey, ConsumerValue | None]
GroupRecordCodec: TypeAlias = tuple[Callable[[Writer, Any], None], Callable[[Reader], object]]
"""Encode and decode the values of one kind of record."""


def encode_consumer_key(key: ConsumerRecordKey) -> bytes:
    writer = Writer()
    writer += int(key.kind).to_bytes(2, "big")
    writer.string(key.group_id, False)
    if key.kind in _NAMED:
        writer.string(key.name, False)
    return bytes(writer)


def decode_consumer_key(data: bytes) -> ConsumerRecordKey | None:
    """Decode a key. Return None for a key of another group protocol. Raises
    MalformedGroupRecord.
    """
    try:
        reader = Reader(data)
        kind = _KINDS.get(reader.i16())
        if kind is None:
            return None
        group_id = reader.string(False)
        return ConsumerRecordKey(kind, group_id, reader.string(False) if kind in _NAMED else "")
    except WireError as error:
        raise MalformedGroupRecord(str(error)) from error


def write_epoch(writer: Writer, epoch: int) -> None:
    writer += epoch.to_bytes(4, "big", signed=True)
    writer.append(0)


def read_epoch(reader: Reader) -> int:
    epoch = reader.i32()
    reader.skip_tags()
    return epoch


def write_target(writer: Writer, value: Assignment) -> None:
    write_partitions(writer, value)
    writer.append(0)


def read_target(reader: Reader) -> Assignment:
    partitions = read_partitions(reader)
    reader.skip_tags()
    return partitions


def write_names(writer: Writer, names: Sequence[str]) -> None:
    writer.length(len(names), True)
    for name in names:
        writer.string(name, True)


def read_names(reader: Reader) -> list[str]:
    return [reader.string(True) for _ in range(reader.count(True, 1))]


def write_partitions(writer: Writer, partitions: Assignment) -> None:
    writer.length(len(partitions), True)
    for topic_id, indexes in sorted(partitions.items(), key=lambda item: item[0].int):
        writer.uuid(topic_id)
        writer.i32s(sorted(indexes), True)
        writer.append(0)


def read_partitions(reader: Reader) -> Assignment:
    partitions: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count(True, 18)):
        topic_id = reader.uuid() or NULL_UUID
        partitions[topic_id] = frozenset(reader.i32s(True))
        reader.skip_tags()
    return partitions

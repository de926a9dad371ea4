"""Encode and decode the records of `__consumer_offsets` in Kafka's binary format, so that Kafka
tools can read the topic.
"""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.broker.groups.classic.model import Member, Protocol
from penstock.broker.groups.common.records import MalformedGroupRecord
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
PLAIN_OFFSETS: Final = 3
"""The last version of offset values without a topic id."""
OFFSETS_WITH_IDS: Final = 4
"""The first version of offset values that may contain a topic id. It is flexible."""
_TOPIC_ID_TAG: Final = 0
_OFFSET_HEAD: Final = struct.Struct(">hqi")
GROUP_VALUE_VERSION = 3


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: UUID | None = None
    """None if the record contains no topic id and the topic was not found by name."""
    has_stored_id: bool = False
    """Whether the record in the log contains the topic id (version 4)."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The part of a group that is stored in its record."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[Member, ...]


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def i16(self, value: int) -> "_Writer":
        self.data += _I16.pack(value)
        return self

    def i32(self, value: int) -> "_Writer":
        self.data += _I32.pack(value)
        return self

    def i64(self, value: int) -> "_Writer":
        self.data += _I64.pack(value)
        return self

    def text(self, value: str | None) -> "_Writer":
        if value is None:
            return self.i16(-1)
        encoded = value.encode()
        self.i16(len(encoded))
        self.data += encoded
        return self

    def blob(self, value: bytes) -> "_Writer":
        self.i32(len(value))
        self.data += value
        return self


class _Reader:
    """A bounds-checked reader, needed because the log may be corrupt or written by another tool."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise MalformedGroupRecord(
                f"{length} bytes declared at {self._at}, {len(self._data) - self._at} left"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def i16(self) -> int:
        return int(_I16.unpack(self._take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self._take(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self._take(8))[0])

    def nullable_text(self) -> str | None:
        length = self.i16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedGroupRecord(str(error)) from error

    def text(self) -> str:
        value = self.nullable_text()
        if value is None:
            raise MalformedGroupRecord("null instead of a string")
        return value

    def blob(self) -> bytes:
        return self._take(self.i32())

    def count(self) -> int:
        count = self.i32()
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedGroupRecord(
                f"count {count} with {len(self._data) - self._at} bytes left"
            )
        return count


def encode_offset_key(key: OffsetKey) -> bytes:
    return bytes(
        _Writer().i16(OFFSET_KEY_VERSION).text(key.group_id).text(key.topic).i32(key.partition).data
    )


def encode_group_key(key: GroupKey) -> bytes:
    return bytes(_Writer().i16(GROUP_KEY_VERSION).text(key.group_id).data)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key. Return None for the key version of a later Kafka version, which is skipped.
    Raises MalformedGroupRecord.
    """
    reader = _Reader(data)
    version = reader.i16()
    if version in {0, OFFSET_KEY_VERSION}:
        return OffsetKey(reader.text(), reader.text(), reader.i32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.text())
    return None


def encode_offset_value(value: CommittedOffset) -> bytes:
    if value.has_stored_id and value.topic_id is not None:
        return _encode_with_id(value, value.topic_id)
    out = (
        _Writer()
        .i16(PLAIN_OFFSETS)
        .i64(value.offset)
        .i32(value.leader_epoch)
        .text(value.metadata)
        .i64(value.commit_timestamp_ms)
    )
    return bytes(out.data)


def _encode_with_id(value: CommittedOffset, topic_id: UUID) -> bytes:
    writer = Writer(_OFFSET_HEAD.pack(OFFSETS_WITH_IDS, value.offset, value.leader_epoch))
    writer.string(value.metadata, True)
    writer += _I64.pack(value.commit_timestamp_ms)
    writer.uvarint(1)
    writer.tagged(_TOPIC_ID_TAG, Writer(topic_id.bytes))
    return bytes(writer)


def _decode_with_id(data: bytes) -> CommittedOffset:
    topic_id: UUID | None = None
    try:
        reader = Reader(data)
        _, offset, leader_epoch = reader.unpack(_OFFSET_HEAD)
        metadata, timestamp_ms = reader.string(True), reader.i64()
        for _ in range(reader.tag_count()):
            tag, stop = reader.tag()
            if tag == _TOPIC_ID_TAG:
                topic_id = reader.uuid()
                reader.end_tag(stop)
            else:
                reader.take(stop - reader.pos)
    except WireError as error:
        raise MalformedGroupRecord(str(error)) from error
    return CommittedOffset(
        offset, leader_epoch, metadata, timestamp_ms, topic_id, topic_id is not None
    )


def decode_offset_value(data: bytes) -> CommittedOffset:
    reader = _Reader(data)
    version = reader.i16()
    if version == OFFSETS_WITH_IDS:
        return _decode_with_id(data)
    if not 0 <= version <= PLAIN_OFFSETS:
        raise MalformedGroupRecord(
            f"unknown offset value version {version} (0 to {OFFSETS_WITH_IDS} are known)"
        )
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    return CommittedOffset(offset, leader_epoch, reader.text(), reader.i64())


def encode_group_value(value: GroupSnapshot) -> bytes:
    out = (
        _Writer()
        .i16(GROUP_VALUE_VERSION)
        .text(value.protocol_type)
        .i32(value.generation)
        .text(value.protocol)
        .text(value.leader)
    )
    out.i64(value.state_timestamp_ms).i32(len(value.members))
    for member in value.members:
        out.text(member.member_id).text(member.instance_id).text(member.client_id).text(
            member.client_host
        )
        out.i32(member.rebalance_timeout_ms).i32(member.session_timeout_ms)
        out.blob(member.metadata_for(value.protocol or "")).blob(member.assignment)
    return bytes(out.data)


def decode_group_value(data: bytes) -> GroupSnapshot:
    """Decode a group. The decoded members offer only the selected protocol, because Kafka's format
    does not store others.
    """
    reader = _Reader(data)
    version = reader.i16()
    if not 0 <= version <= GROUP_VALUE_VERSION:
        raise MalformedGroupRecord(
            f"unknown group value version {version} (0 to {GROUP_VALUE_VERSION} are known)"
        )
    protocol_type, generation = reader.text(), reader.i32()
    protocol, leader = reader.nullable_text(), reader.nullable_text()
    state_timestamp_ms = reader.i64() if version >= 2 else -1
    members = tuple(
        _decode_member(reader, version, protocol_type, protocol) for _ in range(reader.count())
    )
    return GroupSnapshot(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def _decode_member(
    reader: _Reader, version: int, protocol_type: str, protocol: str | None
) -> Member:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_timeout_ms = reader.i32() if version >= 1 else 0
    session_timeout_ms = reader.i32()
    subscription, assignment = reader.blob(), reader.blob()
    return Member(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms,
        rebalance_timeout_ms or session_timeout_ms,
        protocol_type,
        (Protocol(protocol or "", subscription),),
        assignment,
    )

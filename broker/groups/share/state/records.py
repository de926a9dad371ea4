"""Encode and decode the records of `__share_group_state` in Kafka's binary format.

Keys have version 0 for snapshots and 1 for updates, and contain group, topic id and partition.
Values have version 0, which is flexible. A snapshot key with a null value deletes the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from penstock.broker.groups.share.state.model import NO_COUNT, SharePartitionKey, StateBatch
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

SNAPSHOT: Final = 0
UPDATE: Final = 1
_VALUE_VERSION: Final = 0
_COUNT_TAG: Final = 0
_BATCH_BYTES: Final = 20
_NULL_UUID: Final = UUID(int=0)


class MalformedShareRecord(Exception):
    """Raised for a record that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """The complete state of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_COUNT
    create_ms: int = 0
    write_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """The changes since the last snapshot or update."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = NO_COUNT
    batches: tuple[StateBatch, ...] = ()


ShareValue: TypeAlias = ShareSnapshot | ShareUpdate


def encode_share_key(key: SharePartitionKey, kind: int) -> bytes:
    writer = Writer(kind.to_bytes(2, "big"))
    writer.string(key.group_id, False)
    writer.uuid(key.topic_id)
    writer += key.partition.to_bytes(4, "big", signed=True)
    return bytes(writer)


def decode_share_key(data: bytes) -> tuple[int, SharePartitionKey] | None:
    """Return the kind and the share partition, or None for the key of a later Kafka version. Raises
    MalformedShareRecord.
    """
    try:
        reader = Reader(data)
        kind = reader.i16()
        if kind not in {SNAPSHOT, UPDATE}:
            return None
        group_id = reader.string(False)
        return kind, SharePartitionKey(group_id, reader.uuid() or _NULL_UUID, reader.i32())
    except WireError as error:
        raise MalformedShareRecord(str(error)) from error


def encode_share_value(value: ShareValue) -> bytes:
    writer = Writer(_VALUE_VERSION.to_bytes(2, "big"))
    _write_i32(writer, value.snapshot_epoch)
    if isinstance(value, ShareSnapshot):
        _write_i32(writer, value.state_epoch)
    _write_i32(writer, value.leader_epoch)
    _write_i64(writer, value.start_offset)
    if isinstance(value, ShareSnapshot):
        _write_i64(writer, value.create_ms)
        _write_i64(writer, value.write_ms)
    _write_batches(writer, value.batches)
    if value.delivery_complete_count == NO_COUNT:
        writer.append(0)
    else:
        writer.uvarint(1)
        count = value.delivery_complete_count.to_bytes(4, "big", signed=True)
        writer.tagged(_COUNT_TAG, Writer(count))
    return bytes(writer)


def decode_share_value(kind: int, data: bytes) -> ShareValue:
    """Decode the value of a record with a key of this kind. Raises MalformedShareRecord."""
    try:
        reader = Reader(data)
        version = reader.i16()
        if version != _VALUE_VERSION:
            raise MalformedShareRecord(f"unknown version {version} ({_VALUE_VERSION} is supported)")
        return _read_snapshot(reader) if kind == SNAPSHOT else _read_update(reader)
    except WireError as error:
        raise MalformedShareRecord(str(error)) from error


def _read_snapshot(reader: Reader) -> ShareSnapshot:
    snapshot_epoch, state_epoch, leader_epoch = reader.i32(), reader.i32(), reader.i32()
    start_offset, create_ms, write_ms = reader.i64(), reader.i64(), reader.i64()
    batches = _read_batches(reader)
    return ShareSnapshot(
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start_offset,
        _read_count(reader),
        create_ms,
        write_ms,
        batches,
    )


def _read_update(reader: Reader) -> ShareUpdate:
    snapshot_epoch, leader_epoch, start_offset = reader.i32(), reader.i32(), reader.i64()
    batches = _read_batches(reader)
    return ShareUpdate(snapshot_epoch, leader_epoch, start_offset, _read_count(reader), batches)


def _write_batches(writer: Writer, batches: Sequence[StateBatch]) -> None:
    writer.length(len(batches), True)
    for batch in batches:
        _write_i64(writer, batch.first_offset)
        _write_i64(writer, batch.last_offset)
        writer.append(batch.delivery_state)
        writer += batch.delivery_count.to_bytes(2, "big", signed=True)
        writer.append(0)


def _read_batches(reader: Reader) -> tuple[StateBatch, ...]:
    batches: list[StateBatch] = []
    for _ in range(reader.count(True, _BATCH_BYTES)):
        batches.append(StateBatch(reader.i64(), reader.i64(), reader.i8(), reader.i16()))
        reader.skip_tags()
    return tuple(batches)


def _read_count(reader: Reader) -> int:
    """Read the number of completed deliveries from the trailing tagged fields."""
    found = NO_COUNT
    for _ in range(reader.tag_count()):
        tag, stop = reader.tag()
        if tag == _COUNT_TAG:
            found = reader.i32()
        else:
            reader.pos = stop
        reader.end_tag(stop)
    return found


def _write_i32(writer: Writer, value: int) -> None:
    writer += value.to_bytes(4, "big", signed=True)


def _write_i64(writer: Writer, value: int) -> None:
    writer += value.to_bytes(8, "big", signed=True)

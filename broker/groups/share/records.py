"""Encode and decode the values of share group records, in Kafka's binary format."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from penstock.broker.groups.common.records import (
    NULL_UUID,
    ConsumerRecordKind,
    GroupRecordCodec,
    read_epoch,
    read_names,
    read_partitions,
    read_target,
    write_epoch,
    write_names,
    write_partitions,
    write_target,
)
from penstock.broker.groups.share.values import (
    NamedPartitions,
    ShareAssignment,
    ShareEpoch,
    ShareMetadata,
    SharePartitions,
)
from penstock.protocol.primitives import Reader, Writer

_STABLE: Final = 0
"""The only member state, because members share partitions and never have to revoke them."""


def _write_metadata(writer: Writer, value: ShareMetadata) -> None:
    writer.nullable_string(value.rack_id, True)
    writer.string(value.client_id, True)
    writer.string(value.client_host, True)
    write_names(writer, value.subscribed_names)
    writer.append(0)


def _read_metadata(reader: Reader) -> ShareMetadata:
    value = ShareMetadata(
        reader.nullable_string(True),
        reader.string(True),
        reader.string(True),
        tuple(read_names(reader)),
    )
    reader.skip_tags()
    return value


def _write_epoch(writer: Writer, value: ShareEpoch) -> None:
    writer += value.epoch.to_bytes(4, "big", signed=True)
    writer += value.metadata_hash.to_bytes(8, "big", signed=True)
    writer.append(0)


def _read_epoch(reader: Reader) -> ShareEpoch:
    value = ShareEpoch(reader.i32(), reader.i64())
    reader.skip_tags()
    return value


def _write_assignment(writer: Writer, value: ShareAssignment) -> None:
    writer += value.epoch.to_bytes(4, "big", signed=True)
    writer += value.previous_epoch.to_bytes(4, "big", signed=True)
    writer.append(_STABLE)
    write_partitions(writer, value.assigned)
    writer.append(0)


def _read_assignment(reader: Reader) -> ShareAssignment:
    epoch, previous_epoch = reader.i32(), reader.i32()
    reader.i8()
    value = ShareAssignment(epoch, previous_epoch, read_partitions(reader))
    reader.skip_tags()
    return value


def _write_partitions(writer: Writer, value: SharePartitions) -> None:
    _write_named(writer, value.initializing)
    _write_named(writer, value.initialized)
    writer.length(len(value.deleting), True)
    for topic_id, name in sorted(value.deleting.items(), key=lambda item: item[0].int):
        writer.uuid(topic_id)
        writer.string(name, True)
        writer.append(0)
    writer.append(0)


def _read_partitions(reader: Reader) -> SharePartitions:
    value = SharePartitions(_read_named(reader), _read_named(reader), _read_deleting(reader))
    reader.skip_tags()
    return value


def _write_named(writer: Writer, partitions: NamedPartitions) -> None:
    writer.length(len(partitions), True)
    for topic_id, (name, indexes) in sorted(partitions.items(), key=lambda item: item[0].int):
        writer.uuid(topic_id)
        writer.string(name, True)
        writer.i32s(sorted(indexes), True)
        writer.append(0)


def _read_named(reader: Reader) -> NamedPartitions:
    found: dict[UUID, tuple[str, frozenset[int]]] = {}
    for _ in range(reader.count(True, 19)):
        topic_id = reader.uuid() or NULL_UUID
        found[topic_id] = (reader.string(True), frozenset(reader.i32s(True)))
        reader.skip_tags()
    return found


def _read_deleting(reader: Reader) -> Mapping[UUID, str]:
    found: dict[UUID, str] = {}
    for _ in range(reader.count(True, 18)):
        topic_id = reader.uuid() or NULL_UUID
        found[topic_id] = reader.string(True)
        reader.skip_tags()
    return found


SHARE_CODECS: Final[dict[ConsumerRecordKind, GroupRecordCodec]] = {
    ConsumerRecordKind.SHARE_MEMBER: (_write_metadata, _read_metadata),
    ConsumerRecordKind.SHARE_GROUP: (_write_epoch, _read_epoch),
    ConsumerRecordKind.SHARE_TARGET_EPOCH: (write_epoch, read_epoch),
    ConsumerRecordKind.SHARE_TARGET: (write_target, read_target),
    ConsumerRecordKind.SHARE_CURRENT: (_write_assignment, _read_assignment),
    ConsumerRecordKind.SHARE_PARTITIONS: (_write_partitions, _read_partitions),
}

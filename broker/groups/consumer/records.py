"""Values of consumer group records in `__consumer_offsets`, in Kafka's format."""

from dataclasses import dataclass, replace
from typing import Final

from penstock.broker.groups.common.records import (
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
from penstock.broker.groups.consumer.model import (
    ClassicMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
)
from penstock.protocol.primitives import Reader, Writer

_METADATA_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    epoch: int
    metadata_hash: int
    """Hash of the subscribed topics and their partition counts; 0 if there are none."""


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
    """Encode the nullable struct as Kafka does, with a leading byte that is 0 for null."""
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


def _write_nothing(writer: Writer, value: object) -> None:
    """Do nothing, because partition metadata is read but never written."""


def _skip(reader: Reader) -> int:
    return 0


CONSUMER_CODECS: Final[dict[ConsumerRecordKind, GroupRecordCodec]] = {
    ConsumerRecordKind.GROUP: (_write_group, _read_group),
    ConsumerRecordKind.PARTITION_METADATA: (_write_nothing, _skip),
    ConsumerRecordKind.MEMBER: (_write_member, _read_member),
    ConsumerRecordKind.TARGET_EPOCH: (write_epoch, read_epoch),
    ConsumerRecordKind.TARGET: (write_target, read_target),
    ConsumerRecordKind.CURRENT: (_write_current, _read_current),
    ConsumerRecordKind.REGEX: (_write_regex, _read_regex),
}

"""Encode and decode the records of `__transaction_state` in Kafka's binary format, so that Kafka
tools can read the topic.
"""

import struct
from collections.abc import Iterable
from typing import Final

from penstock.broker.transactions.model import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from penstock.controller.metadata.features import TRANSACTION_VERSION
from penstock.controller.metadata.image import MetadataImage
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

KEY_VERSION: Final = 0
_VALUE_VERSION_MAX: Final = 1
_PREVIOUS_ID_TAG: Final = 0
_NEXT_ID_TAG: Final = 1
_CLIENT_VERSION_TAG: Final = 2

_I16: Final = struct.Struct(">h")
_I64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")


def record_version(image: MetadataImage) -> int:
    """Return the version of new values, which depends on the level of `transaction.version`."""
    return min(image.features.level(TRANSACTION_VERSION), _VALUE_VERSION_MAX)


class MalformedTransactionRecord(Exception):
    """Raised for a key or value in an unknown format. When a partition is loaded, such records are
    counted and skipped.
    """


def encode_key(transactional_id: str) -> bytes:
    writer = Writer()
    writer += _I16.pack(KEY_VERSION)
    writer.string(transactional_id, False)
    return bytes(writer)


def decode_key(data: bytes) -> str | None:
    """Return the transactional id, or None for the key version of a later Kafka version. Raises
    MalformedTransactionRecord.
    """
    try:
        reader = Reader(data)
        return reader.string(False) if reader.i16() == KEY_VERSION else None
    except WireError as error:
        raise MalformedTransactionRecord(str(error)) from error


def encode_value(metadata: TransactionMetadata, version: int = 0) -> bytes:
    """Encode a value. Version 1 (flexible, KIP-890) is used from level 1 of `transaction.version`
    on, and for values that version 0 cannot represent.
    """
    version = max(version, metadata.next_producer_id != NO_PRODUCER_ID)
    is_flexible = version >= 1
    writer = Writer()
    writer += _I16.pack(version)
    writer += _HEAD.pack(
        metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state
    )
    topics = group_by_topic(metadata.partitions)
    if topics or metadata.state is not TransactionState.EMPTY:
        writer.length(len(topics), is_flexible)
        for name, indexes in topics.items():
            writer.string(name, is_flexible)
            writer.i32s(indexes, is_flexible)
            if is_flexible:
                writer.append(0)
    else:
        writer.null(is_flexible)
    writer += _TIMES.pack(metadata.updated_ms, metadata.started_ms)
    if is_flexible:
        _write_tags(writer, metadata)
    return bytes(writer)


def _write_tags(writer: Writer, metadata: TransactionMetadata) -> None:
    """Write the tagged fields that differ from their defaults."""
    fields = [
        (tag, _I64.pack(producer_id))
        for tag, producer_id in (
            (_PREVIOUS_ID_TAG, metadata.last_producer_id),
            (_NEXT_ID_TAG, metadata.next_producer_id),
        )
        if producer_id != NO_PRODUCER_ID
    ]
    if metadata.client_version:
        fields.append((_CLIENT_VERSION_TAG, _I16.pack(metadata.client_version)))
    writer.uvarint(len(fields))
    for tag, data in fields:
        writer.uvarint(tag)
        writer.uvarint(len(data))
        writer += data


def _read_tags(reader: Reader) -> tuple[int, int, int]:
    """Return the previous producer id, the next producer id, and the client's version."""
    previous_id, next_id, client_version = NO_PRODUCER_ID, NO_PRODUCER_ID, 0
    for _ in range(reader.uvarint()):
        tag, data = reader.uvarint(), reader.take(reader.uvarint())
        if tag == _PREVIOUS_ID_TAG:
            (previous_id,) = _I64.unpack(data)
        elif tag == _NEXT_ID_TAG:
            (next_id,) = _I64.unpack(data)
        elif tag == _CLIENT_VERSION_TAG:
            (client_version,) = _I16.unpack(data)
    return previous_id, next_id, client_version


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    """Decode a value. Raises MalformedTransactionRecord."""
    try:
        reader = Reader(data)
        version = reader.i16()
        if not 0 <= version <= _VALUE_VERSION_MAX:
            raise MalformedTransactionRecord(
                f"unknown transaction value version {version} (0 to {_VALUE_VERSION_MAX} are known)"
            )
        is_flexible = version >= 1
        producer_id, producer_epoch, timeout_ms, status = reader.unpack(_HEAD)
        partitions = frozenset(_read_partitions(reader, is_flexible=is_flexible))
        updated_ms, started_ms = reader.unpack(_TIMES)
        tags = _read_tags(reader) if is_flexible else (NO_PRODUCER_ID, NO_PRODUCER_ID, 0)
        state = TransactionState(status)
    except (WireError, ValueError, struct.error) as error:
        raise MalformedTransactionRecord(str(error)) from error
    return TransactionMetadata(
        transactional_id,
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        partitions,
        started_ms,
        updated_ms,
        NO_EPOCH,
        *tags,
    )


def _read_partitions(reader: Reader, *, is_flexible: bool) -> Iterable[TopicPartition]:
    partitions: list[TopicPartition] = []
    for _ in range(max(0, reader.nullable_count(is_flexible, 2))):
        name = reader.string(is_flexible)
        partitions += [(name, index) for index in reader.i32s(is_flexible)]
        if is_flexible:
            reader.skip_tags()
    return partitions


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, sorted so that equal transactions are encoded to the same
    bytes.
    """
    topics: dict[str, list[int]] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, []).append(index)
    return topics

"""The records of `__transaction_state`, in Kafka's binary format, so that Kafka's tools can read
the topic.

Key version 0: transactional id. Value version 0: producer id, epoch, timeout, status, partitions by
topic, times. A null value is a tombstone. Values of version 1 (flexible, KIP-890) are also read;
the reader skips unknown key versions, as in Kafka.
Source: Kafka `TransactionLogKey.json`, `TransactionLogValue.json`.
"""

import struct
from collections.abc import Iterable
from typing import Final

from broker.transactions.model import TopicPartition, TransactionMetadata, TransactionState
from broker.wire.errors import WireError
from broker.wire.primitives import Reader, Writer

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
_VALUE_VERSION_MAX: Final = 1

_I16: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")


class MalformedTransactionRecord(Exception):
    """Raised for a key or value in another format. Loading counts it and continues with the next
    record.
    """


def encode_key(transactional_id: str) -> bytes:
    writer = Writer()
    writer += _I16.pack(KEY_VERSION)
    writer.string(transactional_id, False)
    return bytes(writer)


def decode_key(data: bytes) -> str | None:
    """Return the transactional id. None: a key version of a later Kafka, to be skipped. Raises
    MalformedTransactionRecord.
    """
    try:
        reader = Reader(data)
        return reader.string(False) if reader.i16() == KEY_VERSION else None
    except WireError as error:
        raise MalformedTransactionRecord(str(error)) from error


def encode_value(metadata: TransactionMetadata) -> bytes:
    writer = Writer()
    writer += _I16.pack(VALUE_VERSION)
    writer += _HEAD.pack(
        metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state
    )
    topics = group_by_topic(metadata.partitions)
    if topics or metadata.state is not TransactionState.EMPTY:
        writer.length(len(topics), False)
        for name, indexes in topics.items():
            writer.string(name, False)
            writer.i32s(indexes, False)
    else:
        writer.null(False)
    writer += _TIMES.pack(metadata.updated_ms, metadata.started_ms)
    return bytes(writer)


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
        state = TransactionState(status)
    except (WireError, ValueError) as error:
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
    """Group partitions by topic, sorted, so that the same transaction always has the same bytes."""
    topics: dict[str, list[int]] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, []).append(index)
    return topics

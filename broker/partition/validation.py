"""Decide whether a producer's batch may enter the log, from the 61 bytes of its header and its
checksum.

Invariant: an accepted batch is one whole v2 batch with a valid CRC32C, within the limits of the
topic, and its offsets can be set by patching only the header.
Must not: change the batch, know offsets or producers, or decode records. Those for compacted topics
are checked before (`broker.partition.keys`).

Source: Kafka `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.base.ids import Millis
from penstock.broker.schemas.rules import SchemaRules, schema_rules
from penstock.broker.wire.error_codes import ErrorCode
from penstock.controller.metadata.topic_configs import cleanup_policies, open_mirror
from penstock.stream.batch.header import CRC_START, HEADER_BYTES, MAGIC, BatchHeader, parse_header
from penstock.stream.config import DECOMPRESSED_BATCH_BYTES_MAX
from penstock.stream.errors import BatchCorrupt

MESSAGE_BYTES_MAX_DEFAULT: Final = 1_048_588
_MAGIC_AT: Final = 16
_RECORD_BYTES_MIN: Final = 7
_COMPRESSION_MAX: Final = 4
_FOREVER_MS: Final = 2**63 - 1
_NO_TIMESTAMP: Final = -1
_NO_EPOCH: Final = -1
"""Kafka accepts it as the oldest epoch of a producer."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The configs of a topic that affect batches. Names as in Kafka."""

    message_bytes_max: int = MESSAGE_BYTES_MAX_DEFAULT
    needs_keys: bool = False
    """Whether the topic is compacted. Not that of a mirror: its records are those of its source."""
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = _FOREVER_MS
    timestamp_after_max_ms: int = _FOREVER_MS
    decompressed_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
    schemas: SchemaRules | None = None
    """Checked before the batch comes here (`broker.handlers.record_checks`). None for a mirror: its
    records are those of its source.
    """
    mirror_source: str = ""
    """What the topic is a mirror of; empty if producers write to it."""

    @classmethod
    def from_configs(
        cls,
        configs: Mapping[str, str],
        decompressed_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
    ) -> "TopicRules":
        """Return the rules of these configs. The controller has validated the values; absent ones
        get Kafka's defaults.

        decompressed_bytes_max: `decompressed.batch.max.bytes` of the broker.
        """
        mirror_source = open_mirror(configs)
        return cls(
            message_bytes_max=int(configs.get("max.message.bytes", MESSAGE_BYTES_MAX_DEFAULT)),
            needs_keys="compact" in cleanup_policies(configs) and not mirror_source,
            is_log_append_time=configs.get("message.timestamp.type", "CreateTime")
            == "LogAppendTime",
            timestamp_before_max_ms=int(
                configs.get("message.timestamp.before.max.ms", _FOREVER_MS)
            ),
            timestamp_after_max_ms=int(configs.get("message.timestamp.after.max.ms", _FOREVER_MS)),
            decompressed_bytes_max=decompressed_bytes_max,
            schemas=None if mirror_source else schema_rules(configs),
            mirror_source=mirror_source,
        )


DEFAULT_RULES: Final = TopicRules()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a batch was not appended. `record_errors`: (index in the batch, message), for
    clients from Produce v8 on.
    """

    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()


def validate_batch(
    records: memoryview | None, rules: TopicRules, now_ms: Millis, *, from_coordinator: bool = False
) -> BatchHeader | Refusal:
    """Return the header of a producer's single batch in `records`, or the refusal. 3 us for a small
    batch, plus the CRC at 27 GB/s.

    from_coordinator: the batch comes from this broker, which may write in a producer's name without
    its sequence.
    """
    if rules.mirror_source:
        message = (
            "only a mirror writes to this topic; `penstock mirror finish` ends it, then producers"
            " can write"
        )
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    if records is None or len(records) < HEADER_BYTES:
        return Refusal(ErrorCode.INVALID_RECORD, "each partition needs exactly one record batch")
    if records[_MAGIC_AT] != MAGIC:
        message = (
            f"message format {records[_MAGIC_AT]} is not served; use a client that writes record"
            f" batches of format {MAGIC}"
        )
        return Refusal(ErrorCode.INVALID_RECORD, message)
    try:
        header = parse_header(records)
    except BatchCorrupt as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if crc32c(records[CRC_START : header.size_bytes]) != header.crc:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC32C")
    return (
        _check_shape(header, len(records))
        or _check_producer(header, from_coordinator)
        or _check_limits(header, rules, now_ms)
        or header
    )


def _check_shape(header: BatchHeader, size_bytes: int) -> Refusal | None:
    if header.size_bytes != size_bytes:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            "a Produce request may hold only one record batch per partition",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        message = (
            f"{header.record_count} records cannot end at offset delta {header.last_offset_delta}"
        )
        return Refusal(ErrorCode.INVALID_RECORD, message)
    compression = header.compression
    if compression == 0 and header.record_count * _RECORD_BYTES_MIN > size_bytes - HEADER_BYTES:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records do not fit into {size_bytes} bytes",
        )
    if compression > _COMPRESSION_MAX:
        return Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression type {compression} is not defined",
        )
    return None


def _check_producer(header: BatchHeader, from_coordinator: bool) -> Refusal | None:
    if header.is_control:
        return Refusal(ErrorCode.INVALID_RECORD, "control batches are written by brokers only")
    if header.producer_id >= 0 and header.base_sequence < 0 and not from_coordinator:
        return Refusal(ErrorCode.INVALID_RECORD, "a batch with a producer id needs a base sequence")
    if header.producer_id >= 0 and header.producer_epoch < _NO_EPOCH:
        return Refusal(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} cannot have epoch {header.producer_epoch}",
        )
    if header.producer_id < 0 and header.is_transactional:
        # Kafka appends it. Nothing could end that transaction.
        return Refusal(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    return None


def _check_limits(header: BatchHeader, rules: TopicRules, now_ms: Millis) -> Refusal | None:
    if header.size_bytes > rules.message_bytes_max:
        message = (
            f"the batch has {header.size_bytes} bytes, but max.message.bytes of the topic is"
            f" {rules.message_bytes_max}"
        )
        return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
    if rules.is_log_append_time:
        return None
    first_ms, last_ms = header.base_timestamp_ms, header.max_timestamp_ms
    if last_ms - now_ms > rules.timestamp_after_max_ms:
        message = (
            f"timestamp {last_ms} is {last_ms - now_ms} ms ahead, but"
            f" message.timestamp.after.max.ms is {rules.timestamp_after_max_ms}"
        )
        return Refusal(ErrorCode.INVALID_TIMESTAMP, message)
    if first_ms != _NO_TIMESTAMP and now_ms - first_ms > rules.timestamp_before_max_ms:
        message = (
            f"timestamp {first_ms} is {now_ms - first_ms} ms old, but"
            f" message.timestamp.before.max.ms is {rules.timestamp_before_max_ms}"
        )
        return Refusal(ErrorCode.INVALID_TIMESTAMP, message)
    return None

"""Decide whether a producer's batch may be appended, by its header, its checksum and its records
(`broker.partition.record_check`).

An accepted batch is one whole v2 batch with a valid CRC32C, within the limits of the topic, whose
offsets can be assigned by patching only the header.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.base.ids import Millis
from penstock.broker.partition.record_check import RecordCheck
from penstock.broker.partition.refusal import Refusal
from penstock.broker.schemas.rules import SchemaRules, schema_rules
from penstock.controller.metadata.topic_configs import (
    RECORD_VALIDATION,
    VALIDATES_ALL,
    VALIDATES_SAMPLES,
    cleanup_policies,
    open_mirror,
)
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import (
    BATCH_OVERHEAD,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
)
from penstock.protocol.batch.walk import ERRORS_MAX
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.config import DECOMPRESSED_BATCH_BYTES_MAX

MESSAGE_BYTES_MAX_DEFAULT: Final = 1_048_588
TIMESTAMP_AFTER_MAX_MS_DEFAULT: Final = 3_600_000
SAMPLED_ONE_IN: Final = 16
"""With `record.validation=sampled`, one in this many batches is checked. They are selected by
CRC.
"""
_MAGIC_AT: Final = 16
_LENGTH_AT: Final = 8
_LENGTH_MIN: Final = 14
"""The minimum batch length that Kafka accepts in any message format."""
_ONE_BATCH: Final = "each partition needs exactly one complete record batch"
_RECORD_BYTES_MIN: Final = 7
_FOREVER_MS: Final = 2**63 - 1
_NO_TIMESTAMP: Final = -1
_NO_EPOCH: Final = -1
"""The lowest producer epoch that Kafka accepts."""
_TIMESTAMP_LIMITS: Final = frozenset(
    {"message.timestamp.before.max.ms", "message.timestamp.after.max.ms"}
)


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The configs of a topic that affect batches, named as in Kafka."""

    message_bytes_max: int = MESSAGE_BYTES_MAX_DEFAULT
    needs_keys: bool = False
    """Whether the topic is compacted and thus requires keys. False for a mirror, whose records come
    from the source.
    """
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = _FOREVER_MS
    timestamp_after_max_ms: int = TIMESTAMP_AFTER_MAX_MS_DEFAULT
    has_timestamp_limit: bool = False
    """Whether a timestamp limit is configured for the topic. If so, the records are always
    checked.
    """
    validation: str = VALIDATES_ALL
    decompressed_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
    schemas: SchemaRules | None = None
    """Checked before `validate_batch` (`broker.requests.record_checks`). None for a mirror, whose
    records come from the source.
    """
    mirror_source: str = ""
    """The source of a mirror, or empty if producers write to the topic."""

    @classmethod
    def from_configs(
        cls,
        configs: Mapping[str, str],
        decompressed_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
    ) -> "TopicRules":
        """Return the rules for these configs. The controller has validated the values, and Kafka's
        defaults replace missing ones.

        decompressed_bytes_max: the broker's `decompressed.batch.max.bytes`.
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
            timestamp_after_max_ms=int(
                configs.get("message.timestamp.after.max.ms", TIMESTAMP_AFTER_MAX_MS_DEFAULT)
            ),
            has_timestamp_limit=not _TIMESTAMP_LIMITS.isdisjoint(configs),
            validation=configs.get(RECORD_VALIDATION, VALIDATES_ALL),
            decompressed_bytes_max=decompressed_bytes_max,
            schemas=None if mirror_source else schema_rules(configs),
            mirror_source=mirror_source,
        )

    def checks_records(self, header: BatchHeader, *, is_suspect: bool = False) -> bool:
        """Return whether the records of this batch must be checked. is_suspect: whether the
        producer has sent invalid records before.
        """
        return (
            self.validation == VALIDATES_ALL
            or self.needs_keys
            or self.has_timestamp_limit
            or (
                self.validation == VALIDATES_SAMPLES
                and (is_suspect or header.crc % SAMPLED_ONE_IN == 0)
            )
        )


DEFAULT_RULES: Final = TopicRules()


def validate_batch(
    records: memoryview | None,
    rules: TopicRules,
    now_ms: Millis,
    *,
    check: RecordCheck | None = None,
    from_coordinator: bool = False,
    is_suspect: bool = False,
    allows_zstd: bool = True,
    allows_transactions: bool = True,
) -> BatchHeader | Refusal:
    """Return the header of the single batch in `records`, or the rejection. Derived fields are
    computed from the records, regardless of what the producer wrote. This takes 3 us for a small
    batch, plus the CRC at 27 GB/s, plus the record check. Raises TakesLong.

    check: None skips the record check. from_coordinator: whether the batch comes from this broker,
    which may use a producer's id without a sequence. is_suspect: see `TopicRules.checks_records`.
    allows_zstd: True since Produce v7 (KIP-110). allows_transactions: False if the request has no
    transactional id.
    """
    if rules.mirror_source:
        message = (
            "only a mirror may write to this topic; producers can write after `penstock mirror"
            " finish`"
        )
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    header = _whole_batch(records)
    if isinstance(header, Refusal):
        return header
    assert records is not None
    refusal = (
        _check_transaction(header, allows_transactions)
        or _check_checksum(records, header, rules)
        or _check_shape(header, allows_zstd=allows_zstd)
        or _check_producer(header, from_coordinator)
        or _check_timestamp_type(header, rules)
    )
    if refusal is not None:
        return refusal
    if check is not None and rules.checks_records(header, is_suspect=is_suspect):
        newest_ms = check.newest_timestamp(records, header, rules, now_ms)
        return newest_ms if isinstance(newest_ms, Refusal) else _with_times(header, newest_ms)
    if not from_coordinator and (refusal := _check_header_times(header, rules, now_ms)):
        return refusal
    return _with_times(header, header.max_timestamp_ms)


def _whole_batch(records: memoryview | None) -> BatchHeader | Refusal:
    """Return the header of the batch at the start of `records`, which must be the only one. As in
    Kafka, trailing bytes are ignored if they are shorter than a batch.
    """
    if records is None or len(records) < BATCH_OVERHEAD:
        return Refusal(ErrorCode.INVALID_RECORD, _ONE_BATCH)
    if refusal := _check_begin(records):
        return refusal
    if len(records) < _MAGIC_AT + 1 or len(records) < BATCH_OVERHEAD + _length(records):
        return Refusal(ErrorCode.INVALID_RECORD, _ONE_BATCH)
    if records[_MAGIC_AT] != MAGIC:
        message = (
            f"message format {records[_MAGIC_AT]} is not supported; use a client that writes record"
            f" batches of format {MAGIC}"
        )
        return Refusal(ErrorCode.INVALID_RECORD, message)
    if _length(records) < HEADER_BYTES - BATCH_OVERHEAD:
        message = f"batch length {_length(records)} is less than the size of a header"
        return Refusal(ErrorCode.CORRUPT_MESSAGE, message)
    header = BatchHeader._make(HEADER.unpack_from(records))
    rest = records[header.size_bytes :]
    if rest and len(rest) >= BATCH_OVERHEAD:
        if refusal := _check_begin(rest):
            return refusal
        if len(rest) > _MAGIC_AT and len(rest) >= BATCH_OVERHEAD + _length(rest):
            return Refusal(ErrorCode.INVALID_RECORD, _ONE_BATCH)
    return header


def _check_begin(records: memoryview) -> Refusal | None:
    """Check the leading bytes, from which Kafka determines the end of a batch."""
    if _length(records) < _LENGTH_MIN:
        message = f"batch length {_length(records)} is less than {_LENGTH_MIN}"
        return Refusal(ErrorCode.CORRUPT_MESSAGE, message)
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] > MAGIC:
        message = f"message format {records[_MAGIC_AT]} is not defined"
        return Refusal(ErrorCode.CORRUPT_MESSAGE, message)
    return None


def _length(records: memoryview) -> int:
    return int.from_bytes(records[_LENGTH_AT:BATCH_OVERHEAD], "big", signed=True)


def _check_transaction(header: BatchHeader, allows_transactions: bool) -> Refusal | None:
    if allows_transactions or not header.is_transactional:
        return None
    message = "a request with transactional records needs a transactional id"
    return Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)


def _check_checksum(records: memoryview, header: BatchHeader, rules: TopicRules) -> Refusal | None:
    if header.base_offset != 0:
        message = (
            f"the base offset of a producer's batch is 0, but this one has {header.base_offset}"
        )
        return Refusal(ErrorCode.INVALID_RECORD, message)
    if header.size_bytes > rules.message_bytes_max:
        message = (
            f"the batch has {header.size_bytes} bytes, but max.message.bytes of the topic is"
            f" {rules.message_bytes_max}"
        )
        return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
    if crc32c(records[CRC_START : header.size_bytes]) != header.crc:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC32C")
    return None


def _check_shape(header: BatchHeader, *, allows_zstd: bool) -> Refusal | None:
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        message = (
            f"{header.record_count} records cannot end at offset delta {header.last_offset_delta}"
        )
        return Refusal(ErrorCode.INVALID_RECORD, message)
    compression = header.compression
    records_bytes = header.size_bytes - HEADER_BYTES
    if compression == 0 and header.record_count * _RECORD_BYTES_MIN > records_bytes:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records do not fit into {records_bytes} bytes",
        )
    if compression > Compression.ZSTD:
        return Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression type {compression} is not defined",
        )
    if compression == Compression.ZSTD and not allows_zstd:
        return Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd needs Produce version 7 or higher; upgrade the client or use another codec",
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
        # Kafka appends such a batch, but the transaction could never be ended.
        return Refusal(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    return None


def _check_timestamp_type(header: BatchHeader, rules: TopicRules) -> Refusal | None:
    """Reject batches with the timestamp type LogAppendTime if the topic uses it, as Kafka does."""
    if not rules.is_log_append_time or not header.attributes & TIMESTAMP_TYPE_MASK:
        return None
    message = "producers must not set the timestamp type to LogAppendTime"
    count = min(header.record_count, ERRORS_MAX)
    return Refusal(
        ErrorCode.INVALID_TIMESTAMP, message, tuple((index, message) for index in range(count))
    )


def _check_header_times(header: BatchHeader, rules: TopicRules, now_ms: Millis) -> Refusal | None:
    """Check the timestamps in the header. Used if the records are not checked."""
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


def _with_times(header: BatchHeader, newest_ms: int) -> BatchHeader:
    """In the header, set the producer's timestamp type and the newest timestamp of the records.
    With LogAppendTime, both are set again when offsets are assigned.
    """
    if newest_ms == header.max_timestamp_ms and not header.attributes & TIMESTAMP_TYPE_MASK:
        return header
    attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
    return header._replace(attributes=attributes, max_timestamp_ms=newest_ms)

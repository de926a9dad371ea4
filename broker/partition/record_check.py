"""Check the records of a producer's batch, as Kafka's `LogValidator` does: consumers must be able
to decode them, their timestamps must be within the limits of the topic, and required keys must be
present.
"""

from mmap import mmap
from typing import Final, Protocol

from penstock.base.ids import Millis
from penstock.broker.partition.refusal import Refusal
from penstock.protocol.batch.compression import Compression, Inflater
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge
from penstock.protocol.batch.header import HEADER_BYTES, BatchHeader
from penstock.protocol.batch.uncompressed_size import (
    UNCOMPRESSED_UNKNOWN,
    uncompressed_bytes,
    zstd_size,
)
from penstock.protocol.batch.walk import (
    BAD_REST,
    ERRORS_MAX,
    IGNORES_TIMES,
    NEEDS_KEYS,
    REASONS,
    SEQUENTIAL,
    Limits,
    PlainSize,
    RecordFault,
    Walker,
    WalkFinding,
)
from penstock.protocol.error_codes import ErrorCode

KEYLESS: Final = "a compacted topic accepts only records with a key"
NO_KEY: Final = "no_key"
"""The reason label for these rejections in metrics."""
KEPT_BYTES_MAX: Final = 16 << 20
"""Maximum memory for decompressed records that is reused for the next batch. Page faults in new
memory take up to three times as long as lz4 itself.
"""
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


INLINE_RATIO_MAX: Final = 32
INLINE_LEAST_BYTES: Final = 64 << 10
"""A batch with at most this decompressed size is always decompressed on the event loop, which takes
20 us, or 60 us with gzip.
"""


def plain_bytes_max(compressed_bytes: int) -> int:
    """Return the maximum decompressed size that the event loop accepts for this many compressed
    bytes. Possible decompression bombs are checked in a thread.
    """
    return max(INLINE_LEAST_BYTES, INLINE_RATIO_MAX * compressed_bytes)


class TakesLong(Exception):
    """Raised for a batch whose decompressed size exceeds the limit of the event loop."""


class RecordRules(Protocol):
    """The part of `TopicRules` with requirements on records."""

    @property
    def needs_keys(self) -> bool: ...
    @property
    def is_log_append_time(self) -> bool: ...
    @property
    def timestamp_before_max_ms(self) -> int: ...
    @property
    def timestamp_after_max_ms(self) -> int: ...
    @property
    def decompressed_bytes_max(self) -> int: ...


class RecordCheck:
    """Checks one batch after another. Not thread-safe."""

    __slots__ = ("_inflater", "_inline_bytes_max", "_walker")

    def __init__(self, inline_bytes_max: int | None = None) -> None:
        """inline_bytes_max: the maximum decompressed size, above which TakesLong is raised. It is
        lower for possible decompression bombs (`plain_bytes_max`). If None, only
        `decompressed_bytes_max` of the rules applies.
        """
        self._walker = Walker()
        self._inline_bytes_max = inline_bytes_max
        self._inflater = self._new_inflater()

    def newest_timestamp(
        self, records: memoryview, header: BatchHeader, rules: RecordRules, now_ms: Millis
    ) -> int | Refusal:
        """Return the newest timestamp of the records, or the reason for rejecting them. Raises
        TakesLong.

        Batches are decompressed as a whole. Streaming them in chunks of 64 KiB took 0.94 to 1.0
        times the CPU for zstd and xerial snappy, but 1.1 to 1.3 times for gzip and 1.3 to 2.9 times
        for lz4; raw snappy has no chunks.
        """
        limits = _limits(rules, now_ms)
        is_sound = False
        try:
            walked = self._walk(records, header, rules, limits)
            is_sound = isinstance(walked, WalkFinding)
        finally:
            self._release(is_refused=not is_sound)
        return walked if isinstance(walked, Refusal) else _verdict(walked, limits)

    def _walk(
        self, records: memoryview, header: BatchHeader, rules: RecordRules, limits: Limits
    ) -> WalkFinding | Refusal:
        data = records[HEADER_BYTES : header.size_bytes]
        if header.compression != Compression.NONE:
            limits = limits._replace(flags=limits.flags | SEQUENTIAL)
            plain = self._plain(records, header, data, rules.decompressed_bytes_max)
            if isinstance(plain, Refusal):
                return plain
            data = plain
        return self._walker.walk(data, header.record_count, header.base_timestamp_ms, limits)

    def _plain(
        self, records: memoryview, header: BatchHeader, data: memoryview, bytes_max: int
    ) -> memoryview | Refusal:
        size = self._plain_size(records, header, data)
        if size is None:
            message = (
                "the records are not one lz4 frame of independent blocks, the only form that"
                " Kafka's clients read"
            )
            return Refusal(ErrorCode.INVALID_RECORD, message)
        limit, is_inline = bytes_max, False
        if self._inline_bytes_max is not None:
            limit = min(self._inline_bytes_max, plain_bytes_max(len(data)), bytes_max)
            is_inline = limit < bytes_max
        if is_inline and size.least > limit:
            raise TakesLong
        inflater = self._inflater
        inflater.limit(limit)
        try:
            end = inflater.append(header.compression, data, 0, size.most)
        except BatchTooLarge as error:
            if is_inline:
                raise TakesLong from None
            message = (
                f"{error} (decompressed.batch.max.bytes of the broker): lower batch.size of the"
                " producer"
            )
            return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
        except BatchCorrupt as error:
            return Refusal(ErrorCode.INVALID_RECORD, str(error))
        return memoryview(inflater.output)[:end]

    def _plain_size(
        self, records: memoryview, header: BatchHeader, data: memoryview
    ) -> PlainSize | None:
        """Return the known bounds of the decompressed size, which avoid repeated attempts: the Java
        producer's frames do not contain the size. Return None if the records are not an lz4 frame
        that Kafka can read.
        """
        if header.compression == Compression.LZ4:
            return self._walker.lz4_frame(data)
        declared = uncompressed_bytes(header.compression, records[: header.size_bytes])
        if declared != UNCOMPRESSED_UNKNOWN:
            return PlainSize(declared - HEADER_BYTES, declared - HEADER_BYTES)
        if header.compression == Compression.ZSTD and (size := zstd_size(data)) is not None:
            return size
        return PlainSize(0, 0)

    def _release(self, *, is_refused: bool) -> None:
        """Release the memory used by large batches and decompression bombs."""
        is_bomb = is_refused and self._inline_bytes_max is None
        if is_bomb or len(self._inflater.output) > KEPT_BYTES_MAX:
            self._inflater = self._new_inflater()

    def _new_inflater(self) -> Inflater:
        # Page faults in mapped memory do not hold the GIL, whereas allocating a bytearray would
        # block other threads.
        inflater = Inflater(allocate=lambda size_bytes: mmap(-1, size_bytes))
        inflater.reserve(self._inline_bytes_max or KEPT_BYTES_MAX)
        return inflater


def _limits(rules: RecordRules, now_ms: Millis) -> Limits:
    flags = NEEDS_KEYS if rules.needs_keys else 0
    if rules.is_log_append_time:
        return Limits(flags=flags | IGNORES_TIMES)
    return Limits(
        max(_INT64_MIN, now_ms - rules.timestamp_before_max_ms),
        min(_INT64_MAX, now_ms + rules.timestamp_after_max_ms),
        flags,
    )


def _verdict(walked: WalkFinding, limits: Limits) -> int | Refusal:
    if walked.code:
        where = "" if walked.code == BAD_REST else f"record {walked.at} cannot be read: "
        return Refusal(ErrorCode.INVALID_RECORD, f"{where}{REASONS[walked.code]}")
    if not walked.error_count:
        return walked.max_timestamp_ms
    errors = tuple((error.at, _message(error, limits)) for error in walked.errors)
    count = walked.error_count
    more = f"; the first {ERRORS_MAX} are listed" if count > ERRORS_MAX else ""
    if all(error.is_keyless for error in walked.errors):
        message = f"{KEYLESS}: {count} have none{more}"
        return Refusal(ErrorCode.INVALID_RECORD, message, errors, reason=NO_KEY)
    message = f"{count} records of the batch have an invalid timestamp or no key{more}"
    if not limits.flags & NEEDS_KEYS:
        message = f"{count} records of the batch have an invalid timestamp{more}"
    return Refusal(ErrorCode.INVALID_TIMESTAMP, message, errors)


def _message(error: RecordFault, limits: Limits) -> str:
    if error.is_keyless:
        return KEYLESS
    return (
        f"timestamp {error.timestamp_ms} is outside of [{limits.low_ms}, {limits.high_ms}], which"
        " message.timestamp.before.max.ms and message.timestamp.after.max.ms allow now"
    )

"""Read and patch the headers of Kafka v2 record batches in place, without copying the payload or
reading records.

The CRC32C of a batch covers everything after the CRC field. Base offset and leader epoch are before
it, so the broker may set them without changing the checksum.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.protocol.batch.errors import BatchCorrupt

HEADER_BYTES = 61
BATCH_OVERHEAD = 12
"""Bytes that `batch_length` does not include: the base offset and the length itself."""

MAGIC = 2
CRC_AT = 17
CRC_START = 21
"""The CRC covers the bytes from here to the end of the batch."""

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

TIMESTAMP_CREATE_TIME = 0
TIMESTAMP_LOG_APPEND_TIME = 1

OLDEST_UNKNOWN = -(1 << 63)
"""A lower bound that is valid for all timestamps."""

NEWEST_UNKNOWN = (1 << 63) - 1
"""An upper bound that is valid for all timestamps."""

_BATCH_LENGTH_MIN = HEADER_BYTES - BATCH_OVERHEAD
_OFFSET_MAX = (1 << 63) - 1

# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta, base and max
# timestamp, producer id and epoch, base sequence, record count
HEADER = Struct(">qiibIhiqqqhii")
_SPAN = Struct(">qi4xb6xi8xq")
_OFFSET = Struct(">q")
_RECORD_COUNT = Struct(">i")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_RECORD_COUNT_AT = 57

_unpack_header = HEADER.unpack_from
_unpack_span = _SPAN.unpack_from


def may_be_as_young(newest_ms: int, record_count: int, timestamp_ms: int) -> bool:
    """Return whether a record may have at least this timestamp. newest_ms: the newest timestamp in
    an index, negative if unknown (see `merged_newest`). record_count: an estimate, which may be 0
    for a part of a range.
    """
    is_unknown = newest_ms < -1 or (newest_ms == -1 and record_count > 0)
    return newest_ms >= timestamp_ms or is_unknown


def merged_newest(parts: Iterable[tuple[int, int]]) -> int:
    """Return the newest timestamp of several batches or blocks for an index. parts: the newest
    timestamp and the record count of each part.

    If any newest timestamp is unknown, the result is `~newest`, where `newest` is the newest known
    timestamp (0 if there is none): readers then search all parts, while retention uses the known
    timestamp.
    """
    newest_ms, is_known = -1, True
    for part_ms, record_count in parts:
        known_ms = part_ms
        if part_ms < 0 and record_count:
            known_ms, is_known = ~part_ms, False
        newest_ms = max(newest_ms, known_ms)
    return newest_ms if is_known else ~max(newest_ms, 0)


class BatchHeader(NamedTuple):
    """The 61 bytes of a header as numbers, in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return BATCH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5-7 are not assigned."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        return (
            TIMESTAMP_LOG_APPEND_TIME
            if self.attributes & TIMESTAMP_TYPE_MASK
            else TIMESTAMP_CREATE_TIME
        )

    @property
    def min_timestamp_ms(self) -> int:
        """Return a lower bound of the record timestamps; OLDEST_UNKNOWN if the header contains
        none, or -1 if there are no records.

        The base timestamp is not a bound: it is either the timestamp of the first record, and later
        records may be older, or the delete horizon. In a batch with log append time or a single
        record, max timestamp is the only timestamp, unless the header is inconsistent.
        """
        if self.attributes & TIMESTAMP_TYPE_MASK or not self.record_count:
            return self.max_timestamp_ms
        if self.record_count == 1 and (
            self.max_timestamp_ms == self.base_timestamp_ms or self.attributes & DELETE_HORIZON_MASK
        ):
            return self.max_timestamp_ms
        return OLDEST_UNKNOWN

    @property
    def newest_timestamp_ms(self) -> int:
        """Return an upper bound of the record timestamps, or NEWEST_UNKNOWN if the header is
        inconsistent.

        sarama writes a max timestamp of -1, and a batch that was stored without a record check may
        have any value. The base timestamp is that of the first record unless it is the delete
        horizon.
        """
        if self.attributes & TIMESTAMP_TYPE_MASK or not self.record_count:
            return self.max_timestamp_ms
        if self.max_timestamp_ms < 0 or (
            self.max_timestamp_ms < self.base_timestamp_ms
            and not self.attributes & DELETE_HORIZON_MASK
        ):
            return NEWEST_UNKNOWN
        return self.max_timestamp_ms

    @property
    def index_timestamp_ms(self) -> int:
        """Return the newest timestamp for indexes, or -1 if unknown."""
        newest_ms = self.newest_timestamp_ms
        return -1 if newest_ms == NEWEST_UNKNOWN else newest_ms

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return the time from which log compaction may remove the tombstones or the marker of this
        batch; None before the first pass. It is stored in the base timestamp (KIP-534).
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_MASK else None


class BatchSpan(NamedTuple):
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int


def parse_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Return the header at `at`. This takes 0.6 us. Raises BatchCorrupt unless the whole batch is
    in the buffer and its offsets fit into 64 bits. Does not check the CRC.
    """
    if at < 0 or len(buf) - at < HEADER_BYTES:
        raise BatchCorrupt(
            f"{len(buf) - at} bytes are left at {at}, a batch header has {HEADER_BYTES}"
        )
    header = BatchHeader._make(_unpack_header(buf, at))
    _check(
        header.magic,
        header.batch_length,
        len(buf) - at,
        header.base_offset,
        header.last_offset_delta,
    )
    if header.record_count < 0:
        raise BatchCorrupt(f"record count {header.record_count} is negative")
    return header


def batch_span(buf: Buffer, at: int = 0) -> BatchSpan:
    """Return only the fields for iteration and planning. This takes 0.5 us, less than
    `parse_header`. Raises BatchCorrupt in the same cases.
    """
    if at < 0 or len(buf) - at < HEADER_BYTES:
        raise BatchCorrupt(
            f"{len(buf) - at} bytes are left at {at}, a batch header has {HEADER_BYTES}"
        )
    base, length, magic, delta, max_timestamp_ms = _unpack_span(buf, at)
    _check(magic, length, len(buf) - at, base, delta)
    return BatchSpan(base, base + delta + 1, BATCH_OVERHEAD + length, max_timestamp_ms)


def _check(
    magic: int, length: int, left_bytes: int, base_offset: int, last_offset_delta: int
) -> None:
    if magic != MAGIC:
        raise BatchCorrupt(
            f"magic {magic}: only record batches of format {MAGIC} are stored (message formats 0"
            " and 1 ended with Kafka 4)"
        )
    if length < _BATCH_LENGTH_MIN or length > left_bytes - BATCH_OVERHEAD:
        raise BatchCorrupt(
            f"batch length {length} is outside [{_BATCH_LENGTH_MIN}, {left_bytes - BATCH_OVERHEAD}]"
        )
    if base_offset < 0 or last_offset_delta < 0 or base_offset + last_offset_delta >= _OFFSET_MAX:
        raise BatchCorrupt(f"offsets {base_offset} + {last_offset_delta} are negative or too large")


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each concatenated batch. Raises BatchCorrupt for a partial batch
    at the end.
    """
    at, end = 0, len(buf)
    while at < end:
        header = parse_header(buf, at)
        yield at, header
        at += BATCH_OVERHEAD + header.batch_length


def check_crc(buf: Buffer, at: int = 0) -> bool:
    """Return whether the batch at `at` matches its CRC32C. This processes 27 GB/s. Raises
    BatchCorrupt if its header is invalid.
    """
    size_bytes = batch_span(buf, at).size_bytes
    (expected,) = _CRC.unpack_from(buf, at + CRC_AT)
    return bool(crc32c(memoryview(buf)[at + CRC_START : at + size_bytes]) == expected)


def record_count_of(buf: memoryview | None) -> int | None:
    """Return the number of records of the batch at the beginning of a buffer, without any check, or
    None if its header is incomplete.
    """
    if buf is None or len(buf) < HEADER_BYTES:
        return None
    (count,) = _RECORD_COUNT.unpack_from(buf, _RECORD_COUNT_AT)
    return count if count >= 0 else None


def patch_offset_and_epoch(
    buf: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int
) -> None:
    """Set the offset and the leader epoch of a batch. The CRC does not cover these fields."""
    _OFFSET.pack_into(buf, at, base_offset)
    _EPOCH.pack_into(buf, at + 12, leader_epoch)


def patch_times(buf: bytearray | memoryview, at: int, header: BatchHeader) -> None:
    """Set timestamp type and max timestamp to those of `header`, and update the CRC if they
    differ.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buf, at + _ATTRIBUTES_AT)
    (max_timestamp_ms,) = _OFFSET.unpack_from(buf, at + _MAX_TIMESTAMP_AT)
    if attributes == header.attributes and max_timestamp_ms == header.max_timestamp_ms:
        return
    _ATTRIBUTES.pack_into(buf, at + _ATTRIBUTES_AT, header.attributes)
    _OFFSET.pack_into(buf, at + _MAX_TIMESTAMP_AT, header.max_timestamp_ms)
    _set_crc(buf, at, header.size_bytes)


def _set_crc(buf: bytearray | memoryview, at: int, size_bytes: int) -> None:
    _CRC.pack_into(buf, at + CRC_AT, crc32c(memoryview(buf)[at + CRC_START : at + size_bytes]))


def patch_log_append_time(buf: bytearray | memoryview, at: int, timestamp_ms: int) -> None:
    """Set the timestamp of all records (message.timestamp.type=LogAppendTime) and update the CRC.

    Readers use the max timestamp for all records of such a batch. The records and the base
    timestamp are not changed.
    """
    size_bytes = batch_span(buf, at).size_bytes
    (attributes,) = _ATTRIBUTES.unpack_from(buf, at + _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buf, at + _ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_MASK)
    _OFFSET.pack_into(buf, at + _MAX_TIMESTAMP_AT, timestamp_ms)
    _set_crc(buf, at, size_bytes)

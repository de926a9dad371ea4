"""Encode and decode the records in batches, for timestamp lookups, internal topics, the meta stream
and log compaction.

This takes 2 to 3 us per record, which is too slow for the produce and fetch paths, so these do not
decode batches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.protocol.batch.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
    decompress_mapped,
)
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    BATCH_OVERHEAD,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_LOG_APPEND_TIME,
    BatchHeader,
    check_crc,
    parse_header,
)
from penstock.protocol.batch.varint import append_varint, read_varint, read_varlong

Header = tuple[str, bytes | None]

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_RECORD_BYTES_MIN = 7
"""Size of the smallest record: length, attributes, two deltas, two lengths, header count. Thus, N
bytes contain at most N / 7 records.
"""


RECORDS_SEARCHED_MAX = 100_000
"""Maximum number of records of one batch that a timestamp lookup or key check decodes, which takes
0.2 s in a thread. A megabyte of compressed records may contain a hundred times as many.
"""


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def decode_records(
    batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Return all records of the batch at the start of `batch`. If several records have the same
    offset, return the first one, like Kafka's consumers. Raises BatchCorrupt.
    """
    records: list[Record] = []
    newest = parse_header(batch).base_offset - 1
    for record in iter_records(batch, decompressed_bytes_max):
        if record.offset > newest:
            records.append(record)
            newest = record.offset
    return records


def first_record_at_or_after(
    batch: Buffer,
    timestamp_ms: int,
    *,
    from_offset: int = 0,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    in_thread: bool = False,
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at `from_offset` or later with at least
    `timestamp_ms`, or None. Raises BatchCorrupt, BatchTooLarge.

    in_thread: decompress more slowly, but without blocking other threads while the whole batch is
    copied, which takes 30 ms for 64 MiB.
    """
    header = parse_header(batch)
    if header.newest_timestamp_ms < timestamp_ms:
        return None
    inflate = decompress_mapped if in_thread else decompress
    for record in iter_records(batch, decompressed_bytes_max, inflate, copies=not in_thread):
        if record.timestamp_ms >= timestamp_ms and record.offset >= from_offset:
            return record.offset, record.timestamp_ms
    return None


def newest_timestamp(
    batch: Buffer,
    start_offset: int,
    end_offset: int,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    in_thread: bool = False,
) -> int:
    """Return the newest timestamp of the records in [start_offset, end_offset), or -1 if there are
    none. Raises BatchCorrupt, BatchTooLarge. in_thread: as for `first_record_at_or_after`.
    """
    inflate = decompress_mapped if in_thread else decompress
    return max(
        (
            record.timestamp_ms
            for record in iter_records(batch, decompressed_bytes_max, inflate, copies=not in_thread)
            if start_offset <= record.offset < end_offset
        ),
        default=-1,
    )


def iter_records(
    batch: Buffer,
    decompressed_bytes_max: int,
    inflate: Callable[[int, Buffer, int], memoryview] = decompress,
    *,
    copies: bool = True,
) -> Iterator[Record]:
    """Decode the records of the batch at the start of `batch` one by one. Raises BatchCorrupt
    unless CRC, count, lengths and offsets agree.

    Offsets may repeat and decrease, because Kafka's brokers accept this. Invalid UTF-8 in header
    keys becomes surrogates (PEP 383), which `encode_batch` reverts.

    copies: whether keys and values are copied; otherwise, they are views.
    """
    header = parse_header(batch)
    if not check_crc(batch):
        raise BatchCorrupt(f"the batch at offset {header.base_offset} does not match its checksum")
    data = inflate(
        header.compression,
        memoryview(batch)[HEADER_BYTES : header.size_bytes],
        decompressed_bytes_max,
    )
    if header.record_count > len(data) // _RECORD_BYTES_MIN:
        raise BatchCorrupt(f"{header.record_count} records do not fit into {len(data)} bytes")
    # Indexing and slicing `bytes` is twice as fast as a view.
    plain = bytes(data) if copies else cast("bytes", data)
    at = 0
    for _ in range(header.record_count):
        record, at = record_at(plain, at, header)
        delta = record.offset - header.base_offset
        if delta > header.last_offset_delta:
            raise BatchCorrupt(
                f"a record has offset delta {delta}, the last one is {header.last_offset_delta}"
            )
        yield record
    if at != len(plain):
        raise BatchCorrupt(f"{len(plain) - at} bytes follow the last record")


def record_at(plain: bytes, at: int, header: BatchHeader) -> tuple[Record, int]:
    """Return the record at `at` in the decompressed bytes of its batch, and the position after it.
    Raises BatchCorrupt.
    """
    length, at = read_varint(plain, at, len(plain))
    if not 0 <= length <= len(plain) - at:
        raise BatchCorrupt(f"a record of {length} bytes has {len(plain) - at} left")
    return _record(plain, at, at + length, header), at + length


def _record(plain: bytes, at: int, end: int, header: BatchHeader) -> Record:
    timestamp_delta, at = read_varlong(plain, at + 1, end)  # skips the attributes byte
    offset_delta, at = read_varint(plain, at, end)
    key, at = _nullable(plain, at, end)
    value, at = _nullable(plain, at, end)
    header_count, at = read_varint(plain, at, end)
    headers: tuple[Header, ...] = ()
    if header_count:
        headers, at = _headers(plain, at, end, header_count)
    if at != end:
        raise BatchCorrupt(f"a record ends at byte {at}, its length says {end}")
    if header.timestamp_type == TIMESTAMP_LOG_APPEND_TIME:
        timestamp_ms = header.max_timestamp_ms
    else:
        timestamp_ms = header.base_timestamp_ms + timestamp_delta
        if not -_INT64_MAX <= timestamp_ms <= _INT64_MAX:
            timestamp_ms = (timestamp_ms + (1 << 63)) % (1 << 64) - (1 << 63)  # as in Java
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers)


def _nullable(plain: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(plain, at, end)
    if length < 0:
        return None, at
    if length > end - at:
        raise BatchCorrupt(f"a field of {length} bytes has {end - at} left in its record")
    return plain[at : at + length], at + length


def _headers(plain: bytes, at: int, end: int, count: int) -> tuple[tuple[Header, ...], int]:
    if not 0 <= count <= (end - at) // 2:
        raise BatchCorrupt(f"{count} record headers do not fit into {end - at} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, at = _nullable(plain, at, end)
        value, at = _nullable(plain, at, end)
        if name is None:
            raise BatchCorrupt("the key of a record header is null")
        headers.append((str(name, "utf-8", "surrogateescape"), value))
    return tuple(headers), at


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
) -> bytearray:
    """Return a batch with its CRC. The offsets of `records` increase from base_offset; they may
    have gaps, as in compacted logs.

    last_offset: the last offset covered by the batch, by default the offset of its last record.
    attributes: the bits except those for compression. Raises ValueError for offsets that do not
    fit.
    """
    data, base_timestamp_ms = bytearray(), records[0].timestamp_ms if records else -1
    previous = base_offset - 1
    for record in records:
        if record.offset <= previous:
            raise ValueError(f"offset {record.offset} follows {previous}")
        previous = record.offset
        _append_record(data, record, base_offset, base_timestamp_ms)
    last_offset_delta = (previous if last_offset is None else last_offset) - base_offset
    if not max(0, previous - base_offset) <= last_offset_delta <= _INT32_MAX:
        raise ValueError(
            f"a batch of offsets {base_offset} to {previous} cannot end with delta"
            f" {last_offset_delta}"
        )
    payload = data if compression == Compression.NONE else compress(compression, data)
    batch = bytearray(HEADER_BYTES)
    batch += payload
    fields = (
        base_offset,
        len(batch) - BATCH_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes | compression,
        last_offset_delta,
        base_timestamp_ms,
        max((record.timestamp_ms for record in records), default=-1),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    HEADER.pack_into(batch, 0, *fields)
    crc = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *fields[:4], crc, *fields[5:])
    return batch


def _append_record(
    out: bytearray, record: Record, base_offset: int, base_timestamp_ms: int
) -> None:
    body = bytearray(1)
    append_varint(body, record.timestamp_ms - base_timestamp_ms)
    append_varint(body, record.offset - base_offset)
    _append_nullable(body, record.key)
    _append_nullable(body, record.value)
    append_varint(body, len(record.headers))
    for name, value in record.headers:
        _append_nullable(body, name.encode("utf-8", "surrogateescape"))
        _append_nullable(body, value)
    append_varint(out, len(body))
    out += body


def _append_nullable(out: bytearray, data: bytes | None) -> None:
    if data is None:
        append_varint(out, -1)
    else:
        append_varint(out, len(data))
        out += data

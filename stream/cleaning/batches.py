"""Remove superseded records from a batch, as Kafka's `MemoryRecords.filterTo` does. Pure.

A batch keeps its base and last offset, so that producer sequence numbers stay valid, and the
remaining records are not changed. Gaps between batches are filled with empty batches, because a
missing offset always indicates damage.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.base.ids import Millis, Offset
from penstock.protocol.batch.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
)
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    BATCH_OVERHEAD,
    CRC_START,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    TIMESTAMP_LOG_APPEND_TIME,
    BatchHeader,
    check_crc,
)
from penstock.protocol.batch.records import encode_batch
from penstock.protocol.batch.varint import append_varint, read_varlong
from penstock.stream.cleaning.key_map import KeyMap
from penstock.stream.cleaning.runs import Run, find_run, varint

LOST_LEADER_EPOCH: Final = -1
"""Leader epoch of empty batches that replace a range lost with its WAL store. Consumers do not
compare it with their own epoch.
"""
_DELTA_MAX: Final = 2**31 - 1
_LOOKED_UP_MAX: Final = 10_000
"""Size of the largest batch whose records are looked up in one step, which takes 0.3 ms."""

_ALONE_MIN: Final = 16
_ALONE_GROWTH: Final = 4
"""Number of records to read one by one before the next attempt to find a run, and the factor by
which this number grows after each failed attempt.
"""


class RecordSpan(NamedTuple):
    """A record in the uncompressed bytes of its batch: [start, end), including its length prefix.

    body: the position after the length.
    """

    start: int
    body: int
    end: int
    is_tombstone: bool


class RecordPosition(NamedTuple):
    """A position between two records of a batch, in bytes and in records."""

    at: int = 0
    number: int = 0


class PlainRecords:
    """The decompressed records of a batch. view: all records, without a copy if the batch is
    uncompressed. Code that reads every byte uses `copied`, because reading `bytes` is twice as
    fast.
    """

    __slots__ = ("_copied", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._copied: bytes | None = None

    def copied(self) -> bytes:
        """Return all records as `bytes`, copied once."""
        if self._copied is None:
            self._copied = bytes(self.view)
        return self._copied


def plain_records(
    batch: memoryview, header: BatchHeader, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> PlainRecords:
    """Return the records of the batch. Raises BatchCorrupt."""
    if not check_crc(batch):
        raise BatchCorrupt(f"the batch at offset {header.base_offset} does not match its checksum")
    return checked_records(batch, header, bytes_max)


def checked_records(
    batch: memoryview, header: BatchHeader, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> PlainRecords:
    """Return the records of a batch that was already verified. Raises BatchCorrupt."""
    records = batch[HEADER_BYTES : header.size_bytes]
    return PlainRecords(decompress(header.compression, records, bytes_max))


def map_keys(
    plain: PlainRecords, header: BatchHeader, position: RecordPosition, count: int, keys: KeyMap
) -> RecordPosition:
    """Add the keys of the next `count` records to the map. Return the position after the last
    record whose key was added; it is unchanged if the map is full. Raises BatchCorrupt. This takes
    0.1 us per record in a run, and 0.8 us otherwise.
    """
    at, number = position
    end = number + count
    is_dense = _is_dense(header)
    alone = _ALONE_MIN if is_dense else count
    while number < end:
        run = _run(plain, header, at, number, end) if is_dense else None
        offsets: Sequence[int]
        if run is None:
            read = min(alone, end - number)
            found, offsets, behind = _read_keys(
                plain.copied(), header, RecordPosition(at, number), read
            )
            longest = max(map(len, found), default=0)
            alone *= _ALONE_GROWTH
        else:
            read, alone, behind, longest = run.record_count, _ALONE_MIN, run.end, run.key_bytes
            first = header.base_offset + number
            has_keys = run.key_bytes >= 0
            found = run.keys(plain.view) if has_keys else []
            offsets = range(first, first + read) if has_keys else ()
        if not keys.put(found, offsets, longest):
            break
        at, number = behind, number + read
    return RecordPosition(at, number)


def _run(plain: PlainRecords, header: BatchHeader, at: int, number: int, end: int) -> Run | None:
    """Return the run that starts with this record. Raises BatchCorrupt."""
    try:
        return find_run(plain.view, at, end - number)
    except IndexError:
        raise _contradiction(number, header) from None


def _read_keys(  # noqa: C901, PLR0912 - written out: a call costs a tenth of a record
    plain: bytes, header: BatchHeader, position: RecordPosition, count: int
) -> tuple[list[bytes], list[int], int]:
    """Return the keys of the next `count` records, their offsets, and the position after them.
    Raises BatchCorrupt.
    """
    found: list[bytes] = []
    offsets: list[int] = []
    at, number = position
    add_key, add_offset, base = found.append, offsets.append, header.base_offset
    is_dense, size_bytes = _is_dense(header), len(plain)
    try:
        for number in range(number, number + count):  # noqa: B020 - it begins where it was
            byte = plain[at]
            if byte < 0x80:
                at += 1
                end = at + (byte >> 1)
            elif (second := plain[at + 1]) < 0x80:
                at += 2
                end = at + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, at = varint(plain, at)
                end = at + max(0, length)
            # Skip the attributes byte and the timestamp varint: all of its bytes except the last
            # have the high bit set.
            at += 1
            while plain[at] > 0x7F:
                at += 1
            at += 1
            if is_dense:
                while plain[at] > 0x7F:
                    at += 1
                at += 1
                delta = number
            else:
                delta, at = varint(plain, at)
            byte = plain[at]
            if byte < 0x80:
                key_bytes, at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                key_bytes, at = varint(plain, at)
            is_inside = at + key_bytes <= end <= size_bytes
            if not is_inside or not 0 <= delta <= header.last_offset_delta:
                raise _contradiction(number, header)
            if key_bytes >= 0:
                add_key(plain[at : at + key_bytes])
                add_offset(base + delta)
            at = end
    except IndexError:
        raise _contradiction(number, header) from None
    return found, offsets, at


def is_mapped_by_offset(header: BatchHeader, keys: KeyMap) -> bool:
    """Return whether the map can be searched by offset alone: in a batch that was never compacted,
    the offset follows from the index of the record.
    """
    return header.base_offset >= keys.start_offset and _is_dense(header)


def may_keep_records(header: BatchHeader, keys: KeyMap) -> bool:
    """Return False if the map alone shows that no record of the batch is the newest of its key, as
    is more likely in older batches.
    """
    if header.record_count > _LOOKED_UP_MAX or not is_mapped_by_offset(header, keys):
        return True
    return bool(keys.held(header.base_offset, header.next_offset))


def filter_records(
    plain: PlainRecords, header: BatchHeader, position: RecordPosition, count: int, keys: KeyMap
) -> tuple[list[RecordSpan], RecordPosition]:
    """Return those of the next `count` records that are the newest of their key, and the position
    after the records. Raises BatchCorrupt.
    """
    (at, number), view = position, plain.view
    end = number + count
    kept: list[RecordSpan] = []
    supports_runs = is_mapped_by_offset(header, keys) or header.next_offset <= keys.start_offset
    alone = _ALONE_MIN if supports_runs else count
    while number < end:
        run = _run(plain, header, at, number, end) if supports_runs else None
        if run is None:
            read = min(alone, end - number)
            more, at = _filter_records(
                plain.copied(), header, RecordPosition(at, number), read, keys
            )
            alone *= _ALONE_GROWTH
        else:
            read, alone, at = run.record_count, _ALONE_MIN, run.end
            more = _spans(view, header, run, _newest_in_run(view, header, run, number, keys))
        kept += more
        number += read
    if at > len(view) or (end == header.record_count and at != len(view)):
        raise _contradiction(end, header)
    return kept, RecordPosition(at, end)


def _newest_in_run(
    plain: memoryview, header: BatchHeader, run: Run, number: int, keys: KeyMap
) -> list[int]:
    """Return the indexes of records in the run that are the newest of their key. Raises
    BatchCorrupt.

    number: the index of the first record. In a batch below the mapped offsets, records whose keys
    are in the map are omitted.
    """
    if is_mapped_by_offset(header, keys):
        start = header.base_offset + number
        return [offset - start for offset in keys.held(start, start + run.record_count)]
    if not 0 <= run.largest_delta(plain) <= header.last_offset_delta:
        raise _contradiction(number, header)
    return keys.missing(run.keys(plain)) if run.key_bytes >= 0 else []


def _spans(
    plain: memoryview, header: BatchHeader, run: Run, numbers: Iterable[int]
) -> list[RecordSpan]:
    """Return the spans of the records with these indexes in the run. Raises BatchCorrupt."""
    body, value_at, step = run.body - run.at, run.value_at - run.at, run.record_bytes
    spans: list[RecordSpan] = []
    try:
        value_bytes = run.value_bytes(plain)
    except IndexError:
        value_bytes = None
    if value_bytes is not None:
        starts = [run.at + number * step for number in numbers]
        is_tombstone = value_bytes < 0
        return [RecordSpan(at, at + body, at + step, is_tombstone) for at in starts]
    for number in numbers:
        start = run.at + number * step
        try:
            value_bytes, behind = varint(plain, start + value_at)
        except IndexError:
            raise _contradiction(number, header) from None
        if behind > start + step:
            raise _contradiction(number, header)
        spans.append(RecordSpan(start, start + body, start + step, value_bytes < 0))
    return spans


def _filter_records(
    plain: bytes, header: BatchHeader, position: RecordPosition, count: int, keys: KeyMap
) -> tuple[list[RecordSpan], int]:
    """Implement `filter_records` for records that are not in a run. Raises BatchCorrupt."""
    at, number = position
    end = number + count
    kept: list[RecordSpan] = []
    wanted: Iterable[int] = range(number, end)
    is_dense = _is_dense(header)
    if is_mapped_by_offset(header, keys):
        base = header.base_offset
        wanted = [offset - base for offset in keys.held(base + number, base + end)]
    try:
        for next_number in wanted:
            at = _skip(plain, at, next_number - number)
            start, number = at, next_number + 1
            body, at = _bounds(plain, start)
            offset, value_at = _offset(plain, body, header, next_number)
            if is_dense:  # producers may repeat offset deltas, as in `map_keys`
                offset = Offset(header.base_offset + next_number)
            key, value_at = _field(plain, value_at)
            if key is None or keys.newest(key) > offset:
                continue
            value_bytes, value_at = varint(plain, value_at)
            if value_at > at:
                raise _contradiction(number, header)
            kept.append(RecordSpan(start, body, at, value_bytes < 0))
        return kept, _skip(plain, at, end - number)
    except IndexError:
        raise _contradiction(number, header) from None


def _skip(plain: bytes, at: int, count: int) -> int:
    """Return the position after the next `count` records. This takes 0.3 us per record."""
    for _ in range(count):
        byte = plain[at]
        if byte < 0x80:
            at += 1 + (byte >> 1)
        elif (second := plain[at + 1]) < 0x80:
            at += 2 + ((byte & 0x7F | second << 7) >> 1)
        else:
            _, at = _bounds(plain, at)
    return at


def all_records(plain: PlainRecords, header: BatchHeader) -> list[RecordSpan]:
    """Return every record of the batch, without examining keys. Raises BatchCorrupt."""
    at, found, whole = 0, list[RecordSpan](), plain.copied()
    try:
        for _ in range(header.record_count):
            start = at
            body, at = _bounds(whole, at)
            found.append(RecordSpan(start, body, at, is_tombstone=False))
    except IndexError:
        raise _contradiction(len(found), header) from None
    if at != len(whole):
        raise _contradiction(len(found), header)
    return found


def _bounds(plain: bytes, at: int) -> tuple[int, int]:
    """Return the position after the length of a record, and the end of the record."""
    byte = plain[at]
    if byte < 0x80:
        return at + 1, at + 1 + (byte >> 1)
    second = plain[at + 1]
    if second < 0x80:
        return at + 2, at + 2 + ((byte & 0x7F | second << 7) >> 1)
    length, body = varint(plain, at)
    return body, body + max(0, length)


def _offset(plain: bytes, body: int, header: BatchHeader, number: int) -> tuple[int, int]:
    """Return the offset of a record and the position after it."""
    # Skip the attributes byte and the timestamp varint: all of its bytes except the last have the
    # high bit set.
    at = body + 1
    while plain[at] > 0x7F:
        at += 1
    delta, at = varint(plain, at + 1)
    if not 0 <= delta <= header.last_offset_delta:
        raise _contradiction(number, header)
    return header.base_offset + delta, at


def _field(plain: bytes, at: int) -> tuple[bytes | None, int]:
    size_bytes, at = varint(plain, at)
    return (None, at) if size_bytes < 0 else (plain[at : at + size_bytes], at + size_bytes)


def _is_dense(header: BatchHeader) -> bool:
    return header.record_count == header.last_offset_delta + 1


def _contradiction(number: int, header: BatchHeader) -> BatchCorrupt:
    return BatchCorrupt(
        f"record {number} of the batch at offset {header.base_offset} contradicts its length or its"
        " batch"
    )


def with_records(
    batch: memoryview,
    header: BatchHeader,
    plain: PlainRecords,
    kept: Sequence[RecordSpan],
    delete_horizon_ms: Millis | None,
) -> bytearray:
    """Return the batch reduced to these records, of which there is at least one.

    delete_horizon_ms: the base timestamp of the new batch, to which the timestamp deltas of its
    records are adjusted (KIP-534). If it is None, the base timestamp is kept.
    """
    shift_ms = 0 if delete_horizon_ms is None else header.base_timestamp_ms - delete_horizon_ms
    view = plain.view
    newest_delta = _newest_delta_ms(view, kept)
    records: list[Buffer]
    if shift_ms:
        records = [_shifted(view, span, shift_ms) for span in kept]
    else:
        records = [view[span.start : span.end] for span in kept]
    is_append_time = header.timestamp_type == TIMESTAMP_LOG_APPEND_TIME
    attributes = header.attributes
    base_ms = header.base_timestamp_ms
    newest_ms = header.max_timestamp_ms if is_append_time else base_ms + newest_delta
    if delete_horizon_ms is not None:
        attributes, base_ms = attributes | DELETE_HORIZON_MASK, delete_horizon_ms
    if header.compression != Compression.NONE:
        records = [compress(Compression(header.compression), b"".join(records))]
    result = bytearray().join([bytes(HEADER_BYTES), *records])
    changed = header._replace(
        batch_length=len(result) - BATCH_OVERHEAD,
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=newest_ms,
        record_count=len(kept),
    )
    HEADER.pack_into(result, 0, *changed)
    crc = crc32c(memoryview(result)[CRC_START:])
    HEADER.pack_into(result, 0, *changed._replace(crc=crc))
    return result


def _newest_delta_ms(plain: memoryview, kept: Sequence[RecordSpan]) -> int:
    newest_ms = None
    for _, body, end, _ in kept:
        byte = plain[body + 1]
        delta_ms = (byte >> 1) ^ -(byte & 1)
        if byte > 0x7F:
            delta_ms, _ = read_varlong(plain, body + 1, end)
        if newest_ms is None or delta_ms > newest_ms:
            newest_ms = delta_ms
    assert newest_ms is not None, "a batch keeps at least one record"
    return newest_ms


def _shifted(plain: memoryview, span: RecordSpan, shift_ms: int) -> bytes:
    """Return the record with an adjusted timestamp delta. Readers add it to the base timestamp in
    64-bit arithmetic, so that it may overflow, as in Java.
    """
    delta, behind = read_varlong(plain, span.body + 1, span.end)
    body = bytearray(plain[span.body : span.body + 1])
    append_varint(body, (delta + shift_ms + (1 << 63)) % (1 << 64) - (1 << 63))
    body += plain[behind : span.end]
    record = bytearray()
    append_varint(record, len(body))
    return bytes(record + body)


def fillers(start: Offset, end: Offset, leader_epoch: int) -> Iterator[tuple[Offset, bytearray]]:
    """Yield the end offset and the bytes of empty batches that cover [start, end)."""
    while start < end:
        last = min(end - 1, start + _DELTA_MAX - 1)
        yield (
            Offset(last + 1),
            encode_batch([], base_offset=start, last_offset=last, leader_epoch=leader_epoch),
        )
        start = Offset(last + 1)

"""Kafka record batches to Arrow's buffers, compiled, without the GIL; measured by
`benchmarks/decode.py`.

Invariants: no byte is read outside [DATA_START, DATA_END) of a row and nothing is written behind
the end of an output, whatever the input
says: every length is compared with what is left before it is used, every output with its capacity
before it is written. Everything that `stream.batch.records` refuses is refused. Same results as
`decode_numpy`, which is what runs where numba is not installed.

Memory is addressed by number (`decode_memory`). Only `decode` and `walk` are called from outside;
they take the addresses of arrays that their caller holds.
Source: Kafka `DefaultRecord`; Arrow `BinaryType::c_type`, `BinaryViewType::c_type`.
"""

# ruff: noqa: PLR0917 (compiled functions take no keyword arguments)

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from lake.arrow import decode_job as j
from lake.arrow import decode_table as t
from lake.arrow import kernel_cache
from lake.arrow.decode_memory import (
    STEP_BYTES,
    Untyped,
    copy,
    copy_step,
    get,
    i64_at,
    set8,
    set32,
    set64,
    u8,
    u32_at,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_njit: Untyped = numba.njit
_types: Untyped = numba.types

_INLINE_MAX = 12
"""Up to this, a view holds the bytes themselves."""

_INT64_MAX = (1 << 63) - 1
_MAGIC = 2
_HEADER_BYTES = 61
_BATCH_OVERHEAD = 12
_PLAIN_HEAD_BYTES = 18
_SHORT_BYTES = 256
"""Up to this, steps are faster than a call of memcpy."""


def _compiled(signature: Untyped) -> Callable[[_Function], _Function]:
    """Compiled when this module is imported, or loaded from the cache; with a signature, so that
    there is one version and no surprise.
    """

    def decorate(function: _Function) -> _Function:
        with kernel_cache.directory(*kernel_cache.KERNELS) as is_cached:
            compiled: _Function = _njit(signature, nogil=True, cache=is_cached)(function)
        return compiled

    return decorate


def _part(function: _Function) -> _Function:
    """Part of `decode` or `walk`."""
    compiled: _Function = _njit(nogil=True)(function)
    return compiled


def _hot_part(function: _Function) -> _Function:
    """Put into its callers, for it is called for every record: its results then stay in
    registers.
    """
    compiled: _Function = _njit(nogil=True, forceinline=True)(function)
    return compiled


@_part
def _long_number_of(
    source: int, at: int, end: int, last_shift: int, last_byte_max: int
) -> tuple[int, int]:
    value, shift = 0, 0
    while shift <= last_shift and at < end:
        byte = u8(source, at)
        at += 1
        if byte < 0x80:
            if shift == last_shift and byte > last_byte_max:
                return 0, -1
            value |= byte << shift
            return ((value >> 1) & _INT64_MAX) ^ -(value & 1), at
        value |= (byte & 0x7F) << shift
        shift += 7
    return 0, -1


@_hot_part
def _number_of(
    source: int, at: int, end: int, last_shift: int, last_byte_max: int
) -> tuple[int, int]:
    """(value, position behind it) of a zig-zag number; position -1 if it is none. 32 bits: 28, 15;
    64 bits: 63, 1.
    """
    if end - at >= 2:
        first, second = u8(source, at), u8(source, at + 1)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
        if second < 0x80:
            value = first & 0x7F | second << 7
            return (value >> 1) ^ -(value & 1), at + 2
    return _long_number_of(source, at, end, last_shift, last_byte_max)


@_hot_part
def _field(source: int, at: int, end: int) -> tuple[int, int, int]:
    """(length or -1, position of the bytes, position behind them) of a nullable field; for a bad
    number -1 is behind, for a length -2.
    """
    length, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return length, at, -1
    if length == -1:
        return length, at, at
    if length < 0 or length > end - at:
        return length, at, -2
    return length, at, at + length


@_part
def _bad_field(behind: int) -> int:
    return t.BAD_VARINT if behind == -1 else t.BAD_FIELD


@_part
def _measure_headers(source: int, at: int, end: int, count: int) -> tuple[int, int, int]:
    """(DONE or what is wrong, bytes of names, bytes of values)."""
    names, values = 0, 0
    for _ in range(count):
        length, _at, behind = _field(source, at, end)
        if behind < 0:
            return _bad_field(behind), 0, 0
        if length < 0:
            return t.BAD_HEADER_NAME, 0, 0
        names += length
        length, _at, at = _field(source, behind, end)
        if at < 0:
            return _bad_field(at), 0, 0
        values += max(length, 0)
    return (t.DONE if at == end else t.BAD_RECORD_END), names, values


@_hot_part
def _parse(
    source: int, at: int, end: int, is_append_time: bool
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """A record from behind its length to its end: (DONE or what is wrong, timestamp delta, offset
    delta, key length, key position, value length, value position, header count, headers' position).
    The broker's time of appending is that of all records.
    """
    timestamp_delta, at = _number_of(source, at + 1, end, 63, 1)  # one byte of attributes, unused
    if at < 0:
        return t.BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return t.BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at, at = _field(source, at, end)
    if at < 0:
        return _bad_field(at), 0, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at, at = _field(source, at, end)
    if at < 0:
        return _bad_field(at), 0, 0, 0, 0, 0, 0, 0, 0
    count, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return t.BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    if count < 0 or count > (end - at) // 2:
        return t.BAD_HEADER_COUNT, 0, 0, 0, 0, 0, 0, 0, 0
    code = t.BAD_RECORD_END if count == 0 and at != end else t.DONE
    timestamp_delta = 0 if is_append_time else timestamp_delta
    return (
        code,
        timestamp_delta,
        offset_delta,
        key_length,
        key_at,
        value_length,
        value_at,
        count,
        at,
    )


@_hot_part
def _short_number_of(source: int, at: int) -> tuple[int, int]:
    """(number as it stands, before zig-zag; position behind it) of up to two bytes; position -1 if
    it is longer.
    """
    first = u8(source, at)
    if first < 0x80:
        return first, at + 1
    second = u8(source, at + 1)
    return first & 0x7F | second << 7, at + 2 if second < 0x80 else -1


@_hot_part
def _short_field(source: int, at: int) -> tuple[int, int, int]:
    """As `_field`, for a length of up to two bytes; -1 is behind others. Whether the bytes are
    there is for the caller to see.
    """
    number, at = _short_number_of(source, at)
    if number & 1 == 0:
        return number >> 1, at, at + (number >> 1) if at >= 0 else -1
    return -1, at, at if number == 1 else -1


@_hot_part
def _parse_plain(
    source: int, at: int, data_end: int, is_append_time: bool
) -> tuple[int, int, int, int, int, int, int]:
    """A record as nearly all are, of up to 8 KiB and without headers, from its length on: (its end,
    timestamp delta, offset delta, key length, key position, value length, value position); end -1:
    it is none of these, or not sound, which the others find out.

    Positions only grow, so most are checked by the last one alone: it has to be where the record
    ends. What is read before that lies within the batch: the numbers before the key have 17 bytes
    at most, those behind it are read once they are known to be there.
    """
    if data_end - at < _PLAIN_HEAD_BYTES:
        return -1, 0, 0, 0, 0, 0, 0
    number, start = _short_number_of(source, at)
    end = start + (number >> 1)
    if start < 0 or number & 1 or end > data_end:
        return -1, 0, 0, 0, 0, 0, 0
    delta_ms, at = _number_of(source, start + 1, data_end, 63, 1)  # replayed events are hours apart
    if at < 0:
        return -1, 0, 0, 0, 0, 0, 0
    delta, at = _short_number_of(source, at)
    if at < 0 or delta & 1:
        return -1, 0, 0, 0, 0, 0, 0
    key_length, key_at, at = _short_field(source, at)
    if at < 0 or at > end - 2:
        return -1, 0, 0, 0, 0, 0, 0
    value_length, value_at, at = _short_field(source, at)
    if at != end - 1 or u8(source, at) != 0:
        return -1, 0, 0, 0, 0, 0, 0
    return (
        end,
        0 if is_append_time else delta_ms,
        delta >> 1,
        key_length,
        key_at,
        value_length,
        value_at,
    )


@_part
def _headers_of(source: int, record: Untyped, end: int, wanted: int) -> tuple[int, int, int, int]:
    """(DONE or what is wrong, what is wanted of them: count, bytes of names, bytes of values). They
    are checked all the same.
    """
    code, names, values = _measure_headers(source, record[8], end, record[7])
    if code or wanted & j.WANT_HEADERS == 0:
        return code, 0, 0, 0
    return t.DONE, record[7], names, values


@_hot_part
def _put_timestamp(timestamps: int, row: int, base_ms: int, delta_ms: int) -> int:
    """Compares before it adds, so that nothing overflows."""
    if delta_ms >= 0:
        if base_ms > t.TIMESTAMP_MS_MAX - delta_ms:
            return t.BAD_TIMESTAMP
    elif base_ms < -t.TIMESTAMP_MS_MAX - delta_ms:
        return t.BAD_TIMESTAMP
    timestamp_ms = base_ms + delta_ms
    if timestamp_ms > t.TIMESTAMP_MS_MAX or timestamp_ms < -t.TIMESTAMP_MS_MAX:
        return t.BAD_TIMESTAMP
    set64(timestamps, row, timestamp_ms * 1000)
    return t.DONE


@_part
def _put_null(valid: int, rows_max: int, row: int, job: int, nulls: int) -> None:
    """Until a column meets its first null, its validity is not even written."""
    count = get(job, nulls)
    if count == 0:
        for byte in range((rows_max + 7) >> 3):
            set8(valid, byte, 0xFF)
    set8(valid, row >> 3, u8(valid, row >> 3) & ~(1 << (row & 7)))
    set64(job, nulls, count + 1)


@_hot_part
def _copy_field(into: int, from_: int, length: int, source_end: int) -> None:
    """There is room for it, and `j.PADDING_BYTES` behind that."""
    if length <= _SHORT_BYTES and source_end - from_ >= length + STEP_BYTES:
        done = 0
        while done < length:
            copy_step(into + done, from_ + done)
            done += STEP_BYTES
    else:
        copy(into, from_, length)


@_part
def _put_header_value(source: int, at: int, length: int, header: int, job: int) -> None:
    used = get(job, j.OUT_HEADER_VALUE)
    if length > 0:
        copy(get(job, j.HEADER_VALUE_DATA) + used, source + at, length)
        used += length
        set64(job, j.OUT_HEADER_VALUE, used)
    elif length < 0:
        _put_null(
            get(job, j.HEADER_VALUE_VALID),
            get(job, j.HEADERS_CAPACITY),
            header,
            job,
            j.NULL_HEADER_VALUES,
        )
    set32(get(job, j.HEADER_VALUE_OFFSETS), header + 1, used)


@_part
def _put_headers(source: int, at: int, end: int, count: int, row: int, job: int) -> None:
    """Append a record's headers, which `_measure_headers` found sound and for which there is room.
    No headers are a null, as in Spark.
    """
    if count == 0:
        _put_null(get(job, j.LIST_VALID), get(job, j.ROWS_MAX), row, job, j.NULL_LISTS)
    header = get(job, j.OUT_HEADERS)
    for _ in range(count):
        length, data_at, at = _field(source, at, end)
        used = get(job, j.OUT_NAME)
        copy(get(job, j.NAME_DATA) + used, source + data_at, length)
        set64(job, j.OUT_NAME, used + length)
        set32(get(job, j.NAME_OFFSETS), header + 1, used + length)
        length, data_at, at = _field(source, at, end)
        _put_header_value(source, data_at, length, header, job)
        header += 1
    set64(job, j.OUT_HEADERS, header)
    set32(get(job, j.LIST_OFFSETS), row + 1, header)


@_hot_part
def _outputs(job: int, source: int) -> Untyped:
    """What no record changes, read once a batch: for all that LLVM knows, every store to an output
    might change the job.

    Rows that weigh no more than any output has room for fit into all of them: one comparison a
    record instead of five.
    """
    room = min(
        get(job, j.KEY_CAPACITY),
        get(job, j.VALUE_CAPACITY),
        get(job, j.NAME_CAPACITY),
        get(job, j.HEADER_VALUE_CAPACITY),
    )
    bytes_max = min(get(job, j.BYTES_MAX), room, j.HEADER_ROOM_BYTES * get(job, j.HEADERS_CAPACITY))
    limits = get(job, j.WANTED), get(job, j.ROWS_MAX), bytes_max, get(job, j.ROW_BYTES)
    binary = (
        get(job, j.KEY_OFFSETS),
        get(job, j.KEY_DATA),
        get(job, j.VALUE_OFFSETS),
        get(job, j.VALUE_DATA),
    )
    return (
        limits
        + binary
        + (
            get(job, j.OFFSETS),
            get(job, j.TIMESTAMPS),
            source + get(job, j.SOURCE_BYTES),
            get(job, j.VIEWED),
        )
    )


@_hot_part
def _used(job: int) -> Untyped:
    """What every record changes: kept in registers until `_note_used`."""
    return get(job, j.OUT_ROWS), get(job, j.OUT_BYTES), get(job, j.OUT_KEY), get(job, j.OUT_VALUE)


@_hot_part
def _note_used(job: int, used: Untyped) -> None:
    rows, used_bytes, key_used, value_used = used
    set64(job, j.OUT_ROWS, rows)
    set64(job, j.OUT_BYTES, used_bytes)
    set64(job, j.OUT_KEY, key_used)
    set64(job, j.OUT_VALUE, value_used)


@_part
def _room(
    job: int, used: Untyped, key: int, value: int, count: int, names: int, values: int
) -> int:
    """DONE if the outputs take a record of these sizes, else GROW, and what is needed."""
    _note_used(job, used)
    fits = True
    for number, more in enumerate((key, value, count, names, values)):
        needed = get(job, j.OUT_KEY + number) + more
        set64(job, j.NEED_KEY + number, needed)
        fits = fits and needed <= get(job, j.KEY_CAPACITY + number)
    return t.DONE if fits else t.GROW


@_hot_part
def _put(
    source: int, at: int, length: int, used: int, row: int, offsets: int, data: int, source_end: int
) -> int:
    """Append a field as element `row`; there is room for it. Returns what is used then."""
    if length > 0:
        _copy_field(data + used, source + at, length, source_end)
        used += length
    set32(offsets, row + 1, used)
    return used


@_hot_part
def _put_view(
    source: int, at: int, length: int, row: int, views: int, viewed: int, source_end: int
) -> None:
    """A field as element `row`: its length, then its bytes, or the first four of them and where
    they all are.
    """
    from_, view = source + at, views + j.VIEW_BYTES * row
    if length > _INLINE_MAX:
        set64(view, 0, length | u32_at(from_) << 32)
        set64(view, 1, viewed + (at << 32))
    elif length == 0 or source_end - from_ >= _INLINE_MAX:
        _put_short_view(from_, length, view)
    else:
        set64(view, 0, length)
        set64(view, 1, 0)
        for i in range(length):
            set8(view, 4 + i, u8(from_, i))


@_hot_part
def _put_short_view(from_: int, length: int, view: int) -> None:
    """Bytes behind the field are read with it, and masked."""
    if length == 0:
        set64(view, 0, 0)
        set64(view, 1, 0)
        return
    first, rest = u32_at(from_), i64_at(from_ + 4)
    if length < 4:
        first &= (1 << 8 * length) - 1
    if length <= 4:
        rest = 0
    elif length < _INLINE_MAX:
        rest &= (1 << 8 * (length - 4)) - 1
    set64(view, 0, length | first << 32)
    set64(view, 1, rest)


@_hot_part
def _put_field(
    source: int,
    at: int,
    length: int,
    used: int,
    row: int,
    offsets: int,
    data: int,
    source_end: int,
    viewed: int,
    wanted: int,
) -> int:
    """Append a field as element `row`. Returns what is used of the data then."""
    if wanted & j.WANT_VIEWS:
        _put_view(source, at, length, row, offsets, viewed, source_end)
        return used
    return _put(source, at, length, used, row, offsets, data, source_end)


@_hot_part
def _append(
    source: int,
    record: Untyped,
    headers: Untyped,
    offset: int,
    base_ms: int,
    used: Untyped,
    outputs: Untyped,
    job: int,
) -> Untyped:
    """One record to the end of the outputs: (DONE or what stands against it, what is used then)."""
    _, delta_ms, _, key_length, key_at, value_length, value_at, _, headers_at = record
    wanted, rows_max, bytes_max, row_bytes = outputs[:4]
    key_offsets, key_data, value_offsets, value_data, offsets, timestamps, source_end, viewed = (
        outputs[4:]
    )
    rows, used_bytes, key_used, value_used = used
    count, names, values, end = headers
    key, value = (
        max(key_length, 0) if wanted & j.WANT_KEY else 0,
        max(value_length, 0) if wanted & j.WANT_VALUE else 0,
    )
    used_bytes += row_bytes + key + value + names + values + j.HEADER_ROOM_BYTES * count
    # Room first: nothing may be written to a row that may not exist. A record larger than an Arrow
    # batch has one of its own.
    if rows >= rows_max or used_bytes > bytes_max:
        if rows:
            return t.FULL, used
        code = _room(job, used, key, value, count, names, values)
        if code:
            return code, used
    if wanted & j.WANT_TIMESTAMP:
        code = _put_timestamp(timestamps, rows, base_ms, delta_ms)
        if code:
            return code, used
    if wanted & j.WANT_KEY:
        key_used = _put_field(
            source, key_at, key, key_used, rows, key_offsets, key_data, source_end, viewed, wanted
        )
    if wanted & j.WANT_VALUE:
        value_used = _put_field(
            source,
            value_at,
            value,
            value_used,
            rows,
            value_offsets,
            value_data,
            source_end,
            viewed,
            wanted,
        )
    if key_length < 0 or value_length < 0 or wanted & j.WANT_HEADERS:
        _put_rare(source, headers_at, end, count, rows, job, key_length < 0, value_length < 0)
    if wanted & j.WANT_OFFSET:
        set64(offsets, rows, offset)
    return t.DONE, (rows + 1, used_bytes, key_used, value_used)


@_part
def _put_rare(
    source: int,
    headers_at: int,
    end: int,
    count: int,
    row: int,
    job: int,
    no_key: bool,
    no_value: bool,
) -> None:
    """Nulls, and headers."""
    wanted = get(job, j.WANTED)
    if no_key and wanted & j.WANT_KEY:
        _put_null(get(job, j.KEY_VALID), get(job, j.ROWS_MAX), row, job, j.NULL_KEYS)
    if no_value and wanted & j.WANT_VALUE:
        _put_null(get(job, j.VALUE_VALID), get(job, j.ROWS_MAX), row, job, j.NULL_VALUES)
    if wanted & j.WANT_HEADERS:
        _put_headers(source, headers_at, end, count, row, job)


@_part
def _put_types(job: int, first: int, end: int, is_append_time: bool) -> None:
    """Of the rows of one batch: its records have one timestamp type."""
    if get(job, j.WANTED) & j.WANT_TIMESTAMP_TYPE:
        types = get(job, j.TIMESTAMP_TYPES)
        for row in range(first, end):
            set32(types, row, 1 if is_append_time else 0)


@_part
def _decode_batch(source: int, batch: int, job: int) -> int:
    """The rest of one batch: its records with offsets in [low, high)."""
    at, data_end, base_offset = (
        get(job, j.ROW_AT),
        get(batch, t.DATA_END),
        get(batch, t.BASE_OFFSET),
    )
    number, record_count, previous = (
        get(job, j.ROW_RECORD),
        get(batch, t.RECORD_COUNT),
        get(job, j.ROW_DELTA),
    )
    low, high, last_delta = (
        get(job, j.LOW_OFFSET),
        get(job, j.HIGH_OFFSET),
        get(batch, t.LAST_OFFSET) - base_offset,
    )
    is_append_time = get(batch, t.ATTRIBUTES) & 8 != 0
    base_ms = get(batch, t.MAX_TIMESTAMP if is_append_time else t.BASE_TIMESTAMP)
    outputs, used, rows_before = _outputs(job, source), _used(job), get(job, j.OUT_ROWS)
    code: int = t.DONE
    while number < record_count:
        end, delta_ms, delta, key_length, key_at, value_length, value_at = _parse_plain(
            source, at, data_end, is_append_time
        )
        record = t.DONE, delta_ms, delta, key_length, key_at, value_length, value_at, 0, end
        if end < 0:
            length, start = _number_of(source, at, data_end, 28, 15)
            if start < 0 or length < 0 or length > data_end - start:
                code = t.BAD_VARINT if start < 0 else t.BAD_RECORD_LENGTH
                break
            end = start + length
            record = _parse(source, start, end, is_append_time)
        code, delta = record[0], record[2]
        if code == t.DONE and (delta <= previous or delta > last_delta):
            code = t.BAD_DELTA
        count, names, values = 0, 0, 0
        if code == t.DONE and record[7]:
            code, count, names, values = _headers_of(source, record, end, outputs[0])
        if code == t.DONE and low <= base_offset + delta < high:
            code, used = _append(
                source,
                record,
                (count, names, values, end),
                base_offset + delta,
                base_ms,
                used,
                outputs,
                job,
            )
        if code:
            break
        at, previous = end, delta
        number += 1
    _note_used(job, used)
    _put_types(job, rows_before, used[0], is_append_time)
    set64(job, j.ROW_AT, at)
    set64(job, j.ROW_RECORD, number)
    set64(job, j.ROW_DELTA, previous)
    return t.BAD_END if code == t.DONE and at != data_end else code


@_part
def _begin_offsets(job: int) -> None:
    """The first element of each column begins at 0."""
    for slot in (
        j.KEY_OFFSETS,
        j.VALUE_OFFSETS,
        j.LIST_OFFSETS,
        j.NAME_OFFSETS,
        j.HEADER_VALUE_OFFSETS,
    ):
        offsets = get(job, slot)
        if offsets != 0:
            set32(offsets, 0, 0)


@_compiled(_types.int64(_types.int64, _types.int64, _types.int64, _types.int64, _types.int64))
def decode(source: int, source_bytes: int, table: int, count: int, job: int) -> int:
    """Go on where the job says, through the first `count` rows of the table, until all is DONE, an
    output is FULL or has to GROW, or something is wrong; which batch that is, the job says. All but
    source_bytes and count are addresses.
    """
    set64(job, j.SOURCE_BYTES, source_bytes)
    if get(job, j.OUT_ROWS) == 0:
        _begin_offsets(job)
    while get(job, j.ROW) < count:
        batch = table + 8 * t.TABLE_COLUMNS * get(job, j.ROW)
        if get(job, j.ROW_AT) < 0:
            start, end, records = (
                get(batch, t.DATA_START),
                get(batch, t.DATA_END),
                get(batch, t.RECORD_COUNT),
            )
            if (
                start < 0
                or end < start
                or end > source_bytes
                or records < 0
                or records > (end - start) // t.RECORD_BYTES_MIN
            ):
                return t.BAD_COUNT
            set64(job, j.ROW_AT, start)
            set64(job, j.ROW_RECORD, 0)
            set64(job, j.ROW_DELTA, -1)
        code = _decode_batch(source, batch, job)
        if code:
            return code
        set64(job, j.ROW, get(job, j.ROW) + 1)
        set64(job, j.ROW_AT, -1)
    return t.DONE


@_part
def _big_endian(source: int, at: int, size: int) -> int:
    """Signed."""
    value = u8(source, at)
    if value > 0x7F:
        value -= 0x100
    for i in range(1, size):
        value = (value << 8) | u8(source, at + i)
    return value


@_part
def _put_row(block: int, at: int, length: int, base_offset: int, delta: int, row: int) -> None:
    set64(row, t.AT, at)
    set64(row, t.END, at + _BATCH_OVERHEAD + length)
    set64(row, t.BASE_OFFSET, base_offset)
    set64(row, t.LAST_OFFSET, base_offset + delta)
    set64(row, t.CRC, _big_endian(block, at + 17, 4) & 0xFFFFFFFF)
    set64(row, t.ATTRIBUTES, _big_endian(block, at + 21, 2))
    set64(row, t.BASE_TIMESTAMP, _big_endian(block, at + 27, 8))
    set64(row, t.MAX_TIMESTAMP, _big_endian(block, at + 35, 8))
    set64(row, t.PRODUCER_ID, _big_endian(block, at + 43, 8))
    set64(row, t.RECORD_COUNT, _big_endian(block, at + 57, 4))
    set64(row, t.DATA_START, at + _HEADER_BYTES)
    set64(row, t.DATA_END, at + _BATCH_OVERHEAD + length)


@_compiled(
    _types.UniTuple(_types.int64, 4)(
        _types.int64,
        _types.int64,
        _types.int64,
        _types.int64,
        _types.int64,
        _types.int64,
        _types.int64,
    )
)
def walk(
    block: int, at: int, end: int, expected: int, end_offset: int, table: int, rows_max: int
) -> tuple[int, int, int, int]:
    """Headers of a block from `at` to `end` into the table: (rows, position behind them, next
    offset, DONE or what is wrong there). block and table are addresses; the table has rows_max
    rows.
    """
    rows = 0
    while at < end and rows < rows_max:
        if end - at < _HEADER_BYTES or u8(block, at + 16) != _MAGIC:
            return rows, at, expected, t.BAD_HEADER
        length = _big_endian(block, at + 8, 4)
        if length < _HEADER_BYTES - _BATCH_OVERHEAD or length > end - at - _BATCH_OVERHEAD:
            return rows, at, expected, t.BAD_LENGTH
        base_offset, delta = _big_endian(block, at, 8), _big_endian(block, at + 23, 4)
        if base_offset < expected or delta < 0 or delta >= end_offset - base_offset:
            return rows, at, expected, t.BAD_OFFSETS
        _put_row(block, at, length, base_offset, delta, table + 8 * t.TABLE_COLUMNS * rows)
        expected = base_offset + delta + 1
        at += _BATCH_OVERHEAD + length
        rows += 1
    return rows, at, expected, t.DONE


kernel_cache.complete(*kernel_cache.KERNELS)

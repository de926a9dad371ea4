"""Decode Kafka record batches to Arrow's buffers in compiled code, without the GIL.
`benchmarks/decode.py` measures this code. Only `kernel_code` imports this module, in order to
compile it, because importing numba takes half a second.

Source: Kafka `DefaultRecord`; Arrow `BinaryType::c_type`, `BinaryViewType::c_type`.
"""

# ruff: noqa: PLR0917 (compiled functions take no keyword arguments)

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numba

from penstock.lake.arrow import decode_job as j
from penstock.lake.arrow import decode_table as t
from penstock.lake.arrow.decode_memory import (
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

_INLINE_MAX = 12
"""Fields of up to this many bytes are stored in the view itself."""

_INT64_MAX = (1 << 63) - 1
_MAGIC = 2
_HEADER_BYTES = 61
_BATCH_OVERHEAD = 12
_PLAIN_HEAD_BYTES = 18
_SHORT_BYTES = 256
"""Fields up to this length are copied in steps, which is faster than calling memcpy."""


class _Record(NamedTuple):
    """One record: its values, and the positions of its fields in the source."""

    code: int
    """DONE, or the error code of an invalid record."""
    end: int
    """The position after the record."""
    delta_ms: int
    offset_delta: int
    key_length: int
    """-1 for a null key. `value_length` is -1 for a null value."""
    key_at: int
    value_length: int
    value_at: int
    header_count: int
    headers_at: int


class _Headers(NamedTuple):
    """The space that the headers of one record need in the outputs."""

    header_count: int
    name_bytes: int
    value_bytes: int


class _Outputs(NamedTuple):
    """Properties of the outputs that are constant for a job."""

    wanted: int
    rows_max: int
    bytes_max: int
    row_bytes: int
    key_offsets: int
    key_data: int
    value_offsets: int
    value_data: int
    offsets: int
    timestamps: int
    source_end: int
    viewed: int


class _Used(NamedTuple):
    """How much of each output is used."""

    row_count: int
    size_bytes: int
    key_bytes: int
    value_bytes: int


def _part(function: _Function) -> _Function:
    """Compile a part of `decode` or `walk`."""
    compiled: _Function = _njit(nogil=True)(function)
    return compiled


def _hot_part(function: _Function) -> _Function:
    """Compile a part that runs for every record: it is inlined, so that its results stay in
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
    """Parse a zig-zag number. Return its value and the position after it, or position -1 if it is
    invalid. Pass 28 and 15 for 32 bits, 63 and 1 for 64 bits.
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
    """Parse a nullable field. Return its length or -1, the position of its bytes, and the position
    after them: -1 for an invalid number, -2 for an invalid length.
    """
    length, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return length, at, -1
    if length < 0:
        return -1, at, at
    if length > end - at:
        return length, at, -2
    return length, at, at + length


@_part
def _bad_field(behind: int) -> int:
    return t.BAD_VARINT if behind == -1 else t.BAD_FIELD


@_part
def _measure_headers(source: int, at: int, end: int, count: int) -> tuple[int, _Headers]:
    """Check headers and add up their sizes. Return DONE or an error code, and the sizes."""
    names, values = 0, 0
    for _ in range(count):
        length, _at, behind = _field(source, at, end)
        if behind < 0:
            return _bad_field(behind), _Headers(0, 0, 0)
        if length < 0:
            return t.BAD_HEADER_NAME, _Headers(0, 0, 0)
        names += length
        length, _at, at = _field(source, behind, end)
        if at < 0:
            return _bad_field(at), _Headers(0, 0, 0)
        values += max(length, 0)
    return (t.DONE if at == end else t.BAD_RECORD_END), _Headers(count, names, values)


@_hot_part
def _bad_record(code: int) -> _Record:
    return _Record(code, -1, 0, 0, 0, 0, 0, 0, 0, 0)


@_hot_part
def _parse(source: int, at: int, data_end: int, is_append_time: bool) -> _Record:
    """Parse any record, starting at its length. With append time, its timestamp delta is 0."""
    length, at = _number_of(source, at, data_end, 28, 15)
    if at < 0:
        return _bad_record(t.BAD_VARINT)
    if length < 0 or length > data_end - at:
        return _bad_record(t.BAD_RECORD_LENGTH)
    return _parse_fields(source, at, at + length, is_append_time)


@_hot_part
def _parse_fields(source: int, at: int, end: int, is_append_time: bool) -> _Record:
    """Parse a record, starting after its length."""
    delta_ms, at = _number_of(source, at + 1, end, 63, 1)  # skip the unused attributes byte
    if at < 0:
        return _bad_record(t.BAD_VARINT)
    offset_delta, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return _bad_record(t.BAD_VARINT)
    key_length, key_at, at = _field(source, at, end)
    if at < 0:
        return _bad_record(_bad_field(at))
    value_length, value_at, at = _field(source, at, end)
    if at < 0:
        return _bad_record(_bad_field(at))
    count, at = _number_of(source, at, end, 28, 15)
    if at < 0:
        return _bad_record(t.BAD_VARINT)
    if count < 0 or count > (end - at) // 2:
        return _bad_record(t.BAD_HEADER_COUNT)
    code = t.BAD_RECORD_END if count == 0 and at != end else t.DONE
    delta_ms = 0 if is_append_time else delta_ms
    return _Record(
        code, end, delta_ms, offset_delta, key_length, key_at, value_length, value_at, count, at
    )


@_hot_part
def _short_number_of(source: int, at: int) -> tuple[int, int]:
    """Parse a number of up to two bytes. Return it before zig-zag decoding, and the position after
    it, or -1 if it is longer.
    """
    first = u8(source, at)
    if first < 0x80:
        return first, at + 1
    second = u8(source, at + 1)
    return first & 0x7F | second << 7, at + 2 if second < 0x80 else -1


@_hot_part
def _short_field(source: int, at: int) -> tuple[int, int, int]:
    """Parse a field like `_field` if its length is encoded in at most two bytes; otherwise the
    position after it is -1. The caller checks whether the bytes exist.
    """
    number, at = _short_number_of(source, at)
    if number & 1 == 0:
        return number >> 1, at, at + (number >> 1) if at >= 0 else -1
    return -1, at, at if number == 1 else -1


@_hot_part
def _parse_plain(source: int, at: int, data_end: int, is_append_time: bool) -> _Record:
    """Parse a typical record, starting at its length: up to 8 KiB, without headers.

    The end is -1 for every other record, including invalid ones, which `_parse` handles. Positions
    only increase, so checking the last one against the end of the record covers most of them.
    Earlier reads are within the batch: the numbers before the key take at most 17 bytes, and later
    numbers are read only after a bounds check.
    """
    if data_end - at < _PLAIN_HEAD_BYTES:
        return _bad_record(t.DONE)
    number, start = _short_number_of(source, at)
    end = start + (number >> 1)
    if start < 0 or number & 1 or end > data_end:
        return _bad_record(t.DONE)
    delta_ms, at = _number_of(source, start + 1, data_end, 63, 1)  # large for replayed events
    if at < 0:
        return _bad_record(t.DONE)
    delta, at = _short_number_of(source, at)
    if at < 0 or delta & 1:
        return _bad_record(t.DONE)
    key_length, key_at, at = _short_field(source, at)
    if at < 0 or at > end - 2:
        return _bad_record(t.DONE)
    value_length, value_at, at = _short_field(source, at)
    if at != end - 1 or u8(source, at) != 0:
        return _bad_record(t.DONE)
    delta_ms = 0 if is_append_time else delta_ms
    return _Record(
        t.DONE, end, delta_ms, delta >> 1, key_length, key_at, value_length, value_at, 0, end
    )


@_part
def _headers_of(source: int, record: _Record, wanted: int) -> tuple[int, _Headers]:
    """Check a record's headers, including unwanted ones. Return DONE or an error code, and their
    sizes if they are wanted.
    """
    code, headers = _measure_headers(source, record.headers_at, record.end, record.header_count)
    if code or wanted & j.WANT_HEADERS == 0:
        return code, _Headers(0, 0, 0)
    return t.DONE, headers


@_hot_part
def _put_timestamp(timestamps: int, row: int, timestamp_ms: int) -> None:
    """Write a timestamp, limited to the range of Arrow. Sums wrap around, as in Java."""
    if timestamp_ms > t.TIMESTAMP_MS_MAX:
        timestamp_ms = t.FAR_FUTURE_MS
    elif timestamp_ms < -t.TIMESTAMP_MS_MAX:
        timestamp_ms = t.FAR_PAST_MS
    set64(timestamps, row, timestamp_ms * 1000)


@_part
def _put_null(valid: int, rows_max: int, row: int, job: int, nulls: int) -> None:
    """Write a null. The validity bitmap of a column is written only once the column contains a
    null.
    """
    count = get(job, nulls)
    if count == 0:
        for byte in range((rows_max + 7) >> 3):
            set8(valid, byte, 0xFF)
    set8(valid, row >> 3, u8(valid, row >> 3) & ~(1 << (row & 7)))
    set64(job, nulls, count + 1)


@_hot_part
def _copy_field(into: int, from_: int, length: int, source_end: int) -> None:
    """Copy a field. The output must have room for it plus `j.PADDING_BYTES`."""
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
    """Append a record's headers. `_measure_headers` has checked the headers, and there is room for
    them. Headers are null for a record without headers, as in Spark.
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
def _outputs(job: int, source: int) -> _Outputs:
    """Read constants once per batch: LLVM must assume that every store to an output may change the
    job.

    Rows that fit into the smallest output fit into all of them, so one comparison per record
    suffices instead of five.
    """
    room = min(
        get(job, j.KEY_CAPACITY),
        get(job, j.VALUE_CAPACITY),
        get(job, j.NAME_CAPACITY),
        get(job, j.HEADER_VALUE_CAPACITY),
    )
    return _Outputs(
        get(job, j.WANTED),
        get(job, j.ROWS_MAX),
        min(get(job, j.BYTES_MAX), room, j.HEADER_ROOM_BYTES * get(job, j.HEADERS_CAPACITY)),
        get(job, j.ROW_BYTES),
        get(job, j.KEY_OFFSETS),
        get(job, j.KEY_DATA),
        get(job, j.VALUE_OFFSETS),
        get(job, j.VALUE_DATA),
        get(job, j.OFFSETS),
        get(job, j.TIMESTAMPS),
        source + get(job, j.SOURCE_BYTES),
        get(job, j.VIEWED),
    )


@_hot_part
def _used(job: int) -> _Used:
    """Read the values that every record changes, which stay in registers until `_record_used`."""
    return _Used(
        get(job, j.OUT_ROWS), get(job, j.OUT_BYTES), get(job, j.OUT_KEY), get(job, j.OUT_VALUE)
    )


@_hot_part
def _record_used(job: int, used: _Used) -> None:
    set64(job, j.OUT_ROWS, used.row_count)
    set64(job, j.OUT_BYTES, used.size_bytes)
    set64(job, j.OUT_KEY, used.key_bytes)
    set64(job, j.OUT_VALUE, used.value_bytes)


@_part
def _room(job: int, used: _Used, key: int, value: int, headers: _Headers) -> int:
    """Return DONE if the outputs have room for a record of these sizes, otherwise GROW, with the
    required sizes in the job.
    """
    _record_used(job, used)
    fits = True
    sizes = (key, value, headers.header_count, headers.name_bytes, headers.value_bytes)
    for number, more in enumerate(sizes):
        needed = get(job, j.OUT_KEY + number) + more
        set64(job, j.NEED_KEY + number, needed)
        fits = fits and needed <= get(job, j.KEY_CAPACITY + number)
    return t.DONE if fits else t.GROW


@_hot_part
def _put(
    source: int, at: int, length: int, used: int, row: int, offsets: int, data: int, source_end: int
) -> int:
    """Append a field as element `row`; there must be room for it. Return the number of bytes used
    in the output.
    """
    if length > 0:
        _copy_field(data + used, source + at, length, source_end)
        used += length
    set32(offsets, row + 1, used)
    return used


@_hot_part
def _put_view(
    source: int, at: int, length: int, row: int, views: int, viewed: int, source_end: int
) -> None:
    """Write a view as element `row`: the length of the field, then its bytes, or its first four
    bytes and the location of the field.
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
    """Write a view that contains a short field. Bytes after the field are read as well, and masked
    out.
    """
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
    outputs: _Outputs,
) -> int:
    """Append a field as element `row`. Return the used size of the data."""
    if outputs.wanted & j.WANT_VIEWS:
        _put_view(source, at, length, row, offsets, outputs.viewed, outputs.source_end)
        return used
    return _put(source, at, length, used, row, offsets, data, outputs.source_end)


@_hot_part
def _append(
    source: int,
    record: _Record,
    headers: _Headers,
    base_offset: int,
    base_ms: int,
    used: _Used,
    outputs: _Outputs,
    job: int,
) -> tuple[int, _Used]:
    """Append one record to the outputs. Return DONE or the code for the reason why it was not
    appended, and the used sizes.
    """
    wanted, row = outputs.wanted, used.row_count
    key = max(record.key_length, 0) if wanted & j.WANT_KEY else 0
    value = max(record.value_length, 0) if wanted & j.WANT_VALUE else 0
    header_bytes = (
        headers.name_bytes + headers.value_bytes + j.HEADER_ROOM_BYTES * headers.header_count
    )
    size_bytes = used.size_bytes + outputs.row_bytes + key + value + header_bytes
    # Check for room first, because nothing may be written for a row that does not fit. A record
    # larger than an Arrow batch gets a batch of its own.
    if row >= outputs.rows_max or size_bytes > outputs.bytes_max:
        if row:
            return t.FULL, used
        code = _room(job, used, key, value, headers)
        if code:
            return code, used
    if wanted & j.WANT_TIMESTAMP:
        _put_timestamp(outputs.timestamps, row, base_ms + record.delta_ms)
    key_used, value_used = used.key_bytes, used.value_bytes
    if wanted & j.WANT_KEY:
        offsets, data = outputs.key_offsets, outputs.key_data
        key_used = _put_field(source, record.key_at, key, key_used, row, offsets, data, outputs)
    if wanted & j.WANT_VALUE:
        offsets, data = outputs.value_offsets, outputs.value_data
        value_used = _put_field(
            source, record.value_at, value, value_used, row, offsets, data, outputs
        )
    if record.key_length < 0 or record.value_length < 0 or wanted & j.WANT_HEADERS:
        _put_rare(source, record, headers.header_count, row, job)
    if wanted & j.WANT_OFFSET:
        set64(outputs.offsets, row, base_offset + record.offset_delta)
    return t.DONE, _Used(row + 1, size_bytes, key_used, value_used)


@_part
def _put_rare(source: int, record: _Record, header_count: int, row: int, job: int) -> None:
    """Write nulls and headers, which few records have."""
    wanted = get(job, j.WANTED)
    if record.key_length < 0 and wanted & j.WANT_KEY:
        _put_null(get(job, j.KEY_VALID), get(job, j.ROWS_MAX), row, job, j.NULL_KEYS)
    if record.value_length < 0 and wanted & j.WANT_VALUE:
        _put_null(get(job, j.VALUE_VALID), get(job, j.ROWS_MAX), row, job, j.NULL_VALUES)
    if wanted & j.WANT_HEADERS:
        _put_headers(source, record.headers_at, record.end, header_count, row, job)


@_part
def _put_types(job: int, first: int, end: int, is_append_time: bool) -> None:
    """Write the timestamp types of the rows of one batch, whose records all have the same type."""
    if get(job, j.WANTED) & j.WANT_TIMESTAMP_TYPE:
        types = get(job, j.TIMESTAMP_TYPES)
        for row in range(first, end):
            set32(types, row, 1 if is_append_time else 0)


@_part
def _decode_batch(source: int, batch: int, job: int) -> int:
    """Decode the rest of one batch: its records with offsets in [low, high)."""
    at, number, previous = get(job, j.ROW_AT), get(job, j.ROW_RECORD), get(job, j.ROW_DELTA)
    data_end, record_count = get(batch, t.DATA_END), get(batch, t.RECORD_COUNT)
    base_offset = get(batch, t.BASE_OFFSET)
    last_delta = get(batch, t.LAST_OFFSET) - base_offset
    low, high = get(job, j.LOW_OFFSET), get(job, j.HIGH_OFFSET)
    is_append_time = get(batch, t.ATTRIBUTES) & 8 != 0
    base_ms = get(batch, t.MAX_TIMESTAMP if is_append_time else t.BASE_TIMESTAMP)
    outputs, used, rows_before = _outputs(job, source), _used(job), get(job, j.OUT_ROWS)
    code: int = t.DONE
    while number < record_count:
        record = _parse_plain(source, at, data_end, is_append_time)
        if record.end < 0:
            record = _parse(source, at, data_end, is_append_time)
        code, delta, headers = record.code, record.offset_delta, _Headers(0, 0, 0)
        if code == t.DONE and delta > last_delta:
            code = t.BAD_DELTA
        if code == t.DONE and record.header_count:
            code, headers = _headers_of(source, record, outputs.wanted)
        # If several records have the same offset, Kafka consumers return the first one.
        if code == t.DONE and delta > previous and low <= base_offset + delta < high:
            code, used = _append(source, record, headers, base_offset, base_ms, used, outputs, job)
        if code:
            break
        at, previous = record.end, max(previous, delta)
        number += 1
    _record_used(job, used)
    _put_types(job, rows_before, used.row_count, is_append_time)
    set64(job, j.ROW_AT, at)
    set64(job, j.ROW_RECORD, number)
    set64(job, j.ROW_DELTA, previous)
    return t.BAD_END if code == t.DONE and at != data_end else code


@_part
def _begin_offsets(job: int) -> None:
    """Set the start of the first element of each column to 0."""
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


def decode(source: int, source_bytes: int, table: int, count: int, job: int) -> int:
    """Continue at the position in the job, through the first `count` rows of the table, until
    everything is DONE, an output is FULL or must GROW, or a batch is invalid; the job then
    identifies that batch. All arguments except source_bytes and count are addresses.

    Invariants: no byte outside [DATA_START, DATA_END) of a row is read, and nothing after the end
    of an output is written, for any input: every length is compared with the remaining input before
    it is used, every output with its capacity before it is written. The results are the same as
    those of `decode_numpy`, which is used without numba. Memory is addressed by integers
    (`decode_memory`). Only `decode` and `walk` are called from outside, with the addresses of
    arrays owned by the caller; arguments and results are int64. No code here may raise, because
    compiled code cannot call Python.
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
    """Read a signed big-endian number."""
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


def walk(
    block: int,
    at: int,
    end: int,
    expected: int,
    end_offset: int,
    table: int,
    rows_max: int,
    found: int,
) -> int:
    """Walk the headers of a block from `at` to `end` into the table. Return DONE or an error code,
    and store at `found` the number of rows, the position after them and the next offset. `block`,
    `table` and `found` are addresses; the table has rows_max rows.
    """
    rows = 0
    code: int = t.DONE
    while at < end and rows < rows_max:
        if end - at < _HEADER_BYTES or u8(block, at + 16) != _MAGIC:
            code = t.BAD_HEADER
            break
        length = _big_endian(block, at + 8, 4)
        if length < _HEADER_BYTES - _BATCH_OVERHEAD or length > end - at - _BATCH_OVERHEAD:
            code = t.BAD_LENGTH
            break
        base_offset, delta = _big_endian(block, at, 8), _big_endian(block, at + 23, 4)
        if base_offset < expected or delta < 0 or delta >= end_offset - base_offset:
            code = t.BAD_OFFSETS
            break
        _put_row(block, at, length, base_offset, delta, table + 8 * t.TABLE_COLUMNS * rows)
        expected = base_offset + delta + 1
        at += _BATCH_OVERHEAD + length
        rows += 1
    set64(found, 0, rows)
    set64(found, 1, at)
    set64(found, 2, expected)
    return code


KERNELS: Final[tuple[Callable[..., int], ...]] = decode, walk

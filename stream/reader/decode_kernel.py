"""Kafka record batches to Arrow's buffers, compiled, without the GIL; measured by `benchmarks/decode.py`.

Invariants: no byte is read outside [DATA_START, DATA_END) of a row and nothing is written behind the end of an output, whatever the input
says: every length is compared with what is left before it is used, every output with its capacity before it is written. Everything that
`stream.batch.records` refuses is refused. Same results as `decode_numpy`, which is what runs where numba is not installed.

Memory is addressed by number (`_u8`, `_get`, `_set64`, ...), as in C: handing arrays from one function to another counts references, 0.7 us
per record. A byte loop instead of `_copy` costs a factor of eight: LLVM sees no memcpy in it.
Only `decode` and `walk` are called from outside; they take the addresses of arrays that their caller holds.
Source: Kafka `DefaultRecord`; numba's `cgutils.raw_memcpy`.
"""

# ruff: noqa: PLR0917 (compiled functions take no keyword arguments)

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import llvmlite.ir  # type: ignore[import-untyped]
import numba
import numba.core.cgutils
import numba.extending

from stream.reader import decode_table as t
from stream.reader import kernel_cache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Untyped: TypeAlias = Any
"""numba's and llvmlite's own objects."""

_ir: _Untyped = llvmlite.ir
_njit: _Untyped = numba.njit
_types: _Untyped = numba.types
_cgutils: _Untyped = numba.core.cgutils
_intrinsic: _Untyped = numba.extending.intrinsic

# Elements of a job: what a decoder is to do and how far it is, kept between calls. Each of the outputs is an address and a capacity
# (in bytes for data, in elements for headers).
ROW: int = 0
"""Batch of the table that is being decoded."""
ROW_AT: int = 1
"""Position of its next record; -1: it was not begun."""
ROW_RECORD: int = 2
ROW_DELTA: int = 3
"""Offset delta of the record before."""
WANTED: int = 4
LOW_OFFSET: int = 5
HIGH_OFFSET: int = 6
ROWS_MAX: int = 7
BYTES_MAX: int = 8
ROW_BYTES: int = 9
"""What a row weighs besides key, value and headers."""
OUT_ROWS: int = 10
OUT_BYTES: int = 11
OUT_KEY: int = 12
OUT_VALUE: int = 13
OUT_HEADERS: int = 14
OUT_NAME: int = 15
OUT_HEADER_VALUE: int = 16
NULL_KEYS: int = 17
NULL_VALUES: int = 18
NULL_LISTS: int = 19
NULL_HEADER_VALUES: int = 20
NEED_KEY: int = 21
NEED_VALUE: int = 22
NEED_HEADERS: int = 23
NEED_NAME: int = 24
NEED_HEADER_VALUE: int = 25
KEY_CAPACITY: int = 26
"""Capacities, in the order of the OUTs: `_put` counts on it."""
VALUE_CAPACITY: int = 27
HEADERS_CAPACITY: int = 28
NAME_CAPACITY: int = 29
HEADER_VALUE_CAPACITY: int = 30
OFFSETS: int = 31
TIMESTAMPS: int = 32
TIMESTAMP_TYPES: int = 33
KEY_OFFSETS: int = 34
KEY_VALID: int = 35
KEY_DATA: int = 36
VALUE_OFFSETS: int = 37
VALUE_VALID: int = 38
VALUE_DATA: int = 39
LIST_OFFSETS: int = 40
LIST_VALID: int = 41
NAME_OFFSETS: int = 42
NAME_DATA: int = 43
HEADER_VALUE_OFFSETS: int = 44
HEADER_VALUE_VALID: int = 45
HEADER_VALUE_DATA: int = 46
SOURCE_BYTES: int = 47
JOB_SIZE: int = 48

# Bits of `WANTED`.
WANT_KEY: int = 1
WANT_VALUE: int = 2
WANT_OFFSET: int = 4
WANT_TIMESTAMP: int = 8
WANT_TIMESTAMP_TYPE: int = 16
WANT_HEADERS: int = 32

_INT64_MAX = (1 << 63) - 1
_MAGIC = 2
_HEADER_BYTES = 61
_BATCH_OVERHEAD = 12
HEADER_ROOM_BYTES = 8
"""Two offsets: what a header weighs besides its bytes."""
PADDING_BYTES = 32
"""Behind the capacity of data outputs, so that short fields are copied in whole steps."""
_STEP_BYTES = 32
_SHORT_BYTES = 256
"""Up to this, steps are faster than a call of memcpy."""


def _compiled(signature: _Untyped) -> Callable[[_Function], _Function]:
    """Compiled when this module is imported, or loaded from the cache; with a signature, so that there is one version and no surprise."""

    def decorate(function: _Function) -> _Function:
        with kernel_cache.directory(t.__file__, __file__) as is_cached:
            compiled: _Function = _njit(signature, nogil=True, cache=is_cached)(function)
        return compiled

    return decorate


def _part(function: _Function) -> _Function:
    """Part of `decode` or `walk`."""
    compiled: _Function = _njit(nogil=True)(function)
    return compiled


def _hot_part(function: _Function) -> _Function:
    """Put into its callers, for it is called for every record: its results then stay in registers."""
    compiled: _Function = _njit(nogil=True, forceinline=True)(function)
    return compiled


def _pointer(builder: _Untyped, address: _Untyped, bits: int, index: _Untyped = None) -> _Untyped:
    pointer = builder.inttoptr(address, _ir.IntType(bits).as_pointer())
    return pointer if index is None else builder.gep(pointer, [index])


def _load(bits: int) -> _Untyped:
    def load(typing: _Untyped, address: _Untyped, index: _Untyped) -> _Untyped:
        def generate(context: _Untyped, builder: _Untyped, signature: _Untyped, arguments: _Untyped) -> _Untyped:
            value = builder.load(_pointer(builder, arguments[0], bits, arguments[1]))
            return value if bits == 64 else builder.zext(value, _ir.IntType(64))

        return _types.int64(_types.int64, _types.int64), generate

    return _intrinsic(load)


def _store(bits: int) -> _Untyped:
    def store(typing: _Untyped, address: _Untyped, index: _Untyped, value: _Untyped) -> _Untyped:
        def generate(context: _Untyped, builder: _Untyped, signature: _Untyped, arguments: _Untyped) -> _Untyped:
            narrow = arguments[2] if bits == 64 else builder.trunc(arguments[2], _ir.IntType(bits))
            builder.store(narrow, _pointer(builder, arguments[0], bits, arguments[1]))
            return context.get_dummy_value()

        return _types.void(_types.int64, _types.int64, _types.int64), generate

    return _intrinsic(store)


_u8: Callable[[int, int], int] = _load(8)
_get: Callable[[int, int], int] = _load(64)
_set8 = _store(8)
_set32 = _store(32)
_set64 = _store(64)


def _memcpy(typing: _Untyped, destination: _Untyped, source: _Untyped, length: _Untyped) -> _Untyped:
    """memcpy."""

    def generate(context: _Untyped, builder: _Untyped, signature: _Untyped, arguments: _Untyped) -> _Untyped:
        into, from_ = _pointer(builder, arguments[0], 8), _pointer(builder, arguments[1], 8)
        _cgutils.raw_memcpy(builder, into, from_, arguments[2], 1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64, _types.int64), generate


def _step(typing: _Untyped, destination: _Untyped, source: _Untyped) -> _Untyped:
    """`_STEP_BYTES`: a load and a store."""

    def generate(context: _Untyped, builder: _Untyped, signature: _Untyped, arguments: _Untyped) -> _Untyped:
        kind = _ir.VectorType(_ir.IntType(8), _STEP_BYTES)
        from_ = builder.inttoptr(arguments[1], kind.as_pointer())
        builder.store(builder.load(from_, align=1), builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


_copy = _intrinsic(_memcpy)
_copy_step = _intrinsic(_step)


@_part
def _long_number_of(source: int, at: int, end: int, last_shift: int, last_byte_max: int) -> tuple[int, int]:
    value, shift = 0, 0
    while shift <= last_shift and at < end:
        byte = _u8(source, at)
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
def _number_of(source: int, at: int, end: int, last_shift: int, last_byte_max: int) -> tuple[int, int]:
    """(value, position behind it) of a zig-zag number; position -1 if it is none. 32 bits: 28, 15; 64 bits: 63, 1."""
    if end - at >= 2:
        first, second = _u8(source, at), _u8(source, at + 1)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
        if second < 0x80:
            value = first & 0x7F | second << 7
            return (value >> 1) ^ -(value & 1), at + 2
    return _long_number_of(source, at, end, last_shift, last_byte_max)


@_hot_part
def _field(source: int, at: int, end: int) -> tuple[int, int, int]:
    """(length or -1, position of the bytes, position behind them) of a nullable field; for a bad number -1 is behind, for a length -2."""
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
def _parse(source: int, at: int, end: int, is_append_time: bool) -> tuple[int, int, int, int, int, int, int, int, int]:
    """A record from behind its length to its end: (DONE or what is wrong, timestamp delta, offset delta, key length, key position,
    value length, value position, header count, headers' position). The broker's time of appending is that of all records."""
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
    return code, timestamp_delta, offset_delta, key_length, key_at, value_length, value_at, count, at


@_part
def _headers_of(source: int, record: _Untyped, end: int, wanted: int) -> tuple[int, int, int, int]:
    """(DONE or what is wrong, what is wanted of them: count, bytes of names, bytes of values). They are checked all the same."""
    code, names, values = _measure_headers(source, record[8], end, record[7])
    if code or wanted & WANT_HEADERS == 0:
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
    _set64(timestamps, row, timestamp_ms * 1000)
    return t.DONE


@_part
def _put_null(valid: int, rows_max: int, row: int, job: int, nulls: int) -> None:
    """Until a column meets its first null, its validity is not even written."""
    count = _get(job, nulls)
    if count == 0:
        for byte in range((rows_max + 7) >> 3):
            _set8(valid, byte, 0xFF)
    _set8(valid, row >> 3, _u8(valid, row >> 3) & ~(1 << (row & 7)))
    _set64(job, nulls, count + 1)


@_hot_part
def _copy_field(into: int, from_: int, length: int, source_end: int) -> None:
    """There is room for it, and `PADDING_BYTES` behind that."""
    if length <= _SHORT_BYTES and source_end - from_ >= length + _STEP_BYTES:
        done = 0
        while done < length:
            _copy_step(into + done, from_ + done)
            done += _STEP_BYTES
    else:
        _copy(into, from_, length)


@_part
def _put_header_value(source: int, at: int, length: int, header: int, job: int) -> None:
    used = _get(job, OUT_HEADER_VALUE)
    if length > 0:
        _copy(_get(job, HEADER_VALUE_DATA) + used, source + at, length)
        used += length
        _set64(job, OUT_HEADER_VALUE, used)
    elif length < 0:
        _put_null(_get(job, HEADER_VALUE_VALID), _get(job, HEADERS_CAPACITY), header, job, NULL_HEADER_VALUES)
    _set32(_get(job, HEADER_VALUE_OFFSETS), header + 1, used)


@_part
def _put_headers(source: int, at: int, end: int, count: int, row: int, job: int) -> None:
    """Append a record's headers, which `_measure_headers` found sound and for which there is room. No headers are a null, as in Spark."""
    if count == 0:
        _put_null(_get(job, LIST_VALID), _get(job, ROWS_MAX), row, job, NULL_LISTS)
    header = _get(job, OUT_HEADERS)
    for _ in range(count):
        length, data_at, at = _field(source, at, end)
        used = _get(job, OUT_NAME)
        _copy(_get(job, NAME_DATA) + used, source + data_at, length)
        _set64(job, OUT_NAME, used + length)
        _set32(_get(job, NAME_OFFSETS), header + 1, used + length)
        length, data_at, at = _field(source, at, end)
        _put_header_value(source, data_at, length, header, job)
        header += 1
    _set64(job, OUT_HEADERS, header)
    _set32(_get(job, LIST_OFFSETS), row + 1, header)


@_hot_part
def _outputs(job: int, source: int) -> _Untyped:
    """What no record changes, read once a batch: for all that LLVM knows, every store to an output might change the job."""
    limits = _get(job, WANTED), _get(job, ROWS_MAX), _get(job, BYTES_MAX), _get(job, ROW_BYTES)
    capacities = _get(job, KEY_CAPACITY), _get(job, VALUE_CAPACITY)
    binary = _get(job, KEY_OFFSETS), _get(job, KEY_DATA), _get(job, VALUE_OFFSETS), _get(job, VALUE_DATA)
    return limits + capacities + binary + (_get(job, OFFSETS), _get(job, TIMESTAMPS), source + _get(job, SOURCE_BYTES))


@_hot_part
def _used(job: int) -> _Untyped:
    """What every record changes: kept in registers until `_note_used`."""
    return _get(job, OUT_ROWS), _get(job, OUT_BYTES), _get(job, OUT_KEY), _get(job, OUT_VALUE)


@_hot_part
def _note_used(job: int, used: _Untyped) -> None:
    rows, used_bytes, key_used, value_used = used
    _set64(job, OUT_ROWS, rows)
    _set64(job, OUT_BYTES, used_bytes)
    _set64(job, OUT_KEY, key_used)
    _set64(job, OUT_VALUE, value_used)


@_part
def _room(job: int, used: _Untyped, key: int, value: int, count: int, names: int, values: int) -> int:
    """DONE if the outputs take a record of these sizes, else GROW, and what is needed."""
    _note_used(job, used)
    fits = True
    for number, more in enumerate((key, value, count, names, values)):
        needed = _get(job, OUT_KEY + number) + more
        _set64(job, NEED_KEY + number, needed)
        fits = fits and needed <= _get(job, KEY_CAPACITY + number)
    return t.DONE if fits else t.GROW


@_hot_part
def _put(source: int, at: int, length: int, used: int, row: int, offsets: int, data: int, source_end: int) -> int:
    """Append a field as element `row`; there is room for it. Returns what is used then."""
    if length > 0:
        _copy_field(data + used, source + at, length, source_end)
        used += length
    _set32(offsets, row + 1, used)
    return used


@_hot_part
def _append(
    source: int, record: _Untyped, headers: _Untyped, offset: int, base_ms: int, used: _Untyped, outputs: _Untyped, job: int
) -> _Untyped:
    """One record to the end of the outputs: (DONE or what stands against it, what is used then)."""
    _, delta_ms, _, key_length, key_at, value_length, value_at, _, headers_at = record
    wanted, rows_max, bytes_max, row_bytes, key_capacity, value_capacity = outputs[:6]
    key_offsets, key_data, value_offsets, value_data, offsets, timestamps, source_end = outputs[6:]
    rows, used_bytes, key_used, value_used = used
    count, names, values, end = headers
    key, value = max(key_length, 0) if wanted & WANT_KEY else 0, max(value_length, 0) if wanted & WANT_VALUE else 0
    used_bytes += row_bytes + key + value + names + values + HEADER_ROOM_BYTES * count
    # Room first: nothing may be written to a row that may not exist. A record larger than an Arrow batch has one of its own.
    if rows and (rows >= rows_max or used_bytes > bytes_max):
        return t.FULL, used
    if count or key_used + key > key_capacity or value_used + value > value_capacity:
        code = _room(job, used, key, value, count, names, values)
        if code:
            return code, used
    if wanted & WANT_TIMESTAMP:
        code = _put_timestamp(timestamps, rows, base_ms, delta_ms)
        if code:
            return code, used
    if wanted & WANT_KEY:
        key_used = _put(source, key_at, key, key_used, rows, key_offsets, key_data, source_end)
    if wanted & WANT_VALUE:
        value_used = _put(source, value_at, value, value_used, rows, value_offsets, value_data, source_end)
    if key_length < 0 or value_length < 0 or wanted & WANT_HEADERS:
        _put_rare(source, headers_at, end, count, rows, job, key_length < 0, value_length < 0)
    if wanted & WANT_OFFSET:
        _set64(offsets, rows, offset)
    return t.DONE, (rows + 1, used_bytes, key_used, value_used)


@_part
def _put_rare(source: int, headers_at: int, end: int, count: int, row: int, job: int, no_key: bool, no_value: bool) -> None:
    """Nulls, and headers."""
    wanted = _get(job, WANTED)
    if no_key and wanted & WANT_KEY:
        _put_null(_get(job, KEY_VALID), _get(job, ROWS_MAX), row, job, NULL_KEYS)
    if no_value and wanted & WANT_VALUE:
        _put_null(_get(job, VALUE_VALID), _get(job, ROWS_MAX), row, job, NULL_VALUES)
    if wanted & WANT_HEADERS:
        _put_headers(source, headers_at, end, count, row, job)


@_part
def _put_types(job: int, first: int, end: int, is_append_time: bool) -> None:
    """Of the rows of one batch: its records have one timestamp type."""
    if _get(job, WANTED) & WANT_TIMESTAMP_TYPE:
        types = _get(job, TIMESTAMP_TYPES)
        for row in range(first, end):
            _set32(types, row, 1 if is_append_time else 0)


@_part
def _decode_batch(source: int, batch: int, job: int) -> int:
    """The rest of one batch: its records with offsets in [low, high)."""
    at, data_end, base_offset = _get(job, ROW_AT), _get(batch, t.DATA_END), _get(batch, t.BASE_OFFSET)
    number, record_count, previous = _get(job, ROW_RECORD), _get(batch, t.RECORD_COUNT), _get(job, ROW_DELTA)
    low, high, last_delta = _get(job, LOW_OFFSET), _get(job, HIGH_OFFSET), _get(batch, t.LAST_OFFSET) - base_offset
    is_append_time = _get(batch, t.ATTRIBUTES) & 8 != 0
    base_ms = _get(batch, t.MAX_TIMESTAMP if is_append_time else t.BASE_TIMESTAMP)
    outputs, used, rows_before = _outputs(job, source), _used(job), _get(job, OUT_ROWS)
    code: int = t.DONE
    while number < record_count:
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
            code, used = _append(source, record, (count, names, values, end), base_offset + delta, base_ms, used, outputs, job)
        if code:
            break
        at, previous = end, delta
        number += 1
    _note_used(job, used)
    _put_types(job, rows_before, used[0], is_append_time)
    _set64(job, ROW_AT, at)
    _set64(job, ROW_RECORD, number)
    _set64(job, ROW_DELTA, previous)
    return t.BAD_END if code == t.DONE and at != data_end else code


@_part
def _begin_offsets(job: int) -> None:
    """The first element of each column begins at 0."""
    for slot in (KEY_OFFSETS, VALUE_OFFSETS, LIST_OFFSETS, NAME_OFFSETS, HEADER_VALUE_OFFSETS):
        offsets = _get(job, slot)
        if offsets != 0:
            _set32(offsets, 0, 0)


@_compiled(_types.int64(_types.int64, _types.int64, _types.int64, _types.int64, _types.int64))
def decode(source: int, source_bytes: int, table: int, count: int, job: int) -> int:
    """Go on where the job says, through the first `count` rows of the table, until all is DONE, an output is FULL or has to GROW, or
    something is wrong; which batch that is, the job says. All but source_bytes and count are addresses."""
    _set64(job, SOURCE_BYTES, source_bytes)
    if _get(job, OUT_ROWS) == 0:
        _begin_offsets(job)
    while _get(job, ROW) < count:
        batch = table + 8 * t.TABLE_COLUMNS * _get(job, ROW)
        if _get(job, ROW_AT) < 0:
            start, end, records = _get(batch, t.DATA_START), _get(batch, t.DATA_END), _get(batch, t.RECORD_COUNT)
            if start < 0 or end < start or end > source_bytes or records < 0 or records > (end - start) // t.RECORD_BYTES_MIN:
                return t.BAD_COUNT
            _set64(job, ROW_AT, start)
            _set64(job, ROW_RECORD, 0)
            _set64(job, ROW_DELTA, -1)
        code = _decode_batch(source, batch, job)
        if code:
            return code
        _set64(job, ROW, _get(job, ROW) + 1)
        _set64(job, ROW_AT, -1)
    return t.DONE


@_part
def _big_endian(source: int, at: int, size: int) -> int:
    """Signed."""
    value = _u8(source, at)
    if value > 0x7F:
        value -= 0x100
    for i in range(1, size):
        value = (value << 8) | _u8(source, at + i)
    return value


@_part
def _put_row(block: int, at: int, length: int, base_offset: int, delta: int, row: int) -> None:
    _set64(row, t.AT, at)
    _set64(row, t.END, at + _BATCH_OVERHEAD + length)
    _set64(row, t.BASE_OFFSET, base_offset)
    _set64(row, t.LAST_OFFSET, base_offset + delta)
    _set64(row, t.CRC, _big_endian(block, at + 17, 4) & 0xFFFFFFFF)
    _set64(row, t.ATTRIBUTES, _big_endian(block, at + 21, 2))
    _set64(row, t.BASE_TIMESTAMP, _big_endian(block, at + 27, 8))
    _set64(row, t.MAX_TIMESTAMP, _big_endian(block, at + 35, 8))
    _set64(row, t.PRODUCER_ID, _big_endian(block, at + 43, 8))
    _set64(row, t.RECORD_COUNT, _big_endian(block, at + 57, 4))
    _set64(row, t.DATA_START, at + _HEADER_BYTES)
    _set64(row, t.DATA_END, at + _BATCH_OVERHEAD + length)


@_compiled(
    _types.UniTuple(_types.int64, 4)(_types.int64, _types.int64, _types.int64, _types.int64, _types.int64, _types.int64, _types.int64)
)
def walk(block: int, at: int, end: int, expected: int, end_offset: int, table: int, rows_max: int) -> tuple[int, int, int, int]:
    """Headers of a block from `at` to `end` into the table: (rows, position behind them, next offset, DONE or what is wrong there).
    block and table are addresses; the table has rows_max rows."""
    rows = 0
    while at < end and rows < rows_max:
        if end - at < _HEADER_BYTES or _u8(block, at + 16) != _MAGIC:
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


kernel_cache.complete(t.__file__, __file__)

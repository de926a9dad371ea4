"""Decode Kafka record batches to Arrow without a compiler: numpy reads the numbers of all
records at once, and Arrow's `take` copies the bytes.

Source: Kafka `DefaultRecord`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.lake.arrow import decode_table as t
from penstock.lake.arrow.columns import (
    HEADER,
    TYPES,
    Places,
    arrow_schema,
    readable_names,
    row_bytes,
)
from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    DataType,
    RecordBatch,
    pa,
)
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import HEADER as BATCH_HEADER
from penstock.protocol.batch.header import HEADER_BYTES, MAGIC, BatchHeader
from penstock.protocol.batch.varint import read_varint

_Numbers = NDArray[np.int64]
_INT64_MAX: Final = (1 << 63) - 1
_OFFSET_BYTES: Final = 8
_DELTA_BITS: Final = 31
"""Number of bits in a non-negative delta."""


class _Fields(NamedTuple):
    """Nullable byte strings in a buffer: the position of each, and its length or -1."""

    at: _Numbers
    length: _Numbers

    def of(self, chosen: NDArray[Any]) -> "_Fields":
        return _Fields(self.at[chosen], self.length[chosen])


class _Headers(NamedTuple):
    """All headers of all records, in order, and the number of headers of each record."""

    counts: _Numbers
    names: _Fields
    values: _Fields


class _Records(NamedTuple):
    """All records of a group, as one array per property."""

    row: _Numbers
    offset: _Numbers
    is_new: NDArray[np.bool_]
    """Whether the offset is larger than all previous offsets in its batch."""
    timestamp_delta_ms: _Numbers
    key: _Fields
    value: _Fields
    headers: _Headers


class NumpyRows:
    """Implements `decode_table.Rows` with numpy.

    Invariant: the same rows and the same errors as `decode_kernel`, but slower. Only the record
    lengths require a loop in Python, because each record begins at the end of the previous one.
    """

    def __init__(self, columns: Sequence[str], config: ReadConfig) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._views_schema = arrow_schema(columns, views=True) if config.views else None
        self._config = config
        self._pending: list[RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def walk(
        self, block: t.Bytes, at: int, expected: int, end_offset: int, table: t.Table
    ) -> tuple[int, int, int, int]:
        row, end = 0, block.size
        while at < end and row < len(table):
            if end - at < HEADER_BYTES or block[at + 16] != MAGIC:
                return row, at, expected, t.BAD_HEADER
            header = BatchHeader._make(BATCH_HEADER.unpack_from(block.data, at))
            if not HEADER_BYTES <= header.size_bytes <= end - at:
                return row, at, expected, t.BAD_LENGTH
            if (
                header.base_offset < expected
                or header.last_offset_delta < 0
                or header.next_offset > end_offset
            ):
                return row, at, expected, t.BAD_OFFSETS
            behind = at + header.size_bytes
            table[row] = (
                at,
                behind,
                header.crc,
                header.attributes,
                header.base_offset,
                header.last_offset,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
                header.producer_id,
                header.record_count,
                at + HEADER_BYTES,
                behind,
            )
            expected, at, row = header.next_offset, behind, row + 1
        return row, at, expected, t.DONE

    def add(self, group: t.Group) -> Iterator[RecordBatch]:
        try:
            records = _parse(group)
        except t.BatchRefused:
            if len(group.table) == 1:
                raise
            yield from self._add_each(group)
            return
        chosen = np.flatnonzero(
            records.is_new & (records.offset >= group.low) & (records.offset < group.high)
        )
        if not len(chosen):
            return
        batch = self._to_arrow(group, records, chosen)
        weights = np.cumsum(self._weights(group, records, chosen))
        at = 0
        while at < batch.num_rows:
            before = int(weights[at - 1]) if at else 0
            room = self._config.batch_bytes_max - self._bytes + before
            fit = min(
                int(np.searchsorted(weights, room, side="right")) - at,
                self._config.rows_max - self._rows,
            )
            if fit <= 0 and self._rows:
                yield from self.flush()
                continue
            fit = max(fit, 1)
            self._pending.append(batch.slice(at, fit))
            self._rows += fit
            self._bytes += int(weights[at + fit - 1]) - before
            at += fit

    def _add_each(self, group: t.Group) -> Iterator[RecordBatch]:
        """Add one batch after another, up to the first invalid one."""
        for row in range(len(group.table)):
            try:
                yield from self.add(group._replace(table=group.table[row : row + 1]))
            except t.BatchRefused as error:
                raise t.BatchRefused(error.code, row) from None

    def flush(self) -> Iterator[RecordBatch]:
        if self._pending:
            whole = (
                self._pending[0] if len(self._pending) == 1 else pa.concat_batches(self._pending)
            )
            self._pending, self._rows, self._bytes = [], 0, 0
            yield whole if self._views_schema is None else whole.cast(self._views_schema)

    def _weights(self, group: t.Group, records: _Records, chosen: _Numbers) -> _Numbers:
        weights: _Numbers = np.full(len(chosen), row_bytes(self._columns, group.topic), np.int64)
        if "key" in self._columns:
            weights += np.maximum(records.key.length[chosen], 0)
        if "value" in self._columns:
            weights += np.maximum(records.value.length[chosen], 0)
        if "headers" in self._columns:
            headers = records.headers
            sizes = headers.names.length + np.maximum(headers.values.length, 0) + _OFFSET_BYTES
            ends = np.concatenate(([0], np.cumsum(sizes)))[
                np.concatenate(([0], np.cumsum(headers.counts)))
            ]
            weights += np.diff(ends)[chosen]
        return weights

    def _to_arrow(self, group: t.Group, records: _Records, chosen: _Numbers) -> RecordBatch:
        arrays: dict[str, Array] = {}
        if "key" in self._columns:
            arrays["key"] = _gather(group.source, records.key.of(chosen), pa.binary())
        if "value" in self._columns:
            arrays["value"] = _gather(group.source, records.value.of(chosen), pa.binary())
        if "offset" in self._columns:
            arrays["offset"] = pa.array(records.offset[chosen])
        attributes = group.table[records.row[chosen], t.ATTRIBUTES]
        if "timestampType" in self._columns:
            arrays["timestampType"] = pa.array(((attributes & 8) >> 3).astype(np.int32))
        if "timestamp" in self._columns:
            arrays["timestamp"] = _timestamps(group, records, chosen, attributes & 8 != 0)
        if "headers" in self._columns:
            arrays["headers"] = _headers(group.source, records.headers, chosen)
        places = Places(len(chosen))
        places.begin(0, group.topic, group.partition)
        places.take(arrays, self._columns, len(chosen))
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._columns], schema=self._schema
        )


# --- reading records ------------------------------------------------------------------------------


def _parse(group: t.Group) -> _Records:
    """Return all records of the group. Raise BatchRefused for the first invalid one."""
    source = group.source
    row, start, end = _frames(group)
    timestamp_delta_ms, at = _numbers(source, start + 1, end, row, last_shift=63, last_byte_max=1)
    delta, at = _numbers(source, at, end, row)
    key, at = _fields(source, at, end, row)
    value, at = _fields(source, at, end, row)
    count, at = _numbers(source, at, end, row)
    _refuse(t.BAD_HEADER_COUNT, (count < 0) | (count > (end - at) // 2), row)
    headers, at = _parse_headers(source, at, end, row, count)
    _refuse(t.BAD_RECORD_END, at != end, row)
    table = group.table
    _refuse(t.BAD_DELTA, delta > (table[:, t.LAST_OFFSET] - table[:, t.BASE_OFFSET])[row], row)
    return _Records(
        row,
        table[row, t.BASE_OFFSET] + delta,
        _is_new(row, delta),
        timestamp_delta_ms,
        key,
        value,
        headers,
    )


def _is_new(row: _Numbers, delta: _Numbers) -> NDArray[np.bool_]:
    """Return, for each delta, whether it is larger than all previous ones in its batch."""
    place = (row << _DELTA_BITS) + delta
    newest = np.maximum.accumulate(np.concatenate((np.full(1, -1, np.int64), place)))
    return (delta >= 0) & (place > newest[:-1])


def _frames(group: t.Group) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Return the row of the table, the position after the length, and the end of every record."""
    # indexing bytes is twice as fast as indexing a memoryview
    plain = group.source.tobytes()
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    table = group.table[:, [t.DATA_START, t.DATA_END, t.RECORD_COUNT]].tolist()
    for row, (data_start, data_end, count) in enumerate(table):
        if (
            not 0 <= data_start <= data_end <= len(plain)
            or not 0 <= count <= (data_end - data_start) // t.RECORD_BYTES_MIN
        ):
            raise t.BatchRefused(t.BAD_COUNT, row)
        at = data_start
        for _ in range(count):
            try:
                length, start = read_varint(plain, at, data_end)
            except BatchCorrupt:
                raise t.BatchRefused(t.BAD_VARINT, row) from None
            if not 0 <= length <= data_end - start:
                raise t.BatchRefused(t.BAD_RECORD_LENGTH, row)
            at = start + length
            starts.append(start)
            ends.append(at)
        rows += [row] * count
        if at != data_end:
            raise t.BatchRefused(t.BAD_END, row)
    return np.array(rows, np.int64), np.array(starts, np.int64), np.array(ends, np.int64)


def _refuse(code: int, is_bad: NDArray[np.bool_], row: _Numbers) -> None:
    if is_bad.any():
        raise t.BatchRefused(code, int(row[int(np.argmax(is_bad))]))


def _numbers(
    source: t.Bytes,
    at: _Numbers,
    end: _Numbers,
    row: _Numbers,
    *,
    last_shift: int = 28,
    last_byte_max: int = 15,
) -> tuple[_Numbers, _Numbers]:
    """Return the zig-zag numbers that begin at `at`, and the positions after them. Pass 28 and 15
    for 32 bits, 63 and 1 for 64 bits.
    """
    values: _Numbers = np.zeros(len(at), np.int64)
    behind = at.copy()
    left: _Numbers = np.arange(len(at))
    for shift in range(0, last_shift + 1, 7):
        _refuse(t.BAD_VARINT, behind[left] >= end[left], row[left])
        byte = source[behind[left]].astype(np.int64)
        values[left] |= (byte & 0x7F) << shift
        behind[left] += 1
        if shift == last_shift:
            _refuse(t.BAD_VARINT, byte > last_byte_max, row[left])
        left = left[byte >= 0x80]
        if not len(left):
            break
    return ((values >> 1) & _INT64_MAX) ^ -(values & 1), behind


def _fields(
    source: t.Bytes, at: _Numbers, end: _Numbers, row: _Numbers
) -> tuple[_Fields, _Numbers]:
    length, at = _numbers(source, at, end, row)
    _refuse(t.BAD_FIELD, length > end - at, row)
    return _Fields(at, length), at + np.maximum(length, 0)


def _parse_headers(
    source: t.Bytes, at: _Numbers, end: _Numbers, row: _Numbers, count: _Numbers
) -> tuple[_Headers, _Numbers]:
    """Parse the first header of all records that have one, then the second ones, and so on.
    Finally, sort the headers by record.
    """
    at = at.copy()
    owners: list[_Numbers] = []
    names: list[_Fields] = []
    values: list[_Fields] = []
    for number in range(int(count.max(initial=0))):
        owner = np.flatnonzero(count > number)
        name, behind = _fields(source, at[owner], end[owner], row[owner])
        _refuse(t.BAD_HEADER_NAME, name.length < 0, row[owner])
        value, at[owner] = _fields(source, behind, end[owner], row[owner])
        owners.append(owner)
        names.append(name)
        values.append(value)
    if not owners:
        nothing = _Fields(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return _Headers(count, nothing, nothing), at
    order = np.argsort(np.concatenate(owners), kind="stable")
    return _Headers(count, _joined(names, order), _joined(values, order)), at


def _joined(parts: Sequence[_Fields], order: _Numbers) -> _Fields:
    return _Fields(
        np.concatenate([part.at for part in parts])[order],
        np.concatenate([part.length for part in parts])[order],
    )


# --- writing columns ------------------------------------------------------------------------------


def _gather(source: t.Bytes, fields: _Fields, kind: DataType) -> Array:
    """Return the fields as a column: every second element of a column over the whole buffer, whose
    other elements are the bytes between the fields.
    """
    count = len(fields.at)
    if not count:
        return pa.array([], kind)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = fields.at
    bounds[1::2] = fields.at + np.maximum(fields.length, 0)
    everything = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(source)], 0
    )
    return everything.take(pa.array(np.arange(0, 2 * count, 2), mask=fields.length < 0))


def _timestamps(
    group: t.Group, records: _Records, chosen: _Numbers, is_append_time: NDArray[np.bool_]
) -> Array:
    row = records.row[chosen]
    base: _Numbers = group.table[row, t.BASE_TIMESTAMP]
    base[is_append_time] = group.table[row, t.MAX_TIMESTAMP][is_append_time]
    delta: _Numbers = records.timestamp_delta_ms[chosen]
    delta[is_append_time] = 0
    timestamp_ms: _Numbers = base + delta  # sums wrap around, as in Java
    timestamp_ms[timestamp_ms > t.TIMESTAMP_MS_MAX] = t.FAR_FUTURE_MS
    timestamp_ms[timestamp_ms < -t.TIMESTAMP_MS_MAX] = t.FAR_PAST_MS
    return pa.array(timestamp_ms * 1000).cast(TYPES["timestamp"])


def _headers(source: t.Bytes, headers: _Headers, chosen: _Numbers) -> Array:
    is_chosen: NDArray[np.bool_] = np.zeros(len(headers.counts), np.bool_)
    is_chosen[chosen] = True
    wanted = np.repeat(is_chosen, headers.counts)
    names = readable_names(_gather(source, headers.names.of(wanted), pa.string()))
    values = _gather(source, headers.values.of(wanted), pa.binary())
    pairs = pa.Array.from_buffers(HEADER, len(names), [None], 0, children=[names, values])
    count = headers.counts[chosen]
    offsets = np.concatenate(([0], np.cumsum(count))).astype(np.int32)
    bits = pa.py_buffer(np.packbits(count > 0, bitorder="little"))
    return pa.Array.from_buffers(
        TYPES["headers"], len(count), [bits, pa.py_buffer(offsets)], -1, children=[pairs]
    )

"""Arrow's buffers around the compiled decoder: allocated, grown when it asks, handed to Arrow without a copy.

Invariant: the addresses in the job are those of the buffers held here, and their capacities are true; nothing else lets compiled code
write. An Arrow batch owns its buffers: after `_take` new ones are allocated, from Arrow's pool, which gives warm memory again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.reader import decode_kernel as k
from stream.reader import decode_table as t
from stream.reader.arrow import Array, Buffer, RecordBatch, pa
from stream.reader.columns import HEADER, NAMES, Places, arrow_schema, readable_names, row_bytes
from stream.reader.config import ReadConfig

_WANTED: Final = {
    "key": k.WANT_KEY, "value": k.WANT_VALUE, "offset": k.WANT_OFFSET, "timestamp": k.WANT_TIMESTAMP,
    "timestampType": k.WANT_TIMESTAMP_TYPE, "headers": k.WANT_HEADERS,
}  # fmt: skip
_CAPACITY_MIN: Final = 64 << 10
_HEADERS_MIN: Final = 1_024
_TYPES: Final = dict(zip(NAMES, (field.type for field in arrow_schema(NAMES)), strict=True))


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class CompiledRows:
    """See `decode_table.Rows`."""

    def __init__(self, columns: Sequence[str], config: ReadConfig) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._rows_max = config.rows_max
        self._places = Places(config.rows_max)
        self._buffers: dict[int, Buffer] = {}
        self._is_begun = False
        self._capacities = {k.KEY_CAPACITY: _CAPACITY_MIN, k.VALUE_CAPACITY: _CAPACITY_MIN, k.HEADERS_CAPACITY: _HEADERS_MIN,
                            k.NAME_CAPACITY: _CAPACITY_MIN, k.HEADER_VALUE_CAPACITY: _CAPACITY_MIN}  # fmt: skip
        self._job: NDArray[np.int64] = np.zeros(k.JOB_SIZE, np.int64)
        self._job_address = address_of(self._job)
        self._job[k.WANTED] = sum(_WANTED.get(name, 0) for name in columns)
        self._job[k.ROWS_MAX] = config.rows_max
        self._job[k.BYTES_MAX] = config.batch_bytes_max
        self._bytes_max = config.batch_bytes_max

    def walk(self, block: t.Bytes, at: int, expected: int, end_offset: int, table: t.Table) -> tuple[int, int, int, int]:
        return k.walk(address_of(block), at, block.size, expected, end_offset, address_of(table), len(table))

    def add(self, group: t.Group) -> Iterator[RecordBatch]:
        assert group.table.flags.c_contiguous, "compiled code steps through the table by its own"
        job, source, table = self._job, address_of(group.source), address_of(group.table)
        job[k.ROW], job[k.ROW_AT] = 0, -1
        job[k.LOW_OFFSET], job[k.HIGH_OFFSET] = group.low, group.high
        job[k.ROW_BYTES] = row_bytes(self._columns, group.topic)
        if not self._is_begun:
            self._begin()
        while True:
            code = k.decode(source, group.source.size, table, len(group.table), self._job_address)
            if code == t.GROW:
                self._grow()
                continue
            if code not in (t.DONE, t.FULL):
                raise t.BatchRefused(code, int(job[k.ROW]))
            self._places.extend_to(int(job[k.OUT_ROWS]), group.topic, group.partition)
            if code == t.DONE:
                return
            yield self._take()
            self._begin()

    def flush(self) -> Iterator[RecordBatch]:
        if self._is_begun and self._job[k.OUT_ROWS]:
            yield self._take()

    # --- buffers ----------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._job[k.OUT_ROWS : k.NULL_HEADER_VALUES + 1] = 0
        self._buffers = {}
        for name in self._columns:
            if name in _FIXED:
                slot, width = _FIXED[name]
                self._hold(slot, pa.allocate_buffer(width * self._rows_max))
            elif name in _NULLABLE:
                self._begin_nullable(_NULLABLE[name].offsets, _NULLABLE[name].capacity)
            elif name == "headers":
                self._begin_headers()
        self._is_begun = True

    def _begin_nullable(self, offsets: int, capacity: int) -> None:
        self._hold(offsets, _offsets(self._rows_max))
        self._hold(offsets + 1, _all_valid(self._rows_max))
        self._hold(offsets + 2, pa.allocate_buffer(self._capacities[capacity]))
        self._job[capacity] = self._capacities[capacity]

    def _begin_headers(self) -> None:
        headers = self._capacities[k.HEADERS_CAPACITY]
        self._hold(k.LIST_OFFSETS, _offsets(self._rows_max))
        self._hold(k.LIST_VALID, _all_valid(self._rows_max))
        self._hold(k.NAME_OFFSETS, _offsets(headers))
        self._hold(k.NAME_DATA, pa.allocate_buffer(self._capacities[k.NAME_CAPACITY]))
        self._hold(k.HEADER_VALUE_OFFSETS, _offsets(headers))
        self._hold(k.HEADER_VALUE_VALID, _all_valid(headers))
        self._hold(k.HEADER_VALUE_DATA, pa.allocate_buffer(self._capacities[k.HEADER_VALUE_CAPACITY]))
        for capacity in (k.HEADERS_CAPACITY, k.NAME_CAPACITY, k.HEADER_VALUE_CAPACITY):
            self._job[capacity] = self._capacities[capacity]

    def _hold(self, slot: int, buffer: Buffer) -> None:
        self._buffers[slot] = buffer
        self._job[slot] = buffer.address

    def _grow(self) -> None:
        """What the decoder could not fit into its outputs gets double the room, or what it needs."""
        for capacity, need, slots in _GROWING:
            needed, had = int(self._job[need]), int(self._job[capacity])
            if needed <= had or slots[0] not in self._buffers:
                continue
            new = max(needed, min(2 * had, self._bytes_max))
            for slot in slots:
                self._hold(slot, self._grown(slot, new))
            self._job[capacity] = new
            # The next Arrow batch begins with the room of this one, but not with that of a single huge record.
            self._capacities[capacity] = min(new, self._bytes_max)

    def _grown(self, slot: int, capacity: int) -> Buffer:
        before = self._buffers[slot]
        if slot in (k.NAME_OFFSETS, k.HEADER_VALUE_OFFSETS):
            after = _offsets(capacity)
        elif slot == k.HEADER_VALUE_VALID:
            after = _all_valid(capacity)
        else:
            after = pa.allocate_buffer(capacity)
        memoryview(after)[: before.size] = memoryview(before)
        return after

    # --- Arrow ------------------------------------------------------------------------------------------------------------------------

    def _take(self) -> RecordBatch:
        job = self._job.tolist()
        rows = job[k.OUT_ROWS]
        arrays: dict[str, Array] = {}
        for name in self._columns:
            if name in _FIXED:
                arrays[name] = pa.Array.from_buffers(_TYPES[name], rows, [None, self._buffers[_FIXED[name][0]]], 0)
            elif name in _NULLABLE:
                arrays[name] = self._nullable(job, rows, _NULLABLE[name])
            elif name == "headers":
                arrays[name] = self._headers(job, rows)
        self._places.take(arrays, self._columns)
        self._is_begun = False
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)

    def _nullable(self, job: Sequence[int], rows: int, slots: "_Slots") -> Array:
        buffers = self._buffers
        valid = buffers[slots.offsets + 1] if job[slots.nulls] else None
        data = buffers[slots.offsets + 2].slice(0, job[slots.used])
        return pa.Array.from_buffers(_BINARY, rows, [valid, buffers[slots.offsets], data], job[slots.nulls])

    def _headers(self, job: Sequence[int], rows: int) -> Array:
        count, buffers = job[k.OUT_HEADERS], self._buffers
        name_data = buffers[k.NAME_DATA].slice(0, job[k.OUT_NAME])
        names = readable_names(pa.Array.from_buffers(pa.string(), count, [None, buffers[k.NAME_OFFSETS], name_data], 0))
        values = self._nullable(job, count, _HEADER_VALUES)
        pairs = pa.Array.from_buffers(HEADER, count, [None], 0, children=[names, values])
        valid = buffers[k.LIST_VALID] if job[k.NULL_LISTS] else None
        outer = [valid, buffers[k.LIST_OFFSETS]]
        return pa.Array.from_buffers(_TYPES["headers"], rows, outer, job[k.NULL_LISTS], children=[pairs])


class _Slots(NamedTuple):
    """Where the job has the outputs of a nullable column: offsets, validity and data lie side by side."""

    offsets: int
    used: int
    nulls: int
    capacity: int


_BINARY: Final = pa.binary()
_FIXED: Final = {"offset": (k.OFFSETS, 8), "timestamp": (k.TIMESTAMPS, 8), "timestampType": (k.TIMESTAMP_TYPES, 4)}
_NULLABLE: Final = {
    "key": _Slots(k.KEY_OFFSETS, k.OUT_KEY, k.NULL_KEYS, k.KEY_CAPACITY),
    "value": _Slots(k.VALUE_OFFSETS, k.OUT_VALUE, k.NULL_VALUES, k.VALUE_CAPACITY),
}
_HEADER_VALUES: Final = _Slots(k.HEADER_VALUE_OFFSETS, k.OUT_HEADER_VALUE, k.NULL_HEADER_VALUES, k.HEADER_VALUE_CAPACITY)
_GROWING: Final = (
    (k.KEY_CAPACITY, k.NEED_KEY, (k.KEY_DATA,)),
    (k.VALUE_CAPACITY, k.NEED_VALUE, (k.VALUE_DATA,)),
    (k.HEADERS_CAPACITY, k.NEED_HEADERS, (k.NAME_OFFSETS, k.HEADER_VALUE_OFFSETS, k.HEADER_VALUE_VALID)),
    (k.NAME_CAPACITY, k.NEED_NAME, (k.NAME_DATA,)),
    (k.HEADER_VALUE_CAPACITY, k.NEED_HEADER_VALUE, (k.HEADER_VALUE_DATA,)),
)


def _offsets(count: int) -> Buffer:
    """For `count` elements; the first begins at 0."""
    buffer = pa.allocate_buffer(4 * (count + 1))
    memoryview(buffer).cast("B")[:4] = bytes(4)
    return buffer


def _all_valid(count: int) -> Buffer:
    size_bytes = (count + 7) // 8
    buffer = pa.allocate_buffer(size_bytes)
    memoryview(buffer).cast("B")[:] = b"\xff" * size_bytes
    return buffer

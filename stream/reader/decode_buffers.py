"""Arrow's buffers around the compiled decoder: allocated, grown when it asks, handed to Arrow without a copy.

Invariant: the addresses in the job are those of the arrays held here, and their capacities are true; nothing else lets compiled code write.
An Arrow batch owns its buffers: after `_take` new ones are allocated.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream.reader import decode_kernel as k
from stream.reader import decode_table as t
from stream.reader.arrow import Array, RecordBatch, pa
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
        self._arrays: dict[int, NDArray[Any]] = {}
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
        if not self._arrays:
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
        if self._arrays and self._job[k.OUT_ROWS]:
            yield self._take()

    # --- buffers ----------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._job[k.OUT_ROWS : k.NULL_HEADER_VALUES + 1] = 0
        rows = self._rows_max
        for name in self._columns:
            match name:
                case "offset":
                    self._hold(k.OFFSETS, np.empty(rows, np.int64))
                case "timestamp":
                    self._hold(k.TIMESTAMPS, np.empty(rows, np.int64))
                case "timestampType":
                    self._hold(k.TIMESTAMP_TYPES, np.empty(rows, np.int32))
                case "key":
                    self._begin_nullable(k.KEY_OFFSETS, k.KEY_CAPACITY)
                case "value":
                    self._begin_nullable(k.VALUE_OFFSETS, k.VALUE_CAPACITY)
                case "headers":
                    self._begin_headers()
                case _:
                    pass
        if not self._arrays:
            # Only topic and partition are wanted: there is nothing to write, but rows are counted all the same.
            self._hold(k.OFFSETS, np.empty(0, np.int64))

    def _begin_nullable(self, offsets: int, capacity: int) -> None:
        rows = self._rows_max
        self._hold(offsets, _offsets(rows))
        self._hold(offsets + 1, _all_valid(rows))
        self._hold(offsets + 2, np.empty(self._capacities[capacity], np.uint8))
        self._job[capacity] = self._capacities[capacity]

    def _begin_headers(self) -> None:
        headers = self._capacities[k.HEADERS_CAPACITY]
        self._hold(k.LIST_OFFSETS, _offsets(self._rows_max))
        self._hold(k.LIST_VALID, _all_valid(self._rows_max))
        self._hold(k.NAME_OFFSETS, _offsets(headers))
        self._hold(k.NAME_DATA, np.empty(self._capacities[k.NAME_CAPACITY], np.uint8))
        self._hold(k.HEADER_VALUE_OFFSETS, _offsets(headers))
        self._hold(k.HEADER_VALUE_VALID, _all_valid(headers))
        self._hold(k.HEADER_VALUE_DATA, np.empty(self._capacities[k.HEADER_VALUE_CAPACITY], np.uint8))
        for capacity in (k.HEADERS_CAPACITY, k.NAME_CAPACITY, k.HEADER_VALUE_CAPACITY):
            self._job[capacity] = self._capacities[capacity]

    def _hold(self, slot: int, array: NDArray[Any]) -> None:
        self._arrays[slot] = array
        self._job[slot] = address_of(array)

    def _grow(self) -> None:
        """What the decoder could not fit into its outputs gets double the room, or what it needs."""
        self._grow_one(k.NEED_KEY, k.KEY_CAPACITY, (k.KEY_DATA,))
        self._grow_one(k.NEED_VALUE, k.VALUE_CAPACITY, (k.VALUE_DATA,))
        if "headers" in self._columns:
            slots = (k.NAME_OFFSETS, k.HEADER_VALUE_OFFSETS, k.HEADER_VALUE_VALID)
            self._grow_one(k.NEED_HEADERS, k.HEADERS_CAPACITY, slots)
            self._grow_one(k.NEED_NAME, k.NAME_CAPACITY, (k.NAME_DATA,))
            self._grow_one(k.NEED_HEADER_VALUE, k.HEADER_VALUE_CAPACITY, (k.HEADER_VALUE_DATA,))

    def _grow_one(self, need: int, capacity: int, slots: Sequence[int]) -> None:
        needed, had = int(self._job[need]), int(self._job[capacity])
        if needed <= had:
            return
        new = max(needed, min(2 * had, self._bytes_max))
        for slot in slots:
            before = self._arrays[slot]
            if slot in (k.NAME_OFFSETS, k.HEADER_VALUE_OFFSETS):
                grown: NDArray[Any] = _offsets(new)
            elif slot == k.HEADER_VALUE_VALID:
                grown = _all_valid(new)
            else:
                grown = np.empty(new, np.uint8)
            grown[: len(before)] = before
            self._hold(slot, grown)
        self._job[capacity] = new
        # The next Arrow batch begins with the room of this one, but not with that of a single huge record.
        self._capacities[capacity] = min(new, self._bytes_max)

    # --- Arrow ------------------------------------------------------------------------------------------------------------------------

    def _take(self) -> RecordBatch:
        job, rows = self._job, int(self._job[k.OUT_ROWS])
        arrays: dict[str, Array] = {}
        for name in self._columns:
            match name:
                case "offset":
                    arrays[name] = self._fixed(name, k.OFFSETS, rows)
                case "timestamp":
                    arrays[name] = self._fixed(name, k.TIMESTAMPS, rows)
                case "timestampType":
                    arrays[name] = self._fixed(name, k.TIMESTAMP_TYPES, rows)
                case "key":
                    arrays[name] = self._nullable(rows, int(job[k.NULL_KEYS]), k.KEY_OFFSETS, int(job[k.OUT_KEY]))
                case "value":
                    arrays[name] = self._nullable(rows, int(job[k.NULL_VALUES]), k.VALUE_OFFSETS, int(job[k.OUT_VALUE]))
                case "headers":
                    arrays[name] = self._headers(rows)
                case _:
                    pass
        self._places.take(arrays, self._columns)
        self._arrays = {}
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)

    def _buffer(self, slot: int, bytes_used: int) -> Array:
        return pa.py_buffer(self._arrays[slot])[:bytes_used]

    def _fixed(self, name: str, slot: int, rows: int) -> Array:
        return pa.Array.from_buffers(_TYPES[name], rows, [None, self._buffer(slot, rows * self._arrays[slot].itemsize)], 0)

    def _nullable(self, rows: int, nulls: int, offsets: int, data_bytes: int) -> Array:
        valid = self._buffer(offsets + 1, (rows + 7) // 8) if nulls else None
        buffers = [valid, self._buffer(offsets, 4 * (rows + 1)), self._buffer(offsets + 2, data_bytes)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls)

    def _headers(self, rows: int) -> Array:
        job = self._job
        count = int(job[k.OUT_HEADERS])
        buffers = [None, self._buffer(k.NAME_OFFSETS, 4 * (count + 1)), self._buffer(k.NAME_DATA, int(job[k.OUT_NAME]))]
        names = readable_names(pa.Array.from_buffers(pa.string(), count, buffers, 0))
        values = self._nullable(count, int(job[k.NULL_HEADER_VALUES]), k.HEADER_VALUE_OFFSETS, int(job[k.OUT_HEADER_VALUE]))
        pairs = pa.Array.from_buffers(HEADER, count, [None], 0, children=[names, values])
        nulls = int(job[k.NULL_LISTS])
        valid = self._buffer(k.LIST_VALID, (rows + 7) // 8) if nulls else None
        return pa.Array.from_buffers(
            _TYPES["headers"], rows, [valid, self._buffer(k.LIST_OFFSETS, 4 * (rows + 1))], nulls, children=[pairs]
        )


def _offsets(count: int) -> NDArray[np.int32]:
    offsets: NDArray[np.int32] = np.empty(count + 1, np.int32)
    offsets[0] = 0
    return offsets


def _all_valid(count: int) -> t.Bytes:
    return np.full((count + 7) // 8, 0xFF, np.uint8)

"""Arrow's buffers around the compiled decoder: laid out in slabs, handed to Arrow without a copy.

Invariant: the addresses in the job are those of slabs held here, and its capacities are true (there are `PADDING_BYTES` more behind data);
nothing else lets compiled code write. An Arrow batch takes its slabs with it: see `slabs` for when they are written again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.reader import decode_kernel as k
from stream.reader import decode_table as t
from stream.reader.arrow import Array, RecordBatch, pa
from stream.reader.columns import HEADER, NAMES, Places, arrow_schema, readable_names, row_bytes
from stream.reader.config import ReadConfig
from stream.reader.slabs import Slab, aligned

_WANTED: Final = {
    "key": k.WANT_KEY, "value": k.WANT_VALUE, "offset": k.WANT_OFFSET, "timestamp": k.WANT_TIMESTAMP,
    "timestampType": k.WANT_TIMESTAMP_TYPE, "headers": k.WANT_HEADERS,
}  # fmt: skip
_TYPES: Final = dict(zip(NAMES, (field.type for field in arrow_schema(NAMES)), strict=True))
_BINARY: Final = pa.binary()


class _Nullable(NamedTuple):
    """Where the job has the outputs of a binary column: offsets, validity and data lie side by side."""

    offsets: int
    used: int
    nulls: int
    capacity: int

    @property
    def valid(self) -> int:
        return self.offsets + 1

    @property
    def data(self) -> int:
        return self.offsets + 2


_FIXED: Final = {"offset": (k.OFFSETS, 8), "timestamp": (k.TIMESTAMPS, 8), "timestampType": (k.TIMESTAMP_TYPES, 4)}
_NULLABLE: Final = {
    "key": _Nullable(k.KEY_OFFSETS, k.OUT_KEY, k.NULL_KEYS, k.KEY_CAPACITY),
    "value": _Nullable(k.VALUE_OFFSETS, k.OUT_VALUE, k.NULL_VALUES, k.VALUE_CAPACITY),
}
_HEADER_VALUES: Final = _Nullable(k.HEADER_VALUE_OFFSETS, k.OUT_HEADER_VALUE, k.NULL_HEADER_VALUES, k.HEADER_VALUE_CAPACITY)
_NEEDS: Final = {
    k.KEY_CAPACITY: k.NEED_KEY, k.VALUE_CAPACITY: k.NEED_VALUE, k.HEADERS_CAPACITY: k.NEED_HEADERS, k.NAME_CAPACITY: k.NEED_NAME,
    k.HEADER_VALUE_CAPACITY: k.NEED_HEADER_VALUE,
}  # fmt: skip
_OUTPUTS: Final = slice(k.OFFSETS, k.SOURCE_BYTES)
_COUNTS: Final = slice(k.OUT_ROWS, k.OFFSETS)


class _Layout:
    """How the outputs of one column lie in its slab: job slots with their places, and the slab's size."""

    def __init__(self, column: str, sizes: Mapping[int, int]) -> None:
        self.column = column
        self.places: list[tuple[int, int, int]] = []
        self.size_bytes = 0
        for slot, size_bytes in sizes.items():
            self.places.append((slot, self.size_bytes, size_bytes))
            self.size_bytes += aligned(size_bytes)


class _Room(NamedTuple):
    """A part of one of an Arrow batch's slabs."""

    slab_number: int
    at: int
    size_bytes: int


class _Plan:
    """All that beginning an Arrow batch needs: made once for the usual capacities, and for a record that is larger."""

    def __init__(self, columns: Sequence[str], rows: int, capacities: Mapping[int, int]) -> None:
        self.layouts: list[_Layout] = []
        self.rooms: dict[int, _Room] = {}
        self.counts: NDArray[np.int64] = np.zeros(k.JOB_SIZE, np.int64)
        for capacity, count in capacities.items():
            self.counts[capacity] = count
        self.counts = self.counts[_COUNTS]
        for name in columns:
            if name in _FIXED:
                slot, width = _FIXED[name]
                self.layouts.append(_Layout(name, {slot: width * rows}))
            elif name in _NULLABLE:
                self.layouts.append(_Layout(name, _binary(_NULLABLE[name], rows, capacities)))
            elif name == "headers":
                headers = capacities[k.HEADERS_CAPACITY]
                self.layouts.append(_Layout("headers", {k.LIST_OFFSETS: 4 * (rows + 1), k.LIST_VALID: _bits(rows)}))
                names = {k.NAME_OFFSETS: 4 * (headers + 1), k.NAME_DATA: capacities[k.NAME_CAPACITY] + k.PADDING_BYTES}
                self.layouts.append(_Layout("header names", names))
                self.layouts.append(_Layout("header values", _binary(_HEADER_VALUES, headers, capacities)))
        for number, layout in enumerate(self.layouts):
            self.rooms |= {slot: _Room(number, at, size_bytes) for slot, at, size_bytes in layout.places}


def address_of(array: NDArray[Any]) -> int:
    """Of the first element. 0.5 us; numpy's own ways take 1 to 4, three times a block."""
    address: int = pa.py_buffer(array).address
    return address


class CompiledRows:
    """See `decode_table.Rows`."""

    def __init__(self, columns: Sequence[str], config: ReadConfig) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._rows_max = config.rows_max
        self._places = Places(config.rows_max)
        self._slabs: list[Slab] = []
        self._is_begun = False
        bytes_max = config.batch_bytes_max
        self._capacities = dict.fromkeys(_NEEDS, bytes_max) | {k.HEADERS_CAPACITY: bytes_max // k.HEADER_ROOM_BYTES}
        self._plan = self._usual = _Plan(columns, config.rows_max, self._capacities)
        self._row_bytes: tuple[str, int] = "", row_bytes(columns, "")
        self._job: NDArray[np.int64] = np.zeros(k.JOB_SIZE, np.int64)
        self._job_address = address_of(self._job)
        self._job[k.WANTED] = sum(_WANTED.get(name, 0) for name in columns)
        self._job[k.ROWS_MAX] = config.rows_max
        self._job[k.BYTES_MAX] = bytes_max

    def walk(self, block: t.Bytes, at: int, expected: int, end_offset: int, table: t.Table) -> tuple[int, int, int, int]:
        return k.walk(address_of(block), at, block.size, expected, end_offset, address_of(table), len(table))

    def add(self, group: t.Group) -> Iterator[RecordBatch]:
        assert group.table.flags.c_contiguous, "compiled code steps through the table by its own"
        job, source, table = self._job, address_of(group.source), address_of(group.table)
        job[k.ROW], job[k.ROW_AT] = 0, -1
        job[k.LOW_OFFSET], job[k.HIGH_OFFSET] = group.low, group.high
        if self._row_bytes[0] != group.topic:
            self._row_bytes = group.topic, row_bytes(self._columns, group.topic)
        job[k.ROW_BYTES] = self._row_bytes[1]
        if not self._is_begun:
            self._begin(self._usual)
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
            self._begin(self._usual)

    def flush(self) -> Iterator[RecordBatch]:
        if self._is_begun and self._job[k.OUT_ROWS]:
            yield self._take()

    # --- slabs ------------------------------------------------------------------------------------------------------------------------

    def _begin(self, plan: _Plan) -> None:
        """A slab for each column. The decoder itself writes what they have to begin with."""
        slabs = self._slabs = [Slab(layout.column, layout.size_bytes) for layout in plan.layouts]
        addresses = [0] * (k.SOURCE_BYTES - k.OFFSETS)
        for slot, room in plan.rooms.items():
            addresses[slot - k.OFFSETS] = slabs[room.slab_number].address + room.at
        self._job[_COUNTS] = plan.counts
        self._job[_OUTPUTS] = addresses
        self._plan = plan
        self._is_begun = True

    def _grow(self) -> None:
        """A record larger than an Arrow batch, which has one of its own: nothing was written yet."""
        job = self._job
        assert job[k.OUT_ROWS] == 0, "with others before it, the record waits for the next Arrow batch"
        needed = {capacity: max(usual, int(job[_NEEDS[capacity]])) for capacity, usual in self._capacities.items()}
        self._begin(_Plan(self._columns, self._rows_max, needed))

    # --- Arrow ------------------------------------------------------------------------------------------------------------------------

    def _take(self) -> RecordBatch:
        job = self._job.tolist()
        rows = job[k.OUT_ROWS]
        arrays: dict[str, Array] = {}
        for name in self._columns:
            if name in _FIXED:
                slot, width = _FIXED[name]
                arrays[name] = pa.Array.from_buffers(_TYPES[name], rows, [None, self._buffer(slot, width * rows)], 0)
            elif name in _NULLABLE:
                arrays[name] = self._nullable(job, rows, _NULLABLE[name])
            elif name == "headers":
                arrays[name] = self._headers(job, rows)
        self._places.take(arrays, self._columns)
        self._is_begun = False
        self._slabs = []
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)

    def _buffer(self, slot: int, size_bytes: int) -> Any:  # noqa: ANN401 - of Arrow
        number, at, room_bytes = self._plan.rooms[slot]
        assert size_bytes <= room_bytes, "what was written fits"
        return self._slabs[number].buffer(at, size_bytes)

    def _nullable(self, job: Sequence[int], rows: int, slots: _Nullable) -> Array:
        valid = self._buffer(slots.valid, _bits(rows)) if job[slots.nulls] else None
        offsets, data = self._buffer(slots.offsets, 4 * (rows + 1)), self._buffer(slots.data, job[slots.used])
        return pa.Array.from_buffers(_BINARY, rows, [valid, offsets, data], job[slots.nulls])

    def _headers(self, job: Sequence[int], rows: int) -> Array:
        count = job[k.OUT_HEADERS]
        name_offsets, name_data = self._buffer(k.NAME_OFFSETS, 4 * (count + 1)), self._buffer(k.NAME_DATA, job[k.OUT_NAME])
        names = readable_names(pa.Array.from_buffers(pa.string(), count, [None, name_offsets, name_data], 0))
        pairs = pa.Array.from_buffers(HEADER, count, [None], 0, children=[names, self._nullable(job, count, _HEADER_VALUES)])
        valid = self._buffer(k.LIST_VALID, _bits(rows)) if job[k.NULL_LISTS] else None
        outer = [valid, self._buffer(k.LIST_OFFSETS, 4 * (rows + 1))]
        return pa.Array.from_buffers(_TYPES["headers"], rows, outer, job[k.NULL_LISTS], children=[pairs])


def _binary(slots: _Nullable, count: int, capacities: Mapping[int, int]) -> dict[int, int]:
    return {slots.offsets: 4 * (count + 1), slots.valid: _bits(count), slots.data: capacities[slots.capacity] + k.PADDING_BYTES}


def _bits(count: int) -> int:
    return (count + 7) // 8

"""Place the outputs of an Arrow batch in its slabs, and create Arrow columns over them.

The layout is computed only once per decoder, and again for a record that is larger than an Arrow
batch: computing it takes 20 us in Python, or twice as long right after decoding, which evicts the
interpreter from the CPU caches.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.lake.arrow import decode_job as j
from penstock.lake.arrow.columns import (
    HEADER,
    TYPES,
    readable_names,
)
from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    Buffer,
    DataType,
    pa,
)
from penstock.lake.arrow.slabs import (
    Home,
    Slab,
    aligned,
    home_of,
)

OUTPUTS: Final = slice(j.OFFSETS, j.SOURCE_BYTES)
"""The addresses of the outputs in a job."""
COUNTS: Final = slice(j.OUT_ROWS, j.OFFSETS)

_BINARY: Final = pa.binary()
_BINARY_VIEW: Final = pa.binary_view()
_STRING: Final = pa.string()
_NUMBERS: Final = {
    "offset": (j.OFFSETS, 8),
    "timestamp": (j.TIMESTAMPS, 8),
    "timestampType": (j.TIMESTAMP_TYPES, 4),
}


class _Nullable(NamedTuple):
    """The job elements of a binary column. The addresses of offsets, validity and data are
    adjacent.
    """

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


_NULLABLE: Final = {
    "key": _Nullable(j.KEY_OFFSETS, j.OUT_KEY, j.NULL_KEYS, j.KEY_CAPACITY),
    "value": _Nullable(j.VALUE_OFFSETS, j.OUT_VALUE, j.NULL_VALUES, j.VALUE_CAPACITY),
}
_HEADER_VALUES: Final = _Nullable(
    j.HEADER_VALUE_OFFSETS, j.OUT_HEADER_VALUE, j.NULL_HEADER_VALUES, j.HEADER_VALUE_CAPACITY
)


class Written(NamedTuple):
    """The output of the compiled code for one Arrow batch. Views reference the buffers `viewed`."""

    job: Sequence[int]
    slabs: Sequence[Slab]
    viewed: Sequence[Buffer]


class Column(Protocol):
    def array(self, written: Written, count: int) -> Array:
        """Return the first `count` elements of the column, without a copy."""
        ...


class _Room(NamedTuple):
    """The part of a slab that is used for one output."""

    slab: int
    at: int

    def buffer(self, written: Written, size_bytes: int) -> Buffer:
        return written.slabs[self.slab].buffer(self.at, size_bytes)


_Rooms = Mapping[int, _Room]


class _Numbers(NamedTuple):
    kind: DataType
    width: int
    room: _Room

    def array(self, written: Written, count: int) -> Array:
        return pa.Array.from_buffers(
            self.kind, count, [None, self.room.buffer(written, self.width * count)], 0
        )


class _Binary(NamedTuple):
    slots: _Nullable
    rooms: _Rooms

    def array(self, written: Written, count: int) -> Array:
        slots, rooms = self.slots, self.rooms
        nulls = written.job[slots.nulls]
        valid = rooms[slots.valid].buffer(written, _bits(count)) if nulls else None
        offsets = rooms[slots.offsets].buffer(written, 4 * (count + 1))
        data = rooms[slots.data].buffer(written, written.job[slots.used])
        return pa.Array.from_buffers(_BINARY, count, [valid, offsets, data], nulls)


class _Views(NamedTuple):
    slots: _Nullable
    rooms: _Rooms

    def array(self, written: Written, count: int) -> Array:
        nulls = written.job[self.slots.nulls]
        valid = self.rooms[self.slots.valid].buffer(written, _bits(count)) if nulls else None
        views = self.rooms[self.slots.offsets].buffer(written, j.VIEW_BYTES * count)
        return pa.Array.from_buffers(_BINARY_VIEW, count, [valid, views, *written.viewed], nulls)


class _Headers(NamedTuple):
    rooms: _Rooms

    def array(self, written: Written, count: int) -> Array:
        job, rooms = written.job, self.rooms
        headers, nulls = job[j.OUT_HEADERS], job[j.NULL_LISTS]
        of_names = [
            None,
            rooms[j.NAME_OFFSETS].buffer(written, 4 * (headers + 1)),
            rooms[j.NAME_DATA].buffer(written, job[j.OUT_NAME]),
        ]
        names = readable_names(pa.Array.from_buffers(_STRING, headers, of_names, 0))
        values = _Binary(_HEADER_VALUES, rooms).array(written, headers)
        pairs = pa.Array.from_buffers(HEADER, headers, [None], 0, children=[names, values])
        valid = rooms[j.LIST_VALID].buffer(written, _bits(count)) if nulls else None
        outer = [valid, rooms[j.LIST_OFFSETS].buffer(written, 4 * (count + 1))]
        return pa.Array.from_buffers(TYPES["headers"], count, outer, nulls, children=[pairs])


class Layout:
    """The layout of Arrow batches of up to `rows` rows. `capacities` is keyed by job element."""

    def __init__(
        self, columns: Sequence[str], rows: int, capacities: Mapping[int, int], *, views: bool
    ) -> None:
        self.homes: list[Home] = []
        """The homes that provide the slabs of one Arrow batch."""
        self.columns: dict[str, Column] = {}
        """The columns that the compiled code writes."""
        self._places: list[tuple[int, int, int]] = []
        counts: NDArray[np.int64] = np.zeros(j.JOB_SIZE, np.int64)
        for slot, capacity in capacities.items():
            counts[slot] = capacity
        self.counts = counts[COUNTS]
        """The initial counts of a job for a new Arrow batch."""
        numbers = {name: _NUMBERS[name] for name in columns if name in _NUMBERS}
        rooms = self._lay("numbers", {slot: width * rows for slot, width in numbers.values()})
        self.columns |= {
            name: _Numbers(TYPES[name], width, rooms[slot])
            for name, (slot, width) in numbers.items()
        }
        for name in columns:
            if name in _NULLABLE:
                slots = _NULLABLE[name]
                rooms = self._lay(
                    name, _sizes_of_views(slots, rows) if views else _sizes(slots, rows, capacities)
                )
                self.columns[name] = _Views(slots, rooms) if views else _Binary(slots, rooms)
            elif name == "headers":
                self.columns[name] = self._lay_headers(rows, capacities)

    def addresses(self, slabs: Sequence[Slab]) -> list[int]:
        """Return the addresses of the outputs in these slabs, in the order of the job."""
        found = [0] * (j.SOURCE_BYTES - j.OFFSETS)
        for output, slab, at in self._places:
            found[output] = slabs[slab].address + at
        return found

    def _lay(self, home: str, sizes: Mapping[int, int]) -> _Rooms:
        """Add one slab with these outputs in sequence. `sizes` are in bytes, keyed by job
        element.
        """
        rooms: dict[int, _Room] = {}
        at = 0
        for slot, size_bytes in sizes.items():
            rooms[slot] = _Room(len(self.homes), at)
            self._places.append((slot - j.OFFSETS, len(self.homes), at))
            at += aligned(size_bytes)
        if sizes:
            self.homes.append(home_of(home, at))
        return rooms

    def _lay_headers(self, rows: int, capacities: Mapping[int, int]) -> _Headers:
        headers = capacities[j.HEADERS_CAPACITY]
        sizes_of_names = {
            j.NAME_OFFSETS: 4 * (headers + 1),
            j.NAME_DATA: capacities[j.NAME_CAPACITY] + j.PADDING_BYTES,
        }
        return _Headers(
            {
                **self._lay("headers", {j.LIST_OFFSETS: 4 * (rows + 1), j.LIST_VALID: _bits(rows)}),
                **self._lay("header names", sizes_of_names),
                **self._lay("header values", _sizes(_HEADER_VALUES, headers, capacities)),
            }
        )


def _sizes(slots: _Nullable, count: int, capacities: Mapping[int, int]) -> dict[int, int]:
    return {
        slots.offsets: 4 * (count + 1),
        slots.valid: _bits(count),
        slots.data: capacities[slots.capacity] + j.PADDING_BYTES,
    }


def _sizes_of_views(slots: _Nullable, count: int) -> dict[int, int]:
    return {slots.offsets: j.VIEW_BYTES * count, slots.valid: _bits(count)}


def _bits(count: int) -> int:
    return (count + 7) // 8

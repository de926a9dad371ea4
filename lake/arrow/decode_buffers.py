"""Lay out Arrow buffers in slabs for the compiled decoder, and pass them to Arrow without a
copy.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.lake.arrow import decode_job as j
from penstock.lake.arrow import decode_table as t
from penstock.lake.arrow.columns import Places, arrow_schema, row_bytes
from penstock.lake.arrow.decode_layout import (
    COUNTS,
    OUTPUTS,
    Layout,
    Written,
)
from penstock.lake.arrow.kernel_build import kernels
from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    Buffer,
    RecordBatch,
    pa,
)
from penstock.lake.arrow.slabs import Slab
from penstock.lake.fetch.limits import VIEWED_BYTES_MAX, ReadConfig

_WANTED: Final = {
    "key": j.WANT_KEY,
    "value": j.WANT_VALUE,
    "offset": j.WANT_OFFSET,
    "timestamp": j.WANT_TIMESTAMP,
    "timestampType": j.WANT_TIMESTAMP_TYPE,
    "headers": j.WANT_HEADERS,
}
_NEEDS: Final = {
    j.KEY_CAPACITY: j.NEED_KEY,
    j.VALUE_CAPACITY: j.NEED_VALUE,
    j.HEADERS_CAPACITY: j.NEED_HEADERS,
    j.NAME_CAPACITY: j.NEED_NAME,
    j.HEADER_VALUE_CAPACITY: j.NEED_HEADER_VALUE,
}
_UNLIMITED: Final = 1 << 62
"""Capacity of a column of views, whose data is not copied, so there is no limit."""


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first element. This takes 0.5 us; numpy's own functions take 1 to 4
    us, and this is called three times per block.
    """
    address: int = pa.py_buffer(array).address
    return address


class CompiledRows:
    """Implements `decode_table.Rows` with compiled code.

    Invariant: the addresses in the job refer to slabs that this object keeps alive, and its
    capacities are correct (with `PADDING_BYTES` more after data); compiled code does not write
    outside of them. An Arrow batch owns its slabs; `slabs` describes when they are reused. An Arrow
    batch with views holds the buffers that they point into.
    """

    def __init__(self, columns: Sequence[str], config: ReadConfig) -> None:
        self._kernels = kernels()
        self._columns = tuple(columns)
        self._config = config
        self._schema = arrow_schema(columns, views=config.views)
        self._places = Places(config.rows_max)
        self._viewed = Viewed()
        self._slabs: list[Slab] = []
        self._is_begun = False
        bytes_max = config.batch_bytes_max
        self._capacities = dict.fromkeys(_NEEDS, bytes_max) | {
            j.HEADERS_CAPACITY: bytes_max // j.HEADER_ROOM_BYTES
        }
        if config.views:
            self._capacities |= {j.KEY_CAPACITY: _UNLIMITED, j.VALUE_CAPACITY: _UNLIMITED}
        self._layout = self._usual = Layout(
            columns, config.rows_max, self._capacities, views=config.views
        )
        self._row_bytes: tuple[str, int] = "", row_bytes(columns, "")
        self._job: NDArray[np.int64] = np.zeros(j.JOB_SIZE, np.int64)
        self._job_address = address_of(self._job)
        self._found: NDArray[np.int64] = np.zeros(3, np.int64)
        """Output of the compiled `walk`: number of rows, position after them, and next offset."""
        self._found_address = address_of(self._found)
        self._job[j.WANTED] = sum(_WANTED.get(name, 0) for name in columns) | (
            j.WANT_VIEWS if config.views else 0
        )
        self._job[j.ROWS_MAX] = config.rows_max
        self._job[j.BYTES_MAX] = bytes_max

    def walk(
        self, block: t.Bytes, at: int, expected: int, end_offset: int, table: t.Table
    ) -> tuple[int, int, int, int]:
        code = self._kernels.walk(
            address_of(block),
            at,
            block.size,
            expected,
            end_offset,
            address_of(table),
            len(table),
            self._found_address,
        )
        rows, at, expected = self._found.tolist()
        return rows, at, expected, code

    def add(self, group: t.Group) -> Iterator[RecordBatch]:
        assert group.table.flags.c_contiguous, "compiled code steps through the table by addresses"
        job, source, table = self._job, address_of(group.source), address_of(group.table)
        job[j.ROW], job[j.ROW_AT] = 0, -1
        job[j.LOW_OFFSET], job[j.HIGH_OFFSET] = group.low, group.high
        if self._row_bytes[0] != group.topic:
            self._row_bytes = group.topic, row_bytes(self._columns, group.topic)
        job[j.ROW_BYTES] = self._row_bytes[1]
        self._go_on(group)
        while True:
            code = self._kernels.decode(
                source, group.source.size, table, len(group.table), self._job_address
            )
            if code == t.GROW:
                self._grow()
                continue
            if code not in (t.DONE, t.FULL):
                taken = int(job[j.ROW_RECORD]) if job[j.ROW_AT] >= 0 else 0
                raise t.BatchRefused(code, int(job[j.ROW]), taken)
            if code == t.DONE:
                return
            yield self._take()
            self._go_on(group)

    def flush(self) -> Iterator[RecordBatch]:
        if self._is_begun and self._job[j.OUT_ROWS]:
            yield self._take()

    def _go_on(self, group: t.Group) -> None:
        """Prepare to append the records of this group."""
        if not self._is_begun:
            self._begin(self._usual)
        self._places.begin(int(self._job[j.OUT_ROWS]), group.topic, group.partition)
        if self._config.views:
            self._job[j.VIEWED] = self._viewed.add(group.source)

    def _begin(self, layout: Layout) -> None:
        """Start an Arrow batch in new slabs. The compiled code writes the initial values."""
        self._slabs = [Slab(home) for home in layout.homes]
        self._job[COUNTS] = layout.counts
        self._job[OUTPUTS] = layout.addresses(self._slabs)
        self._layout = layout
        self._is_begun = True

    def _grow(self) -> None:
        """Start over with larger slabs, for a record that is larger than an Arrow batch and gets a
        batch of its own. No row was written to the current slabs.
        """
        job = self._job
        assert job[j.OUT_ROWS] == 0, (
            "if there are records before it, it waits for the next Arrow batch"
        )
        needed = {
            capacity: max(usual, int(job[_NEEDS[capacity]]))
            for capacity, usual in self._capacities.items()
        }
        self._begin(Layout(self._columns, self._config.rows_max, needed, views=self._config.views))

    def _take(self) -> RecordBatch:
        written = Written(self._job.tolist(), self._slabs, self._viewed.buffers)
        rows = written.job[j.OUT_ROWS]
        arrays: dict[str, Array] = {
            name: column.array(written, rows) for name, column in self._layout.columns.items()
        }
        self._places.take(arrays, self._columns, rows)
        self._is_begun = False
        self._slabs = []
        if self._config.views:
            self._viewed = Viewed()
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._columns], schema=self._schema
        )


class Viewed:
    """The buffers that the views of one Arrow batch reference. The bytes of a GET are referenced
    once, regardless of the number of blocks in them.
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(self, source: t.Bytes) -> int:
        """Keep the memory of the source alive. Return the buffer number and position as in
        `decode_job.VIEWED`.
        """
        part = pa.py_buffer(source)
        if not self.buffers or not _holds(self.buffers[-1], part):
            base: Any = source.base
            whole = pa.py_buffer((base.obj or source) if isinstance(base, memoryview) else source)
            self.buffers.append(
                whole if whole.size <= VIEWED_BYTES_MAX and _holds(whole, part) else part
            )
        viewed: int = len(self.buffers) - 1 | part.address - self.buffers[-1].address << 32
        return viewed


def _holds(whole: Buffer, part: Buffer) -> bool:
    return bool(0 <= part.address - whole.address <= whole.size - part.size)

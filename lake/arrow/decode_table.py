"""Types that the decoders share: the table of batch headers, the state of an unfinished batch,
and error codes.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.protocol.batch import sound_records as sound

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]
Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Columns of a table.
AT: Final = 0
END: Final = 1
CRC: Final = 2
ATTRIBUTES: Final = 3
CHECKED: Final = slice(0, 4)
"""The columns above, which are used to check every batch."""
BASE_OFFSET: Final = 4
LAST_OFFSET: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
RECORD_COUNT: Final = 9
DATA_START: Final = 10
DATA_END: Final = 11
TABLE_COLUMNS: Final = 12

TABLE_ROWS: Final = 4_096
"""Number of headers walked in one call. A block of 1 MiB with one-record batches contains about
10,000.
"""

RECORD_BYTES_MIN: Final = 7
"""Size of the smallest record: length, attributes, two deltas, two lengths and a header count."""

TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // 1_000
"""Largest timestamp in milliseconds: Arrow and Spark store microseconds in 64 bits."""

FAR_FUTURE_MS: Final = 253_402_300_799_999
FAR_PAST_MS: Final = -62_135_596_800_000
"""Replacements for timestamps beyond this limit: the end of the year 9999 and the beginning of the
year 1, which all Arrow readers can represent.
"""

# Result codes of a decoder or walk.
DONE: Final = 0
FULL: Final = 1
"""The Arrow batch has no room for the next record."""
GROW: Final = 2
"""A buffer is too small for the next record; the job contains the required sizes."""

BAD_HEADER: Final = 10
BAD_LENGTH: Final = 11
BAD_OFFSETS: Final = 12
BAD_COUNT: Final = 20
BAD_VARINT: Final = 21
BAD_RECORD_LENGTH: Final = 22
BAD_FIELD: Final = 23
BAD_HEADER_COUNT: Final = 24
BAD_HEADER_NAME: Final = 25
BAD_RECORD_END: Final = 26
BAD_DELTA: Final = 27
BAD_END: Final = 28

WHAT: Final = {
    BAD_HEADER: "expected a batch header of format 2",
    BAD_LENGTH: "the batch's length is less than its header or runs over the end of its block",
    BAD_OFFSETS: "the batch's offsets overlap the batch before, or lie outside its block",
    BAD_COUNT: sound.BAD_COUNT,
    BAD_VARINT: sound.BAD_NUMBER,
    BAD_RECORD_LENGTH: sound.BAD_RECORD_LENGTH,
    BAD_FIELD: sound.BAD_FIELD,
    BAD_HEADER_COUNT: sound.BAD_HEADER_COUNT,
    BAD_HEADER_NAME: sound.BAD_HEADER_NAME,
    BAD_RECORD_END: sound.BAD_RECORD_END,
    BAD_DELTA: sound.BAD_DELTA,
    BAD_END: sound.BAD_END,
}


class BatchRefused(Exception):
    """A row of the table is invalid; `code` is a BAD code. All earlier rows have been added, as
    well as the first `taken` records of this row.
    """

    def __init__(self, code: int, row: int, taken: int = 0) -> None:
        super().__init__(WHAT[code])
        self.code = code
        self.row = row
        self.taken = taken


class Group(NamedTuple):
    """Batches of one partition whose records are in one buffer. Only records with offsets in [low,
    high) are wanted.
    """

    source: Bytes
    table: Table
    topic: str
    partition: int
    low: int
    high: int


class Rows(Protocol):
    """Converts groups to Arrow batches. The implementations are `decode_buffers.CompiledRows` and
    `decode_numpy.NumpyRows`.

    A table has one row of int64 per Kafka batch. Data positions refer to the buffer that contains
    the records: the block itself, or the decompressed bytes. Must not import numba or pyarrow.
    Constants are frozen into compiled code; `kernel_cache` accounts for that.
    """

    def walk(
        self, block: Bytes, at: int, expected: int, end_offset: int, table: Table
    ) -> tuple[int, int, int, int]:
        """Fill the table with the headers of the batches from position `at` on, within the offsets
        [expected, end_offset). Return the number of rows, the position after them, the next offset,
        and DONE or an error code.
        """
        ...

    def add(self, group: Group) -> Iterator[Any]:
        """Append a group's records, and yield Arrow batches as they fill up. Raise BatchRefused.
        Exhaust the iterator before the next call.
        """
        ...

    def flush(self) -> Iterator[Any]:
        """Yield the last batch if it contains rows."""
        ...

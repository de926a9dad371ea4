"""Types that the decoders share: the table of batch headers, the state of an unfinished batch, and
what may be wrong with one.

A table has one row of int64 per Kafka batch. Data positions refer to the buffer that holds the
records: the block itself, or the decompressed bytes. Must not import numba or pyarrow. Constants
are frozen into compiled code; `kernel_cache` accounts for that.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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
"""The columns above, which the check of every batch reads."""
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
"""The number of headers walked at once. A block of 1 MiB of one-record batches has about 10,000."""

RECORD_BYTES_MIN: Final = 7
"""A record has at least its length, attributes, two deltas, two lengths and a header count."""

TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // 1_000
"""Arrow and Spark count microseconds in 64 bits."""

# What a decoder or walk ends with.
DONE: Final = 0
FULL: Final = 1
"""The Arrow batch has no room for the next record."""
GROW: Final = 2
"""A buffer is too small for the next record; the job says how much is needed."""

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
BAD_TIMESTAMP: Final = 28
BAD_END: Final = 29

WHAT: Final = {
    BAD_HEADER: "expected a batch header of format 2",
    BAD_LENGTH: "the batch's length is less than its header or runs over the end of its block",
    BAD_OFFSETS: "the batch's offsets overlap the batch before, or lie outside its block",
    BAD_COUNT: "the batch declares more records than its bytes can hold, or a negative count",
    BAD_VARINT: "a number in a record has too many bits or runs over its end",
    BAD_RECORD_LENGTH: "a record's length runs over the end of its batch",
    BAD_FIELD: "a key, value or header runs over the end of its record",
    BAD_HEADER_COUNT: "a record declares more headers than its bytes can hold",
    BAD_HEADER_NAME: "the key of a record header is null",
    BAD_RECORD_END: "a record does not end where its length says",
    BAD_DELTA: "the offsets of the records do not grow, or go beyond the batch's last offset",
    BAD_TIMESTAMP: (
        "a timestamp does not fit into microseconds of 64 bits; leave out the column `timestamp` to"
        " read the rest"
    ),
    BAD_END: "bytes are left behind the batch's last record",
}


class BatchRefused(Exception):
    """A row of the table is invalid; `code` is a BAD code. It becomes a ReadError where object and
    partition are known.
    """

    def __init__(self, code: int, row: int) -> None:
        super().__init__(WHAT[code])
        self.code = code
        self.row = row


class Group(NamedTuple):
    """Batches of one partition whose records lie in one buffer. Records with offsets in [low, high)
    are wanted.
    """

    source: Bytes
    table: Table
    topic: str
    partition: int
    low: int
    high: int


class Rows(Protocol):
    """Turn groups into Arrow batches. Implementations are `decode_buffers.CompiledRows` and
    `decode_numpy.NumpyRows`.
    """

    def walk(
        self, block: Bytes, at: int, expected: int, end_offset: int, table: Table
    ) -> tuple[int, int, int, int]:
        """Fill the table with headers from `at` on, of batches within [expected, end_offset).
        Return the number of rows, the position behind them, the next offset, and DONE or what is
        wrong.
        """
        ...

    def add(self, group: Group) -> Iterator[Any]:
        """Append a group's records, and yield Arrow batches as they fill up. Raise BatchRefused.
        Exhaust the iterator before the next call.
        """
        ...

    def flush(self) -> Iterator[Any]:
        """Yield the last batch, if it has rows."""
        ...

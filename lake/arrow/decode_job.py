"""The elements of a job: an int64 array with the input and progress of a decoder, which is kept
between calls of the compiled code.

Each output consists of an address and a capacity, in bytes for data and in elements for headers.
Constants are frozen into compiled code; `kernel_cache` accounts for that. Must not import numba or
pyarrow.
"""

from typing import Final

ROW: Final = 0
"""The batch of the table that is being decoded."""
ROW_AT: Final = 1
"""Position of the next record in the batch; -1 before the first one."""
ROW_RECORD: Final = 2
ROW_DELTA: Final = 3
"""Offset delta of the previous record."""
WANTED: Final = 4
LOW_OFFSET: Final = 5
HIGH_OFFSET: Final = 6
ROWS_MAX: Final = 7
BYTES_MAX: Final = 8
ROW_BYTES: Final = 9
"""Size of a row without key, value and headers, in bytes."""
OUT_ROWS: Final = 10
OUT_BYTES: Final = 11
OUT_KEY: Final = 12
OUT_VALUE: Final = 13
OUT_HEADERS: Final = 14
OUT_NAME: Final = 15
OUT_HEADER_VALUE: Final = 16
NULL_KEYS: Final = 17
NULL_VALUES: Final = 18
NULL_LISTS: Final = 19
NULL_HEADER_VALUES: Final = 20
NEED_KEY: Final = 21
NEED_VALUE: Final = 22
NEED_HEADERS: Final = 23
NEED_NAME: Final = 24
NEED_HEADER_VALUE: Final = 25
KEY_CAPACITY: Final = 26
"""The first capacity. `_room` requires the capacities to be in the same order as the OUT
elements.
"""
VALUE_CAPACITY: Final = 27
HEADERS_CAPACITY: Final = 28
NAME_CAPACITY: Final = 29
HEADER_VALUE_CAPACITY: Final = 30
OFFSETS: Final = 31
TIMESTAMPS: Final = 32
TIMESTAMP_TYPES: Final = 33
KEY_OFFSETS: Final = 34
KEY_VALID: Final = 35
KEY_DATA: Final = 36
VALUE_OFFSETS: Final = 37
VALUE_VALID: Final = 38
VALUE_DATA: Final = 39
LIST_OFFSETS: Final = 40
LIST_VALID: Final = 41
NAME_OFFSETS: Final = 42
NAME_DATA: Final = 43
HEADER_VALUE_OFFSETS: Final = 44
HEADER_VALUE_VALID: Final = 45
HEADER_VALUE_DATA: Final = 46
SOURCE_BYTES: Final = 47
VIEWED: Final = 48
"""Location of the source for views: the number of the data buffer in the lower 32 bits, the
source's position in that buffer in the upper 32 bits.
"""
JOB_SIZE: Final = 49

# Bits of `WANTED`.
WANT_KEY: Final = 1
WANT_VALUE: Final = 2
WANT_OFFSET: Final = 4
WANT_TIMESTAMP: Final = 8
WANT_TIMESTAMP_TYPE: Final = 16
WANT_HEADERS: Final = 32
WANT_VIEWS: Final = 64
"""Write key and value as `binary_view`: views instead of offsets, without copying bytes."""
VIEW_BYTES: Final = 16

HEADER_ROOM_BYTES: Final = 8
"""Size of a header without its name and value, in bytes: two offsets."""
PADDING_BYTES: Final = 32
"""Space after the capacity of data outputs, so that short fields can be copied in whole steps."""

"""Define the byte layout of Penstock objects: constants and structs. `docs/reference/formats.md`
describes it in prose.

    header | blocks, without gaps | index = copy of the header + one entry per block | footer

A fence object is a header alone. All numbers are big-endian. **Stored: never change a struct
without a new VERSION.** In every version, header and footer have these sizes, and magic, version
and CRC these places, so that a reader can tell a newer object from a damaged one. Entries may grow
at their end: the footer says how long they are.
Must not contain logic: writer and reader share only this module.
"""

from struct import Struct
from typing import NamedTuple

from penstock.base.ids import Millis, Offset, StreamId
from penstock.stream.ports import ObjectRole

MAGIC = b"PENSTOCK"
END_MAGIC = b"KCOTSNEP"
VERSION = 1

# magic, version, role, reserved (0), node id, node epoch, WAL sequence, created ms, depth, required
# and optional features, CRC32C of the 52 bytes before it
HEADER = Struct(">8sHBxiqqqIIII")
HEADER_BYTES = HEADER.size
HEADER_CRC = Struct(">I")
HEADER_CRC_AT = HEADER_BYTES - 4

FEATURES_KNOWN = 0
"""Bits of required features that this reader understands. A reader refuses an object with any
other, and ignores optional features that it does not know.
"""

# stream id, start offset, end offset, min and max timestamp ms, uncompressed bytes, position, size,
# record count, CRC32C of the block; sorted by (stream, start)
ENTRY = Struct(">qqqqqQQIII")
ENTRY_BYTES = ENTRY.size
OFFSET = Struct(">q")
ENTRY_END_OFFSET_AT = 16
"""Position of the end offset in an entry: a search reads nothing else of most entries."""


class BlockEntry(NamedTuple):
    """Where a block of one stream lies: [position, position + size_bytes) of the object holds
    [start_offset, end_offset).

    min_timestamp_ms: no record is older; OLDEST_UNKNOWN if no such bound is known, -1 if no record
    has a timestamp. max_timestamp_ms: -1 if no record has a timestamp, negative if the newest one
    is not known (`protocol.batch.header.merged_newest`).
    uncompressed_bytes: the size of the batches if their records were not compressed,
    as the compressed bytes declare it, which producers wrote; 0 if one does not. It
    helps to plan: never allocate by it.
    """

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset
    min_timestamp_ms: Millis
    max_timestamp_ms: Millis
    uncompressed_bytes: int
    position: int
    size_bytes: int
    record_count: int
    crc: int


# index position, index size, CRC32C of the index, version, entry size, CRC32C of the 24 bytes
# before it, magic
FOOTER = Struct(">QQIHHI8s")
FOOTER_BYTES = FOOTER.size
FOOTER_CRC_AT = 24

BLOCK_BYTES_MAX = 1 << 20
"""A block ends before the entry that would exceed this size. A larger entry is a block of its
own.
"""

INDEX_BYTES_MAX = 32 << 20
"""About 493,000 blocks. Readers refuse a larger index before they fetch or allocate anything."""

TAIL_BYTES = 64 << 10
"""How many bytes readers request first from the end of an object: one GET brings the footer and an
index of up to 962 blocks.
"""

NO_SEQUENCE = -1
"""The WAL sequence of objects that are not WAL slots."""

INDEXED_ROLES = frozenset({ObjectRole.WAL, ObjectRole.STREAM_SET, ObjectRole.STREAM})

assert (HEADER_BYTES, ENTRY_BYTES, FOOTER_BYTES) == (56, 68, 36), "the stored layout has moved"

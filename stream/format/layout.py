"""Byte layout of Penstock objects. **Stored: a changed struct needs a new VERSION.**

header | blocks, contiguous | index = copy of the header + one entry per block | footer

A fence consists only of a header. Numbers are big-endian. See docs/reference/formats.md.
"""

from struct import Struct
from typing import NamedTuple

from penstock.base.ids import Millis, Offset, StreamId
from penstock.stream.ports import ObjectRole

# Sizes of header and footer, and the positions of magic, version and CRC, are the same in every
# version, so that readers can distinguish newer objects from damaged ones.
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
"""Required feature bits supported by this reader. It rejects objects with any other required
feature, and ignores unknown optional ones.
"""

# stream id, start offset, end offset, min and max timestamp ms, uncompressed bytes, position, size,
# record count, CRC32C of the block; sorted by (stream, start)
ENTRY = Struct(">qqqqqQQIII")
ENTRY_BYTES = ENTRY.size
OFFSET = Struct(">q")
ENTRY_END_OFFSET_AT = 16
"""Position of the end offset in an entry: a search reads only this field in most entries."""


class BlockEntry(NamedTuple):
    """The location of a block of one stream: [position, position + size_bytes) of the object
    contains [start_offset, end_offset).

    min_timestamp_ms: a lower bound of the record timestamps; OLDEST_UNKNOWN if unknown, -1 if no
    record has a timestamp. max_timestamp_ms: -1 if no record has a timestamp, negative if the
    newest one is unknown (`protocol.batch.header.merged_newest`). uncompressed_bytes: the
    uncompressed size of the batches as declared by producers, 0 if any batch does not declare it.
    Use it for planning, never for allocation.
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
"""Maximum size of a block, which ends before the entry that would exceed it. An entry that is
larger gets its own block.
"""

INDEX_BYTES_MAX = 32 << 20
"""Maximum size of an index, about 493,000 blocks. Readers reject a larger index before they fetch
or allocate anything.
"""

TAIL_BYTES = 64 << 10
"""Number of bytes that readers first request from the end of an object: one GET returns the footer
and an index of up to 962 blocks.
"""

NO_SEQUENCE = -1
"""The WAL sequence of objects that are not WAL slots."""

INDEXED_ROLES = frozenset({ObjectRole.WAL, ObjectRole.STREAM_SET, ObjectRole.STREAM})

assert (HEADER_BYTES, ENTRY_BYTES, FOOTER_BYTES) == (56, 68, 36), "the stored layout has moved"

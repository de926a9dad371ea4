"""Read objects of any age and any origin: headers, indexes and blocks, each believed only after its
checksum and its bounds hold.

Invariant: damaged, truncated or hostile bytes raise ObjectCorrupt; nothing is allocated by a length
that was not checked against the bytes that are there. Every byte of an object is covered: header,
index, footer by CRCs of their own, blocks by their entries, and blocks lie side by side from the
header to the index. Must not do I/O. Layout: `docs/reference/formats.md`.
"""

from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from base.buffers import Buffer
from base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamId,
    WalSequence,
)
from stream.batch.header import HEADER_BYTES as BATCH_HEADER_BYTES
from stream.errors import ObjectCorrupt
from stream.format import layout
from stream.format.layout import BlockEntry
from stream.ports import BrokerIncarnation, ObjectRole, StreamRange


class ObjectHeader(NamedTuple):
    """writer: who wrote the object; of a fence, who put it there. sequence: the WAL slot, -1
    outside WALs.

    depth: slots from the first one that was not durable yet when this one was written, to this one;
    0: not known (no WAL object).
    """

    role: ObjectRole
    writer: BrokerIncarnation
    sequence: WalSequence
    created_ms: Millis
    depth: int = 0

    @property
    def durable_below(self) -> WalSequence:
        """Every slot below this one was durable when this object was written: if one of them is
        missing now, the store has lost it.
        """
        if self.role == ObjectRole.FENCE:
            return self.sequence
        return WalSequence(self.sequence - self.depth + 1 if self.depth else 0)


class NeedMore(NamedTuple):
    """The tail was too short: read [position, end of object) and try again."""

    position: int


class ObjectIndex:
    """What an object holds. Keeps entries packed: 52 bytes a block plus one small record a stream,
    so that indexes are cheap to cache.
    """

    __slots__ = ("_entries", "_spans", "footer", "header", "object_size_bytes", "ranges")

    def __init__(
        self, header: ObjectHeader, object_size_bytes: int, key: str, entries: bytes, footer: bytes
    ) -> None:
        """entries: the packed index entries, whose CRC was checked. Raises ObjectCorrupt if they
        contradict each other or the size.
        """
        self.header = header
        self.object_size_bytes = object_size_bytes
        self.footer = footer
        """Equal footers mean equal objects; empty for a fence."""
        self._entries = entries
        self._spans: dict[StreamId, tuple[int, int]] = {}
        self.ranges: tuple[StreamRange, ...] = _check_entries(
            entries, self._spans, object_size_bytes, key
        )

    @property
    def is_fence(self) -> bool:
        return self.header.role == ObjectRole.FENCE

    @property
    def size_bytes(self) -> int:
        """Roughly what this index costs in memory; the weight of a cache entry."""
        return len(self._entries) + 200 * len(self._spans) + 500

    def blocks(self) -> list[BlockEntry]:
        """All of them, in the order of the object."""
        return [_entry(fields) for fields in layout.ENTRY.iter_unpack(self._entries)]

    def blocks_of(
        self, stream_id: StreamId, start_offset: int, end_offset: int
    ) -> list[BlockEntry]:
        """Blocks of the stream that intersect [start, end), in offset order; none if the object
        holds nothing of it.
        """
        first, last = self._spans.get(stream_id, (0, 0))
        found: list[BlockEntry] = []
        begin = (
            bisect_right(
                range(first, last),
                start_offset,
                key=lambda i: _entry_at(self._entries, i).end_offset,
            )
            + first
        )
        for ordinal in range(begin, last):
            entry = _entry_at(self._entries, ordinal)
            if entry.start_offset >= end_offset:
                break
            found.append(entry)
        return found


def parse_header(data: Buffer, key: str = "") -> ObjectHeader:
    """The header at the beginning of `data`. Raises ObjectCorrupt."""
    if len(data) < layout.HEADER_BYTES:
        raise ObjectCorrupt(key, 0, f"{len(data)} bytes, a header has {layout.HEADER_BYTES}")
    magic, version, role, node_id, node_epoch, sequence, created_ms, depth, crc = (
        layout.HEADER.unpack_from(data)
    )
    if magic != layout.MAGIC:
        raise ObjectCorrupt(
            key, 0, f"begins with {magic!r}, not {layout.MAGIC!r}: not an object of ours"
        )
    if crc32c(memoryview(data)[: layout.HEADER_CRC_AT]) != crc:
        raise ObjectCorrupt(key, 0, "the header does not match its checksum")
    if version != layout.VERSION:
        raise ObjectCorrupt(key, 8, f"format version {version}, this reader knows {layout.VERSION}")
    try:
        known_role = ObjectRole(role)
    except ValueError:
        raise ObjectCorrupt(key, 10, f"unknown role {role}") from None
    writer = BrokerIncarnation(NodeId(node_id), NodeEpoch(node_epoch))
    return ObjectHeader(known_role, writer, WalSequence(sequence), Millis(created_ms), depth)


def parse_tail(tail: Buffer, object_size_bytes: int, key: str = "") -> ObjectIndex | NeedMore:
    """The index from the last bytes of an object; `tail` may be all of it. A fence gives an index
    without blocks.
    """
    tail = memoryview(tail)
    if object_size_bytes == layout.HEADER_BYTES and len(tail) == object_size_bytes:
        header = parse_header(tail, key)
        if header.role != ObjectRole.FENCE:
            raise ObjectCorrupt(key, 0, f"a header of role {header.role.name} without index")
        return ObjectIndex(header, object_size_bytes, key, b"", b"")
    tail_position = object_size_bytes - len(tail)
    footer_position = object_size_bytes - layout.FOOTER_BYTES
    if tail_position < 0 or footer_position < 2 * layout.HEADER_BYTES:
        raise ObjectCorrupt(
            key,
            0,
            f"{object_size_bytes} bytes are too few for an object, {len(tail)} bytes of tail",
        )
    if tail_position > footer_position:
        return NeedMore(footer_position)
    footer = bytes(tail[footer_position - tail_position :])
    index_position, crc = _parse_footer(footer, footer_position, key)
    if index_position < tail_position:
        return NeedMore(index_position)
    index = tail[index_position - tail_position : footer_position - tail_position]
    if crc32c(index) != crc:
        raise ObjectCorrupt(key, index_position, "the index does not match its checksum")
    header = parse_header(index, key)
    if header.role not in layout.INDEXED_ROLES:
        raise ObjectCorrupt(key, index_position, f"role {header.role.name} with an index")
    return ObjectIndex(header, object_size_bytes, key, bytes(index[layout.HEADER_BYTES :]), footer)


def _parse_footer(footer: bytes, footer_position: int, key: str) -> tuple[int, int]:
    """(index position, index CRC), checked against the size of the object and the limit."""
    index_position, index_bytes, crc, version, entry_bytes, footer_crc, magic = (
        layout.FOOTER.unpack(footer)
    )
    if magic != layout.END_MAGIC:
        raise ObjectCorrupt(
            key,
            footer_position,
            f"ends with {magic!r}, not {layout.END_MAGIC!r}: truncated or not an object of ours",
        )
    if crc32c(footer[: layout.FOOTER_CRC_AT]) != footer_crc:
        raise ObjectCorrupt(key, footer_position, "the footer does not match its checksum")
    if version != layout.VERSION or entry_bytes != layout.ENTRY_BYTES:
        raise ObjectCorrupt(
            key,
            footer_position,
            f"format version {version} with entries of {entry_bytes} bytes is not known",
        )
    if not layout.HEADER_BYTES + layout.ENTRY_BYTES <= index_bytes <= layout.INDEX_BYTES_MAX:
        raise ObjectCorrupt(
            key, footer_position, f"an index of {index_bytes} bytes is outside the limits"
        )
    if (index_bytes - layout.HEADER_BYTES) % layout.ENTRY_BYTES:
        raise ObjectCorrupt(
            key, footer_position, f"an index of {index_bytes} bytes does not hold whole entries"
        )
    if index_position < layout.HEADER_BYTES or index_position + index_bytes != footer_position:
        raise ObjectCorrupt(
            key,
            footer_position,
            f"an index of {index_bytes} bytes at {index_position} does not end at the footer",
        )
    return index_position, crc


def _check_entries(
    entries: bytes, spans: dict[StreamId, tuple[int, int]], object_size_bytes: int, key: str
) -> tuple[StreamRange, ...]:
    """Fill spans (stream -> ordinals) and sum up ranges. Blocks must lie side by side and streams
    be sorted and free of gaps.

    Flat on purpose: a WAL object of 1,000 partitions has 1,000 entries, at 1.5 us each.
    """
    ranges: list[StreamRange] = []
    blocks_end = object_size_bytes - layout.FOOTER_BYTES - layout.HEADER_BYTES - len(entries)
    next_position = layout.HEADER_BYTES
    current, first, low, high, records, run_position, newest = -1, 0, 0, 0, 0, next_position, -1
    ordinal = 0
    for ordinal, (stream, start, end, timestamp_ms, position, size_bytes, count, _) in enumerate(
        layout.ENTRY.iter_unpack(entries)
    ):
        follows = stream > current or (stream == current and start == high)
        fits = (
            position == next_position and BATCH_HEADER_BYTES <= size_bytes <= blocks_end - position
        )
        if not follows or not fits or not 0 <= start < end or count > end - start:
            raise ObjectCorrupt(
                key,
                next_position,
                f"index entry {ordinal} contradicts the object: stream {stream} [{start}, {end})",
            )
        if stream != current:
            if current >= 0:
                ranges.append(
                    _range(
                        current,
                        low,
                        high,
                        records=records,
                        size_bytes=next_position - run_position,
                        newest=newest,
                    )
                )
                spans[StreamId(current)] = (first, ordinal)
            current, first, low, records, run_position, newest = (
                stream,
                ordinal,
                start,
                0,
                next_position,
                timestamp_ms,
            )
        high = end
        records += count
        newest = max(newest, timestamp_ms)
        next_position += size_bytes
    if entries:
        ranges.append(
            _range(
                current,
                low,
                high,
                records=records,
                size_bytes=next_position - run_position,
                newest=newest,
            )
        )
        spans[StreamId(current)] = (first, ordinal + 1)
        if next_position != blocks_end:
            raise ObjectCorrupt(
                key,
                next_position,
                f"blocks end at {next_position}, the index begins at {blocks_end}",
            )
    return tuple(ranges)


def _range(
    stream: int, start: int, end: int, *, records: int, size_bytes: int, newest: int
) -> StreamRange:
    return StreamRange(
        StreamId(stream), Offset(start), Offset(end), records, size_bytes, Millis(newest)
    )


def _entry(fields: tuple[int, ...]) -> BlockEntry:
    return BlockEntry._make(fields)


def _entry_at(entries: bytes, ordinal: int) -> BlockEntry:
    return BlockEntry._make(layout.ENTRY.unpack_from(entries, ordinal * layout.ENTRY_BYTES))


def is_intact(entry: BlockEntry, data: Buffer) -> bool:
    """Whether `data` is the whole block that the entry describes."""
    return len(data) == entry.size_bytes and bool(crc32c(data) == entry.crc)


def check_block(entry: BlockEntry, data: Buffer, key: str = "") -> None:
    """Raises ObjectCorrupt unless the block is intact."""
    if not is_intact(entry, data):
        raise ObjectCorrupt(
            key,
            entry.position,
            f"the block of stream {entry.stream_id} does not match its checksum",
        )


def verify_object(data: Buffer, key: str = "") -> ObjectIndex:
    """Check every byte of a whole object. For tools, tests and those who have read it all
    anyway.
    """
    data = memoryview(data)
    index = parse_tail(data, len(data), key)
    if isinstance(index, NeedMore):
        raise ObjectCorrupt(key, index.position, "the object ends before its index")
    if parse_header(data, key) != index.header:
        raise ObjectCorrupt(key, 0, "the header and its copy in the index differ")
    for entry in index.blocks():
        check_block(entry, data[entry.position : entry.position + entry.size_bytes], key)
    return index

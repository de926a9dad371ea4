"""Decode objects from untrusted bytes: headers, indexes and blocks are used only after their
checksums and bounds are verified. docs/reference/formats.md describes the layout.

Damaged, truncated or malicious bytes raise ObjectCorrupt; intact objects in a newer format raise
FormatUnknown. Declared lengths are compared with the available bytes before memory is allocated.
"""

from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.protocol.batch.header import HEADER_BYTES as BATCH_HEADER_BYTES
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format import layout
from penstock.stream.format.layout import BlockEntry
from penstock.stream.ports import BrokerIncarnation, ObjectRole, StreamRange


class ObjectHeader(NamedTuple):
    """The header of an object.

    writer: the broker that wrote the object; for a fence, the fencing broker. sequence: the WAL
    slot, -1 outside WALs. depth: the number of slots from the first one that was not durable when
    this slot was written, up to and including this slot; 0 if unknown (not a WAL object).
    """

    role: ObjectRole
    writer: BrokerIncarnation
    sequence: WalSequence
    created_ms: Millis
    depth: int = 0

    @property
    def durable_below(self) -> WalSequence:
        """All slots below this one were durable when this object was written. If one of them is
        missing now, the store has lost it.
        """
        if self.role == ObjectRole.FENCE:
            return self.sequence
        return WalSequence(self.sequence - self.depth + 1 if self.depth else 0)


class NeedMore(NamedTuple):
    """The tail is too short: read [position, end of object) and parse it again."""

    position: int


class ObjectIndex:
    """The index of an object. Entries stay packed (68 bytes per block and one small record per
    stream), so that indexes are cheap to cache.
    """

    __slots__ = ("_entries", "_spans", "footer", "header", "object_size_bytes", "ranges")

    def __init__(
        self, header: ObjectHeader, object_size_bytes: int, key: str, entries: bytes, footer: bytes
    ) -> None:
        """entries: the packed index entries, with verified CRC. Raises ObjectCorrupt if they
        contradict each other or the index position in the footer.
        """
        self.header = header
        self.object_size_bytes = object_size_bytes
        self.footer = footer
        """Equal footers mean equal objects. Empty for a fence."""
        self._entries = entries
        self._spans: dict[StreamId, tuple[int, int]] = {}
        self.ranges: tuple[StreamRange, ...] = _check_entries(
            entries, self._spans, layout.FOOTER.unpack(footer)[0] if footer else 0, key
        )

    @property
    def is_fence(self) -> bool:
        return self.header.role == ObjectRole.FENCE

    @property
    def size_bytes(self) -> int:
        """The approximate size of this index in memory, used as its cache weight."""
        return len(self._entries) + 200 * len(self._spans) + 500

    def blocks(self) -> list[BlockEntry]:
        """Return all blocks in the order of the object."""
        return [_entry(fields) for fields in layout.ENTRY.iter_unpack(self._entries)]

    def blocks_of(
        self, stream_id: StreamId, start_offset: int, end_offset: int
    ) -> list[BlockEntry]:
        """Return the blocks of the stream that intersect [start, end), in offset order."""
        first, last = self._spans.get(stream_id, (0, 0))
        found: list[BlockEntry] = []
        begin = bisect_right(range(first, last), start_offset, key=self._end_offset) + first
        for ordinal in range(begin, last):
            entry = _entry_at(self._entries, ordinal)
            if entry.start_offset >= end_offset:
                break
            found.append(entry)
        return found

    def holds(self, stream_id: StreamId, start_offset: int, end_offset: int) -> bool:
        """Return whether the blocks of the stream, which are contiguous, cover [start, end)."""
        first, last = self._spans.get(stream_id, (0, 0))
        return (
            first < last
            and _entry_at(self._entries, first).start_offset <= start_offset
            and self._end_offset(last - 1) >= end_offset
        )

    def _end_offset(self, ordinal: int) -> int:
        at = ordinal * layout.ENTRY_BYTES + layout.ENTRY_END_OFFSET_AT
        return int(layout.OFFSET.unpack_from(self._entries, at)[0])


def parse_header(data: Buffer, key: str = "") -> ObjectHeader:
    """Return the header at the start of `data`. Raises ObjectCorrupt or FormatUnknown."""
    if len(data) < layout.HEADER_BYTES:
        raise ObjectCorrupt(key, 0, f"{len(data)} bytes, a header has {layout.HEADER_BYTES}")
    magic, version, role, node_id, node_epoch, sequence, created_ms, depth, required, _, crc = (
        layout.HEADER.unpack_from(data)
    )
    if magic != layout.MAGIC:
        raise ObjectCorrupt(
            key, 0, f"begins with {magic!r}, not {layout.MAGIC!r}: not a Penstock object"
        )
    if crc32c(memoryview(data)[: layout.HEADER_CRC_AT]) != crc:
        raise ObjectCorrupt(key, 0, "the header does not match its checksum")
    if version != layout.VERSION:
        raise FormatUnknown(key, f"format version {version}")
    unknown = required & ~layout.FEATURES_KNOWN
    if unknown:
        raise FormatUnknown(key, f"required features {unknown:#010x}")
    try:
        known_role = ObjectRole(role)
    except ValueError:
        raise ObjectCorrupt(key, 10, f"unknown role {role}") from None
    writer = BrokerIncarnation(NodeId(node_id), NodeEpoch(node_epoch))
    return ObjectHeader(known_role, writer, WalSequence(sequence), Millis(created_ms), depth)


def parse_tail(tail: Buffer, object_size_bytes: int, key: str = "") -> ObjectIndex | NeedMore:
    """Parse the index from the last bytes of an object; `tail` may be the whole object. The index
    of a fence has no blocks. Raises ObjectCorrupt or FormatUnknown.
    """
    tail = memoryview(tail)
    if object_size_bytes == layout.HEADER_BYTES and len(tail) == object_size_bytes:
        header = parse_header(tail, key)
        if header.role != ObjectRole.FENCE:
            raise ObjectCorrupt(key, 0, f"an object with role {header.role.name} has no index")
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
    index_position, crc, entry_bytes = _parse_footer(footer, footer_position, key)
    if index_position < tail_position:
        return NeedMore(index_position)
    index = tail[index_position - tail_position : footer_position - tail_position]
    if crc32c(index) != crc:
        raise ObjectCorrupt(key, index_position, "the index does not match its checksum")
    header = parse_header(index, key)
    if header.role not in layout.INDEXED_ROLES:
        raise ObjectCorrupt(
            key, index_position, f"an object with role {header.role.name} has an index"
        )
    entries = _known_part(bytes(index[layout.HEADER_BYTES :]), entry_bytes)
    return ObjectIndex(header, object_size_bytes, key, entries, footer)


def _known_part(entries: bytes, entry_bytes: int) -> bytes:
    """Return the entries without trailing fields added by a later version."""
    if entry_bytes == layout.ENTRY_BYTES:
        return entries
    starts = range(0, len(entries), entry_bytes)
    return b"".join(entries[at : at + layout.ENTRY_BYTES] for at in starts)


def _parse_footer(footer: bytes, footer_position: int, key: str) -> tuple[int, int, int]:
    """Return (index position, index CRC, entry size), checked against the object size and the
    limit.
    """
    index_position, index_bytes, crc, version, entry_bytes, footer_crc, magic = (
        layout.FOOTER.unpack(footer)
    )
    if magic != layout.END_MAGIC:
        raise ObjectCorrupt(
            key,
            footer_position,
            f"ends with {magic!r}, not {layout.END_MAGIC!r}: truncated or not a Penstock object",
        )
    if crc32c(footer[: layout.FOOTER_CRC_AT]) != footer_crc:
        raise ObjectCorrupt(key, footer_position, "the footer does not match its checksum")
    if version != layout.VERSION:
        raise FormatUnknown(key, f"format version {version}")
    if entry_bytes < layout.ENTRY_BYTES:
        raise ObjectCorrupt(
            key, footer_position, f"entries of {entry_bytes} bytes are too short for version 1"
        )
    if not layout.HEADER_BYTES + entry_bytes <= index_bytes <= layout.INDEX_BYTES_MAX:
        raise ObjectCorrupt(
            key, footer_position, f"an index of {index_bytes} bytes is outside the limits"
        )
    if (index_bytes - layout.HEADER_BYTES) % entry_bytes:
        raise ObjectCorrupt(
            key, footer_position, f"an index of {index_bytes} bytes does not contain whole entries"
        )
    if index_position < layout.HEADER_BYTES or index_position + index_bytes != footer_position:
        raise ObjectCorrupt(
            key,
            footer_position,
            f"an index of {index_bytes} bytes at {index_position} does not end at the footer",
        )
    return index_position, crc, entry_bytes


def _check_entries(
    entries: bytes, spans: dict[StreamId, tuple[int, int]], blocks_end: int, key: str
) -> tuple[StreamRange, ...]:
    """Fill `spans` (stream to ordinals) and return the ranges. Blocks must be adjacent, and streams
    sorted and contiguous.

    A single flat loop, because a WAL object of 1,000 partitions has 1,000 entries, at 1.5 us each.
    """
    ranges: list[StreamRange] = []
    next_position = layout.HEADER_BYTES
    current, first, low, high, records, run_position = -1, 0, 0, 0, 0, next_position
    newest, is_newest_known, ordinal = -1, True, 0
    for ordinal, (
        stream,
        start,
        end,
        _,
        timestamp_ms,
        _,
        position,
        size_bytes,
        count,
        _,
    ) in enumerate(layout.ENTRY.iter_unpack(entries)):
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
                        newest=newest if is_newest_known else ~max(newest, 0),
                    )
                )
                spans[StreamId(current)] = (first, ordinal)
            current, first, low, records = stream, ordinal, start, 0
            run_position, newest, is_newest_known = next_position, -1, True
        high = end
        records += count
        if timestamp_ms < 0 < count:  # as in `merged_newest`
            newest, is_newest_known = max(newest, ~timestamp_ms), False
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
                newest=newest if is_newest_known else ~max(newest, 0),
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
    """Return whether `data` is the complete block described by the entry."""
    return len(data) == entry.size_bytes and bool(crc32c(data) == entry.crc)


def check_block(entry: BlockEntry, data: Buffer, key: str = "") -> None:
    """Raise ObjectCorrupt unless the block is intact."""
    if not is_intact(entry, data):
        raise ObjectCorrupt(
            key,
            entry.position,
            f"the block of stream {entry.stream_id} does not match its checksum",
        )


def verify_object(data: Buffer, key: str = "") -> ObjectIndex:
    """Check every byte of a whole object and return its index. Raises ObjectCorrupt or
    FormatUnknown.
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

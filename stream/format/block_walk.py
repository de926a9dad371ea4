"""Iterate over the batches of a block that was read for a committed range. This takes 1 us per
batch.

Only whole batches inside the range are returned, in offset order. Overlapping batches, or batches
that cross an end of the block or the range, raise ObjectCorrupt even if the checksum matches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.base.buffers import Buffer
from penstock.base.ids import Millis, Offset
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import BatchSpan, batch_span, merged_newest, parse_header
from penstock.protocol.batch.uncompressed_size import UNCOMPRESSED_UNKNOWN
from penstock.stream.errors import NotContiguous, ObjectCorrupt
from penstock.stream.format.builder import RunEntry
from penstock.stream.format.layout import BlockEntry
from penstock.stream.ports import ObjectRange


@dataclass(frozen=True, slots=True)
class Piece:
    """A block to read, with the range that it is read for."""

    source: ObjectRange
    block: BlockEntry

    @property
    def start_offset(self) -> Offset:
        """Return the first offset of the block that belongs to the range."""
        return max(self.block.start_offset, self.source.range.start_offset)

    @property
    def end_offset(self) -> Offset:
        """Return the offset after the last offset of the block that belongs to the range."""
        return min(self.block.end_offset, self.source.range.end_offset)


def batches_of(piece: Piece, data: Buffer) -> Iterator[tuple[int, BatchSpan]]:
    """Yield (position, span) of the batches that belong to the range. A block may contain more of
    the stream than was committed.
    """
    block, wanted = piece.block, piece.source.range
    at, expected = 0, block.start_offset
    while at < len(data):
        try:
            span = batch_span(data, at)
        except BatchCorrupt as error:
            raise ObjectCorrupt(piece.source.key, block.position + at, str(error)) from None
        if span.base_offset < expected or span.next_offset > block.end_offset:
            what = (
                f"a batch of [{span.base_offset}, {span.next_offset}) after {expected} in a block"
                f" that ends at {block.end_offset}"
            )
            raise ObjectCorrupt(piece.source.key, block.position + at, what)
        if span.next_offset > wanted.start_offset and span.base_offset < wanted.end_offset:
            if span.base_offset < wanted.start_offset or span.next_offset > wanted.end_offset:
                what = (
                    f"a batch of [{span.base_offset}, {span.next_offset}) lies across a border of"
                    f" {wanted}"
                )
                raise ObjectCorrupt(piece.source.key, block.position + at, what)
            yield at, span
        expected = Offset(span.next_offset)
        at += span.size_bytes


def cut(
    piece: Piece, data: Buffer, start: int, end_offset: int, left_bytes: int, *, min_one: bool
) -> tuple[memoryview, int, bool]:
    """Return the batches from the one that contains `start`, the offset to continue at, and whether
    the block is finished.
    """
    begin = end = -1
    position = start
    for at, span in batches_of(piece, data):
        if span.next_offset <= start:
            continue
        begin = at if begin < 0 else begin
        too_much = at + span.size_bytes - begin > left_bytes and not (min_one and at == begin)
        if too_much or span.base_offset >= end_offset:
            return memoryview(data)[begin : max(begin, end)], position, False
        end = at + span.size_bytes
        position = span.next_offset
    return (
        memoryview(data)[max(begin, 0) : max(end, 0)],
        min(piece.block.end_offset, piece.source.range.end_offset),
        True,
    )


def batches_since(
    piece: Piece, data: Buffer, timestamp_ms: int, start_offset: int
) -> Iterator[memoryview]:
    """Yield the batches that may contain a record at `start_offset` or later with at least this
    timestamp.
    """
    for at, span in batches_of(piece, data):
        batch = memoryview(data)[at : at + span.size_bytes]
        if (
            span.next_offset > start_offset
            and parse_header(batch).newest_timestamp_ms >= timestamp_ms
        ):
            yield batch


def entry_of(piece: Piece, data: Buffer) -> RunEntry:
    """Return the part of the block that belongs to the range, for a rewrite. Raises NotContiguous
    if batches are missing.
    """
    wanted = piece.source.range
    start = expected = piece.start_offset
    end = piece.end_offset
    begin = stop = -1
    batches: list[RunEntry] = []
    for at, span in batches_of(piece, data):
        if span.base_offset != expected:
            raise NotContiguous(wanted.stream_id, expected, Offset(span.base_offset))
        begin = at if begin < 0 else begin
        stop = at + span.size_bytes
        expected = Offset(span.next_offset)
        batch = memoryview(data)[at:stop]
        batches.append(RunEntry.of_batch(batch, parse_header(batch)))
    if expected != end:
        raise NotContiguous(wanted.stream_id, end, expected)
    sizes = [batch.uncompressed_bytes for batch in batches]
    return RunEntry(
        start,
        end,
        sum(batch.record_count for batch in batches),
        min(
            (batch.min_timestamp_ms for batch in batches if batch.record_count), default=Millis(-1)
        ),
        Millis(merged_newest((batch.max_timestamp_ms, batch.record_count) for batch in batches)),
        sum(sizes) if all(sizes) else UNCOMPRESSED_UNKNOWN,
        memoryview(data)[begin:stop],
    )

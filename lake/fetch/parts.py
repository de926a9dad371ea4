"""Choose the bytes of an object to read for its slices: the blocks of their streams and offsets,
with nearby blocks combined.

Invariant: pieces are in the order of the slices and their offsets, so that "everything before this
piece" is well-defined. There is no I/O. Source: AutoMQ `ObjectReader`, `StreamReader`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.base.ids import StreamId
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import TimeBounds
from penstock.stream.format.decoder import ObjectIndex
from penstock.stream.format.layout import BlockEntry


@dataclass(frozen=True, slots=True)
class Piece:
    """A block, and the slice for which it is read."""

    ordinal: int
    """The position of the slice among all slices that are read."""
    slice: Slice
    block: BlockEntry


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes [start, end) of an object: one GET."""

    start: int
    end: int
    pieces: Sequence[Piece]


Wanted = Callable[[Piece], bool]
"""Returns whether a block must be read, based on its index entry."""


def all_blocks(_piece: Piece) -> bool:
    return True


def blocks_within(times: TimeBounds) -> Wanted:
    """Select the blocks that may contain a record with a wanted timestamp."""

    def is_wanted(piece: Piece) -> bool:
        return not times.excludes_block(piece.block)

    return is_wanted if times.is_bounded else all_blocks


def pieces_of(
    ordinal: int,
    slice_: Slice,
    index: ObjectIndex,
    config: ReadConfig,
    wanted: Wanted = all_blocks,
) -> Iterator[Piece]:
    """Yield the blocks to read.

    Raise ReadError if the object does not contain the slice, or a block is too large.
    """
    stream_id = slice_.stream_id_in_object
    blocks = index.blocks_of(StreamId(stream_id), slice_.start_offset, slice_.end_offset)
    if (
        not blocks
        or blocks[0].start_offset > slice_.start_offset
        or blocks[-1].end_offset < slice_.end_offset
    ):
        what = (
            f"the object does not hold [{slice_.start_offset}, {slice_.end_offset}) of stream"
            f" {stream_id}"
        )
        raise ReadError(slice_.key, slice_.topic, slice_.partition, slice_.start_offset, what)
    for block in blocks:
        if block.size_bytes > config.block_bytes_max:
            what = (
                f"a block of {block.size_bytes} bytes is larger than block_bytes_max ="
                f" {config.block_bytes_max}"
            )
            raise ReadError(slice_.key, slice_.topic, slice_.partition, block.start_offset, what)
        piece = Piece(ordinal, slice_, block)
        if wanted(piece):
            yield piece


def coalesce(pieces: Iterable[Piece], config: ReadConfig) -> list[Part]:
    """Combine pieces of one object, in order, into GETs of limited size that may include small
    gaps.
    """
    parts: list[Part] = []
    run: list[Piece] = []
    start = end = 0
    for piece in pieces:
        position, block_end = piece.block.position, piece.block.position + piece.block.size_bytes
        if run and (
            not 0 <= position - end <= config.gap_bytes_max
            or block_end - start > config.part_bytes_max
        ):
            parts.append(Part(start, end, run))
            run = []
        if not run:
            start = position
        run.append(piece)
        end = block_end
    if run:
        parts.append(Part(start, end, run))
    return parts


def rest_of(slices: Sequence[Slice], piece: Piece) -> tuple[Slice, tuple[Slice, ...]]:
    """Return the rest of the slice, starting with this piece, and the following slices."""
    start_offset = max(piece.slice.start_offset, piece.block.start_offset)
    return replace(piece.slice, start_offset=start_offset), tuple(slices[piece.ordinal + 1 :])

"""Build WAL, stream-set and stream objects from runs of batches, and fences.
docs/reference/formats.md describes the layout.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from crc32c import crc32c

from penstock.base.buffers import Buffer
from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.base.yielding import at_once
from penstock.protocol.batch.header import BatchHeader, merged_newest
from penstock.protocol.batch.uncompressed_size import uncompressed_bytes
from penstock.stream.errors import NotContiguous
from penstock.stream.format import layout
from penstock.stream.format.layout import BlockEntry
from penstock.stream.ports import BrokerIncarnation, ObjectRole, StreamRange

STEP_ENTRIES: Final = 512
"""Number of entries between two pauses of `build_steps`, corresponding to 0.5 ms."""

STEP_BYTES: Final = 4 << 20
"""Size of the payload between two pauses. Its CRC takes 0.2 to 0.6 ms."""

_NO_TIME = Millis(0)
_NO_RECORD_YET = Millis((1 << 63) - 1)


class Entry(Protocol):
    """One or more whole batches of [base_offset, end_offset), such as a
    `stream.storage.AppendEntry`.
    """

    @property
    def base_offset(self) -> Offset: ...
    @property
    def end_offset(self) -> Offset: ...
    @property
    def record_count(self) -> int: ...
    @property
    def min_timestamp_ms(self) -> Millis: ...
    @property
    def max_timestamp_ms(self) -> Millis: ...
    @property
    def uncompressed_bytes(self) -> int: ...
    @property
    def payload(self) -> Buffer: ...


@dataclass(frozen=True, slots=True)
class RunEntry:
    """An `Entry` for callers without their own class."""

    base_offset: Offset
    end_offset: Offset
    record_count: int
    min_timestamp_ms: Millis
    max_timestamp_ms: Millis
    uncompressed_bytes: int
    payload: Buffer

    @staticmethod
    def of_batch(batch: Buffer, header: BatchHeader) -> "RunEntry":
        """Return an entry for one batch with this header."""
        return RunEntry(
            Offset(header.base_offset),
            Offset(header.next_offset),
            header.record_count,
            Millis(header.min_timestamp_ms),
            Millis(header.index_timestamp_ms),
            uncompressed_bytes(header.compression, batch),
            batch,
        )


@dataclass(frozen=True, slots=True)
class StreamRun:
    """All entries of one stream in the object, without gaps."""

    stream_id: StreamId
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class BuiltObject:
    """An object to PUT.

    chunks: the body for `ObjectStore.put`, in order. footer: contains the CRCs of the header and
    the blocks, so equal footers mean equal objects.
    """

    chunks: list[Buffer]
    size_bytes: int
    ranges: tuple[StreamRange, ...]
    footer: bytes


class _Builder:
    """Collects chunks and packed index entries. Payload is referenced, not copied. Blocks are cut
    only between entries, so they always contain whole batches.
    """

    __slots__ = (
        "_pause_after_bytes",
        "_pause_after_chunks",
        "block_bytes_max",
        "chunks",
        "index",
        "position",
        "ranges",
    )

    def __init__(self, header: bytes, block_bytes_max: int) -> None:
        self.block_bytes_max = block_bytes_max
        self.chunks: list[Buffer] = [header]
        self.index: list[bytes] = [header]
        self.position = len(header)
        self.ranges: list[StreamRange] = []
        self._pause_after_chunks = STEP_ENTRIES
        self._pause_after_bytes = STEP_BYTES

    def add_run(self, run: StreamRun) -> Generator[None]:
        """Add a run. See `build_steps` for the pauses."""
        stream_id, chunks, block_bytes_max = run.stream_id, self.chunks, self.block_bytes_max
        start = block_start = end = run.entries[0].base_offset
        run_position = self.position
        size_bytes = crc = records = run_records = plain_bytes = 0
        is_plain_known, oldest_ms = True, _NO_RECORD_YET
        newest_ms, is_newest_known = Millis(-1), True
        blocks: list[tuple[int, int]] = []
        for entry in run.entries:
            payload, payload_bytes = entry.payload, len(entry.payload)
            if entry.base_offset != end or entry.end_offset <= end or not payload_bytes:
                raise NotContiguous(stream_id, end, entry.base_offset)
            if size_bytes and size_bytes + payload_bytes > block_bytes_max:
                blocks.append((newest_ms if is_newest_known else ~max(newest_ms, 0), records))
                self._add_block(
                    BlockEntry(
                        stream_id,
                        block_start,
                        end,
                        oldest_ms,
                        Millis(blocks[-1][0]),
                        plain_bytes if is_plain_known else 0,
                        self.position,
                        size_bytes,
                        records,
                        crc,
                    )
                )
                run_records += records
                block_start, size_bytes, crc, records, plain_bytes = end, 0, 0, 0, 0
                is_plain_known, oldest_ms, newest_ms = True, _NO_RECORD_YET, Millis(-1)
                is_newest_known = True
            crc = crc32c(payload, crc)
            chunks.append(payload)
            size_bytes += payload_bytes
            records += entry.record_count
            if entry.max_timestamp_ms > newest_ms:
                newest_ms = entry.max_timestamp_ms
            elif entry.max_timestamp_ms < 0 and entry.record_count:
                is_newest_known = False
                newest_ms = max(newest_ms, Millis(~entry.max_timestamp_ms))
            if entry.min_timestamp_ms < oldest_ms and entry.record_count:
                oldest_ms = entry.min_timestamp_ms
            plain_bytes += entry.uncompressed_bytes
            is_plain_known = is_plain_known and entry.uncompressed_bytes > 0
            end = entry.end_offset
            if (
                len(chunks) > self._pause_after_chunks
                or self.position + size_bytes >= self._pause_after_bytes
            ):
                self._pause_after_chunks = len(chunks) + STEP_ENTRIES
                self._pause_after_bytes = self.position + size_bytes + STEP_BYTES
                yield
        blocks.append((newest_ms if is_newest_known else ~max(newest_ms, 0), records))
        self._add_block(
            BlockEntry(
                stream_id,
                block_start,
                end,
                oldest_ms,
                Millis(blocks[-1][0]),
                plain_bytes if is_plain_known else 0,
                self.position,
                size_bytes,
                records,
                crc,
            )
        )
        self.ranges.append(
            StreamRange(
                stream_id,
                start,
                end,
                run_records + records,
                self.position - run_position,
                Millis(merged_newest(blocks)),
            )
        )

    def _add_block(self, block: BlockEntry) -> None:
        if block.min_timestamp_ms == _NO_RECORD_YET:
            block = block._replace(min_timestamp_ms=Millis(-1))
        self.index.append(layout.ENTRY.pack(*block))
        self.position += block.size_bytes


def build_object(
    role: ObjectRole,
    writer: BrokerIncarnation,
    sequence: WalSequence,
    created_ms: Millis,
    runs: Sequence[StreamRun],
    *,
    depth: int = 0,
    block_bytes_max: int = layout.BLOCK_BYTES_MAX,
) -> BuiltObject:
    """Build an object of `runs`, sorted by stream id, with at most one non-empty run per stream.

    sequence: the WAL slot, or NO_SEQUENCE for stream-set and stream objects. depth: see
    `ObjectHeader`; only for WAL objects. A stream object contains exactly one run. This takes 1 us
    per entry and 2 us per block, plus the CRC (27 GB/s). Raises NotContiguous for gaps or overlaps
    in a run, and ValueError for unsorted streams.
    """
    return at_once(
        build_steps(
            role, writer, sequence, created_ms, runs, depth=depth, block_bytes_max=block_bytes_max
        )
    )


def build_steps(
    role: ObjectRole,
    writer: BrokerIncarnation,
    sequence: WalSequence,
    created_ms: Millis,
    runs: Sequence[StreamRun],
    *,
    depth: int = 0,
    block_bytes_max: int = layout.BLOCK_BYTES_MAX,
) -> Generator[None, None, BuiltObject]:
    """Build an object like `build_object`, but pause after STEP_ENTRIES or STEP_BYTES.

    An upload of small batches may contain 100,000 entries, which take 0.1 s.
    """
    if (
        role not in layout.INDEXED_ROLES
        or not runs
        or (role == ObjectRole.STREAM and len(runs) != 1)
    ):
        raise ValueError(f"an object with role {role.name} cannot contain {len(runs)} runs")
    builder = _Builder(_pack_header(role, writer, sequence, created_ms, depth), block_bytes_max)
    previous = -1
    for run in runs:
        if run.stream_id <= previous or not run.entries:
            raise ValueError(
                f"stream {run.stream_id} after {previous}: runs are sorted by stream, one per"
                " stream, none empty"
            )
        previous = run.stream_id
        yield from builder.add_run(run)
    index = b"".join(builder.index)
    if len(index) > layout.INDEX_BYTES_MAX:
        raise ValueError(
            f"the index would have {len(index)} bytes, {layout.INDEX_BYTES_MAX} are allowed: write"
            " several objects"
        )
    footer = _pack_footer(builder.position, index)
    builder.chunks += (index, footer)
    return BuiltObject(
        builder.chunks, builder.position + len(index) + len(footer), tuple(builder.ranges), footer
    )


def fence_object(
    writer: BrokerIncarnation, sequence: WalSequence, created_ms: Millis = _NO_TIME
) -> bytes:
    """Return the object that ends a WAL at slot `sequence`: a header only.

    writer: the fencing broker, which the fenced broker logs.
    """
    return _pack_header(ObjectRole.FENCE, writer, sequence, created_ms)


def _pack_header(
    role: ObjectRole,
    writer: BrokerIncarnation,
    sequence: WalSequence,
    created_ms: Millis,
    depth: int = 0,
) -> bytes:
    header = bytearray(layout.HEADER_BYTES)
    node_id, node_epoch = writer
    layout.HEADER.pack_into(
        header,
        0,
        layout.MAGIC,
        layout.VERSION,
        role,
        node_id,
        node_epoch,
        sequence,
        created_ms,
        depth,
        0,
        0,
        0,
    )
    crc = crc32c(memoryview(header)[: layout.HEADER_CRC_AT])
    layout.HEADER_CRC.pack_into(header, layout.HEADER_CRC_AT, crc)
    return bytes(header)


def _pack_footer(index_position: int, index: bytes) -> bytes:
    footer = bytearray(layout.FOOTER_BYTES)
    layout.FOOTER.pack_into(
        footer,
        0,
        index_position,
        len(index),
        crc32c(index),
        layout.VERSION,
        layout.ENTRY_BYTES,
        0,
        layout.END_MAGIC,
    )
    layout.HEADER_CRC.pack_into(
        footer, layout.FOOTER_CRC_AT, crc32c(memoryview(footer)[: layout.FOOTER_CRC_AT])
    )
    return bytes(footer)

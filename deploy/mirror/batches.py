"""Convert fetched batches of committed records to the batches that a mirror appends.

Invariant: markers and records of aborted transactions are omitted, and every other readable record
is kept with key, value, headers and timestamp. Batches are copied unchanged, including compression,
unless the target cannot accept them. Pure. Source: Kafka `CompletedFetch`, `LogValidator`; KIP-98.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c
from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.header import (
    BATCH_OVERHEAD,
    CRC_START,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_LOG_APPEND_TIME,
    TRANSACTIONAL_MASK,
    BatchHeader,
    parse_header,
)
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.sound_records import decode_sound
from penstock.protocol.gen.fetch import AbortedTransaction
from penstock.stream.cleaning.batches import fillers

_LENGTH: Final = struct.Struct(">8xi4xb")
JOINED_BYTES_MAX: Final = 256 * 1024
"""Maximum size of the keys and values in a batch that small batches are merged into."""
_WHOLE_BYTES_MIN: Final = 16 * 1024
"""Batches of at least this size are not merged, because merging decodes them, which takes 5 us per
record.
"""
_RECORD_OVERHEAD_BYTES: Final = 32


class SourceBatch(NamedTuple):
    """A batch from the source that contains committed records."""

    header: BatchHeader
    data: memoryview


class OldFormat(Exception):
    """Raised for batches in message formats 0 and 1, which Kafka 4 does not support either."""


def committed_batches(
    records: Buffer | None, offset: int, aborted: Iterable[AbortedTransaction] | None
) -> tuple[list[SourceBatch], int]:
    """Return the batches with records at `offset` or later, and the next fetch offset. A partial
    batch at the end is ignored, because the next fetch returns it. A batch that begins below
    `offset` is decoded and trimmed; its unreadable records are omitted.

    aborted: the aborted transactions in the response. Raises OldFormat and BatchCorrupt.
    """
    found: list[SourceBatch] = []
    waiting = sorted(aborted or (), key=lambda item: item.first_offset, reverse=True)
    open_aborted: set[int] = set()
    for header, data in _whole_batches(records):
        while waiting and waiting[-1].first_offset <= header.last_offset:
            open_aborted.add(waiting.pop().producer_id)
        if header.is_control:
            marker = decode_marker(data, header.producer_id, header.producer_epoch)
            if not marker.committed:
                open_aborted.discard(header.producer_id)
        is_aborted = header.is_transactional and header.producer_id in open_aborted
        if header.next_offset <= offset:
            continue
        if not header.is_control and not is_aborted and header.record_count:
            batch = SourceBatch(header, data)
            found += [batch] if header.base_offset >= offset else _cut(batch, offset)
        offset = header.next_offset
    return found, offset


def _whole_batches(records: Buffer | None) -> Iterator[tuple[BatchHeader, memoryview]]:
    view = memoryview(records or b"")
    at = 0
    while len(view) - at >= HEADER_BYTES:
        length, magic = _LENGTH.unpack_from(view, at)
        if magic != MAGIC:
            raise OldFormat(
                f"the source has batches of message format {magic}, which Kafka 4 no longer"
                " supports: rewrite the topic with a newer client"
            )
        if length + BATCH_OVERHEAD > len(view) - at:
            return
        header = parse_header(view, at)
        yield header, view[at : at + header.size_bytes]
        at += header.size_bytes


def _cut(batch: SourceBatch, offset: int) -> list[SourceBatch]:
    header = batch.header
    records, _ = decode_sound(batch.data)
    kept = [record for record in records if record.offset >= offset]
    if not kept:
        return []
    data = encode_batch(
        kept,
        base_offset=offset,
        last_offset=header.last_offset,
        compression=Compression(header.compression),
    )
    return [SourceBatch(parse_header(data), memoryview(data))]


# --- the offsets of the source --------------------------------------------------------------------


def at_source_offsets(batches: Iterable[SourceBatch], start: int, end: int) -> list[Buffer]:
    """Return batches that cover [start, end) without gaps: the batches of the source, without
    producer ids, and empty batches for their gaps.
    """
    parts: list[Buffer] = []
    for header, data in batches:
        parts += gap(start, header.base_offset)
        parts.append(_without_producer(header, data))
        start = header.next_offset
    return parts + gap(start, end)


def gap(start: int, end: int) -> list[Buffer]:
    """Return batches without records for [start, end)."""
    return [filler for _, filler in fillers(Offset(start), Offset(end), -1)]


def _without_producer(header: BatchHeader, data: memoryview) -> Buffer:
    if header.producer_id < 0 and not header.is_transactional:
        return data
    return _with_header(
        data,
        header._replace(
            attributes=header.attributes & ~TRANSACTIONAL_MASK,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        ),
    )


def _with_header(data: memoryview, header: BatchHeader) -> bytearray:
    """Return a copy of the batch with this header and its CRC."""
    batch = bytearray(data)
    HEADER.pack_into(batch, 0, *header)
    crc = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *header._replace(crc=crc))
    return batch


# --- other offsets --------------------------------------------------------------------------------


class Run(Struct, frozen=True):
    """Consecutive offsets of the source: `count` records from `source` on."""

    source: int
    count: int


class NewBatch(NamedTuple):
    """A batch for `in_transaction`. runs: the offsets of its records in the source."""

    data: Buffer
    runs: tuple[Run, ...]

    @property
    def record_count(self) -> int:
        return sum(run.count for run in self.runs)


def for_producer(batches: Sequence[SourceBatch], *, checks_all: bool = False) -> Iterator[NewBatch]:
    """Yield batches that any Kafka broker accepts from a producer: without gaps in offsets, and
    with record timestamps. Small batches are merged, and unreadable records are omitted.

    checks_all: also validate large batches, which are otherwise passed through unchanged.
    """
    joined: list[Record] = []
    size_bytes = 0
    compression = Compression.NONE
    for batch in batches:
        is_large = batch.header.size_bytes >= _WHOLE_BYTES_MIN
        if is_large and not checks_all and _is_taken(batch.header):
            yield from _encoded(joined, compression)
            joined, size_bytes = [], 0
            yield NewBatch(batch.data, (Run(batch.header.base_offset, batch.header.record_count),))
            continue
        for record in decode_sound(batch.data)[0]:
            record_bytes = _size_of(record)
            if joined and size_bytes + record_bytes > JOINED_BYTES_MAX:
                yield from _encoded(joined, compression)
                joined, size_bytes = [], 0
            joined.append(record)
            size_bytes += record_bytes
            compression = Compression(batch.header.compression)
    yield from _encoded(joined, compression)


def _is_taken(header: BatchHeader) -> bool:
    return (
        header.record_count == header.last_offset_delta + 1
        and header.timestamp_type != TIMESTAMP_LOG_APPEND_TIME
        and not header.attributes & DELETE_HORIZON_MASK
    )


def _size_of(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def _encoded(records: Sequence[Record], compression: Compression) -> Iterator[NewBatch]:
    if records:
        dense = [record._replace(offset=at) for at, record in enumerate(records)]
        yield NewBatch(encode_batch(dense, compression=compression), tuple(_runs(records)))


def _runs(records: Sequence[Record]) -> Iterator[Run]:
    start = count = 0
    for record in records:
        if count and record.offset == start + count:
            count += 1
            continue
        if count:
            yield Run(start, count)
        start, count = record.offset, 1
    if count:
        yield Run(start, count)


def in_transaction(batch: Buffer, producer_id: int, epoch: int, sequence: int) -> bytearray:
    """Return the batch with the header fields of a transactional producer."""
    view = memoryview(batch)
    header = parse_header(view)
    return _with_header(
        view,
        header._replace(
            base_offset=0,
            partition_leader_epoch=-1,
            attributes=header.attributes | TRANSACTIONAL_MASK,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        ),
    )

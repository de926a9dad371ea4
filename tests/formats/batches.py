"""Record batches of the conformance vectors, with the rows that a reader must find in them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cramjam

from penstock.base.ids import Millis, NodeEpoch, NodeId, Offset, StreamEpoch, StreamId, WalSequence
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.control import Marker, encode_marker
from penstock.protocol.batch.header import (
    HEADER_BYTES,
    TRANSACTIONAL_MASK,
    parse_header,
    patch_log_append_time,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.stream.cleaning.batches import all_records as all_spans
from penstock.stream.cleaning.batches import fillers, plain_records, with_records
from penstock.stream.format.builder import BuiltObject, RunEntry, StreamRun, build_object
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.format.transaction_log import (
    AbortedTransaction,
    TransactionEvent,
    encode_event,
)
from penstock.stream.ports import BrokerIncarnation, ObjectRole
from tests.support.reader_objects import sealed

BASE_MS = 1_700_000_000_000
CREATED_MS = Millis(BASE_MS + 60_000)
WRITER = BrokerIncarnation(NodeId(3), NodeEpoch(17))


@dataclass(frozen=True)
class Batch:
    """The bytes and rows of a batch. Control batches and empty batches have no rows."""

    payload: bytes
    rows: Sequence[Record] = field(default=())

    @property
    def base_offset(self) -> int:
        return parse_header(self.payload).base_offset

    @property
    def end_offset(self) -> int:
        return parse_header(self.payload).next_offset


def record(offset: int, value: str | None = "", key: str | None = "k", *, late: int = 0) -> Record:
    """Return a record whose timestamp increases with its offset, minus `late` ms."""
    return Record(
        offset,
        BASE_MS + 10 * offset - late,
        None if key is None else key.encode(),
        None if value is None else (value or f"value {offset}").encode(),
    )


def batch(*records: Record, compression: Compression = Compression.NONE, **fields: Any) -> Batch:
    payload = encode_batch(
        records, base_offset=records[0].offset, leader_epoch=4, compression=compression, **fields
    )
    return Batch(bytes(payload), records)


def run(start: int, end: int, **fields: Any) -> Batch:
    return batch(*(record(offset) for offset in range(start, end)), **fields)


def packed(start: int, end: int, codec: Compression, payload: bytes) -> Batch:
    """Return the batch of `run` with these bytes as its compressed records."""
    plain = run(start, end, compression=codec)
    return Batch(sealed(plain.payload[:HEADER_BYTES] + payload), plain.rows)


def records_of(plain: Batch) -> bytes:
    return plain.payload[HEADER_BYTES:]


def xerial(start: int, end: int) -> Batch:
    """Return a batch in Java's snappy framing: a header of 16 bytes, then two blocks."""
    data = records_of(run(start, end))
    framed = bytearray(b"\x82SNAPPY\x00" + bytes.fromhex("00000001 00000001"))
    for part in (data[:40], data[40:]):
        block = bytes(cramjam.snappy.compress_raw(part))
        framed += len(block).to_bytes(4, "big") + block
    return packed(start, end, Compression.SNAPPY, bytes(framed))


def two_frames(start: int, end: int) -> Batch:
    """Return a batch whose records are two consecutive zstd frames."""
    data = records_of(run(start, end))
    frames = [bytes(cramjam.zstd.compress(part)) for part in (data[:40], data[40:])]
    return packed(start, end, Compression.ZSTD, b"".join(frames))


def append_time(start: int, end: int, timestamp_ms: int) -> Batch:
    plain = run(start, end)
    payload = bytearray(plain.payload)
    patch_log_append_time(payload, 0, timestamp_ms)
    return Batch(bytes(payload), [row._replace(timestamp_ms=timestamp_ms) for row in plain.rows])


def gap(start: int, end: int) -> Batch:
    ((_, payload),) = fillers(Offset(start), Offset(end), 4)
    return Batch(bytes(payload))


def with_horizon(plain: Batch, horizon_ms: int) -> Batch:
    view = memoryview(plain.payload)
    header = parse_header(view)
    records = plain_records(view, header)
    spans = all_spans(records, header)
    return Batch(bytes(with_records(view, header, records, spans, Millis(horizon_ms))), plain.rows)


def transactional(start: int, end: int, producer_id: int) -> Batch:
    return run(
        start,
        end,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=start,
        attributes=TRANSACTIONAL_MASK,
    )


def marker(offset: int, producer_id: int, *, committed: bool) -> Batch:
    ended = Marker(producer_id, 0, committed, coordinator_epoch=9, serial=2)
    return Batch(bytes(encode_marker(ended, BASE_MS + 10 * offset, base_offset=offset)))


def event(
    start: int, end: int, unstable: int, aborted: tuple[int, int, int] | None = None
) -> Batch:
    found = TransactionEvent(Offset(unstable), AbortedTransaction(*aborted) if aborted else None)
    payload = encode_event(
        found, Offset(start), Offset(end), StreamEpoch(4), Millis(BASE_MS + 10 * end)
    )
    return Batch(bytes(payload), decode_records(payload))


def build(
    role: ObjectRole,
    streams: dict[int, Sequence[Batch]],
    *,
    sequence: int = NO_SEQUENCE,
    depth: int = 0,
    writer: BrokerIncarnation = WRITER,
    block_bytes_max: int = 1 << 20,
) -> BuiltObject:
    runs = [
        StreamRun(
            StreamId(stream_id),
            [RunEntry.of_batch(item.payload, parse_header(item.payload)) for item in batches],
        )
        for stream_id, batches in sorted(streams.items())
    ]
    return build_object(
        role,
        writer,
        WalSequence(sequence),
        CREATED_MS,
        runs,
        depth=depth,
        block_bytes_max=block_bytes_max,
    )


def joined(built: BuiltObject) -> bytes:
    return b"".join(built.chunks)


def row_json(row: Record) -> dict[str, Any]:
    """Return a row in the form of the expected results, with bytes in hexadecimal."""
    return {
        "offset": row.offset,
        "timestamp": row.timestamp_ms,
        "key": None if row.key is None else row.key.hex(),
        "value": None if row.value is None else row.value.hex(),
        "headers": [[name, None if value is None else value.hex()] for name, value in row.headers],
    }

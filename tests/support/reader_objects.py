"""Record batches and objects for tests of the store reader, and a pure Python decoder for
comparison.
"""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamId,
    WalSequence,
)
from penstock.lake.arrow.columns import NAMES
from penstock.lake.arrow.decode import Aborted, Decoder, Place
from penstock.lake.arrow.decode_table import FAR_FUTURE_MS, FAR_PAST_MS, TIMESTAMP_MS_MAX
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.header import CRC_AT, CRC_START, iter_headers, parse_header
from penstock.protocol.batch.records import Record, decode_records
from penstock.stream.format.builder import (
    BuiltObject,
    RunEntry,
    StreamRun,
    build_object,
)
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import BrokerIncarnation, ObjectRole

ALL = NAMES
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class WatchedStore(MemoryStore):
    """Records the GETs and the number of bytes in flight. A GET takes one iteration of the event
    loop, as over a network.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []
        self.under_way_bytes = self.under_way_bytes_max = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((key, start, length))
        self.under_way_bytes += length
        self.under_way_bytes_max = max(self.under_way_bytes_max, self.under_way_bytes)
        await asyncio.sleep(0.001)
        self.under_way_bytes -= length
        return await super().get_range(key, start, length)


def row_of(record: Record) -> Row:
    timestamp_ms: int = record.timestamp_ms
    if abs(timestamp_ms) > TIMESTAMP_MS_MAX:
        timestamp_ms = FAR_FUTURE_MS if timestamp_ms > 0 else FAR_PAST_MS
    headers = tuple((_replaced(name), value) for name, value in record.headers)
    return record.offset, timestamp_ms, record.key, record.value, headers


def _replaced(name: str) -> str:
    """Return the key of a header as decoded by readers, with U+FFFD for bytes that are
    not UTF-8.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table with all columns, and with timestamps in milliseconds."""
    columns = table.set_column(
        table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64())
    )
    found: list[Row] = []
    for row in columns.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        assert row["headers"] != [], "no headers are a null"
        assert row["timestamp"] % 1000 == 0
        found.append((row["offset"], row["timestamp"] // 1000, row["key"], row["value"], headers))
    return found


def decode(
    data: bytes,
    place: Place | None = None,
    *,
    compiled: bool,
    columns: Sequence[str] = ALL,
    aborted: Iterable[Any] = (),
    on_unreadable: OnUnreadable = raise_unreadable,
    **limits: int,
) -> pa.Table:
    decoder = Decoder(columns, ReadConfig(**limits), compiled=compiled, on_unreadable=on_unreadable)
    place = place or Place("data/x", "topic", 3)
    batches = [*decoder.decode(data, place, Aborted(aborted)), *decoder.flush()]
    table = pa.Table.from_batches(batches, schema=decoder.schema)
    table.validate(full=True)
    return table


def records_of(data: bytes) -> list[Record]:
    """Decode the records in pure Python, without control batches."""
    found: list[Record] = []
    for at, header in iter_headers(data):
        if not header.is_control:
            found += decode_records(memoryview(data)[at : at + header.size_bytes])
    return found


def sealed(batch: bytes | bytearray) -> bytes:
    """Return the batch with its length and CRC corrected."""
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[CRC_START:])))
    return bytes(data)


def entry_of(batch: bytes | bytearray) -> RunEntry:
    return RunEntry.of_batch(batch, parse_header(batch))


def build(
    runs: dict[int, Sequence[bytes | bytearray]], *, block_bytes_max: int = 1 << 20
) -> BuiltObject:
    """Build a stream-set object. batches: by stream id."""
    writer = BrokerIncarnation(NodeId(1), NodeEpoch(1))
    entries = [
        StreamRun(StreamId(stream), [entry_of(batch) for batch in batches])
        for stream, batches in sorted(runs.items())
    ]
    role, sequence = ObjectRole.STREAM_SET, WalSequence(NO_SEQUENCE)
    return build_object(role, writer, sequence, Millis(0), entries, block_bytes_max=block_bytes_max)


async def put_object(
    store: ObjectStore,
    key: str,
    runs: dict[int, Sequence[bytes | bytearray]],
    *,
    block_bytes_max: int = 1 << 20,
) -> list[Slice]:
    """Write the object and return a slice for each of its streams, as the partition of `topic` with
    the stream's number.
    """
    built = build(runs, block_bytes_max=block_bytes_max)
    await store.put(key, built.chunks)
    return [
        Slice(
            key,
            built.size_bytes,
            "topic",
            int(r.stream_id),
            int(r.stream_id),
            r.start_offset,
            r.end_offset,
            r.size_bytes,
            r.record_count,
        )
        for r in built.ranges
    ]

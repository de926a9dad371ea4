"""Conformance vectors of single objects: valid ones with their contents, and invalid ones with the
kind of error and the reading step (docs/reference/formats.md 2.5) that detects it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
from crc32c import crc32c

from penstock.base.ids import WalSequence
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import parse_header as parse_batch_header
from penstock.protocol.batch.records import Record
from penstock.stream.format.builder import fence_object
from penstock.stream.format.decoder import parse_header, verify_object
from penstock.stream.format.keys import wal_key
from penstock.stream.format.layout import ENTRY, FOOTER, FOOTER_BYTES, HEADER_BYTES
from penstock.stream.ports import IN_STORE, ObjectRole
from tests.formats.batches import (
    BASE_MS,
    CREATED_MS,
    WRITER,
    Batch,
    append_time,
    batch,
    build,
    event,
    gap,
    joined,
    marker,
    packed,
    record,
    row_json,
    run,
    transactional,
    two_frames,
    with_horizon,
    xerial,
)
from tests.support.newer_formats import (
    OPTIONAL_AT,
    REQUIRED_AT,
    VERSION_AT,
    with_header_field,
)

WAL_KEY = wal_key(WRITER, WalSequence(5), IN_STORE)
Streams = dict[int, Sequence[Batch]]


@dataclass(frozen=True)
class Vector:
    """An object and the expected result of a reader."""

    name: str
    data: bytes
    expected: dict[str, Any]


def vectors() -> Iterator[Vector]:
    yield from _sound()
    yield from _newer()
    yield from _damaged()


# --- valid objects --------------------------------------------------------------------------------


def _sound() -> Iterator[Vector]:
    small: Streams = {42: [batch(record(100), record(101, None, None))]}
    yield _object("wal", ObjectRole.WAL, small, sequence=5, depth=2)
    many: Streams = {7: [run(0, 2), run(2, 3)], 8: [run(50, 51)], 9: [run(0, 1)]}
    yield _object("stream-set", ObjectRole.STREAM_SET, many)
    yield _object("several-blocks", ObjectRole.STREAM, {7: many[7]}, block_bytes_max=1)
    fence = fence_object(WRITER, WalSequence(5), CREATED_MS)
    yield Vector("fence", fence, {"key": WAL_KEY, **_header(fence), "blocks": [], "rows": []})
    yield _object("codecs", ObjectRole.STREAM, {7: _codecs()})
    headers = Record(0, BASE_MS, None, b"", (("a", b"1"), ("a", None), ("", b"")))
    yield _object("record-headers", ObjectRole.STREAM, {7: [batch(headers)]})
    # The second record is older than the first, so no lower bound is known.
    late = batch(record(0), record(1, late=5_000), record(2))
    yield _object("out-of-order-timestamps", ObjectRole.STREAM, {7: [late]})
    yield _object("one-record-batches", ObjectRole.STREAM, {7: [run(0, 1), run(1, 2)]})
    stamped = [append_time(0, 3, BASE_MS + 999), append_time(3, 5, BASE_MS + 500)]
    yield _object("log-append-time", ObjectRole.STREAM, {7: stamped})
    yield _object("compacted", ObjectRole.STREAM, {7: _compacted()})
    ended = [transactional(0, 2, 100), marker(2, 100, committed=False), run(3, 4)]
    events = [event(0, 2, 0), event(2, 3, -1, (100, 0, 2))]
    yield _object("transaction", ObjectRole.WAL, {7: ended, 8: events}, sequence=5, depth=1)


def _codecs() -> list[Batch]:
    return [
        run(0, 5),
        run(5, 10, compression=Compression.GZIP),
        run(10, 15, compression=Compression.SNAPPY),
        xerial(15, 20),
        run(20, 25, compression=Compression.LZ4),
        run(25, 30, compression=Compression.ZSTD),
        two_frames(30, 35),
    ]


def _compacted() -> list[Batch]:
    holed = batch(record(0), record(3), last_offset=5)
    tombstone = with_horizon(batch(record(10, None), record(11)), BASE_MS + 86_400_000)
    return [holed, gap(6, 10), tombstone, run(12, 13)]


def _object(
    name: str,
    role: ObjectRole,
    streams: Streams,
    *,
    sequence: int = -1,
    depth: int = 0,
    block_bytes_max: int = 1 << 20,
) -> Vector:
    built = build(role, streams, sequence=sequence, depth=depth, block_bytes_max=block_bytes_max)
    data = joined(built)
    return Vector(name, data, _expected(data, streams))


def _expected(data: bytes, streams: Streams) -> dict[str, Any]:
    rows = [
        {"stream": stream_id, **row_json(row)}
        for stream_id, batches in sorted(streams.items())
        for item in batches
        for row in item.rows
    ]
    blocks = [entry._asdict() for entry in verify_object(data).blocks()]
    return {"key": WAL_KEY, **_header(data), "blocks": blocks, "rows": rows}


def _header(data: bytes) -> dict[str, Any]:
    header = parse_header(data)
    return {
        "role": header.role.name.lower(),
        "node_id": header.writer.node_id,
        "node_epoch": header.writer.node_epoch,
        "sequence": header.sequence,
        "created_ms": header.created_ms,
        "depth": header.depth,
    }


# --- objects of later versions --------------------------------------------------------------------


def _newer() -> Iterator[Vector]:
    streams: Streams = {7: [run(0, 2)]}
    plain = joined(build(ObjectRole.WAL, streams, sequence=5, depth=1))
    yield Vector(
        "optional-features",
        with_header_field(plain, OPTIONAL_AT, b"\xff\xff\xff\xff"),
        _expected(plain, streams),
    )
    yield Vector("longer-entries", _with_longer_entries(plain), _expected(plain, streams))
    for name, at, field in (
        ("required-feature", REQUIRED_AT, b"\x00\x00\x00\x01"),
        ("newer-version", VERSION_AT, b"\x00\x02"),
    ):
        yield _error(name, "newer", "tail", with_header_field(plain, at, field))
    fence = fence_object(WRITER, WalSequence(5), CREATED_MS)
    newer = with_header_field(fence, REQUIRED_AT, b"\x80\x00\x00\x00")
    yield _error("fence-with-required-feature", "newer", "tail", newer)


def _with_longer_entries(data: bytes) -> bytes:
    """Return the object with four additional bytes in each index entry."""
    entries = [ENTRY.pack(*block) + b"\xde\xad\xbe\xef" for block in verify_object(data).blocks()]
    end = FOOTER.unpack(data[-FOOTER_BYTES:])[0]
    return _indexed(data[:end], data[:HEADER_BYTES] + b"".join(entries), ENTRY.size + 4)


# --- damaged objects ------------------------------------------------------------------------------


def _damaged() -> Iterator[Vector]:
    data = joined(
        build(ObjectRole.WAL, {7: [run(0, 2), run(2, 4)], 8: [run(9, 10)]}, sequence=5, depth=1)
    )
    end, _, *_ = FOOTER.unpack(data[-FOOTER_BYTES:])
    first, second = verify_object(data).blocks()
    yield _error("empty", "damaged", "tail", b"")
    yield _error("truncated", "damaged", "tail", data[:-1])
    yield _error("half", "damaged", "tail", data[: len(data) // 2])
    yield _error("footer-flipped", "damaged", "tail", _flipped(data, len(data) - 30))
    yield _error("index-flipped", "damaged", "tail", _flipped(data, end + HEADER_BYTES + 9))
    yield _error("index-header-flipped", "damaged", "tail", _flipped(data, end + 20))
    yield _error("end-magic-flipped", "damaged", "tail", _flipped(data, len(data) - 1))
    yield _error("header-flipped", "damaged", "whole", _flipped(data, 20))
    yield _error("block-flipped", "damaged", "block", _flipped(data, second.position + 70))
    fence = fence_object(WRITER, WalSequence(5), CREATED_MS)
    yield _error("fence-flipped", "damaged", "tail", _flipped(fence, 30))
    yield _error("header-without-index", "damaged", "tail", data[:HEADER_BYTES])
    for name, change in (
        ("entries-unsorted", {"stream_id": 9}),
        ("entry-without-offsets", {"end_offset": first.start_offset}),
        ("entry-elsewhere", {"position": first.position + 1}),
        ("entry-too-many-records", {"record_count": 5}),
        ("entry-too-large", {"size_bytes": 1 << 31}),
    ):
        entries = [first._replace(**change), second]  # type: ignore[arg-type]
        index = data[:HEADER_BYTES] + b"".join(ENTRY.pack(*entry) for entry in entries)
        yield _error(name, "damaged", "tail", _indexed(data[:end], index, ENTRY.size))
    yield _error("entries-too-short", "damaged", "tail", _short_entries(data, end))
    yield from _damaged_batches()


def _damaged_batches() -> Iterator[Vector]:
    """Yield objects with correct checksums and invalid batches, as a faulty writer would leave
    them.
    """
    good = run(0, 4)
    bad_crc = _flipped(good.payload, len(good.payload) - 3)
    bad_magic = good.payload[:16] + b"\x01" + good.payload[17:]
    counted = parse_batch_header(good.payload)
    more = good.payload[:57] + (counted.record_count + 1).to_bytes(4, "big") + good.payload[61:]
    for name, payload in (
        ("batch-crc", bad_crc),
        ("batch-magic", bad_magic),
        ("batch-record-count", _sealed(more)),
        ("batch-longer-than-block", good.payload[:8] + b"\x00\x00\x10\x00" + good.payload[12:]),
        ("batch-outside-its-block", run(1, 5).payload),
        ("codec-unknown", _sealed(good.payload[:21] + b"\x00\x05" + good.payload[23:])),
        ("codec-damaged", packed(0, 4, Compression.ZSTD, bytes(40)).payload),
        ("codec-cut", packed(0, 4, Compression.LZ4, _cut_lz4()).payload),
    ):
        yield _error(name, "damaged", "batch", _around(good, payload))


def _cut_lz4() -> bytes:
    return bytes(cramjam.lz4.compress(bytes(100)))[:-12]


def _around(good: Batch, payload: bytes) -> bytes:
    """Return an object whose index describes `good` and whose block is `payload`."""
    plain = joined(build(ObjectRole.STREAM, {7: [good]}))
    (entry,) = verify_object(plain).blocks()
    entry = entry._replace(size_bytes=len(payload), crc=crc32c(payload))
    header = plain[:HEADER_BYTES]
    return _indexed(header + payload, header + ENTRY.pack(*entry), ENTRY.size)


def _indexed(before: bytes, index: bytes, entry_bytes: int) -> bytes:
    footer = bytearray(
        FOOTER.pack(len(before), len(index), crc32c(index), 1, entry_bytes, 0, b"KCOTSNEP")
    )
    footer[24:28] = crc32c(bytes(footer[:24])).to_bytes(4, "big")
    return before + index + bytes(footer)


def _short_entries(data: bytes, end: int) -> bytes:
    index = data[end:-FOOTER_BYTES]
    return _indexed(data[:end], index, (len(index) - HEADER_BYTES) // 4)


def _sealed(payload: bytes) -> bytes:
    crc = crc32c(payload[21:]).to_bytes(4, "big")
    return payload[:17] + crc + payload[21:]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def _error(name: str, error: str, found_in: str, data: bytes) -> Vector:
    return Vector(name, data, {"key": WAL_KEY, "error": error, "found_in": found_in})

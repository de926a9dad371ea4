"""Valid and invalid batches that producers may send, and the responses of brokers: the shared table
of the record validation tests. Kafka's responses are those of Kafka 4.2 (tests/interop).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from zlib import crc32

import cramjam
from crc32c import crc32c

from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import CRC_START, HEADER, HEADER_BYTES
from penstock.protocol.batch.varint import append_varint

HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS

_FIELDS: Final = (
    *("base_offset", "batch_length", "leader_epoch", "magic", "crc", "attributes"),
    *("last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch"),
    *("base_sequence", "record_count"),
)
"""The fields in wire order."""


def number(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def field(data: bytes | None, length: int | None = None) -> bytes:
    """Return a nullable field. length: the length that it declares."""
    declared = length if length is not None else -1 if data is None else len(data)
    return number(declared) + (data or b"")


def record(
    delta: int = 0,
    *,
    ms: int = 0,
    key: bytes = field(b"key"),
    value: bytes = field(b"value"),
    headers: bytes = b"",
    header_count: int = 0,
    attributes: int = 0,
    longer: int = 0,
    tail: bytes = b"",
) -> bytes:
    """Return a record. ms: its timestamp delta. longer: added to the declared length."""
    body = bytes([attributes]) + number(ms) + number(delta) + key + value
    body += number(header_count) + headers + tail
    return number(len(body) + longer) + body


class Case(NamedTuple):
    """A batch. data: the records before compression. header: fields that differ from the correct
    ones; timestamps are relative to the time of sending. configs: those of its topic.
    """

    name: str
    data: bytes
    count: int = 1
    header: Mapping[str, int] = {}
    configs: Mapping[str, str] = {}

    def batch(self, codec: Compression, now_ms: int) -> bytes:
        return build(self.data, self.count, self.header, codec, now_ms)


def build(
    data: bytes,
    count: int,
    header: Mapping[str, int],
    codec: Compression,
    now_ms: int,
    *,
    packed: bytes | None = None,
) -> bytes:
    """Return the batch. packed: the compressed records, if they differ from the output of
    `compress`.
    """
    payload = packed if packed is not None else compress(codec, data)
    fields = {
        "base_offset": 0,
        "batch_length": HEADER_BYTES - 12 + len(payload) + header.get("longer", 0),
        "leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": int(codec) | header.get("flags", 0),
        "last_offset_delta": count - 1,
        "base_timestamp": now_ms,
        "max_timestamp": now_ms,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    }
    for name, value in header.items():
        if name in ("base_timestamp", "max_timestamp") and value not in (-1, -5):
            fields[name] = now_ms + value
        elif name in fields:
            fields[name] = value
    batch = bytearray(HEADER_BYTES) + payload
    values = [fields[name] for name in _FIELDS]
    HEADER.pack_into(batch, 0, *values)
    values[4] = crc32c(bytes(batch[CRC_START:])) ^ header.get("damage", 0)
    HEADER.pack_into(batch, 0, *values)
    return bytes(batch)


COMPACT: Final = {"cleanup.policy": "compact"}
APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
OLDEST_HOUR: Final = {"message.timestamp.before.max.ms": str(HOUR_MS)}
NEXT_MINUTE: Final = {"message.timestamp.after.max.ms": "60000"}

_TWO: Final = record() + record(1)
_HEADER: Final = field(b"name") + field(b"value")

CASES: Final = (
    Case("sound", record()),
    Case("two records", _TWO, 2),
    Case("headers", record(headers=_HEADER * 2, header_count=2)),
    Case("null key", record(key=field(None))),
    Case("empty key", record(key=field(b""))),
    Case("null value", record(value=field(None))),
    Case("long record", record(value=field(bytes(100_000)))),
    Case("header value null", record(headers=field(b"n") + field(None), header_count=1)),
    Case("header name empty", record(headers=field(b"") + field(b""), header_count=1)),
    Case("header name not UTF-8", record(headers=field(b"\xff") + field(b""), header_count=1)),
    Case(
        "header name not UTF-8, compacted",
        record(headers=field(b"\xff") + field(b""), header_count=1),
        configs=COMPACT,
    ),
    # Lengths of fields.
    Case("header name null", record(headers=field(None) + field(b""), header_count=1)),
    Case("header name -2", record(headers=field(b"", -2) + field(b""), header_count=1)),
    Case("header value -2", record(headers=field(b"n") + field(b"", -2), header_count=1)),
    Case("header name too long", record(headers=field(b"n", 9) + field(b""), header_count=1)),
    Case("header value too long", record(headers=field(b"n") + field(b"", 9), header_count=1)),
    Case("second header null", record(headers=_HEADER + field(None) * 2, header_count=2)),
    Case("header count -1", record(header_count=-1)),
    Case("header count too high", record(headers=_HEADER, header_count=2)),
    Case("header count too low", record(headers=_HEADER * 2, header_count=1)),
    Case("header count huge", record(header_count=2**31 - 1)),
    Case("key -2", record(key=field(b"", -2))),
    Case("key too long", record(key=field(b"key", 100))),
    Case("value -2", record(value=field(b"", -2))),
    Case("value too long", record(value=field(b"value", 100))),
    Case("value too long by one", record(value=field(b"value", 6))),
    Case("value too short", record(value=field(b"value", 4))),
    Case("key huge", record(key=field(b"key", 2**31 - 1))),
    # Lengths of records.
    Case("record too long by one", record(longer=1)),
    Case("record too short by one", record(longer=-1)),
    Case("first record too long", record(longer=1) + record(1), 2),
    Case("first record too short", record(longer=-1) + record(1), 2),
    Case("first record with a tail", record(tail=b"\0") + record(1), 2),
    Case("record length 0", b"\0" + record(1), 2),
    Case("record length -1", b"\1" + record()[1:]),
    Case("record length huge", number(2**31 - 1) + record()[1:]),
    Case("second record cut", (_TWO)[:-1], 2),
    Case("last record -1", record() + number(-1) + bytes(8), 2),
    # Numbers.
    Case("length in 6 bytes", b"\x9a\x80\x80\x80\x80\x00" + record()[1:]),
    Case("length in 5 bytes", bytes([record()[0] | 0x80]) + b"\x80\x80\x80\x00" + record()[1:]),
    Case(
        "length in 5 bytes with bit 35",
        bytes([record()[0] | 0x80]) + b"\x80\x80\x80\x10" + record()[1:],
    ),
    Case("delta of 33 bits", number(10) + b"\0\0\xff\xff\xff\xff\x1f" + field(None) * 2 + b"\0"),
    Case(
        "timestamp in 11 bytes",
        number(18) + b"\0" + b"\x80" * 10 + b"\0" + b"\0" + field(b"k") + field(b"v") + b"\0",
    ),
    Case("number without end", b"\x80" * 20),
    # Counts.
    Case("count one too high", _TWO, 3),
    Case("count one too low", _TWO, 1),
    Case("count 0", record(), 0),
    Case("count 0, delta 0", record(), 0, {"last_offset_delta": 0}),
    Case("count -1", record(), -1, {"last_offset_delta": 0}),
    Case("count huge", record(), 2**31 - 1),
    Case("count differs from delta", _TWO, 2, {"last_offset_delta": 2}),
    Case("delta -1", record(), 1, {"last_offset_delta": -1}),
    Case("empty", b"", 0),
    Case("no data", b"", 1),
    Case("one trailing byte", record() + b"\0"),
    Case("trailing zeros", record() + bytes(100)),
    Case("trailing record", record() + record(1)),
    Case("noise", bytes(range(1, 250)), 3),
    Case("zeros", bytes(100), 2),
    # Offsets.
    Case("deltas repeated", record() * 2, 2),
    Case("deltas with a gap", record() + record(2), 2),
    Case("deltas reversed", record(1) + record(), 2),
    Case("deltas from 1", record(1) + record(2), 2),
    Case("delta negative", record(-1) + record(1), 2),
    Case("base offset 5", record(), 1, {"base_offset": 5}),
    Case("base offset -1", record(), 1, {"base_offset": -1}),
    # Attributes and producers.
    Case("record attributes", record(attributes=0x7F)),
    Case("attributes 7 to 15", record(), 1, {"flags": 0x7F80}),
    Case("sign of the attributes", record(), 1, {"flags": -0x8000}),
    Case("delete horizon", record(), 1, {"flags": 0x40}),
    Case("control", record(), 1, {"flags": 0x20}),
    Case(
        "transactional control",
        record(),
        1,
        {"flags": 0x30, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
    ),
    Case("transactional without producer", record(), 1, {"flags": 0x10}),
    Case("producer without sequence", record(), 1, {"producer_id": 4000, "producer_epoch": 0}),
    Case("producer -2", record(), 1, {"producer_id": -2}),
    Case("sequence without producer", record(), 1, {"base_sequence": 0}),
    Case("leader epoch 9", record(), 1, {"leader_epoch": 9}),
    Case("damaged", record(), 1, {"damage": 1}),
    Case("magic 0", record(), 1, {"magic": 0}),
    Case("magic 1", record(), 1, {"magic": 1}),
    Case("magic 3", record(), 1, {"magic": 3}),
    Case("magic -1", record(), 1, {"magic": -1}),
    Case("length one too high", record(), 1, {"longer": 1}),
    Case("length one too low", record(), 1, {"longer": -1}),
    Case("length 0", record(), 1, {"batch_length": 0}),
    Case("length negative", record(), 1, {"batch_length": -1}),
    # Timestamps.
    Case("append time", record(), 1, {"flags": 8}),
    Case("append time with deltas", record(ms=-5) + record(1, ms=-9), 2, {"flags": 8}),
    Case("append time, compacted", record(key=field(None)), 1, {"flags": 8}, COMPACT),
    Case("append time for append time", record(), 1, {"flags": 8}, APPEND_TIME),
    Case("create time for append time", record(), 1, {}, APPEND_TIME),
    Case("old for append time", record(ms=-YEAR_MS), 1, {}, APPEND_TIME | OLDEST_HOUR),
    Case(
        "no timestamp for append time",
        record(),
        1,
        {"base_timestamp": -1, "max_timestamp": -1},
        APPEND_TIME,
    ),
    Case("max timestamp -1", _TWO, 2, {"max_timestamp": -1}),
    Case("max timestamp -5", _TWO, 2, {"max_timestamp": -5}),
    Case("max timestamp low", record() + record(1, ms=5), 2, {"max_timestamp": -HOUR_MS}),
    Case("max timestamp of the first record", record() + record(1, ms=5), 2),
    Case("max timestamp high", _TWO, 2, {"max_timestamp": 500}),
    Case("max timestamp a year high", _TWO, 2, {"max_timestamp": YEAR_MS}),
    Case("base timestamp is not the first", record(ms=7) + record(1, ms=3), 2),
    Case("descending", record(ms=0) + record(1, ms=-9), 2),
    Case("no timestamp", record(), 1, {"base_timestamp": -1, "max_timestamp": -1}),
    Case("no timestamp, max now", record(), 1, {"base_timestamp": -1}),
    Case("timestamp -5", record(), 1, {"base_timestamp": -5, "max_timestamp": -5}),
    Case("timestamp -5, max now", record(), 1, {"base_timestamp": -5}),
    Case(
        "second timestamp -1",
        record() + record(1, ms=-1),
        2,
        {"base_timestamp": -1, "max_timestamp": -1},
    ),
    Case("a year ahead", record(ms=YEAR_MS), 1, {"max_timestamp": YEAR_MS}),
    Case("a year ahead, max now", record(ms=YEAR_MS), 1),
    Case("two hours ahead", record(ms=2 * HOUR_MS), 1, {"max_timestamp": 2 * HOUR_MS}),
    Case("second a year ahead", record() + record(1, ms=YEAR_MS) + record(2), 3),
    Case("half an hour ahead", record(ms=HOUR_MS // 2), 1, {"max_timestamp": HOUR_MS // 2}),
    Case(
        "half an hour ahead of a minute",
        record(ms=HOUR_MS // 2),
        1,
        {"max_timestamp": HOUR_MS // 2},
        NEXT_MINUTE,
    ),
    Case("base a year ahead", record(ms=-YEAR_MS), 1, {"base_timestamp": YEAR_MS}),
    Case(
        "all a year ahead",
        record(ms=YEAR_MS) + record(1, ms=YEAR_MS),
        2,
        {"max_timestamp": YEAR_MS},
    ),
    Case("a year old", record(ms=-YEAR_MS), 1, {"max_timestamp": -YEAR_MS}),
    Case("a year old, limit", record(ms=-YEAR_MS), 1, {"max_timestamp": -YEAR_MS}, OLDEST_HOUR),
    Case("second a year old, limit", record() + record(1, ms=-YEAR_MS), 2, {}, OLDEST_HOUR),
    Case(
        "base a year old, limit", record(ms=YEAR_MS), 1, {"base_timestamp": -YEAR_MS}, OLDEST_HOUR
    ),
    Case(
        "no timestamp, limit", record(), 1, {"base_timestamp": -1, "max_timestamp": -1}, OLDEST_HOUR
    ),
    Case(
        "timestamp -5, limit", record(), 1, {"base_timestamp": -5, "max_timestamp": -5}, OLDEST_HOUR
    ),
    Case("timestamp overflows", record(ms=2**63 - 1), 1),
    Case("timestamp underflows", record(ms=-(2**63)), 1),
    # Keys of compacted topics.
    Case("null key, compacted", record(key=field(None)), configs=COMPACT),
    Case("empty key, compacted", record(key=field(b"")), configs=COMPACT),
    Case(
        "second key null, compacted",
        record() + record(1, key=field(None)) + record(2),
        3,
        {},
        COMPACT,
    ),
    Case(
        "all keys null, compacted",
        b"".join(record(at, key=field(None)) for at in range(5)),
        5,
        {},
        COMPACT,
    ),
    Case(
        "null key and a year ahead, compacted",
        record(key=field(None), ms=YEAR_MS) + record(1, ms=YEAR_MS),
        2,
        {},
        COMPACT,
    ),
    Case(
        "null key and a bad header, compacted",
        record(key=field(None)) + record(1, headers=field(None) * 2, header_count=1),
        2,
        {},
        COMPACT,
    ),
    Case(
        "null key and max timestamp -1, compacted",
        record(key=field(None)),
        1,
        {"max_timestamp": -1},
        COMPACT,
    ),
)


class Framing(NamedTuple):
    """A batch with valid records, in unusual framing of its codec."""

    name: str
    codec: Compression
    packed: bytes
    count: int = 2

    def batch(self, now_ms: int) -> bytes:
        return build(b"", self.count, {}, self.codec, now_ms, packed=self.packed)


_LONG: Final = record(value=field(b"0123456789" * 20_000)) + record(1)
"""More than one block in lz4 and in xerial snappy."""
_LZ4_MAGIC: Final = bytes.fromhex("04224d18")


def _lz4(
    *blocks: bytes,
    flags: int = 0x60,
    bd: int = 0x40,
    checksum: int | None = None,
    extra: bytes = b"",
    end: bytes = bytes(4),
) -> bytes:
    head = bytes([flags, bd]) + extra
    found = xxh32(head) >> 8 & 0xFF if checksum is None else checksum
    body = b"".join(
        (len(block) | 1 << 31).to_bytes(4, "little")
        + block
        + (xxh32(block).to_bytes(4, "little") if flags & 0x10 else b"")
        for block in blocks
    )
    return _LZ4_MAGIC + head + bytes([found]) + body + end


def _lz4_of_nothing() -> bytes:
    """Return a frame whose first block is compressed and contains no data."""
    frame = _lz4(record(), record(1))
    return frame[:7] + b"\1\0\0\0\0" + frame[7:]


def xxh32(data: bytes, seed: int = 0) -> int:
    """Return the checksum used by lz4 frames."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask, at = 0xFFFFFFFF, 0

    def left(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    if len(data) >= 16:
        lanes = [(seed + p1 + p2) & mask, (seed + p2) & mask, seed, (seed - p1) & mask]
        while at + 16 <= len(data):
            for lane in range(4):
                word = int.from_bytes(data[at : at + 4], "little")
                lanes[lane] = left((lanes[lane] + word * p2) & mask, 13) * p1 & mask
                at += 4
        total = sum(left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        total = seed + p5
    total = (total + len(data)) & mask
    while at + 4 <= len(data):
        total = (total + int.from_bytes(data[at : at + 4], "little") * p3) & mask
        total, at = left(total, 17) * p4 & mask, at + 4
    for byte in data[at:]:
        total = left((total + byte * p5) & mask, 11) * p1 & mask
    total = (total ^ total >> 15) * p2 & mask
    total = (total ^ total >> 13) * p3 & mask
    return total ^ total >> 16


def _xerial(
    *blocks: bytes,
    version: int = 1,
    compatible: int = 1,
    magic: bytes = b"\x82SNAPPY\x00",
    raw: bool = False,
) -> bytes:
    out = magic + version.to_bytes(4, "big") + compatible.to_bytes(4, "big")
    for block in blocks:
        packed = block if raw else bytes(cramjam.snappy.compress_raw(block))
        out += len(packed).to_bytes(4, "big") + packed
    return out


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _gzip(data: bytes) -> bytes:
    return bytes(cramjam.gzip.compress(data))


def _zstd_stored(
    *blocks: bytes, flags: int = 0, head: bytes = b"\x50", checksum: bytes = b""
) -> bytes:
    """Return a frame of uncompressed blocks. head: the fields after the flags, which start with the
    window size unless there is a single segment.
    """
    frame = bytes.fromhex("28b52ffd") + bytes([flags]) + head
    for at, block in enumerate(blocks, 1):
        frame += (len(block) << 3 | (at == len(blocks))).to_bytes(3, "little") + block
    return frame + checksum


def _gzip_with(data: bytes, flags: int, fields: bytes = b"", *, damage: int = 0) -> bytes:
    """Return a member with optional fields in its header. damage: added to the header's checksum,
    if there is one.
    """
    head = _gzip(data)[:3] + bytes([flags]) + _gzip(data)[4:10] + fields
    if flags & 2:
        head += ((crc32(head) + damage) & 0xFFFF).to_bytes(2, "little")
    return head + _gzip(data)[10:]


_FIRST, _SECOND = record(), record(1)
_SKIPPABLE: Final = bytes.fromhex("502a4d18") + (5).to_bytes(4, "little") + b"12345"
G, S, L, Z = Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD

FRAMINGS: Final = (
    Framing("gzip", G, _gzip(_TWO)),
    Framing("gzip, two members", G, _gzip(_FIRST) + _gzip(_SECOND)),
    Framing("gzip, trailing empty member", G, _gzip(_TWO) + _gzip(b"")),
    Framing("gzip, empty member in a record", G, _gzip(_TWO[:9]) + _gzip(b"") + _gzip(_TWO[9:])),
    Framing("gzip, header checksum", G, _gzip_with(_TWO, 2)),
    Framing("gzip, bad header checksum", G, _gzip_with(_TWO, 2, damage=1)),
    Framing("gzip, extra field", G, _gzip_with(_TWO, 4, b"\3\0abc")),
    Framing("gzip, name and comment", G, _gzip_with(_TWO, 24, b"name\0comment\0")),
    Framing("gzip, reserved flag", G, _gzip_with(_TWO, 0x80)),
    Framing("gzip, record in a trailing member", G, _gzip(_TWO) + _gzip(record(2))),
    Framing("gzip, trailing noise", G, _gzip(_TWO) + b"noise behind the member"),
    Framing("gzip, trailing zeros", G, _gzip(_TWO) + bytes(20)),
    Framing("gzip, a trailing byte", G, _gzip(_TWO) + b"x"),
    Framing("gzip, cut", G, _gzip(_LONG)[:-30]),
    Framing("gzip, without trailer", G, _gzip(_TWO)[:-8]),
    Framing("gzip, bad crc", G, _gzip(_TWO)[:-8] + b"\0\0\0\0" + _gzip(_TWO)[-4:]),
    Framing("gzip, bad size", G, _gzip(_TWO)[:-4] + b"\1\0\0\0"),
    Framing("gzip, bad method", G, _gzip(_TWO)[:2] + b"\7" + _gzip(_TWO)[3:]),
    Framing("gzip, noise", G, b"not compressed at all, but long enough"),
    Framing("gzip, empty", G, b""),
    Framing("gzip, long", G, _gzip(_LONG)),
    Framing("snappy, raw", S, bytes(cramjam.snappy.compress_raw(_TWO))),
    Framing("snappy, raw long", S, bytes(cramjam.snappy.compress_raw(_LONG))),
    Framing("snappy, raw with a trailing byte", S, bytes(cramjam.snappy.compress_raw(_TWO)) + b"x"),
    Framing("snappy, framed", S, bytes(cramjam.snappy.compress(_TWO))),
    Framing("snappy, xerial", S, _xerial(_TWO)),
    Framing(
        "snappy, xerial of several blocks",
        S,
        _xerial(_LONG[:70_000], _LONG[70_000:140_000], _LONG[140_000:]),
    ),
    Framing("snappy, xerial split in a record", S, _xerial(_TWO[:5], _TWO[5:])),
    Framing("snappy, xerial with an empty block", S, _xerial(_FIRST, b"", _SECOND)),
    Framing(
        "snappy, xerial with a block of 0 bytes",
        S,
        _xerial(_FIRST) + bytes(4) + _xerial(_SECOND)[16:],
    ),
    Framing("snappy, xerial twice", S, _xerial(_FIRST) + _xerial(_SECOND)),
    Framing("snappy, xerial version 2", S, _xerial(_TWO, version=2)),
    Framing("snappy, xerial version 0", S, _xerial(_TWO, version=0)),
    Framing("snappy, xerial version -1", S, _xerial(_TWO, version=0xFFFFFFFF)),
    Framing("snappy, xerial compatible 0", S, _xerial(_TWO, compatible=0)),
    Framing("snappy, xerial compatible 2", S, _xerial(_TWO, compatible=2)),
    Framing("snappy, xerial cut", S, _xerial(_TWO)[:-3]),
    Framing("snappy, xerial with trailing bytes", S, _xerial(_TWO) + b"xy"),
    Framing("snappy, xerial with a trailing record", S, _xerial(_TWO, record(2))),
    Framing(
        "snappy, xerial block too long",
        S,
        _xerial(_TWO)[:16] + (10_000).to_bytes(4, "big") + _xerial(_TWO)[20:],
    ),
    Framing(
        "snappy, xerial block negative",
        S,
        _xerial(_TWO)[:16] + b"\xff\xff\xff\xf0" + _xerial(_TWO)[20:],
    ),
    Framing("snappy, xerial noise", S, _xerial(b"\xff" * 50, raw=True)),
    Framing("snappy, xerial header only", S, _xerial()),
    Framing("snappy, noise", S, b"\xff\xff\xff\xff\xff\xff\xff not compressed"),
    Framing(
        "snappy, declares too much",
        S,
        b"\x80\x80\x80\x40" + bytes(cramjam.snappy.compress_raw(_TWO))[1:],
    ),
    Framing("snappy, empty", S, b""),
    Framing("lz4", L, compress(L, _TWO)),
    Framing("lz4, long", L, compress(L, _LONG)),
    Framing("lz4, two frames", L, compress(L, _FIRST) + compress(L, _SECOND)),
    Framing("lz4, a trailing frame", L, compress(L, _TWO) + compress(L, record(2))),
    Framing("lz4, a trailing empty frame", L, compress(L, _TWO) + compress(L, b"")),
    Framing("lz4, trailing noise", L, compress(L, _TWO) + b"noise behind the frame"),
    Framing("lz4, linked blocks", L, bytes(cramjam.lz4.compress(_LONG))),
    Framing("lz4, linked flag", L, _lz4(_TWO, flags=0x40)),
    Framing("lz4, blocks as they are", L, _lz4(_FIRST, _SECOND)),
    Framing("lz4, split in a record", L, _lz4(_TWO[:5], _TWO[5:])),
    Framing("lz4, an empty block", L, _lz4(_FIRST, b"", _SECOND)),
    Framing("lz4, an empty block in a record", L, _lz4(_TWO[:5], b"", _TWO[5:])),
    Framing("lz4, an empty block behind", L, _lz4(_TWO, b"")),
    Framing("lz4, a compressed block of nothing", L, _lz4_of_nothing()),
    Framing("lz4, block checksums", L, _lz4(_TWO, flags=0x70)),
    Framing("lz4, bad block checksum", L, _lz4(_TWO, flags=0x70)[:-5] + b"\0" + bytes(4)),
    Framing(
        "lz4, content checksum",
        L,
        _lz4(_TWO, flags=0x64, end=bytes(4) + xxh32(_TWO).to_bytes(4, "little")),
    ),
    Framing("lz4, bad content checksum", L, _lz4(_TWO, flags=0x64, end=bytes(8))),
    Framing("lz4, content size", L, _lz4(_TWO, flags=0x68, extra=len(_TWO).to_bytes(8, "little"))),
    Framing("lz4, wrong content size", L, _lz4(_TWO, flags=0x68, extra=(7).to_bytes(8, "little"))),
    Framing("lz4, dictionary", L, _lz4(_TWO, flags=0x61, extra=bytes(4))),
    Framing("lz4, reserved flag", L, _lz4(_TWO, flags=0x62)),
    Framing("lz4, version 2", L, _lz4(_TWO, flags=0xA0)),
    Framing("lz4, block size 3", L, _lz4(_TWO, bd=0x30)),
    Framing("lz4, block size 7", L, _lz4(_TWO, bd=0x70)),
    Framing("lz4, reserved bd", L, _lz4(_TWO, bd=0x41)),
    Framing(
        "lz4, bad header checksum", L, _lz4(_TWO, checksum=(xxh32(b"\x60\x40") >> 8 & 0xFF) ^ 1)
    ),
    # Kafka before 0.10 included the magic number in the checksum.
    Framing(
        "lz4, old header checksum",
        L,
        _lz4(_TWO, checksum=xxh32(_LZ4_MAGIC + b"\x60\x40") >> 8 & 0xFF),
    ),
    Framing("lz4, without end mark", L, _lz4(_TWO, end=b"")),
    Framing("lz4, cut", L, compress(L, _TWO)[:-6]),
    Framing("lz4, block too long", L, _lz4(_LONG)),
    Framing("lz4, legacy", L, bytes.fromhex("02214c18") + compress(L, _TWO)[7:]),
    Framing("lz4, skippable first", L, _SKIPPABLE + compress(L, _TWO)),
    Framing("lz4, trailing skippable frame", L, compress(L, _TWO) + _SKIPPABLE),
    Framing("lz4, empty", L, b""),
    Framing("zstd", Z, _zstd(_TWO)),
    Framing("zstd, long", Z, _zstd(_LONG)),
    Framing("zstd, two frames", Z, _zstd(_FIRST) + _zstd(_SECOND)),
    Framing("zstd, split in a record", Z, _zstd(_TWO[:5]) + _zstd(_TWO[5:])),
    Framing("zstd, a trailing empty frame", Z, _zstd(_TWO) + _zstd(b"")),
    Framing("zstd, a trailing record", Z, _zstd(_TWO) + _zstd(record(2))),
    Framing("zstd, skippable first", Z, _SKIPPABLE + _zstd(_TWO)),
    Framing("zstd, skippable between", Z, _zstd(_FIRST) + _SKIPPABLE + _zstd(_SECOND)),
    Framing("zstd, trailing skippable frame", Z, _zstd(_TWO) + _SKIPPABLE),
    Framing("zstd, an empty block", Z, _zstd_stored(_FIRST, b"", _SECOND)),
    Framing("zstd, window of 128 MiB", Z, _zstd_stored(_TWO, head=b"\x88")),
    Framing("zstd, window of 256 MiB", Z, _zstd_stored(_TWO, head=b"\x90")),
    Framing("zstd, window of 2 GiB", Z, _zstd_stored(_TWO, head=b"\xa8")),
    Framing("zstd, content size", Z, _zstd_stored(_TWO, flags=0x20, head=bytes([len(_TWO)]))),
    Framing("zstd, bad size", Z, _zstd_stored(_TWO, flags=0x20, head=bytes([len(_TWO) + 1]))),
    Framing("zstd, bad checksum", Z, _zstd_stored(_TWO, flags=4, checksum=bytes(4))),
    Framing("zstd, dictionary 0", Z, _zstd_stored(_TWO, flags=1, head=b"\x50\0")),
    Framing("zstd, dictionary 7", Z, _zstd_stored(_TWO, flags=1, head=b"\x50\7")),
    Framing("zstd, unused flag", Z, _zstd_stored(_TWO, flags=0x10)),
    Framing("zstd, reserved flag", Z, _zstd_stored(_TWO, flags=8)),
    Framing("zstd, trailing noise", Z, _zstd(_TWO) + b"noise behind the frame"),
    Framing("zstd, trailing zeros", Z, _zstd(_TWO) + bytes(4)),
    Framing("zstd, a trailing byte", Z, _zstd(_TWO) + b"("),
    Framing("zstd, cut", Z, _zstd(_TWO)[:-3]),
    Framing("zstd, noise", Z, b"not compressed at all"),
    Framing("zstd, empty", Z, b""),
    Framing("codec 5", 5, _TWO),  # type: ignore[arg-type]
    Framing("codec 6", 6, _TWO),  # type: ignore[arg-type]
    Framing("codec 7", 7, _TWO),  # type: ignore[arg-type]
    Framing("not lz4 but zstd", L, _zstd(_TWO)),
    Framing("not zstd but gzip", Z, _gzip(_TWO)),
)


class Outcome(NamedTuple):
    """The response of a broker to a batch that it does not accept unchanged.

    packed: the code if the batch is compressed, or None if it is the same. errors: the records
    listed in the response. kafka, kafka_packed: the codes of Kafka 4.2 where they differ, with the
    reason.
    """

    code: int
    packed: int | None = None
    errors: tuple[int, ...] = ()
    kafka: int | None = None
    kafka_packed: int | None = None
    why: str = ""


UNKNOWN, NONE, CORRUPT, LARGE, TIME, TXN, CODEC, BAD = -1, 0, 2, 10, 32, 53, 76, 87
ANY: Final = -99
"""A code that varies from run to run."""

INTERNAL: Final = "an exception that Kafka does not expect; clients repeat neither code"
LENGTHS: Final = "Kafka skips the records of compressed batches; its consumers fail"
BITS: Final = "Kafka ignores the bits above 32"
OUTSIDE: Final = "Kafka stores records with offsets outside of their batch"
TRAILING: Final = "Kafka ignores bytes after the end of the compressed stream"
RESERVED: Final = "Kafka ignores reserved flags of gzip members"
TWICE: Final = "Kafka reads concatenated xerial streams"
CHECKSUM: Final = "Kafka ignores content checksum and content size of lz4 frames"
WRAPS: Final = "Kafka computes timestamps modulo 2^64"

OUTCOMES: Final = {
    "header name null": Outcome(BAD),
    "header name -2": Outcome(BAD),
    "header name too long": Outcome(BAD),
    "header value too long": Outcome(BAD),
    "second header null": Outcome(BAD),
    "header count -1": Outcome(BAD),
    "header count too high": Outcome(BAD),
    "header count too low": Outcome(BAD),
    "header count huge": Outcome(BAD),
    "key too long": Outcome(BAD),
    "value too long": Outcome(BAD),
    "value too long by one": Outcome(BAD),
    "value too short": Outcome(BAD),
    "key huge": Outcome(BAD),
    "record too long by one": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "record too short by one": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "first record too long": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "first record too short": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "first record with a tail": Outcome(BAD),
    "record length 0": Outcome(BAD),
    "record length -1": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "record length huge": Outcome(BAD, kafka_packed=NONE, why=LENGTHS),
    "second record cut": Outcome(BAD),
    "last record -1": Outcome(BAD),
    "length in 6 bytes": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "length in 5 bytes with bit 35": Outcome(BAD, kafka=NONE, kafka_packed=NONE, why=BITS),
    "delta of 33 bits": Outcome(BAD, kafka=NONE, kafka_packed=UNKNOWN, why=BITS),
    "timestamp in 11 bytes": Outcome(BAD),
    "number without end": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "count one too high": Outcome(BAD),
    "count one too low": Outcome(BAD),
    "count 0": Outcome(BAD),
    "count 0, delta 0": Outcome(BAD),
    "count -1": Outcome(BAD),
    "count huge": Outcome(BAD),
    "count differs from delta": Outcome(BAD),
    "delta -1": Outcome(BAD),
    "empty": Outcome(BAD),
    "no data": Outcome(BAD),
    "one trailing byte": Outcome(BAD),
    "trailing zeros": Outcome(BAD),
    "trailing record": Outcome(BAD),
    "noise": Outcome(BAD),
    "zeros": Outcome(BAD),
    "deltas repeated": Outcome(NONE, packed=BAD, kafka_packed=UNKNOWN, why=INTERNAL),
    "deltas with a gap": Outcome(BAD, kafka=NONE, kafka_packed=UNKNOWN, why=OUTSIDE),
    "deltas reversed": Outcome(NONE, packed=BAD, kafka_packed=UNKNOWN, why=INTERNAL),
    "deltas from 1": Outcome(BAD, kafka=NONE, kafka_packed=UNKNOWN, why=OUTSIDE),
    "delta negative": Outcome(BAD, kafka=NONE, kafka_packed=UNKNOWN, why=OUTSIDE),
    "base offset 5": Outcome(BAD),
    "base offset -1": Outcome(BAD),
    "control": Outcome(BAD),
    "transactional control": Outcome(TXN),
    "transactional without producer": Outcome(TXN),
    "producer without sequence": Outcome(BAD),
    "damaged": Outcome(CORRUPT),
    "magic 0": Outcome(BAD),
    "magic 1": Outcome(BAD),
    "magic 3": Outcome(CORRUPT),
    "magic -1": Outcome(CORRUPT),
    "length one too high": Outcome(BAD),
    "length one too low": Outcome(CORRUPT),
    "length 0": Outcome(CORRUPT),
    "length negative": Outcome(CORRUPT),
    "append time, compacted": Outcome(BAD, errors=(0,)),
    "append time for append time": Outcome(TIME, errors=(0,)),
    "a year ahead": Outcome(TIME, errors=(0,)),
    "a year ahead, max now": Outcome(TIME, errors=(0,)),
    "two hours ahead": Outcome(TIME, errors=(0,)),
    "second a year ahead": Outcome(TIME, errors=(1,)),
    "half an hour ahead of a minute": Outcome(TIME, errors=(0,)),
    "all a year ahead": Outcome(TIME, errors=(0, 1)),
    "a year old, limit": Outcome(TIME, errors=(0,)),
    "second a year old, limit": Outcome(TIME, errors=(1,)),
    "timestamp -5, limit": Outcome(TIME, errors=(0,)),
    "timestamp overflows": Outcome(TIME, errors=(0,)),
    "timestamp underflows": Outcome(TIME, errors=(0,), kafka=ANY, kafka_packed=ANY, why=WRAPS),
    "null key, compacted": Outcome(BAD, errors=(0,)),
    "second key null, compacted": Outcome(BAD, errors=(1,)),
    "all keys null, compacted": Outcome(BAD, errors=(0, 1, 2, 3, 4)),
    "null key and a year ahead, compacted": Outcome(TIME, errors=(0, 1)),
    "null key and a bad header, compacted": Outcome(BAD),
    "null key and max timestamp -1, compacted": Outcome(BAD, errors=(0,)),
    "gzip, bad header checksum": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, reserved flag": Outcome(BAD, kafka=NONE, why=RESERVED),
    "gzip, record in a trailing member": Outcome(BAD),
    "gzip, trailing noise": Outcome(BAD, kafka=NONE, why=TRAILING),
    "gzip, trailing zeros": Outcome(BAD, kafka=NONE, why=TRAILING),
    "gzip, a trailing byte": Outcome(BAD, kafka=NONE, why=TRAILING),
    "gzip, cut": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, without trailer": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, bad crc": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, bad size": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, bad method": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, noise": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "gzip, empty": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, raw with a trailing byte": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, framed": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial with a block of 0 bytes": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial twice": Outcome(BAD, kafka=NONE, why=TWICE),
    "snappy, xerial cut": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial with trailing bytes": Outcome(BAD, kafka=NONE, why=TRAILING),
    "snappy, xerial with a trailing record": Outcome(BAD),
    "snappy, xerial block too long": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial block negative": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial noise": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, xerial header only": Outcome(BAD),
    "snappy, noise": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, declares too much": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "snappy, empty": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, two frames": Outcome(BAD),
    "lz4, a trailing frame": Outcome(BAD, kafka=NONE, why=TRAILING),
    "lz4, a trailing empty frame": Outcome(BAD, kafka=NONE, why=TRAILING),
    "lz4, trailing noise": Outcome(BAD, kafka=NONE, why=TRAILING),
    "lz4, linked blocks": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, linked flag": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, an empty block": Outcome(BAD),
    "lz4, an empty block in a record": Outcome(BAD),
    "lz4, an empty block behind": Outcome(BAD, kafka=NONE, why=TRAILING),
    "lz4, bad block checksum": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, bad content checksum": Outcome(BAD, kafka=NONE, why=CHECKSUM),
    "lz4, wrong content size": Outcome(BAD, kafka=NONE, why=CHECKSUM),
    "lz4, dictionary": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, reserved flag": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, version 2": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, block size 3": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, reserved bd": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, bad header checksum": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, old header checksum": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, without end mark": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, cut": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, block too long": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, legacy": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, skippable first": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "lz4, trailing skippable frame": Outcome(BAD, kafka=NONE, why=TRAILING),
    "lz4, empty": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, window of 256 MiB": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, window of 2 GiB": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, bad size": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, bad checksum": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, dictionary 7": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, reserved flag": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, a trailing record": Outcome(BAD),
    "zstd, trailing noise": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, trailing zeros": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, a trailing byte": Outcome(BAD, kafka=NONE, why=TRAILING),
    "zstd, cut": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, noise": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "zstd, empty": Outcome(BAD),
    "codec 5": Outcome(CODEC, kafka=UNKNOWN, why=INTERNAL),
    "codec 6": Outcome(CODEC, kafka=UNKNOWN, why=INTERNAL),
    "codec 7": Outcome(CODEC, kafka=UNKNOWN, why=INTERNAL),
    "not lz4 but zstd": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
    "not zstd but gzip": Outcome(BAD, kafka=UNKNOWN, why=INTERNAL),
}
"""All other cases are accepted, by Penstock and by Kafka."""
ACCEPTED: Final = Outcome(NONE)


SOUND: Final = CASES[0]


class Bytes(NamedTuple):
    """The data of a produce request for a partition, built from a valid batch."""

    name: str
    of: Callable[[bytes], bytes]
    code: int = NONE


def _head(length: int, magic: bytes = b"") -> bytes:
    return bytes(8) + length.to_bytes(4, "big") + bytes(4) + magic


BYTES: Final = (
    Bytes("nothing", lambda _: b"", BAD),
    Bytes("11 bytes", lambda _: bytes(11), BAD),
    Bytes("12 zeros", lambda _: bytes(12), CORRUPT),
    Bytes("17 zeros", lambda _: bytes(17), CORRUPT),
    Bytes("40 bytes", lambda batch: batch[:40], BAD),
    Bytes("all but one", lambda batch: batch[:-1], BAD),
    Bytes("twice", lambda batch: batch * 2, BAD),
    Bytes("a trailing byte", lambda batch: batch + b"x"),
    Bytes("11 trailing bytes", lambda batch: batch + bytes(11)),
    Bytes("12 trailing zeros", lambda batch: batch + bytes(12), CORRUPT),
    Bytes("16 trailing bytes", lambda batch: batch + _head(64)),
    Bytes("trailing magic 3", lambda batch: batch + _head(64, b"\3"), CORRUPT),
    Bytes("trailing magic 1", lambda batch: batch + _head(14, b"\1") + bytes(9), BAD),
    Bytes("a trailing part", lambda batch: batch + batch[:-1]),
)

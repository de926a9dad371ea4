"""Property tests of log compaction: reading runs of records together returns the same result as
reading them one by one, whatever their layout.
"""

from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import BatchHeader, check_crc, parse_header
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.batch.varint import read_varint, read_varlong
from penstock.stream.cleaning.batches import (
    PlainRecords,
    RecordPosition,
    RecordSpan,
    filter_records,
    map_keys,
    may_keep_records,
    plain_records,
    with_records,
)
from penstock.stream.cleaning.key_map import KeyMap

PROFILE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BASE_MS = 1_000_000
BORDERS = (0, 1, 7, 31, 32, 50, 62, 63, 64, 65, 126, 127, 128, 129, 8_180, 8_190, 8_191, 8_192)
"""Sizes at which a varint gets longer, and around the longest key that the key map stores."""


class Stretch(NamedTuple):
    """Consecutive records of one layout.

    gap: offsets missing before the first record, as in a batch that was compacted before.
    key_bytes: None for null. value_bytes: None for tombstones. odd_at: index of the record with a
    longer key or timestamp delta and, to compensate, a shorter value.
    """

    count: int
    gap: int
    key_bytes: int | None
    value_bytes: int | None
    step_ms: int
    has_headers: bool
    odd_at: int = -1


stretches = st.builds(
    Stretch,
    st.sampled_from((1, 2, 15, 16, 17, 33, 65, 130)),
    st.sampled_from((0, 0, 0, 1, 60, 8_100)),
    st.sampled_from((None, 0, 3, 8, 8, 31, 32, 63, 64)),
    st.one_of(st.none(), st.sampled_from(BORDERS)),
    st.sampled_from((0, 1, -1, 70, 9_000)),
    st.booleans(),
    st.sampled_from((-1, 3, 8, 14, 15, 16, 17, 31, 40, 64)),
)
batches_of_stretches = st.lists(st.lists(stretches, min_size=1, max_size=4), min_size=1, max_size=3)
TINY = Stretch(8_300, 0, 3, 1, 0, has_headers=False)
LOOKALIKE = Stretch(130, 0, 31, 100, 0, has_headers=False, odd_at=31)
"""Record 31 has a longer timestamp delta: its second byte is where other records have the key size,
and equals that number.
"""
SHIFTED = [
    Stretch(20, 0, 0, 20, 0, has_headers=False),
    Stretch(1, 0, 0, 40, 0, has_headers=False),
    Stretch(30, 0, 0, 20, 0, has_headers=False),
]
"""After a longer record, the bytes at the positions of the next records' fields look like valid
fields, except for the length.
"""

GROWN = [
    Stretch(64, 0, None, 20, 0, has_headers=False),
    Stretch(40, 0, 3, 16, 0, has_headers=False),
]
"""From record 64 on, the offset delta takes two bytes: the second is where other records have the
size of a null key.
"""


def records_of(parts: list[Stretch], base: int) -> list[Record]:
    found: list[Record] = []
    offset, timestamp_ms = base, BASE_MS
    for part in parts:
        offset += part.gap if found else 0
        for number in range(part.count):
            name = b"%03d" % (number * 7 % 40)
            key = None if part.key_bytes is None else name.rjust(part.key_bytes)[: part.key_bytes]
            value = None if part.value_bytes is None else bytes(part.value_bytes)
            headers = (("h", b"x"),) if part.has_headers else ()
            record = Record(offset, timestamp_ms, key, value, headers)
            if number == part.odd_at and len(value or b"") > 9 and key:
                record = varied(record, number % 3)
            found.append(record)
            offset += 1
            timestamp_ms += part.step_ms
    return found


def varied(record: Record, choice: int) -> Record:
    """Return a record of the same size with another layout."""
    key, value, timestamp_ms = record.key or b"", record.value or b"", record.timestamp_ms
    if choice == 0:
        return record._replace(key=key + b"+", value=value[1:])
    if choice == 1 and timestamp_ms == BASE_MS:
        return record._replace(timestamp_ms=timestamp_ms + 64, value=value[1:])
    if choice == 2 and timestamp_ms == BASE_MS:
        return record._replace(timestamp_ms=timestamp_ms + 9_000, value=value[2:])
    return record


class Read(NamedTuple):
    span: RecordSpan
    offset: int
    key: bytes | None


def read_one_by_one(plain: bytes, header: BatchHeader) -> list[Read]:
    found: list[Read] = []
    at, size = 0, len(plain)
    while at < size:
        length, body = read_varint(plain, at, size)
        _, delta_at = read_varlong(plain, body + 1, size)
        delta, key_bytes_at = read_varint(plain, delta_at, size)
        key_bytes, key_at = read_varint(plain, key_bytes_at, size)
        key = None if key_bytes < 0 else plain[key_at : key_at + key_bytes]
        value_bytes, _ = read_varint(plain, key_at + max(0, key_bytes), size)
        span = RecordSpan(at, body, body + length, value_bytes < 0)
        found.append(Read(span, header.base_offset + delta, key))
        at = body + length
    return found


def map_all(plain: PlainRecords, header: BatchHeader, keys: KeyMap, slice_count: int) -> None:
    position = RecordPosition()
    while left := header.record_count - position.number:
        position = map_keys(plain, header, position, min(left, slice_count), keys)
    assert position == (len(plain.view), header.record_count)


def filter_all(
    plain: PlainRecords, header: BatchHeader, keys: KeyMap, slice_count: int
) -> list[RecordSpan]:
    kept: list[RecordSpan] = []
    position = RecordPosition()
    while left := header.record_count - position.number:
        more, position = filter_records(plain, header, position, min(left, slice_count), keys)
        kept += more
    assert position == (len(plain.view), header.record_count)
    return kept


@PROFILE
@given(
    batches_of_stretches,
    st.sampled_from(list(Compression)),
    st.integers(0, 2),
    st.sampled_from((16, 50, 1_000)),
)
@example([[TINY], [TINY]], Compression.NONE, 0, 1_000)
@example([[TINY], [TINY]], Compression.NONE, 1, 1_000)
@example([[LOOKALIKE], [LOOKALIKE]], Compression.NONE, 0, 1_000)
@example([[LOOKALIKE], [LOOKALIKE]], Compression.NONE, 1, 1_000)
@example([SHIFTED, SHIFTED], Compression.NONE, 0, 1_000)
@example([SHIFTED, SHIFTED], Compression.NONE, 1, 1_000)
@example([GROWN, GROWN], Compression.NONE, 0, 1_000)
@example([GROWN, GROWN], Compression.NONE, 1, 1_000)
def test_reading_runs_returns_the_same_as_reading_single_records(
    batches: list[list[Stretch]], codec: Compression, first_mapped: int, slice_count: int
) -> None:
    """first_mapped: all earlier batches are below the dirty part of the log."""
    encoded = []
    base = 100
    for parts in batches:
        records = records_of(parts, base)
        encoded.append(memoryview(encode_batch(records, base_offset=base, compression=codec)))
        base = records[-1].offset + 1
    headers = [parse_header(batch) for batch in encoded]
    plains = [plain_records(*pair) for pair in zip(encoded, headers, strict=True)]
    reads = [
        read_one_by_one(plain.copied(), header)
        for plain, header in zip(plains, headers, strict=True)
    ]

    start = headers[first_mapped].base_offset if first_mapped < len(headers) else base
    keys, newest = KeyMap(1 << 30, start), dict[bytes, int]()
    for plain, header, read in zip(plains, headers, reads, strict=True):
        if header.base_offset >= start:
            map_all(plain, header, keys, slice_count)
            newest |= {item.key: item.offset for item in read if item.key is not None}
    list(keys.complete())
    assert {key: keys.newest(key) for key in newest} == newest
    assert keys.held(0, base) == sorted(newest.values())

    for batch, plain, header, read in zip(encoded, plains, headers, reads, strict=True):
        requested = [
            item
            for item in read
            if item.key is not None and newest.get(item.key, -1) <= item.offset
        ]
        kept = filter_all(plain, header, keys, slice_count)
        assert kept == [item.span for item in requested]
        assert may_keep_records(header, keys) or not kept
        if not kept:
            continue
        result = with_records(batch, header, plain, kept, None)
        found = parse_header(result)
        assert check_crc(result)
        assert plain_records(memoryview(result), found).copied() == b"".join(
            plain.copied()[item.span.start : item.span.end] for item in requested
        )
        offsets = {item.offset for item in requested}
        assert decode_records(result) == [
            record for record in decode_records(batch) if record.offset in offsets
        ]
        assert found.max_timestamp_ms == max(r.timestamp_ms for r in decode_records(result))
        assert (found.base_offset, found.next_offset) == (header.base_offset, header.next_offset)

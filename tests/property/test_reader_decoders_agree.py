"""Check that the compiled and the pure Python decoder agree: both return the same rows for any
records, the parts of a range add up to the whole range, and damaged bytes result in rows or a
ReadError.
"""

import contextlib
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.arrow.decode import Place
from penstock.lake.fetch.errors import ReadError
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.sound_records import sound_records
from tests.support.reader_objects import decode, records_of, row_of, rows_of, sealed
from tests.support.record_cases import CASES

FIELD = st.none() | st.binary(max_size=40) | st.just(b"long" * 300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), FIELD), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 1 << 52)
RECORD = st.tuples(st.integers(1, 1_000_000), TIMESTAMPS, FIELD, FIELD, HEADERS)
BATCHES = st.lists(
    st.tuples(
        st.lists(RECORD, min_size=1, max_size=8), st.sampled_from(Compression), st.integers(0, 5)
    ),
    max_size=6,
)


def built(
    base: int,
    batches: list[
        tuple[list[tuple[int, int, bytes | None, bytes | None, tuple[()]]], Compression, int]
    ],
) -> bytes:
    """Encode batches with offset gaps inside them, as compaction leaves, and between them."""
    data, offset = bytearray(), base - 1
    for raw, codec, gap in batches:
        first = offset + 1 + gap
        records: list[Record] = []
        for step, timestamp_ms, key, value, headers in raw:
            offset += step + gap
            records.append(Record(offset, timestamp_ms, key, value, headers))
        data += encode_batch(
            records,
            base_offset=min(first, records[0].offset),
            last_offset=offset,
            compression=codec,
        )
    return bytes(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 60), BATCHES, st.integers(1, 30), st.integers(100, 5_000))
def test_any_records_decode_to_the_same_rows(
    base: int, batches: list[object], rows_max: int, batch_bytes_max: int
) -> None:
    data = built(base, batches)
    expected = [row_of(record) for record in records_of(data)]
    compiled = decode(data, compiled=True, rows_max=rows_max, batch_bytes_max=batch_bytes_max)
    assert rows_of(compiled) == expected
    assert decode(data, compiled=False, rows_max=rows_max, batch_bytes_max=batch_bytes_max).equals(
        compiled
    )
    views = decode(
        data, compiled=True, rows_max=rows_max, batch_bytes_max=batch_bytes_max, views=True
    )
    assert views.cast(compiled.schema).equals(compiled)


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.lists(st.integers(0, 20_000_000), max_size=4), st.booleans())
def test_the_parts_of_a_range_add_up_to_the_whole_range(
    batches: list[object], cuts: list[int], compiled: bool
) -> None:
    data = built(0, batches)
    whole = rows_of(decode(data, compiled=compiled))
    borders = [0, *sorted(cuts), 1 << 62]
    pieces = [
        rows_of(decode(data, Place("x", "t", 0, low=low, high=high), compiled=compiled))
        for low, high in pairwise(borders)
    ]
    assert [row for piece in pieces for row in piece] == whole
    for piece, (low, high) in zip(pieces, pairwise(borders), strict=True):
        assert all(low <= row[0] < high for row in piece)


def outcome(data: bytes, *, compiled: bool) -> object:
    try:
        return decode(data, compiled=compiled)
    except ReadError as error:
        return str(error).partition(":")[0] if "batch" not in str(error) else "refused"


@settings(max_examples=150, deadline=None)
@given(BATCHES.filter(bool), st.integers(0, 1 << 30), st.integers(1, 4), st.booleans())
def test_damaged_batches_with_valid_checksums_decode_alike(
    batches: list[object], seed: int, flips: int, in_header: bool
) -> None:
    """Flip bits in one batch and recompute its CRC: both decoders return the same rows, or both
    raise ReadError.
    """
    rng = Random(seed)
    data = built(0, batches[:1])
    damaged = bytearray(data)
    for _ in range(flips):
        low, high = (21, HEADER_BYTES) if in_header else (HEADER_BYTES, len(data))
        damaged[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
    block = sealed(damaged)
    found, other = outcome(block, compiled=True), outcome(block, compiled=False)
    assert type(found) is type(other)
    if isinstance(found, str):
        return
    assert found.equals(other)
    # records_of rejects records that the readers only skip.
    with contextlib.suppress(BatchCorrupt):
        assert rows_of(found) == [row_of(record) for record in records_of(block)]


@pytest.mark.parametrize("name", ["key -2", "value -2", "header value -2"])
def test_every_negative_length_decodes_as_null(name: str) -> None:
    """Kafka treats every negative length as null."""
    (case,) = [case for case in CASES if case.name == name]
    batch = case.batch(Compression.NONE, 1_000)
    ((offset, _, key, value, headers),) = rows_of(decode(batch, compiled=True))
    assert (offset, (key, value, *headers)) == (
        0,
        {
            "key -2": (None, b"value"),
            "value -2": (b"key", None),
            "header value -2": (b"key", b"value", ("n", None)),
        }[name],
    )
    assert rows_of(decode(batch, compiled=False)) == rows_of(decode(batch, compiled=True))
    (record,) = records_of(batch)
    assert row_of(record) == rows_of(decode(batch, compiled=True))[0]
    assert sound_records(batch[HEADER_BYTES:], 1, 0).lost == []


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_records_decode_alike(payload: bytes) -> None:
    header = encode_batch([Record(i, 0, None, None) for i in range(3)])[:HEADER_BYTES]
    block = sealed(header + payload)
    assert type(outcome(block, compiled=True)) is type(outcome(block, compiled=False))

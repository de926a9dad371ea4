"""Check that records survive encoding and decoding with every codec, and that arbitrary bytes
decode to records or raise BatchCorrupt.
"""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.batch.compression import Compression, decompress
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import check_crc, iter_headers, parse_header
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.batch.varint import append_varint, read_varint, read_varlong

FIELD = st.none() | st.binary(max_size=60)
HEADERS = st.lists(st.tuples(st.text(max_size=8), FIELD), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 1 << 61)


@given(
    st.integers(0, 1 << 60),
    st.lists(
        st.tuples(st.integers(1, 1_000), TIMESTAMPS, FIELD, FIELD, HEADERS), min_size=1, max_size=12
    ),
    st.sampled_from(Compression),
)
def test_records_round_trip(
    base: int, raw: list[tuple[int, int, bytes | None, bytes | None, tuple[()]]], codec: Compression
) -> None:
    records: list[Record] = []
    offset = base - 1
    for step, timestamp_ms, key, value, headers in raw:
        offset += step
        records.append(Record(offset, timestamp_ms, key, value, headers))
    batch = encode_batch(records, base_offset=base, compression=codec)
    header = parse_header(batch)
    assert check_crc(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (
        base,
        offset,
        len(records),
    )
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert decode_records(batch) == records


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_round_trip(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert read_varlong(out, 0, len(out)) == (value, len(out))
    if -(1 << 31) <= value < 1 << 31:
        assert read_varint(out, 0, len(out)) == (value, len(out))
    else:
        with contextlib.suppress(BatchCorrupt):
            raise AssertionError(read_varint(out, 0, len(out)))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_rejected_or_decoded(data: bytes) -> None:
    with contextlib.suppress(BatchCorrupt):
        list(iter_headers(data))
    with contextlib.suppress(BatchCorrupt):
        decode_records(data)


@given(st.sampled_from([1, 2, 3, 4]), st.binary(max_size=200))
def test_compressed_arbitrary_bytes_are_rejected_or_decoded(codec: int, data: bytes) -> None:
    with contextlib.suppress(BatchCorrupt):
        decompress(codec, data, bytes_max=1 << 20)

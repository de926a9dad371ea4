"""Batch headers: they survive a round trip, lengths outside the buffer are rejected, and patches
change only their fields.
"""

import pytest

from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    HEADER,
    HEADER_BYTES,
    batch_span,
    check_crc,
    iter_headers,
    parse_header,
    patch_log_append_time,
    patch_offset_and_epoch,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch

RECORDS = [Record(0, 1_000, b"k", b"v"), Record(1, 3_000, None, b"w"), Record(2, 2_000, b"k", None)]


def test_headers_survive_a_round_trip() -> None:
    batch = encode_batch(RECORDS, producer_id=7, producer_epoch=1, base_sequence=5, leader_epoch=3)
    header = parse_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (
        0,
        2,
        3,
        3,
    )
    assert (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.partition_leader_epoch,
    ) == (7, 1, 5, 3)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.timestamp_type) == (
        1_000,
        3_000,
        0,
    )
    assert not header.is_control
    assert not header.is_transactional
    assert batch_span(batch) == (0, 3, len(batch), 3_000)


def test_patching_the_offset_keeps_the_crc() -> None:
    batch = encode_batch(RECORDS)
    patch_offset_and_epoch(memoryview(batch), 0, 1 << 40, 9)
    header = parse_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 9)
    assert check_crc(batch)
    assert [record.offset for record in decode_records(batch)] == [(1 << 40) + i for i in range(3)]


def test_setting_the_append_time_updates_the_crc_and_applies_to_all_records() -> None:
    batch = encode_batch(RECORDS)
    patch_log_append_time(batch, 0, 77_000)
    assert check_crc(batch)
    assert parse_header(batch).timestamp_type == 1
    assert {record.timestamp_ms for record in decode_records(batch)} == {77_000}


def test_walking_finds_every_batch_and_rejects_a_partial_one() -> None:
    first, second = encode_batch(RECORDS), encode_batch(RECORDS[:1], base_offset=0)
    both = bytes(first + second)
    assert [at for at, _ in iter_headers(both)] == [0, len(first)]
    for cut in range(len(first) + 1, len(both)):
        with pytest.raises(BatchCorrupt):
            list(iter_headers(both[:cut]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, -1),
        (0, (1 << 63) - 1),
        (1, 48),
        (1, -1),
        (1, (1 << 31) - 1),
        (3, 1),
        (3, 0),
        (6, -1),
        (12, -1),
    ],
    ids=[
        "base",
        "base-overflow",
        "length-small",
        "length-negative",
        "length-large",
        "magic-1",
        "magic-0",
        "delta",
        "count",
    ],
)
def test_impossible_headers_are_rejected(field: int, value: int) -> None:
    batch = encode_batch(RECORDS)
    fields = list(HEADER.unpack_from(batch))
    fields[field] = value
    HEADER.pack_into(batch, 0, *fields)
    with pytest.raises(BatchCorrupt):
        parse_header(batch)
    if field != 12:
        with pytest.raises(BatchCorrupt):
            batch_span(batch)


@pytest.mark.parametrize("size_bytes", [0, 1, HEADER_BYTES - 1])
def test_short_buffers_are_rejected(size_bytes: int) -> None:
    batch = encode_batch(RECORDS)[:size_bytes]
    for read in (parse_header, batch_span, check_crc):
        with pytest.raises(BatchCorrupt):
            read(batch)


def test_headers_are_read_at_positions_inside_a_buffer() -> None:
    batch = encode_batch(RECORDS)
    padded = memoryview(b"\xff" * 5 + bytes(batch) + b"\xff" * 3)
    assert parse_header(padded, 5) == parse_header(batch)
    assert check_crc(padded, 5)
    with pytest.raises(BatchCorrupt):
        parse_header(padded, -5)

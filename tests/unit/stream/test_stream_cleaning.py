"""Log compaction of a single batch: remaining records, and damaged batches."""

from random import Random

import pytest

from penstock.base.ids import Millis, Offset
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import (
    HEADER,
    HEADER_BYTES,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    parse_header,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.stream.cleaning.batches import (
    PlainRecords,
    RecordPosition,
    all_records,
    fillers,
    filter_records,
    map_keys,
    plain_records,
    with_records,
)
from penstock.stream.cleaning.key_map import ENTRY_BYTES_MAX, KeyMap

RECORDS = [
    Record(10, 1_000, b"a", b"x" * 300, (("h", b"1"), ("i", None))),
    Record(11, 900, b"b", None),
    Record(12, 70_000, b"a" * 200, b""),
    Record(13, 1_000, b"a", b"y" * 70_000),
]


def parsed(batch: bytearray) -> tuple[memoryview, BatchHeader, PlainRecords]:
    view = memoryview(batch)
    header = parse_header(view)
    return view, header, plain_records(view, header)


def mapped(batch: bytearray) -> KeyMap:
    _, header, plain = parsed(batch)
    keys = KeyMap(100 * ENTRY_BYTES_MAX, header.base_offset)
    position = RecordPosition()
    while position.number < header.record_count:
        position = map_keys(plain, header, position, 1, keys)
    assert position.at == len(plain.view)
    list(keys.complete())
    return keys


def test_remaining_records_are_byte_identical_to_those_of_kafka() -> None:
    batch = encode_batch(RECORDS, base_offset=10, producer_id=7, producer_epoch=1, base_sequence=5)
    view, header, plain = parsed(batch)
    kept, position = filter_records(plain, header, RecordPosition(), 4, mapped(batch))
    assert position == RecordPosition(len(plain.view), 4)
    assert [span.is_tombstone for span in kept] == [True, False, False]
    result = with_records(view, header, plain, kept, None)
    assert decode_records(result) == RECORDS[1:]
    found = parse_header(result)
    assert (found.base_offset, found.next_offset, found.record_count) == (10, 14, 3)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 1, 5)
    assert (found.base_timestamp_ms, found.max_timestamp_ms) == (1_000, 70_000)


@pytest.mark.parametrize("horizon_ms", [0, 1_000, 90_000_000_000])
def test_a_delete_horizon_does_not_change_timestamps(horizon_ms: int) -> None:
    batch = encode_batch(RECORDS, base_offset=10)
    view, header, plain = parsed(batch)
    result = with_records(view, header, plain, all_records(plain, header), Millis(horizon_ms))
    assert decode_records(result) == RECORDS
    assert parse_header(result).delete_horizon_ms == horizon_ms
    assert header.delete_horizon_ms is None


@pytest.mark.parametrize("timestamp_ms", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("attributes", [0, TIMESTAMP_TYPE_MASK])
def test_a_delete_horizon_may_be_any_distance_away(timestamp_ms: int, attributes: int) -> None:
    """Producers may write any timestamp to a topic with LogAppendTime."""
    records = [Record(0, timestamp_ms, b"k", None)]
    view, header, plain = parsed(encode_batch(records, attributes=attributes))
    result = with_records(view, header, plain, all_records(plain, header), Millis(90_000_000_000))
    assert decode_records(result) == decode_records(view)


def test_filler_batches_cover_any_gap() -> None:
    end = Offset(5 + 2**31 + 10)
    at = 5
    for filled_end, batch in fillers(Offset(5), end, 3):
        header = parse_header(batch)
        assert (header.base_offset, header.next_offset) == (at, filled_end)
        assert (header.record_count, header.partition_leader_epoch) == (0, 3)
        assert decode_records(batch) == []
        at = filled_end
    assert at == end


def test_a_full_map_accepts_keys_that_it_already_contains() -> None:
    keys = KeyMap(2 * ENTRY_BYTES_MAX, 0)
    assert keys.put([b"a"], [0], 1)
    keys.limit()
    assert keys.put([b"b" * 500], [1], 500)
    assert not keys.put([b"a", b"c"], [2, 3], 1)
    assert keys.put([b"a", b"a"], [2, 3], 1)
    list(keys.complete())
    assert (keys.newest(b"a"), keys.newest(b"b" * 500), keys.newest(b"c")) == (3, 1, -1)
    assert keys.held(0, 4) == [1, 3]
    assert keys.held(2, 3) == []


def test_damaged_records_raise_only_the_documented_error() -> None:
    """Any byte may have any value: each batch is mapped and filtered, or rejected."""
    rng = Random(7)
    batch = encode_batch(
        [Record(at, 5, b"%d" % (at % 3), rng.randbytes(at % 9)) for at in range(40)]
    )
    good = bytes(batch[HEADER_BYTES:])
    fields = list(HEADER.unpack_from(batch))
    refused = 0
    for _ in range(3_000):
        plain = bytearray(good)
        for _ in range(rng.choice((1, 1, 4))):
            plain[rng.randrange(len(plain))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        damaged = bytes(plain[: rng.choice((len(plain), rng.randrange(len(plain))))])
        header = BatchHeader(*fields)
        for start_offset in (0, 1):
            keys = KeyMap(1 << 20, start_offset)
            try:
                records = PlainRecords(memoryview(damaged))
                map_keys(records, header, RecordPosition(), header.record_count, keys)
                list(keys.complete())
                kept, _ = filter_records(
                    records, header, RecordPosition(), header.record_count, keys
                )
            except BatchCorrupt:
                refused += 1
                continue
            assert all(0 <= span.start < span.body <= span.end for span in kept)
            assert all(span.end <= len(damaged) for span in kept)
    assert 0 < refused < 6_000

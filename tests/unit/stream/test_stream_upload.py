"""Planning of uploaded objects, bookkeeping of WAL slots, and limits of the configuration."""

import pytest

from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.stream.cache.log_cache import CacheSegment, LogCache
from penstock.stream.config import StreamConfig
from penstock.stream.ports import ObjectRole, StreamRange
from penstock.stream.upload.uploader import PlannedObject, plan_objects
from penstock.stream.wal.slots import SlotTable
from tests.support.stream_storage import entry

CONFIG = StreamConfig(stream_object_bytes_min=3_000, upload_object_bytes_max=5_000)


def block_of(**bytes_by_stream: int) -> CacheSegment:
    """Build a block; s1=2500: stream 1 with 2500 bytes in entries of about 500 bytes."""
    cache = LogCache(CONFIG)
    for name, size in bytes_by_stream.items():
        stream_id = int(name[1:])
        cache.add(
            {
                StreamId(stream_id): [
                    entry(stream_id, offset, size=430) for offset in range(size // 500)
                ]
            },
            WalSequence(1),
            0.0,
        )
    block = cache.archive()
    assert block is not None
    return block


def shape(planned: list[PlannedObject]) -> list[tuple[ObjectRole, list[tuple[int, int, int]]]]:
    return [
        (
            item.role,
            [
                (run.stream_id, run.entries[0].base_offset, run.entries[-1].end_offset)
                for run in item.runs
            ],
        )
        for item in planned
    ]


def test_large_streams_get_their_own_objects_and_small_ones_share() -> None:
    assert shape(plan_objects(block_of(s3=1_000, s1=500, s2=4_000), CONFIG)) == [
        (ObjectRole.STREAM, [(2, 0, 8)]),
        (ObjectRole.STREAM_SET, [(1, 0, 1), (3, 0, 2)]),
    ]


def test_objects_are_split_at_their_limit() -> None:
    assert shape(plan_objects(block_of(s1=11_000), CONFIG)) == [
        (ObjectRole.STREAM, [(1, 0, 10)]),
        (ObjectRole.STREAM, [(1, 10, 20)]),
        (ObjectRole.STREAM, [(1, 20, 22)]),
    ]
    shared = shape(plan_objects(block_of(s1=3_000, s2=3_000, s3=3_000), CONFIG))
    assert [role for role, _ in shared] == [ObjectRole.STREAM, ObjectRole.STREAM, ObjectRole.STREAM]
    assert [
        role for role, _ in shape(plan_objects(block_of(s1=2_000, s2=2_000, s3=2_000), CONFIG))
    ] == [
        ObjectRole.STREAM_SET,
        ObjectRole.STREAM,
    ]


def test_a_single_stream_gets_a_stream_object_however_small_it_is() -> None:
    assert shape(plan_objects(block_of(s1=500), CONFIG)) == [(ObjectRole.STREAM, [(1, 0, 1)])]


def test_a_block_without_remaining_streams_has_no_objects() -> None:
    assert plan_objects(CacheSegment(0.0, WalSequence(4)), CONFIG) == []


def range_of(stream_id: int, start: int) -> StreamRange:
    return StreamRange(StreamId(stream_id), Offset(start), Offset(start + 1), 1, 100, Millis(0))


def test_slots_committed_in_place_are_never_returned_for_deletion() -> None:
    slots = SlotTable()
    for sequence in range(4):
        slots.add(
            WalSequence(sequence),
            f"k{sequence}",
            100,
            [range_of(1, sequence)] + ([range_of(2, 0)] if sequence == 1 else []),
        )
    assert slots.range_count([StreamId(1), StreamId(2)]) == 5
    (taken,) = slots.take_in_place([StreamId(2)])
    assert (taken.key, taken.object_id, taken.ranges) == ("k1", None, (range_of(2, 0),))
    slots.forget([StreamId(2)])
    assert slots.take_in_place([StreamId(2)]) == []
    assert slots.commit(WalSequence(3), {"k1"}.__contains__) == ["k0", "k2"]
    assert slots.slot_count == 1
    assert [item.key for item in slots.take_in_place([StreamId(1)])] == ["k3"]


def test_slots_of_deleted_streams_are_returned_for_deletion() -> None:
    slots = SlotTable()
    for sequence in range(2):
        slots.add(WalSequence(sequence), f"k{sequence}", 100, [range_of(1, sequence)])
    assert len(slots.take_in_place([StreamId(1)])) == 2
    slots.forget([StreamId(1)])
    assert slots.commit(WalSequence(2), {"k1"}.__contains__) == ["k0"]


def test_slots_are_returned_in_order() -> None:
    slots = SlotTable()
    slots.add(WalSequence(0), "k0", 1, [])
    with pytest.raises(AssertionError):
        slots.add(WalSequence(2), "k2", 1, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"bulk_bytes_max": 0},
        {"wal_linger_ms": -1},
        {"log_cache_bytes_max": 1 << 20},
        {"retry_backoff_ms": 9_000},
    ],
)
def test_errors_contain_the_inconsistent_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StreamConfig(**wrong)

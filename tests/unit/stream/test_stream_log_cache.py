"""The log cache compared with a plain model: reads by offset, byte accounting, limits, eviction,
streams that move away.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.ids import Offset, StreamId, WalSequence
from penstock.stream.cache import log_cache
from penstock.stream.cache.log_cache import ENTRY_OVERHEAD_BYTES, AppendEntry, LogCache
from penstock.stream.config import StreamConfig
from penstock.stream.errors import NotContiguous
from tests.support.stream_storage import entry, offsets

CONFIG = StreamConfig(block_bytes_max=4_000, log_cache_bytes_max=8_000)
ALL = 1 << 30
S1, S2 = StreamId(1), StreamId(2)


def add(cache: LogCache, sequence: int, *entries: AppendEntry) -> None:
    runs: dict[StreamId, list[AppendEntry]] = {}
    for item in entries:
        runs.setdefault(item.stream_id, []).append(item)
    cache.add(runs, WalSequence(sequence + 1), 0.0)
    cache.check_invariants()


def read(
    cache: LogCache, stream_id: StreamId, offset: int, end: int = ALL, max_bytes: int = ALL
) -> list[int] | None:
    found = cache.read(stream_id, offset, end, max_bytes)
    return None if found is None else offsets(found)


def test_reads_start_with_the_batch_that_contains_the_offset() -> None:
    cache = LogCache(CONFIG)
    add(cache, 0, entry(1, 10, 3), entry(2, 0))
    add(cache, 1, entry(1, 13, 2))
    assert read(cache, S1, 10) == [10, 11, 12, 13, 14]
    assert read(cache, S1, 12) == [10, 11, 12, 13, 14]
    assert read(cache, S1, 13) == [13, 14]
    assert read(cache, S1, 15) == []
    assert read(cache, S1, 9) is None
    assert read(cache, StreamId(3), 0) is None
    assert cache.start_of(S1) == 10


def test_committed_entries_can_be_dropped() -> None:
    cache = LogCache(CONFIG)
    add(cache, 0, entry(1, 0, 2), entry(1, 2, 2), entry(2, 0))
    first = cache.archive()
    add(cache, 1, entry(1, 4, 2), entry(2, 1))
    second = cache.archive()
    add(cache, 2, entry(1, 6))
    assert first is not None
    assert second is not None
    cache.mark_committed(first)
    cache.forget(S1, Offset(2))
    cache.check_invariants()
    assert read(cache, S1, 0) is None
    assert read(cache, S1, 2) == [2, 3, 4, 5, 6]
    cache.forget(S1, Offset(7))  # uncommitted entries stay
    cache.check_invariants()
    assert cache.start_of(S1) == 4
    cache.mark_committed(second)
    cache.forget(S1, Offset(7))
    cache.check_invariants()
    assert read(cache, S1, 6) == [6]
    assert read(cache, S2, 0) == [0, 1]
    cache.forget(StreamId(3), Offset(9))


def test_limits_apply_between_batches_but_one_batch_is_always_returned() -> None:
    cache = LogCache(CONFIG)
    parts = [entry(1, offset) for offset in range(4)]
    joined = b"".join(bytes(part.payload) for part in parts)
    add(
        cache,
        0,
        AppendEntry(
            S1,
            Offset(0),
            Offset(4),
            4,
            parts[0].min_timestamp_ms,
            parts[-1].max_timestamp_ms,
            len(joined),
            joined,
        ),
        entry(1, 4),
    )
    size = len(parts[0].payload)
    assert read(cache, S1, 0, max_bytes=1) == [0]
    assert read(cache, S1, 1, max_bytes=1) == [1]
    assert read(cache, S1, 1, max_bytes=2 * size) == [1, 2]
    assert read(cache, S1, 2) == [2, 3, 4]
    assert read(cache, S1, 0, end=2) == [0, 1]
    assert read(cache, S1, 2, end=2) == []
    assert read(cache, S1, 0, max_bytes=4 * size + 1) == [0, 1, 2, 3]


def test_the_number_of_entries_per_read_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cache, "READ_ENTRIES_MAX", 2)
    cache = LogCache(CONFIG)
    for number in range(3):
        add(cache, number, entry(1, 10 + 2 * number), entry(1, 11 + 2 * number))
    assert read(cache, S1, 10) == [10, 11]
    assert read(cache, S1, 12, 13) == [12]
    assert read(cache, S1, 15) == [15]


def test_uncommitted_bytes_of_a_stream_are_those_after_its_committed_end() -> None:
    cache = LogCache(CONFIG)
    first, second = entry(1, 10, 3), entry(1, 13, 2)
    add(cache, 0, first, entry(2, 0))
    block = cache.archive()
    assert block is not None
    add(cache, 1, second)
    both = len(first.payload) + len(second.payload)
    assert cache.uncommitted_bytes_of(S1, Offset(10)) == both
    assert cache.uncommitted_bytes_of(S1, Offset(13)) == len(second.payload)
    assert cache.uncommitted_bytes_of(S1, Offset(15)) == 0
    assert cache.uncommitted_bytes_of(StreamId(3), Offset(0)) == 0
    cache.mark_committed(block)
    assert cache.uncommitted_bytes_of(S1, Offset(13)) == len(second.payload)
    assert cache.uncommitted_bytes_of(S2, Offset(1)) == 0


def test_entries_are_returned_for_ranges_that_they_cover_exactly() -> None:
    cache = LogCache(CONFIG)
    parts = [entry(1, 10, 3), entry(1, 13, 2), entry(1, 15)]
    add(cache, 0, *parts, entry(2, 0))
    assert cache.entries_of(S1, 10, 16) == parts
    assert cache.entries_of(S1, 13, 15) == parts[1:2]
    for start, end in ((9, 13), (11, 13), (10, 14), (15, 17), (16, 17), (13, 13)):
        assert cache.entries_of(S1, start, end) is None, (start, end)
    assert cache.entries_of(StreamId(3), 10, 13) is None


def test_a_gap_is_rejected() -> None:
    cache = LogCache(CONFIG)
    add(cache, 0, entry(1, 0))
    with pytest.raises(NotContiguous):
        cache.add({S1: [entry(1, 2)]}, WalSequence(2), 0.0)


def test_only_committed_blocks_are_evicted_oldest_first() -> None:
    cache = LogCache(CONFIG)
    for sequence in range(8):
        add(cache, sequence, entry(1, sequence, size=2_000))
        cache.archive()
    assert cache.size_bytes > CONFIG.log_cache_bytes_max
    assert cache.uncommitted_bytes == cache.size_bytes
    blocks = list(cache._blocks)
    for block in blocks[:3]:
        cache.mark_committed(block)
        cache.check_invariants()
    assert cache.start_of(S1) == 3
    assert read(cache, S1, 3) == [3, 4, 5, 6, 7]
    assert cache.entries_of(S1, 2, 5) is None
    assert cache.entries_of(S1, 3, 5) is not None
    assert read(cache, S1, 2) is None
    with pytest.raises(AssertionError):
        cache.mark_committed(blocks[5])


def test_memory_overhead_is_included_in_the_size() -> None:
    cache = LogCache(CONFIG)
    item = entry(1, 0)
    add(cache, 0, item)
    assert cache.size_bytes == len(item.payload) + ENTRY_OVERHEAD_BYTES


def test_blocks_are_due_by_size_age_and_streams() -> None:
    cache = LogCache(replace(CONFIG, block_streams_max=2, block_age_max_ms=1_000))
    assert not cache.archive_due(99.0)
    add(cache, 0, entry(1, 0))
    assert not cache.archive_due(0.9)
    assert cache.archive_due(1.0)
    add(cache, 1, entry(2, 0))
    assert cache.archive_due(0.0)
    block = cache.archive()
    assert block is not None
    assert block.end_sequence == 2
    assert cache.archive() is None
    add(cache, 2, entry(1, 1, size=5_000))
    assert cache.archive_due(0.0)


def test_blocks_are_due_by_slots_once_they_are_old_enough_for_their_streams() -> None:
    slots = replace(CONFIG, block_slots_max=3, block_slots_age_ms=1_000, block_streams_per_slot=1)
    cache = LogCache(
        replace(slots, block_streams_max=100, block_bytes_max=50_000, log_cache_bytes_max=100_000)
    )
    for sequence in range(3):
        assert not cache.archive_due(1.5)
        add(cache, sequence, entry(1, sequence))
    assert cache.archive_due(1.0)
    assert not cache.archive_due(0.9)
    cache.archive()
    cache.add(
        {StreamId(stream_id): [entry(stream_id, 0)] for stream_id in range(2, 7)},
        WalSequence(4),
        0.0,
    )
    for sequence in range(4, 8):
        assert not cache.archive_due(1.0), "five streams want five slots"
        add(cache, sequence, entry(1, sequence - 1))
    assert not cache.archive_due(1.0), "now it is six"
    add(cache, 8, entry(1, 7))
    assert cache.archive_due(1.0)


def test_a_removed_stream_leaves_every_block_and_may_be_added_again() -> None:
    cache = LogCache(CONFIG)
    add(cache, 0, entry(1, 0), entry(2, 0))
    block = cache.archive()
    assert block is not None
    add(cache, 1, entry(1, 1), entry(2, 1))
    cache.drop([S1, StreamId(7)])
    cache.check_invariants()
    assert set(block.runs) == {S2}
    assert read(cache, S1, 0) is None
    add(cache, 2, entry(1, 50))
    assert read(cache, S1, 50) == [50]
    assert set(block.runs) == {S2}
    assert read(cache, S2, 0) == [0, 1]


def test_small_committed_blocks_are_merged() -> None:
    cache = LogCache(StreamConfig(block_bytes_max=80_000, log_cache_bytes_max=160_000))
    for sequence in range(50):
        add(cache, sequence, entry(1, sequence))
        block = cache.archive()
        assert block is not None
        cache.mark_committed(block)
        cache.check_invariants()
    assert len(cache._blocks) < 8
    assert read(cache, S1, 0) == list(range(50))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.integers(1, 900)),
        st.sampled_from(["cut", "commit", "drop1", "drop2"]),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_random_operations_match_a_model(steps: list[object]) -> None:
    """Uncommitted data is always readable, a read has no gap, and the byte counts are exact."""
    cache = LogCache(CONFIG)
    ends = dict.fromkeys((1, 2, 3), 0)
    uncommitted_from = dict(ends)
    archived: list[tuple[object, dict[int, int]]] = []
    for sequence, step in enumerate(steps):
        if isinstance(step, tuple):
            _, stream_id, size = step
            add(cache, sequence, entry(stream_id, ends[stream_id], size=size))
            ends[stream_id] += 1
        elif step == "cut" and (block := cache.archive()) is not None:
            archived.append((block, dict(ends)))
        elif step == "commit" and archived:
            block, block_ends = archived.pop(0)
            cache.mark_committed(block)
            for stream_id, end in block_ends.items():
                uncommitted_from[stream_id] = max(uncommitted_from[stream_id], end)
        elif isinstance(step, str) and step.startswith("drop"):
            stream_id = int(step[-1])
            cache.drop([StreamId(stream_id)])
            ends[stream_id] += 5
            uncommitted_from[stream_id] = ends[stream_id]
        cache.check_invariants()
        for stream_id, end in ends.items():
            start = cache.start_of(StreamId(stream_id))
            if start is None:
                assert uncommitted_from[stream_id] == end
            else:
                assert start <= uncommitted_from[stream_id]
                assert read(cache, StreamId(stream_id), start) == list(range(start, end))

"""Time bounds exclude data that cannot match, and counts come from metadata if possible: fewer
GETs, the same result.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.lake.arrow.background import background
from penstock.lake.arrow.count import count_records
from penstock.lake.arrow.read_sync import read_slices_sync
from penstock.lake.arrow.row_times import rows_within
from penstock.lake.fetch.errors import ObjectStillMissing, ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.manifest.plan import OffsetRange
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.control import Marker, encode_marker
from penstock.protocol.batch.header import TRANSACTIONAL_MASK, patch_log_append_time
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.format.layout import TAIL_BYTES
from penstock.stream.format.transaction_log import AbortedTransaction
from tests.support.reader_objects import WatchedStore, put_object

_numbers = itertools.count()
ONE_BY_ONE = ReadConfig(gap_bytes_max=0)


class Fixed:
    """A cluster with fixed plans and aborted transactions."""

    def __init__(self, slices: Sequence[Slice], aborted: Iterable[AbortedTransaction]) -> None:
        self.store_url = f"watched:{next(_numbers)}"
        self.wal_store_url = ""
        self.slices = tuple(slices)
        self.aborted_by_stream = {1: list(aborted)}

    def replan(
        self, ranges: Sequence[OffsetRange], timestamp_from_ms: int | None = None
    ) -> list[Slice]:
        (requested,) = ranges
        return [
            replace(part, start_offset=max(part.start_offset, requested.start_offset))
            for part in self.slices
            if part.end_offset > requested.start_offset
        ]

    def aborted(self, ranges: Sequence[OffsetRange]) -> dict[int, list[AbortedTransaction]]:
        return self.aborted_by_stream


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> WatchedStore:
    """Return the store that `cluster_of` reads."""
    watched = WatchedStore()

    def opened(_url: str) -> WatchedStore:
        return watched

    monkeypatch.setattr("penstock.lake.arrow.background.open_store", opened)
    return watched


def cluster_of(slices: Sequence[Slice], aborted: Iterable[AbortedTransaction] = ()) -> Any:
    return Fixed(slices, aborted)


def put(store: WatchedStore, key: str, batches: Sequence[bytes | bytearray]) -> Slice:
    """Write an object with blocks of about 2 KB of stream 1."""
    found = background().run(put_object(store, key, {1: batches}, block_bytes_max=2_000))
    store.gets.clear()
    return found[0]


def batch(
    offset: int, timestamps: Sequence[int], *, append_time: int | None = None, **options: Any
) -> bytearray:
    records = [
        Record(offset + i, timestamp, b"%d" % i, b"v" * 1_000)
        for i, timestamp in enumerate(timestamps)
    ]
    made = encode_batch(records, base_offset=offset, **options)
    if append_time is not None:
        patch_log_append_time(made, 0, append_time)
    return made


def rows(cluster: Any, slices: Sequence[Slice], requested: TimeBounds, **options: Any) -> list[Any]:
    """Return offset and timestamp of the requested rows."""
    found: list[Any] = []
    for arrow in read_slices_sync(
        cluster.store_url, slices, ("offset", "timestamp"), config=ONE_BY_ONE, **options
    ):
        left = rows_within(arrow, requested)
        found += zip(left["offset"].to_pylist(), left["timestamp"].to_pylist(), strict=True)
    return found


def count(*arguments: Any, **options: Any) -> int:
    return sum(count_records(*arguments, **options).values())


def read_bytes(store: WatchedStore) -> int:
    """Return the bytes read by GETs since the last call."""
    found = sum(length for _, _, length in store.gets)
    store.gets.clear()
    return found


@pytest.mark.parametrize("kind", ["log append time", "one record each"])
def test_blocks_newer_than_requested_are_not_read(store: WatchedStore, kind: str) -> None:
    batches = [
        batch(10 * n, [5] * 10, append_time=1_000 * n)
        if kind == "log append time"
        else batch(n, [1_000 * n])
        for n in range(500)
    ]
    whole = put(store, "data/x", batches)
    cluster, times = cluster_of([whole]), TimeBounds(to_ms=49_999)
    found = rows(cluster, [whole], times, times=times)
    assert len(found) == (500 if kind == "log append time" else 50)
    assert read_bytes(store) < TAIL_BYTES + whole.size_bytes / 8
    assert rows(cluster, [whole], times) == found
    assert read_bytes(store) == whole.size_bytes


def test_batches_with_unknown_bounds_are_read(store: WatchedStore) -> None:
    """The second record of each batch is much older than the first."""
    whole = put(store, "data/x", [batch(2 * n, [1_000_000 + n, n]) for n in range(200)])
    times = TimeBounds(to_ms=99)
    found = rows(cluster_of([whole]), [whole], times, times=times)
    assert [offset for offset, _ in found] == list(range(1, 200, 2))
    assert read_bytes(store) >= whole.size_bytes


def test_a_slice_without_gaps_is_counted_without_a_request(store: WatchedStore) -> None:
    whole = put(store, "data/x", [batch(10 * n, [n] * 10) for n in range(100)])
    part = replace(whole, start_offset=13, end_offset=977, record_count=964)
    assert count(cluster_of([part]), [part], frozenset({1})) == 964
    assert store.gets == []


def test_gaps_are_counted_from_the_index_and_partial_batches_from_records(
    store: WatchedStore,
) -> None:
    """Every batch covers ten offsets and contains the records of the even ones."""
    batches = [
        encode_batch(
            [Record(10 * n + i, n, b"k", b"v" * 100) for i in range(0, 10, 2)],
            base_offset=10 * n,
            last_offset=10 * n + 9,
            compression=Compression(n % 5),
        )
        for n in range(100)
    ]
    whole = put(store, "data/x", batches)
    assert count(cluster_of([whole]), [whole], frozenset({1}), ONE_BY_ONE) == 500
    assert len(store.gets) == 1
    store.gets.clear()
    part = replace(whole, start_offset=13, end_offset=977)
    assert count(cluster_of([part]), [part], frozenset({1}), ONE_BY_ONE) == 482
    assert len(store.gets) == 2
    assert read_bytes(store) < whole.size_bytes / 4


def test_markers_and_aborted_records_are_not_counted(store: WatchedStore) -> None:
    options = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
    batches: list[bytes | bytearray] = []
    for n in range(40):
        batches.append(batch(10 * n, range(9), base_sequence=9 * n, **options))
        batches.append(encode_marker(Marker(7, 0, n % 2 == 0, 1), 5, base_offset=10 * n + 9))
    whole = put(store, "data/x", batches)
    assert whole.is_dense
    aborted = [AbortedTransaction(7, 10 * n, 10 * n + 9) for n in range(1, 40, 2)]
    cluster = cluster_of([whole], aborted)
    assert count(cluster, [whole], frozenset()) == 360
    assert count(cluster, [whole], frozenset(), committed=True) == 180


def test_a_replaced_object_is_counted_at_its_new_place(store: WatchedStore) -> None:
    """The first object has gaps, so its index is read; the second one is replaced by two."""
    first = put(store, "data/1", [batch(0, [1] * 5, last_offset=9) for _ in range(1)])
    gone = Slice("data/2", 500, "topic", 1, 1, 10, 50, 400, 39)
    third = put(store, "data/3", [batch(50, [1] * 5, last_offset=59)])
    new = [
        put(store, "data/4", [batch(10, [1] * 10), batch(20, [1] * 3, last_offset=29)]),
        put(store, "data/5", [batch(30, [1] * 20)]),
    ]
    cluster = cluster_of([first, *new, third])
    assert count(cluster, [first, gone, third], frozenset({1})) == 5 + 13 + 20 + 5


def test_lost_and_damaged_objects_are_reported(store: WatchedStore) -> None:
    gone = Slice("data/1", 500, "topic", 1, 1, 0, 10, 400, 9)
    with pytest.raises(ObjectStillMissing):
        count(cluster_of([gone]), [gone], frozenset({1}), pause_ms=0)
    whole = put(store, "data/2", [batch(0, range(200))])
    body = bytearray(background().run(store.get("data/2")))
    body[200] ^= 1
    background().run(store.put("data/2", [bytes(body)]))
    with pytest.raises(ReadError, match="data/2"):
        count(cluster_of([whole]), [whole], frozenset())


def random_batches(rng: Random) -> tuple[list[bytes | bytearray], list[AbortedTransaction], bool]:
    """Return random batches, the aborted transactions, and whether there is a marker."""
    offset, batches, aborted = 0, list[bytes | bytearray](), list[AbortedTransaction]()
    has_markers = rng.random() < 0.3
    for _ in range(rng.randrange(1, 60)):
        count = rng.choice([1, 1, 2, 5, 20])
        stamps = [rng.choice([-1, rng.randrange(100)]) for _ in range(count)]
        kind = rng.choice(["plain", "append", "gaps", "empty", *(["txn"] * 2 * has_markers)])
        codec = rng.choice(list(Compression))
        if kind == "empty":
            batches.append(encode_batch([], base_offset=offset, last_offset=offset + count - 1))
        elif kind == "gaps":
            chosen = sorted(rng.sample(range(count), rng.randrange(1, count + 1)))
            records = [Record(offset + i, stamps[i], None, b"v" * 50) for i in chosen]
            batches.append(
                encode_batch(
                    records, base_offset=offset, last_offset=offset + count - 1, compression=codec
                )
            )
        elif kind == "txn":
            options = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
            batches.append(batch(offset, stamps, compression=codec, base_sequence=0, **options))
            is_commit = rng.random() < 0.5
            marker = Marker(7, 0, is_commit, 1)
            batches.append(encode_marker(marker, 50, base_offset=offset + count))
            if not is_commit:
                aborted.append(AbortedTransaction(7, offset, offset + count))
            count += 1
        else:
            append_time = rng.randrange(100) if kind == "append" else None
            batches.append(batch(offset, stamps, compression=codec, append_time=append_time))
        offset += count
    return batches, aborted, has_markers


@pytest.mark.parametrize("seed", range(60))
def test_pruned_reads_and_counts_equal_those_without_pruning(
    store: WatchedStore, seed: int
) -> None:
    rng = Random(seed)
    batches, aborted, has_markers = random_batches(rng)
    whole = put(store, "data/x", batches)
    low, high = sorted(rng.sample(range(whole.end_offset + 1), 2))
    part = replace(whole, start_offset=low, end_offset=high)
    if not whole.is_dense:
        part = replace(part, record_count=-1)
    else:
        part = replace(part, record_count=high - low)
    bounds = sorted(rng.choices(range(-2, 102), k=2))
    times = rng.choice(
        [
            ALL_TIMES,
            TimeBounds(bounds[0]),
            TimeBounds(to_ms=bounds[0]),
            TimeBounds(bounds[0], bounds[1]),
        ]
    )
    cluster = cluster_of([part], aborted)
    for committed in (False, True):
        by_stream = {1: aborted} if committed else None
        expected = rows(cluster, [part], times, aborted=by_stream)
        assert rows(cluster, [part], times, aborted=by_stream, times=times) == expected
        plain = frozenset[int]() if has_markers else frozenset({1})
        found = count(cluster, [part], plain, ONE_BY_ONE, committed=committed, times=times)
        assert found == len(expected)

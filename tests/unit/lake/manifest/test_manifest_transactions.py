"""Transaction events at the exact boundaries of a range."""

from dataclasses import replace

import pytest

from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.transactions import TransactionEvents
from penstock.objectstore.memory import MemoryStore
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import ObjectRole
from tests.formats.batches import build, event, joined

STREAM = 2
FIRST, SECOND = AbortedTransaction(7, 1, 3), AbortedTransaction(8, 4, 6)


@pytest.fixture
async def slices() -> tuple[MemoryStore, list[Slice]]:
    """Return the txn stream of a log with a transaction in [1, 3] and another in [4, 6], both
    aborted.
    """
    events = [event(0, 2, 1), event(2, 4, -1, FIRST), event(4, 5, 4), event(5, 7, -1, SECOND)]
    built = build(ObjectRole.STREAM, {STREAM: events})
    store = MemoryStore(lambda: 0)
    await store.put("o", joined(built))
    found = Slice("o", built.size_bytes, "t", 0, STREAM, 0, 7, built.ranges[0].size_bytes, 4)
    return store, [found]


@pytest.mark.parametrize(
    ("end", "offset"), [(1, None), (2, 1), (3, 1), (4, 3), (5, 4), (6, 4), (7, 6)]
)
async def test_the_last_event_below_the_end_applies(
    slices: tuple[MemoryStore, list[Slice]], end: int, offset: int | None
) -> None:
    store, found = slices
    last = await TransactionEvents(store).last(found, end)
    assert (None if last is None else last.offset) == offset


@pytest.mark.parametrize(
    ("start", "end", "aborted"),
    [
        (0, 1, []),
        (0, 2, [FIRST]),
        (3, 4, [FIRST]),
        (4, 5, [SECOND]),
        (3, 5, [FIRST, SECOND]),
        (6, 7, [SECOND]),
        (4, 4, []),
    ],
)
async def test_aborted_transactions_of_a_range_are_those_that_overlap_it(
    slices: tuple[MemoryStore, list[Slice]], start: int, end: int, aborted: list[AbortedTransaction]
) -> None:
    store, found = slices
    trimmed = [replace(item, start_offset=start) for item in found]
    for read in (found, trimmed):
        assert await TransactionEvents(store).aborted(read, start, end) == aborted

"""Scripts about a WAL store whose LIST is unordered (S3 Express One Zone) and which has lost a
slot: only a complete LIST contains the slots after it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import penstock.objectstore.in_order as lists
from penstock.base.ids import WalSequence, WalStoreId
from penstock.lake.manifest.errors import EndInDoubt
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ListTooLong
from penstock.stream.format.keys import wal_key
from tests.sim.checkers import Part
from tests.sim.directed import Script, in_cluster
from tests.sim.scripts.wal import check_values
from tests.sim.store import Bucket

PART: Part = ("t", 0)
_STORE: Final = WalStoreId(1)
_VALUES: Final = [b"%d" % number for number in range(12)]
_SHORT: Final = 2
"""Maximum number of keys in a LIST, if it must not be longer."""


async def _lose(script: Script, lost: int) -> tuple[Bucket, str]:
    """Write one slot for each value, and lose one of them. Return its bucket and its key there."""
    await script.create("t")
    await asyncio.sleep(3.0)  # until the manifest contains the topic
    for value in _VALUES:
        await script.write(PART, (b"k", value))
    key = wal_key(script.broker(1).me, WalSequence(lost), _STORE)
    bucket, inner = script.world.stored.find(key)
    bucket.strike(inner, None)
    return bucket, inner


@contextmanager
def _short_lists() -> Iterator[None]:
    before = lists.LISTED_MAX
    lists.LISTED_MAX = _SHORT  # type: ignore[misc]
    try:
        yield
    finally:
        lists.LISTED_MAX = before  # type: ignore[misc]


@in_cluster(wal_stores=1)
async def lose_a_slot(script: Script) -> None:
    """Kill a leader while the store has lost one of its slots, which reappears."""
    bucket, key = await _lose(script, len(_VALUES) - 2)
    script.kill(1)
    await asyncio.sleep(5.0)
    bucket.restore(key)
    await script.until_led(PART, 2)
    await check_values(script, PART, *_VALUES)


@in_cluster(wal_stores=1)
async def lose_a_slot_in_a_long_list(script: Script) -> None:
    """Kill a leader whose store has lost a slot, while the LIST is temporarily too long: the
    recovery waits until it is complete.
    """
    bucket, key = await _lose(script, len(_VALUES) - 2)
    with _short_lists():
        script.kill(1)
        await asyncio.sleep(5.0)
    await asyncio.sleep(5.0)
    bucket.restore(key)
    await script.until_led(PART, 2)
    await check_values(script, PART, *_VALUES)


async def _check_end_in_doubt(view: ClusterView) -> None:
    try:
        await view.refresh()
        (state,) = await view.partitions(["t"])
    except EndInDoubt:
        return
    raise AssertionError(f"the log is said to end at {state.end_offset}")


@in_cluster(wal_stores=1)
async def read_a_tail_with_a_long_list(script: Script) -> None:
    """Read the end of a log from the stores alone, while the WAL store has lost a slot and the LIST
    is too long at first: the next read repeats it.
    """
    bucket, _ = await _lose(script, 0)
    view = ClusterView(script.world.bucket, wal_store=bucket)
    with _short_lists():
        try:
            await _check_end_in_doubt(view)
        except ListTooLong:
            pass
        else:
            raise AssertionError("a part of a LIST is taken for all of it")
    await _check_end_in_doubt(view)

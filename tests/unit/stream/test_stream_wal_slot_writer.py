"""Writing one slot: for any number and order of attempts, the result matches the contents of the
slot.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    StreamId,
    WalSequence,
)
from penstock.objectstore.body import join_body
from penstock.objectstore.errors import ConditionalConflict, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.stream.errors import WalFailed, WalFenced
from penstock.stream.format.builder import (
    BuiltObject,
    StreamRun,
    build_object,
    fence_object,
)
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole
from penstock.stream.wal.slot_writer import SlotWriter
from tests.support.stream_storage import FAST, NOW_MS, entry, settle
from tests.support.waiting import PATIENCE_S

ME, OTHER = BrokerIncarnation(NodeId(1), NodeEpoch(1)), BrokerIncarnation(NodeId(2), NodeEpoch(1))
SLOT = WalSequence(0)
KEY = wal_key(ME, SLOT, IN_STORE)
HEDGING = replace(FAST, wal_hedge_factor=1, wal_hedge_min_ms=1)


def built(stream_id: int = 1) -> BuiltObject:
    return build_object(
        ObjectRole.WAL, ME, SLOT, NOW_MS, [StreamRun(StreamId(stream_id), [entry(stream_id, 0)])]
    )


class Tries(MemoryStore):
    """Each PUT waits until the test completes it: done, done with a lost response, or not done."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[asyncio.Future[str]] = []

    async def put_if_absent(self, key: str, body: Body) -> str:
        self.tries.append(asyncio.get_running_loop().create_future())
        how = await self.tries[-1]
        if how == "refused":
            raise ConditionalConflict(key)
        etag = await super().put_if_absent(key, join_body(body))
        if how == "lost":
            raise Unavailable("put", key, "reset")
        return etag

    async def until_tries(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.tries) < count:  # noqa: ASYNC110 - the writer announces nothing
                await asyncio.sleep(0.001)


async def hedging(store: Tries) -> tuple[SlotWriter, "asyncio.Task[bool]"]:
    writer = SlotWriter(store, HEDGING, Random(1))
    writer._unit_s = 0.001
    task = asyncio.ensure_future(writer.write(KEY, SLOT, built()))
    await store.until_tries(2)
    return writer, task


@pytest.mark.parametrize("first", [0, 1])
async def test_the_faster_of_two_attempts_decides(first: int) -> None:
    store = Tries()
    writer, task = await hedging(store)
    store.tries[first].set_result("done")
    await task
    await writer.stopped()
    assert store.tries[1 - first].cancelled()


async def test_both_attempts_arrive_and_the_response_of_the_first_is_lost() -> None:
    store = Tries()
    _, task = await hedging(store)
    store.tries[0].set_result("lost")
    await settle()
    assert not task.done()
    store.tries[1].set_result("done")
    assert not await task, "the store worked as usual"
    assert (await store.head(KEY)).size_bytes == built().size_bytes


async def test_a_rejected_second_attempt_waits_for_the_first() -> None:
    store = Tries()
    _, task = await hedging(store)
    store.tries[1].set_result("refused")
    await settle()
    assert not task.done()
    store.tries[0].set_result("done")
    assert not await task, "the store worked as usual"


async def test_a_fence_decides_whichever_attempt_finds_it() -> None:
    store = Tries()
    _, task = await hedging(store)
    await store.put(KEY, fence_object(OTHER, SLOT))
    store.tries[1].set_result("done")
    with pytest.raises(WalFenced, match="FENCE object of node 2"):
        await task


async def test_another_object_of_this_writer_is_not_a_success() -> None:
    store = MemoryStore()
    await store.put(KEY, built(2).chunks)
    with pytest.raises(WalFenced, match="WAL object of node 1"):
        await SlotWriter(store, FAST, Random(1)).write(KEY, SLOT, built(1))


async def test_a_damaged_slot_counts_neither_as_written_nor_as_a_fence() -> None:
    store = MemoryStore()
    await store.put(KEY, b"x" * 200)
    with pytest.raises(WalFailed):
        await SlotWriter(store, replace(FAST, wal_put_deadline_ms=20), Random(1)).write(
            KEY, SLOT, built()
        )

"""Run whole storages under seeded faults.

A fenced broker that is still running (a zombie) competes with the recoverers of its WAL, and
streams move between brokers while uploads to the store fail. Every acknowledged record is in the
committed log, logs have no gaps, and acknowledgements arrive in order.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from penstock.base.ids import StreamId
from penstock.objectstore.errors import PreconditionFailed, Unavailable
from penstock.objectstore.faults import Fault, FaultConfig, FaultRule, FaultyStore, Latency
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.stream.recovery.recoverer import recover_wal
from tests.support.stream_metadata import MemoryController
from tests.support.stream_storage import FAST, NOW_MS, GatedStore, Node, entry, settle

STREAMS = (1, 2, 3)


def new_controller() -> MemoryController:
    controller = MemoryController()
    for stream_id in STREAMS:
        controller.create_stream(stream_id)
    return controller


class LossyGate(GatedStore):
    """Loses the responses of some released PUTs although the objects are stored."""

    def __init__(self, store: MemoryStore, rng: Random) -> None:
        super().__init__(store)
        self._rng = rng

    async def put_if_absent(self, key: str, body: Body) -> str:
        try:
            etag = await super().put_if_absent(key, body)
        except PreconditionFailed:
            if self._rng.random() < 0.3:
                raise Unavailable("put", key, "reset") from None
            raise
        if self._rng.random() < 0.3:
            raise Unavailable("put", key, "reset")
        return etag

    async def release_some(self) -> None:
        for key in self._rng.sample(
            sorted(self.waiting), self._rng.randrange(len(self.waiting) + 1)
        ):
            gate = self.waiting.pop(key)
            if not gate.done():
                gate.set_result(None)
            if self._rng.random() < 0.5:
                await settle(self._rng.randrange(4))


@pytest.mark.parametrize("seed", range(40))
async def test_a_zombie_acknowledges_only_recovered_records(seed: int) -> None:
    rng = Random(seed)
    memory, controller = MemoryStore(), new_controller()
    gate = LossyGate(memory, rng)
    zombie = Node(
        gate,
        controller,
        1,
        config=replace(
            FAST, wal_in_flight_max=5, wal_hedge_factor=rng.randrange(2), wal_hedge_min_ms=1
        ),
    )
    recoverers = [Node(memory, controller, 2), Node(memory, controller, 3)]
    try:
        await zombie.open(*STREAMS)
        recoveries: list[asyncio.Future[object]] = []
        for step in range(60):
            if not zombie.storage.fenced and rng.random() < 0.7:
                chosen = rng.sample(STREAMS, rng.randrange(1, 4))
                zombie.append_group(
                    [
                        entry(key, zombie.handles[key].next_offset, rng.randrange(1, 3))
                        for key in chosen
                    ]
                )
            await settle(rng.randrange(6))
            await gate.release_some()
            if step in {20, 25}:
                controller.fence(zombie.identity)
                recoverer = recoverers[len(recoveries)]
                work = recover_wal(
                    memory,
                    recoverer.metadata,
                    zombie.identity,
                    controller.wals[zombie.identity].committed,
                    recoverer=recoverer.identity,
                    now_ms=NOW_MS,
                    config=replace(FAST, recovery_commit_objects_max=2),
                )
                recoveries.append(asyncio.ensure_future(work))
        results = await asyncio.gather(*recoveries, return_exceptions=True)
        assert any(not isinstance(result, BaseException) for result in results), results
        controller.check_invariants()
        for stream_id in STREAMS:
            acknowledged = [end for key, end in zombie.acknowledged if key == stream_id]
            assert acknowledged == sorted(acknowledged)
            end = controller.streams[StreamId(stream_id)].end_offset
            assert max(acknowledged, default=0) <= end
            assert await recoverers[0].read_all(stream_id) == list(range(end))
    finally:
        for node in (zombie, *recoverers):
            await node.storage.abandon()


@pytest.mark.parametrize("seed", range(16))
async def test_streams_move_between_brokers_while_the_store_fails(seed: int) -> None:
    rng = Random(seed)
    memory, controller = MemoryStore(), new_controller()
    faults = FaultConfig(
        latencies=(Latency(0.2, 3.0),),
        rules=(
            FaultRule(Fault.LOST_RESPONSE, 0.08),
            FaultRule(Fault.THROTTLED, 0.05),
            FaultRule(Fault.RESET, 0.05),
        ),
    )
    store = FaultyStore(memory, rng, faults)
    config = replace(
        FAST,
        block_bytes_max=2_000,
        log_cache_bytes_max=20_000,
        wal_delete_grace_ms=0,
        close_in_place_ranges_max=4,
    )
    nodes = [Node(store, controller, number, config=config) for number in (1, 2)]
    epochs = dict.fromkeys(STREAMS, 0)
    owners: dict[int, Node] = {}
    try:
        for _ in range(60):
            stream_id = rng.choice(STREAMS)
            owner = owners.get(stream_id)
            if owner is None:
                epochs[stream_id] += 1
                owner = owners[stream_id] = rng.choice(nodes)
                await owner.open(stream_id, epoch=epochs[stream_id])
            elif rng.random() < 0.25:
                rng.choice([owner.metadata.refuse, owner.metadata.lose_reply])(
                    "commit", rng.randrange(3)
                )
                await owner.storage.close_streams([owner.handles[stream_id]])
                del owners[stream_id], owner.handles[stream_id]
            else:
                for _ in range(rng.randrange(1, 5)):
                    owner.append(stream_id, rng.randrange(1, 4), size=100)
                if rng.random() < 0.5:
                    await owner.storage.flush()
        for stream_id, owner in owners.items():
            await owner.storage.close_streams([owner.handles[stream_id]])
            del owner.handles[stream_id]
        for node in nodes:
            await node.storage.close()
            assert not node.failed
            assert controller.wals[node.identity].committed == node.storage.wal_end
        reader = Node(memory, controller, 9)
        nodes.append(reader)
        for stream_id in STREAMS:
            ends = [end for node in nodes for key, end in node.acknowledged if key == stream_id]
            assert controller.streams[StreamId(stream_id)].end_offset == max(ends, default=0)
            assert await reader.read_all(stream_id) == list(range(max(ends, default=0)))
    finally:
        for node in nodes:
            await node.storage.abandon()
        assert not [error for node in nodes for error in node.fenced_by]

"""The store loses or damages acknowledged WAL slots of dying brokers; they are restored later.

No process writes a fence into a lost slot or reports an intact slot as lost, and store readers fail
rather than end before an acknowledged record. Slots are lost only if a later slot proves the loss.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.base.ids import (
    Millis,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.lake.fetch.errors import ObjectGone
from penstock.lake.manifest.errors import EndInDoubt, ManifestNotFound, WalWalkTooSlow
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record, decode_records
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.keys import WalSlot, parse_wal_key, wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRange, ObjectRole, StreamRange
from penstock.stream.read.object_reader import ObjectReader
from tests.sim.checkers import Part
from tests.sim.store import BucketListener, SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

_RESTORED_AFTER_S = (0.3, 2.0, 8.0)


class LostSlots:
    """A layer between the bucket and its listener. Contains the bytes of lost slots by key."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/damage")
        self._lost: dict[str, bytes] = {}
        self._ever: set[str] = set()
        listener = world.bucket.listener
        assert listener is not None
        self._listener: BucketListener = listener
        world.bucket.listener = self
        world.checker.lost_keys = self._lost
        self._note = world.note
        world.note = self._saw_log

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        return [TailReader(self._world, number, self._ever).run(stop) for number in range(2)]

    @property
    def has_lost(self) -> bool:
        return bool(self._ever)

    # --- the bucket -------------------------------------------------------------------------------

    def written(self, key: str, data: bytes) -> None:
        if key not in self._lost:
            self._listener.written(key, data)
            return
        index = parse_tail(data, len(data), key)
        if not isinstance(index, NeedMore) and index.is_fence:
            self._world.fail(f"a fence is put into {key}, which was durable and is lost")
        del self._lost[key]  # a late copy of its PUT

    def deleting(self, key: str) -> None:
        self._lost.pop(key, None)
        self._listener.deleting(key)

    def _saw_log(self, event: dict[str, Any]) -> None:
        if event["event"] == "wal_slots_lost":
            false = [key for key in event["slots"] if key not in self._ever]
            if false:
                self._world.fail(f"{false} are called lost and are not")
        self._note(event)

    # --- losing and restoring ---------------------------------------------------------------------

    def strike(self) -> None:
        """Kill a broker, or pause and replace it, and lose or damage one of its slots."""
        world, rng = self._world, self._rng
        brokers = [
            broker
            for _, broker in sorted(world.brokers.items())
            if broker.process.held is None and broker.serving
        ]
        victims = [(broker, keys) for broker in brokers if (keys := self._candidates(broker.me))]
        if not victims:
            return
        broker, keys = rng.choice(victims)
        key = rng.choice(keys)
        world.trace("lose_slot", key)
        self._lose(key)
        if rng.random() < 0.7:
            world.crash(broker, rng.choice((0.01, 0.5, 6.0)))
        else:
            world.replace(broker)
            world.later(rng.choice((0.5, 4.0, 15.0)), broker.process.resume, world.loop)

    def _candidates(self, writer: BrokerIncarnation) -> list[str]:
        """Return slots that are not committed, but durable according to the last slot. At most one
        WAL of each broker is damaged at once.
        """
        wal = self._world.metadata.image.nodes.wal(writer)
        if wal is None or wal.ended or any(_slot(key).writer == writer for key in self._lost):
            return []
        present: list[int] = []
        sequence = int(wal.committed)
        misses = 0
        while misses < 20:
            if self._world.bucket.peek(wal_key(writer, WalSequence(sequence), IN_STORE)) is None:
                misses += 1
            else:
                present.append(sequence)
            sequence += 1
        if not present:
            return []
        last = self._index(wal_key(writer, WalSequence(present[-1]), IN_STORE))
        if last is None or last.is_fence:
            return []
        keys = [
            wal_key(writer, WalSequence(slot), IN_STORE)
            for slot in present
            if slot < last.header.durable_below
        ]
        return [key for key in keys if self._world.metadata.image.objects.in_place(key) is None]

    def _index(self, key: str) -> ObjectIndex | None:
        data = self._world.bucket.peek(key)
        try:
            index = None if data is None else parse_tail(data, len(data), key)
        except ObjectCorrupt:
            return None
        return None if isinstance(index, NeedMore) else index

    def _lose(self, key: str) -> None:
        """Lose the slot without telling the listener, because no process did it."""
        bucket, rng = self._world.bucket, self._rng
        data = bucket.peek(key)
        assert data is not None
        self._lost[key] = data
        self._ever.add(key)
        if rng.random() < 0.5:
            del bucket._objects[key]
            bucket._keys.remove(key)
        else:
            at = len(data) - rng.randrange(1, 60)
            MemoryStore._write(bucket, key, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        self._world.later(rng.choice(_RESTORED_AFTER_S), self._restore, key)

    def _restore(self, key: str) -> None:
        """Restore the slot from the versions of the bucket, unless it is committed by now."""
        data = self._lost.pop(key, None)
        slot, image = _slot(key), self._world.metadata.image
        if data is None or (
            image.nodes.wal_is_past(slot.writer, slot.sequence)
            and image.objects.in_place(key) is None
        ):
            return
        self._world.trace("restore_slot", key)
        MemoryStore._write(self._world.bucket, key, data)


class TailReader:
    """Follows the topic with the store alone."""

    def __init__(self, world: "World", number: int, lost: set[str]) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/tail-reader/{number}")
        self._lost = lost
        store: ObjectStore = world.bucket
        if number:
            client = SimStore(world.bucket, world.weather, self._rng, world.trace)
            store = RetryingStore(
                client, RetryPolicy(deadline_ms=10_000), clock=world.loop.time, rng=self._rng
            )
        self._store = store
        self._view = ClusterView(store)
        self._ends: dict[Part, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            is_new = self._rng.random() < 0.3
            if is_new:
                self._view = ClusterView(self._store)
            try:
                await self._inspect(is_new or not self._lost)
            except (ManifestNotFound, ObjectGone, ObjectStoreError, WalWalkTooSlow) as error:
                self._world.trace("tail_reader", type(error).__name__)
            except ObjectCorrupt as error:
                # Readers see damage in transit during faults; a repeated read does not.
                if error.key not in self._lost and self._store is self._world.bucket:
                    self._world.fail(f"a reader takes an object for damaged that is not: {error}")

    async def _inspect(self, is_due: bool) -> None:
        """is_due: the reader must see the acknowledged records. A reader that follows the store
        looks for lost slots only sometimes.
        """
        due = {part: self._due(part) for part in self._world.parts}
        root = await self._view.refresh()
        wals = {wal.writer for wal in root.wals}
        for part in self._world.parts:
            if not self._view.topics(part[0]):
                return
            try:
                states = await self._view.partitions([part[0]])
            except EndInDoubt as error:
                if not any(key in str(error) for key in self._lost):
                    self._world.fail(f"a reader takes a slot for lost that is not: {error}")
                return
            state = states[part[1]]
            acked, committed, running, leader = due[part]
            # A manifest that is older than required may lack a WAL, the end of one, or the current
            # leader.
            if (
                is_due
                and state.leader in (-1, leader)
                and state.end_offset < acked
                and state.committed_end >= committed
                and wals >= running
            ):
                self._world.fail(
                    f"{part}: a reader ends at {state.end_offset} without an error, {acked} was"
                    " acknowledged before"
                )
            if state.end_offset < self._ends.get(part, 0):
                self._world.fail(
                    f"{part}: the end of a reader goes from {self._ends[part]} back to"
                    f" {state.end_offset}"
                )
            self._ends[part] = state.end_offset
            # A trimmed log may start within a batch, which `ObjectReader` refuses.
            is_whole = state.log_start == 0 < state.end_offset
            if is_whole and self._rng.random() < 0.2:
                batches = await self._read(part, state.log_start, state.end_offset)
                self._world.checker.fetched(part, state.end_offset, state.log_start, batches)

    def _due(self, part: Part) -> tuple[int, int, set[BrokerIncarnation], int]:
        """Return the current acknowledged and committed offsets, running WALs and leaders."""
        image = self._world.metadata.image
        topic = image.topics.by_name(part[0])
        if topic is None:
            return 0, 0, set(), -1
        partition = topic.partitions[part[1]]
        committed = image.streams.known(partition.data_stream_id).end_offset
        acked = max(self._world.checker.acked(part).values(), default=-1) + 1
        return (
            acked,
            committed,
            {wal.writer for wal in image.nodes.running_wals()},
            partition.leader,
        )

    async def _read(self, part: Part, start: int, end: int) -> list[list[Record]]:
        objects = ObjectReader(self._store, BlockCache(1))
        found: list[list[Record]] = []
        for item in await self._view.plan([OffsetRange(*part, start, end)]):
            held = StreamRange(
                StreamId(item.stream_id),
                Offset(item.start_offset),
                Offset(item.end_offset),
                item.record_count,
                item.size_bytes,
                Millis(0),
            )
            source = ObjectRange(
                ObjectId(0),
                item.key,
                ObjectRole.STREAM,
                item.object_size_bytes,
                held,
                StreamId(item.stored_stream_id),
            )
            position = item.start_offset
            while position < item.end_offset:
                for batch in await objects.read(
                    [source], position, 1 << 20, end_offset=item.end_offset
                ):
                    for at, header in iter_headers(batch):
                        found.append(decode_records(memoryview(batch)[at:]))
                        position = Offset(header.next_offset)
        return found


def _slot(key: str) -> WalSlot:
    slot = parse_wal_key(key)
    assert slot is not None
    return slot

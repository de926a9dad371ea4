"""Look into a cluster from code without an event loop: which partitions there are, where offsets and timestamps lie, leases.

Invariant: a process has one view per cluster, which goes forward only; work is done on the reader's background loop. All that is remembered
belongs to the process, so this object is only a name: it may be pickled. Every wait has a deadline.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from objectstore.errors import InvalidStoreUrl, ObjectStoreError
from stream.ids import Millis
from stream.manifest.errors import TooManyLeases
from stream.manifest.leases import HeldLease
from stream.manifest.plan import OffsetRange
from stream.manifest.view import ClusterView, PartitionState
from stream.reader.errors import ObjectGone
from stream.reader.read import read_slices
from stream.reader.read_sync import BackgroundLoop, background
from stream.reader.slices import Slice
from stream.spark.errors import InvalidOption, OffsetsMismatch
from stream.spark.offsets import Offsets, TopicPartition, shown
from stream.spark.options import Topics
from stream.spark.ranges import Bounds
from stream.spark.rows import first_not_before

DEADLINE_S = 300.0
"""Of one look, whatever it needs; requests have shorter ones of their own."""

LOOKUPS_MAX = 16
"""Partitions whose timestamps are looked up at once."""

REPLANS_MAX = 3
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""As for Kafka's consumers, patterns do not match them."""


class Found(NamedTuple):
    """What is to be read: partitions with their bounds, topics with their ids."""

    bounds: dict[TopicPartition, Bounds]
    topic_ids: dict[str, str]


_views: "WeakKeyDictionary[BackgroundLoop, dict[tuple[str, str], ClusterView]]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """cluster_id: empty if the store holds only one."""

    store_url: str
    cluster_id: str

    def find(self, topics: Topics, *, read_committed: bool, missing_ok: bool = False) -> Found:
        """As of now. missing_ok: leave out what does not exist. Raises OffsetsMismatch for it otherwise."""
        return background().run(self._find(topics, read_committed, missing_ok), DEADLINE_S)

    def plan(self, ranges: Sequence[OffsetRange], timestamp_from_ms: int | None = None) -> list[Slice]:
        """As of the last look. Raises as `ClusterView.plan`."""
        return background().run(self._plan(ranges, timestamp_from_ms), DEADLINE_S)

    def plan_anew(self, ranges: Sequence[OffsetRange]) -> list[Slice]:
        """As of now."""
        return background().run(self._plan_anew(ranges), DEADLINE_S)

    def first_at(self, timestamps_ms: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int | None]:
        """The first offset of each partition whose record is as young as asked for, as Kafka's offsetsForTimes."""
        return background().run(self._first_at(timestamps_ms, bounds), DEADLINE_S)

    def lease(self, lease_id: UUID, ttl_ms: int, *, renewed: bool) -> str | None:
        """Keep objects of now from being deleted. Answers why that was not possible: the query goes on, plans are renewed if need be."""
        try:
            background().run(self._lease(lease_id, ttl_ms, renewed), DEADLINE_S)
        except (TooManyLeases, ObjectStoreError, ValueError) as error:
            return str(error)
        return None

    def release(self, lease_id: UUID) -> None:
        background().run(self._release(lease_id), DEADLINE_S)

    # --- on the loop ------------------------------------------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        """Called on the loop, as all below."""
        shared = background()
        views = _views.setdefault(shared, {})
        view = views.get((self.store_url, self.cluster_id))
        if view is None:
            try:
                store = await shared.store(self.store_url)
            except InvalidStoreUrl as error:
                raise InvalidOption(f"option 'store': {error}") from None
            view = views[self.store_url, self.cluster_id] = ClusterView(store, self.cluster_id)
        return view

    async def _find(self, topics: Topics, read_committed: bool, missing_ok: bool) -> Found:
        view = await self.view()
        await view.refresh()
        existing = {topic.name: str(topic.topic_id) for topic in view.topics(topics.pattern or None)}
        if topics.pattern:
            names = sorted(existing.keys() - INTERNAL_TOPICS)
        else:
            names = list(topics.names) or sorted({item.topic for item in topics.partitions})
        missing = [name for name in names if name not in existing]
        if missing and not missing_ok:
            raise OffsetsMismatch(
                f"topics do not exist: {', '.join(missing)}; the cluster has {', '.join(sorted(existing)[:20]) or 'none'}"
            )
        names = [name for name in names if name in existing]
        states = await view.partitions(names)
        bounds = {TopicPartition(state.topic, state.partition): _bounds(state, read_committed) for state in states}
        if topics.partitions:
            bounds = _assigned(topics.partitions, bounds, missing_ok)
        return Found(bounds, {name: existing[name] for name in names})

    async def _plan(self, ranges: Sequence[OffsetRange], timestamp_from_ms: int | None) -> list[Slice]:
        return await (await self.view()).plan(ranges, timestamp_from_ms=timestamp_from_ms)

    async def _plan_anew(self, ranges: Sequence[OffsetRange]) -> list[Slice]:
        view = await self.view()
        await view.refresh()
        return await view.plan(ranges)

    async def _first_at(self, timestamps_ms: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int | None]:
        turns = asyncio.Semaphore(LOOKUPS_MAX)

        async def look(item: TopicPartition) -> int | None:
            async with turns:
                return await self._first_of(OffsetRange(*item, *bounds[item]), timestamps_ms[item])

        items = list(timestamps_ms)
        return dict(zip(items, await asyncio.gather(*(look(item) for item in items)), strict=True))

    async def _first_of(self, wanted: OffsetRange, timestamp_ms: int) -> int | None:
        """By the indexes to the object, by its blocks and batches to the record."""
        view = await self.view()
        for attempt in range(REPLANS_MAX + 1):
            try:
                return await self._read_to(await view.plan([wanted], timestamp_from_ms=timestamp_ms), timestamp_ms)
            except ObjectGone as gone:
                if attempt == REPLANS_MAX:
                    raise
                wanted = wanted._replace(start_offset=gone.slice.start_offset)
                await view.refresh()
        raise AssertionError("the last attempt raises")

    async def _read_to(self, slices: Sequence[Slice], timestamp_ms: int) -> int | None:
        store = await background().store(self.store_url)
        for part in slices:
            async with aclosing(read_slices(store, [part], ("offset", "timestamp"), min_timestamp_ms=timestamp_ms)) as batches:
                async for batch in batches:
                    index = first_not_before(batch.column("timestamp"), timestamp_ms)
                    if index is not None:
                        return int(batch.column("offset")[index].as_py())
        return None

    async def _lease(self, lease_id: UUID, ttl_ms: int, renewed: bool) -> None:
        view = await self.view()
        held = await self._held(lease_id)
        await (held.renew if renewed else held.create)(view.root, ttl_ms)

    async def _release(self, lease_id: UUID) -> None:
        await (await self._held(lease_id)).release()

    async def _held(self, lease_id: UUID) -> HeldLease:
        view = await self.view()
        store = await background().store(self.store_url)
        return HeldLease(store, view.cluster_id, lease_id, "spark", _now_ms)


def _bounds(state: PartitionState, read_committed: bool) -> Bounds:
    return Bounds(state.log_start, max(state.log_start, state.last_stable_offset if read_committed else state.end_offset))


def _assigned(wanted: Sequence[TopicPartition], existing: dict[TopicPartition, Bounds], missing_ok: bool) -> dict[TopicPartition, Bounds]:
    missing = [item for item in wanted if item not in existing]
    if missing and not missing_ok:
        raise OffsetsMismatch(f"assigned partitions do not exist: {shown(missing)}")
    return {item: existing[item] for item in wanted if item in existing}


def _now_ms() -> Millis:
    return Millis(time.time_ns() // 1_000_000)

"""Synchronous access to a cluster by its store URL: topics and partitions, plans, offsets by
timestamp, leases.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from penstock.lake.arrow.background import BackgroundLoop, background
from penstock.lake.fetch.errors import ObjectGone, ObjectStillMissing
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.leases import HeldLease
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView, PartitionOffsets
from penstock.objectstore.ports import ObjectStore
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.format.transaction_log import AbortedTransaction

DEADLINE_S: Final = 300.0
"""Deadline of one call of `StoreCluster`. Single requests have shorter deadlines."""

LOOKUPS_MAX: Final = 16
"""Maximum number of partitions whose timestamps are looked up concurrently."""

REPLANS_MAX: Final = 3
"""Maximum number of consecutive new plans without reading a new record. The objects of a fresh plan
exist for at least a minute.
"""

_VIEW_PLANS: Final = 3
"""Number of plans after which a view gives up."""

ALL: Final = "all"
UPLOADED: Final = "uploaded"
TAILS: Final = (ALL, UPLOADED)

_T = TypeVar("_T")
_views: "WeakKeyDictionary[BackgroundLoop, dict[StoreCluster, ClusterView]]" = WeakKeyDictionary()


def check_tail(tail: str, wal_store_url: str) -> str:
    """Return the value. Raise ValueError if it is not one of TAILS, or if the WAL store would not
    be used.
    """
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {', '.join(TAILS)}, got {tail!r}")
    if tail == UPLOADED and wal_store_url:
        raise ValueError("tail='uploaded' reads no WAL store: omit wal_store")
    return tail


@dataclass(frozen=True)
class StoreCluster:
    """A cluster in a store. `cluster_id` may be empty if the store contains only one cluster, and
    `wal_store_url` if the WALs are in the same store.

    Invariant: a process has one view per cluster, which only advances; the work is done on the
    background loop. All state belongs to the process, so this object contains only an address and
    can be pickled. Every wait has a deadline. No broker is contacted. Must not import Arrow at
    import time: Spark starts a process to read the columns, and Arrow would take nearly half of its
    time.
    """

    store_url: str
    cluster_id: str = ""
    wal_store_url: str = ""
    tail: str = ALL
    """`uploaded`: partitions end before the first record that is not in the store."""

    def newest_root(self) -> ManifestRoot:
        """Return the manifest of a fresh view. Raise the errors of `partitions`."""
        return self._with_view(ClusterView.refresh)

    def partitions(self, topic: str, *, committed: bool = False) -> list[PartitionOffsets]:
        """Return the partitions from a fresh view, including last stable offsets if `committed` is
        set.

        This and all methods below raise UnknownPartition, ManifestNotFound, SeveralClusters,
        InvalidStoreUrl or the store's errors.
        """
        return self._with_view(
            lambda view: view.partitions([topic], committed=committed), refresh=True
        )

    def plan(
        self, ranges: Sequence[OffsetRange], timestamp_from_ms: int | None = None
    ) -> list[Slice]:
        """Return slices from the current view. Raise the errors of `ClusterView.plan`."""
        return self._with_view(lambda view: view.plan(ranges, timestamp_from_ms=timestamp_from_ms))

    def replan(
        self, ranges: Sequence[OffsetRange], timestamp_from_ms: int | None = None
    ) -> list[Slice]:
        """Return slices from a fresh view."""
        return self._with_view(
            lambda view: view.plan(ranges, timestamp_from_ms=timestamp_from_ms), refresh=True
        )

    def bodies(self, slices: Sequence[Slice]) -> dict[str, bytes]:
        """Return, by key, the objects of the slices that the view has already read completely.
        Reading those slices takes no GET.
        """

        async def bodies(view: ClusterView) -> dict[str, bytes]:
            return view.bodies_of(slices)

        return self._with_view(bodies)

    def aborted(self, ranges: Sequence[OffsetRange]) -> dict[int, list[AbortedTransaction]]:
        """Return `ClusterView.aborted` from a fresh view. Also raises ObjectStillMissing."""
        return self._with_view(lambda view: view.aborted(ranges), refresh=True)

    def plain(self, ranges: Sequence[OffsetRange]) -> frozenset[int]:
        """Return `ClusterView.plain` from the current view. Also raises ObjectStillMissing."""
        return self._with_view(lambda view: view.plain(ranges))

    def root(self) -> ManifestRoot:
        """Return the manifest of the current view."""

        async def root(view: ClusterView) -> ManifestRoot:
            return view.root

        return self._with_view(root)

    def first_at(self, wanted: Sequence[tuple[OffsetRange, int]]) -> list[int | None]:
        """Return the first offset in each range with a record at or after the timestamp (ms), or
        None: Kafka's offsetsForTimes.

        Also raises ObjectStillMissing and ReadError.
        """
        turns = asyncio.Semaphore(LOOKUPS_MAX)

        async def look_up(view: ClusterView, item: OffsetRange, timestamp_ms: int) -> int | None:
            async with turns:
                return await self._first_of(view, item, timestamp_ms)

        async def look_up_all(view: ClusterView) -> list[int | None]:
            return await asyncio.gather(*(look_up(view, *item) for item in wanted))

        return self._with_view(look_up_all)

    def lease(
        self, lease_id: UUID, root: ManifestRoot, ttl_ms: int, owner: str, *, renewed: bool
    ) -> None:
        """Protect the objects of `root` from deletion for `ttl_ms` from now on. Raise TooManyLeases
        or ObjectStoreError.
        """

        async def lease(view: ClusterView) -> None:
            held = HeldLease(await self.store(), view.cluster_id, lease_id, owner)
            await (held.renew if renewed else held.create)(root, ttl_ms)

        self._with_view(lease)

    def release(self, lease_id: UUID) -> None:
        async def release(view: ClusterView) -> None:
            await HeldLease(await self.store(), view.cluster_id, lease_id, "").release()

        self._with_view(release)

    def _with_view(
        self, use: Callable[[ClusterView], Coroutine[Any, Any, _T]], *, refresh: bool = False
    ) -> _T:
        """Run `use` on the loop. Convert ObjectGone to ObjectStillMissing: the view has already
        planned again.
        """

        async def work() -> _T:
            view = await self.view()
            if refresh:
                await view.refresh()
            try:
                return await use(view)
            except ObjectGone as gone:
                raise ObjectStillMissing(gone.slice, _VIEW_PLANS, is_same=True) from None

        return background().run(work(), DEADLINE_S)

    # --- on the loop ------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        """Return the view of this cluster. This and all methods below run on the loop."""
        shared = background()
        views = _views.setdefault(shared, {})
        key = StoreCluster(self.store_url, self.cluster_id, self.wal_store_url, self.tail)
        view = views.get(key)
        if view is None:
            wal_store = await shared.wal_store(self.store_url, self.wal_store_url)
            view = views[key] = ClusterView(
                await shared.store(self.store_url),
                self.cluster_id,
                wal_store=None if wal_store is None else wal_store.store,
                uploaded_only=self.tail == UPLOADED,
            )
        return view

    async def store(self) -> ObjectStore:
        """Return the store of the objects that plans refer to, including slots in the WAL store."""
        return await background().store(self.store_url, self.wal_store_url)

    async def _first_of(
        self, view: ClusterView, wanted: OffsetRange, timestamp_ms: int
    ) -> int | None:
        """Find the first record: first its object, from the metadata, then the record in the
        object's blocks.
        """
        # Imported here, because this loads Arrow, which few callers need.
        from penstock.lake.arrow.lookup import first_as_young

        store = await self.store()
        for attempt in range(REPLANS_MAX + 1):
            try:
                return await first_as_young(
                    store, await view.plan([wanted], timestamp_from_ms=timestamp_ms), timestamp_ms
                )
            except ObjectGone as gone:
                if attempt == REPLANS_MAX:
                    raise ObjectStillMissing(gone.slice, attempt + 1, is_same=True) from None
                wanted = wanted._replace(start_offset=gone.slice.start_offset)
                await view.refresh()
        raise AssertionError("the last attempt raises")

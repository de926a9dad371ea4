"""Delete destroyed objects and the remaining slots of ended WALs from the store.

This takes one DELETE request per 1,000 objects, one LIST of the leases whenever objects are due or
every 10 minutes, and two LISTs per ended WAL.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.ids import Millis, ObjectId, WalSequence, WalStoreId
from penstock.controller.active.record_ages import Timeline
from penstock.controller.active.writer import Runtime
from penstock.controller.api.messages import Status
from penstock.controller.backup.writer import Backup
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.nodes import removable_wals, remove_wals
from penstock.controller.managers.objects import deletable, objects_removed
from penstock.controller.managers.result import Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.records import MetadataOffset
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import DELETE_BATCH_COUNT
from penstock.stream.errors import WalStoreWrong
from penstock.stream.format.keys import parse_wal_key, wal_prefix
from penstock.stream.ports import IN_STORE, BrokerIncarnation, WalStoreIdentity
from penstock.stream.wal.wal_store import WalStores, check_identity

_log = structlog.get_logger(__name__)
WALS_PER_ROUND_MAX = 20
HOLDS_INTERVAL_S = 600.0
"""Interval at which leases are read while no objects are due. Otherwise, expired leases would
accumulate up to the limit.
"""

Hold = Callable[[], Awaitable[int | None]]
"""Returns the log offset from which destroyed objects must be kept, or None for no limit. After an
ObjectStoreError, nothing may be deleted.
"""


class _EndedWal(NamedTuple):
    """An ended WAL. stores: the WAL stores that may contain slots, except ended ones; None means
    the cluster's own store.
    """

    writer: BrokerIncarnation
    end: WalSequence
    stores: Sequence[WalStoreIdentity | None]


def _stores_of(image: MetadataImage, wal: WalState) -> list[WalStoreIdentity | None]:
    return [
        image.wal_store(store_id)
        for store_id in (*wal.left, wal.store_id)
        if not image.nodes.is_wal_store_ended(store_id)
    ]


def _all_stores_of(image: MetadataImage, wal: WalState) -> list[WalStoreIdentity | None]:
    """Return the WAL's stores, including stores that may contain only a marker because the writer
    was killed before its WAL had moved there.
    """
    stores = _stores_of(image, wal)
    return stores + [store for store in image.wal_store_identities() if store not in stores]


def _is_lost(image: MetadataImage, key: str) -> bool:
    """Return whether the object is in a lost WAL store, where nothing is deleted."""
    slot = parse_wal_key(key)
    return slot is not None and image.nodes.is_wal_store_lost(slot.wal_store)


def _id_of(wal_store: WalStoreIdentity | None) -> WalStoreId:
    return IN_STORE if wal_store is None else wal_store.store_id


class Janitor:
    """Deletes the unneeded objects of one cluster while its controller is active.

    An object is deleted when the read grace period has passed since the commit of its destruction,
    by this process's monotonic clock, and when the backup contains that record: a recovery then
    finds every object that its image refers to (docs/design/disaster-recovery.md). `ObjectRemoved`
    is written after the delete is confirmed; after a crash in between, the delete is repeated.

    In an ended WAL, slots that are registered as objects are kept. So is everything from the slot
    at which the WAL ended, because a fence must outlive every paused writer. The rest is deleted
    once no slot is registered any more and the fence is older than `wal.fence.retention.ms`, by the
    wall clocks of the store and the controller.

    The manifest is read before the leases. A reader is therefore safe if its root is still the
    newest one after it has written its lease.
    """

    def __init__(
        self,
        config: ControllerConfig,
        runtime: Runtime,
        backup: Backup,
        wal_stores: WalStores,
        *,
        timeline: Timeline,
        now: MonotonicClock,
        now_ms: WallClock,
        holds: Sequence[Hold] = (),
        wal_hold: Hold | None = None,
    ) -> None:
        """holds: holds for objects. wal_hold: the hold for slots of ended WALs, which leases do not
        protect.
        """
        self._config = config
        self._runtime = runtime
        self._backup = backup
        self._wal_stores = wal_stores
        self._store = wal_stores.store
        self._timeline = timeline
        self._now = now
        self._now_ms = now_ms
        self._holds = holds
        self._holds_read_at = now()
        self._wal_hold = wal_hold
        self._seen_ended: dict[BrokerIncarnation, tuple[float, MetadataOffset]] = {}
        """The time when each ended WAL was first seen, and the end of the metadata log at that
        time.
        """
        self._cleaned: dict[BrokerIncarnation, tuple[float, Millis]] = {}
        """The time when the remaining slots of each ended WAL were deleted, and the modification
        time of the WAL's fence in the store.
        """

        self._protected_from: int | None = None
        """Log offset from which slots in WAL stores were protected in the last round."""
        self.leased_bytes = 0
        """Bytes of destroyed slots in WAL stores that leases protected in the last round."""

    async def run(self) -> None:
        """Delete objects until cancelled or until the runtime ends. After a store error, the next
        round retries.
        """
        while True:
            try:
                while await self.delete_destroyed():
                    pass
                await self._delete_in_wal_stores()
                await self.clean_ended_wals()
                await self.remove_old_wals()
                if self._now() - self._holds_read_at >= HOLDS_INTERVAL_S:
                    await self._read_holds()
            except ObjectStoreError as error:
                _log.warning("janitor_round_failed", error=str(error))
            except TimeoutError:
                _log.warning(
                    "janitor_round_failed",
                    error="the controller is overloaded, or the backup is stalled",
                )
            await asyncio.sleep(self._config.janitor_interval_ms / 1_000)

    async def _delete_in_wal_stores(self) -> None:
        """Delete destroyed slots in WAL stores, and remove those in lost WAL stores from the
        metadata. An unavailable or wrong WAL store must not prevent the deletion of other objects.
        """
        if not self._wal_stores.is_used and not any(self._runtime.image.nodes.lost_wal_stores()):
            return
        listed = await self._runtime.with_committed_image(MetadataImage.wal_store_identities)
        try:
            for wal_store in listed:
                await check_identity(self._store, wal_store)
            while await self.delete_destroyed(in_wal_stores=True):
                pass
            self.leased_bytes = await self._runtime.with_committed_image(self._bytes_protected)
        except (ObjectStoreError, WalStoreWrong) as error:
            _log.warning("wal_store_not_cleaned", error=str(error))

    def _bytes_protected(self, image: MetadataImage) -> int:
        """Return the size of the destroyed slots in WAL stores that were kept in the last round
        only because of the holds, after their grace period had ended.
        """
        protected_from = self._protected_from
        if protected_from is None:
            return 0
        now, grace_ms = self._now(), self._config.read_grace_ms
        due = deletable(
            image,
            lambda offset: self._timeline.age_s(offset, now),
            grace_ms,
            grace_ms,
            len(image.objects),
            in_wal_stores=True,
        )
        return sum(state.size_bytes for state in due if state.since >= protected_from)

    async def delete_destroyed(self, *, in_wal_stores: bool = False) -> int:
        """Delete one batch of objects whose grace period has ended, either in the cluster's own
        store or in WAL stores. Return the number of deleted objects, or 0 if none are due.
        """
        grace_ms, late_ms = self._config.read_grace_ms, self._config.late_put_grace_ms

        def due(
            image: MetadataImage,
        ) -> tuple[list[tuple[ObjectId, str | None, MetadataOffset]], MetadataOffset]:
            now = self._now()
            self._timeline.note(image.end_offset, now)
            states = deletable(
                image,
                lambda offset: self._timeline.age_s(offset, now),
                grace_ms,
                late_ms,
                DELETE_BATCH_COUNT,
                in_wal_stores=in_wal_stores,
            )
            found = [
                (state.object_id, None if _is_lost(image, state.key) else state.key, state.since)
                for state in states
            ]
            return found, image.end_offset

        objects, offset = await self._runtime.with_committed_image(due)
        protected_from = await self._read_holds() if objects else None
        if in_wal_stores:
            self._protected_from = protected_from
        if protected_from is not None:
            objects = [found for found in objects if found[2] < protected_from]
        if not objects:
            return 0
        await self._backed_up(offset)
        await self._store.delete([key for _, key, _ in objects if key is not None])
        removed = [object_id for object_id, _, _ in objects]
        reply = await self._runtime.submit(
            "ObjectsRemoved", lambda image, _: Result(objects_removed(image, removed))
        )
        _log.info("objects_deleted", count=len(objects))
        return len(objects) if reply.status is Status.OK else 0

    async def _read_holds(self) -> int | None:
        """Return the log offset from which destroyed objects must be kept, or None."""
        self._holds_read_at = self._now()
        holds = [await hold() for hold in self._holds]
        return min((found for found in holds if found is not None), default=None)

    async def clean_ended_wals(self) -> int:
        """Delete the remaining slots of WALs that ended at least a read grace period ago, or before
        this process started. Return the number of deleted objects.
        """

        def ended(
            image: MetadataImage,
        ) -> tuple[list[_EndedWal], MetadataOffset]:
            wals = [
                _EndedWal(wal.writer, wal.end, _stores_of(image, wal))
                for wal in image.nodes.wals()
                if wal.end is not None and wal.writer not in self._cleaned
            ]
            return wals, image.end_offset

        now = self._now()
        deleted = 0
        cleaned = 0
        wals, offset = await self._runtime.with_committed_image(ended)
        protected_from = None if self._wal_hold is None or not wals else await self._wal_hold()
        failed: set[WalStoreIdentity | None] = set()
        for wal in wals:
            writer = wal.writer
            since, seen_offset = self._seen_ended.setdefault(writer, (now, offset))
            if (now - since) * 1_000 < self._config.read_grace_ms or cleaned == WALS_PER_ROUND_MAX:
                continue
            if protected_from is not None and seen_offset > protected_from:
                continue
            if failed.intersection(wal.stores):
                continue
            await self._backed_up(offset)
            try:
                count, fence_ms = await self._clean_wal(wal)
            except (ObjectStoreError, WalStoreWrong) as error:
                # Skip the failed store: each further request might take as long to fail, while
                # nothing else is deleted.
                failed.update(self._failing(wal.stores, error))
                continue
            deleted += count
            cleaned += 1
            self._cleaned[writer] = now, fence_ms
            del self._seen_ended[writer]
        return deleted

    @staticmethod
    def _failing(
        stores: Sequence[WalStoreIdentity | None], error: Exception
    ) -> list[WalStoreIdentity | None]:
        """Return the WAL stores among `stores`, any of which may have failed. Raises the error if
        there are none.
        """
        wal_stores = [wal_store for wal_store in stores if wal_store is not None]
        if not wal_stores:
            raise error
        ids = [wal_store.store_id for wal_store in wal_stores]
        _log.warning("wal_store_not_cleaned", store_ids=ids, error=str(error))
        return [*wal_stores]

    async def remove_old_wals(self) -> int:
        """Delete the fences of WALs that ended long ago, and remove these WALs. Return the number
        of removed WALs.
        """
        now, limit_ms = self._now(), self._now_ms() - self._config.fence_kept_ms
        old = [
            writer
            for writer, (since, fence_ms) in self._cleaned.items()
            if fence_ms < limit_ms and (now - since) * 1_000 >= self._config.late_put_grace_ms
        ]
        if not old:
            return 0
        removable, offset = await self._runtime.with_committed_image(
            lambda image: (
                [
                    (writer, _all_stores_of(image, wal))
                    for writer in removable_wals(image, old)[:WALS_PER_ROUND_MAX]
                    if (wal := image.nodes.wal(writer)) is not None
                ],
                image.end_offset,
            )
        )
        if not removable:
            return 0
        await self._backed_up(offset)
        writers = await self._delete_wals(removable)
        if not writers:
            return 0
        reply = await self._runtime.submit(
            "RemoveWals", lambda image, _: Result(remove_wals(image, writers))
        )
        if reply.status is not Status.OK:
            return 0
        for writer in writers:
            del self._cleaned[writer]
        _log.info("old_wals_removed", count=len(writers))
        return len(writers)

    async def _delete_wals(
        self, removable: Sequence[tuple[BrokerIncarnation, Sequence[WalStoreIdentity | None]]]
    ) -> list[BrokerIncarnation]:
        """Delete all objects of these WALs. Return the deleted WALs; those in a failed WAL store
        are skipped.
        """
        writers: list[BrokerIncarnation] = []
        failed: set[WalStoreIdentity | None] = set()
        for writer, stores in removable:
            if failed.intersection(stores):
                continue
            try:
                for wal_store in stores:
                    await self._delete_wal(writer, wal_store)
            except (ObjectStoreError, WalStoreWrong) as error:
                failed.update(self._failing(stores, error))
            else:
                writers.append(writer)
        return writers

    async def _delete_wal(
        self, writer: BrokerIncarnation, wal_store: WalStoreIdentity | None
    ) -> None:
        """Delete all objects of a WAL, including its marker in a WAL store."""
        if wal_store is not None:
            await check_identity(self._store, wal_store)
        prefix = wal_prefix(writer, _id_of(wal_store))
        keys = [info.key async for info in self._store.list(prefix)]
        for at in range(0, len(keys), DELETE_BATCH_COUNT):
            await self._store.delete(keys[at : at + DELETE_BATCH_COUNT])

    async def _backed_up(self, offset: MetadataOffset) -> None:
        """Wait until the backup includes the image up to `offset`. Raises TimeoutError while the
        store does not accept backups.
        """
        async with asyncio.timeout(self._config.request_timeout_ms / 1_000):
            await self._backup.covered(offset)

    async def _clean_wal(self, wal: _EndedWal) -> tuple[int, Millis]:
        """Delete the slots below the end. The fence is at the end, possibly followed by slots that
        a paused writer has written and nobody reads. Return the number of deleted slots, and the
        modification time of the newest remaining slot, or 0 after a graceful end, which needs no
        fence.
        """
        writer = wal.writer
        keys: list[str] = []
        fence_ms = Millis(0)
        for wal_store in wal.stores:
            if wal_store is not None:
                await check_identity(self._store, wal_store)
            async for info in self._store.list(wal_prefix(writer, _id_of(wal_store))):
                slot = parse_wal_key(info.key)
                if slot is None or slot.writer != writer:
                    continue
                if slot.sequence < wal.end:
                    keys.append(info.key)
                else:
                    fence_ms = max(fence_ms, Millis(info.modified_ms))
        unregistered = await self._runtime.with_committed_image(
            lambda image: [key for key in keys if image.objects.in_place(key) is None]
        )
        for at in range(0, len(unregistered), DELETE_BATCH_COUNT):
            await self._store.delete(unregistered[at : at + DELETE_BATCH_COUNT])
        if unregistered:
            _log.info(
                "ended_wal_cleaned",
                node_id=writer.node_id,
                node_epoch=writer.node_epoch,
                deleted=len(unregistered),
            )
        return len(unregistered), fence_ms

"""Rebuild the metadata of a cluster from the store alone: the newest snapshot, the backup of the
log, and the WALs. See docs/design/disaster-recovery.md.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.base.clock import WallClock
from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    WalSequence,
    WalStoreId,
)
from penstock.controller.api.errors import RecoveryRefused
from penstock.controller.backup.layout import LogObject, LogTail
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore, copy_image
from penstock.controller.disaster_recovery.plan import (
    END_UNKNOWN,
    Gap,
    Rebuilt,
    WalkedSlot,
    WalkedWal,
    gaps_of_lost_stores,
    missing_objects,
    next_base,
    orphans_of,
    rebuild,
    wals_to_walk,
    without_missing,
    without_missing_kept,
)
from penstock.controller.disaster_recovery.report import Report, WalFound
from penstock.controller.managers.lost_ranges import objects_in
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset, Record, WalStoreLost
from penstock.controller.metadata.wal_losses import accepted_losses
from penstock.controller.raft.messages import Base, Members
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.format.keys import (
    DATA_ROOT,
    META_ROOT,
    WAL_ROOT,
    parse_cluster_id,
    parse_data_key,
    parse_wal_key,
    wal_root,
)
from penstock.stream.ports import IN_STORE, BrokerIncarnation, WalStoreIdentity
from penstock.stream.recovery.recoverer import WalWalker
from penstock.stream.recovery.salvage import BadSlot
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores, check_identity, is_readable

QUIET_MS_MIN = 30_000
"""If the store was last written to less than this long ago, the cluster may still be running.

Broker sessions and elections take a few seconds.
"""

_RECOVERER = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))
"""The writer in a recovery's fences, which are not written by a broker."""

_WALKS_MAX = 8
_NAMED_MAX = 5
"""Maximum number of missing ranges listed in an error."""

_READING = StreamConfig()
"""Read-ahead and tail sizes, the same as for brokers."""

_REPLAY_COUNT = 5_000
_NOTHING = Base(0, 0, 0, Members(()))

Progress = Callable[[str, int], None]
"""Callback with the current step and its progress as a count. It is called often."""


@dataclass(slots=True)
class _Found:
    """The image built from snapshot and backup, and its sources. `base` is the last known position
    in the Raft log.
    """

    image: MetadataImage
    snapshot: MetadataOffset | None
    tail: LogTail
    base: Base
    object_count: int
    newest_ms: int
    already_recovered: bool


@dataclass(slots=True)
class _Listed:
    """Objects that were listed in the store."""

    wals: dict[BrokerIncarnation, WalStoreId]
    """The store of each WAL."""
    wal_keys: set[str]
    data_ids: set[ObjectId]
    newest_ms: int


async def cluster_ids(store: ObjectStore) -> list[str]:
    """Return the ids of the clusters with metadata in this store. This takes one LIST per
    cluster.
    """
    found: list[str] = []
    start_after = ""
    while True:
        first = await anext(aiter(store.list(META_ROOT, start_after=start_after)), None)
        if first is None:
            return found
        cluster_id = parse_cluster_id(first.key)
        if cluster_id is not None:
            found.append(cluster_id)
        # "0" is the character that follows "/".
        start_after = first.key if cluster_id is None else f"{META_ROOT}{cluster_id}0"


class Recovery:
    """Recovers one cluster. `look` only reads; `run` performs the recovery.

    First, a fence ends the backup, so that no controller of the old history can acknowledge or
    delete anything after the image is read. Then every WAL is read from its committed slot and
    fenced. Finally, the snapshot of the new history is written atomically. Nothing is deleted. A
    recovery may be repeated after any step: it finds the existing fences and continues, or it finds
    the recovery complete.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        *,
        now_ms: WallClock,
        voters: Sequence[int] = (),
        progress: Progress = lambda _, __: None,
        wal_store: ConfiguredWalStore | None = None,
        abandon_wal_store: bool = False,
    ) -> None:
        """Prepare a recovery.

        `voters` are the ids of the controllers of the new history; if empty, those in the backup.
        wal_store: required if the metadata contains a WAL store. abandon_wal_store: recover without
        the WAL store, because it is lost.
        """
        self._abandon_wal_store = abandon_wal_store
        self._wal_stores = WalStores(store, wal_store)
        self._store = store = self._wal_stores.store
        self._cluster_id = cluster_id
        self._log = BackupLog(store, cluster_id)
        self._snapshots = SnapshotStore(store, cluster_id, kept=2)
        self._now_ms = now_ms
        self._voters = tuple(voters)
        self._progress = progress

    async def look(self) -> Report:
        """Report the state of the store and the actions of `run`. Only reads.

        Raises RecoveryRefused, SnapshotCorrupt, BackupCorrupt, and the errors of the store.
        """
        return (await self._survey(await self._load(), fence=False))[0]

    async def run(self, *, force: bool = False, accept_loss: bool = False) -> Report:
        """Recover the cluster.

        `force` recovers even if the store was written to recently. It also starts a new history if
        the store has not changed since the last recovery. `accept_loss` recovers even if data is
        missing.
        """
        report = await self.look()
        if report.already_recovered and not force:
            return report
        if (
            not force
            and not report.history_ended
            and report.quiet_ms is not None
            and report.quiet_ms < QUIET_MS_MIN
        ):
            raise RecoveryRefused(
                f"something was written {max(report.quiet_ms, 0) / 1_000:.1f} s ago: a controller"
                " or broker may be alive. Make sure that all of them are stopped, and wait until"
                f" it is {QUIET_MS_MIN // 1_000} s; or use --force: running processes are then"
                " fenced, and lose unacknowledged records"
            )
        # A running cluster deletes objects without references. An image older than such a deletion
        # still refers to these objects.
        self._check_gaps(report, accept_loss=accept_loss or force)
        base = await self._end_history(report.voters)
        found = await self._load()
        report, rebuilt, trims = await self._survey(found, fence=True, accept_loss=accept_loss)
        self._check_gaps(report, accept_loss=accept_loss)
        image = found.image
        image.apply_all(rebuilt.records)
        image.apply_all(trims)
        image.check_invariants()
        self._progress("writing the snapshot", 0)
        await self._snapshots.save(copy_image(image)[0], base)
        return msgspec.structs.replace(
            report, new_offset=base.offset, voters=base.members.voters, already_recovered=False
        )

    def _check_gaps(self, report: Report, *, accept_loss: bool) -> None:
        if report.gaps and not accept_loss:
            named = "; ".join(map(_place, report.gaps[:_NAMED_MAX]))
            raise RecoveryRefused(
                f"data is missing in {len(report.gaps)}"
                f" places{', first' if len(report.gaps) > _NAMED_MAX else ''}: {named}. Restore the"
                " objects (--dry-run shows all places); or use --accept-loss: a partition then"
                " begins above its last missing object, and ends where the first gap in its WALs"
                " begins"
            )

    async def _load(self) -> _Found:
        snapshot = await self._snapshots.load_newest()
        listed = await self._log.listed()
        start = snapshot.offset if snapshot else MetadataOffset(0)
        if snapshot is None and not listed.first_offsets:
            await self._refuse_unknown()
        tail = await self._log.tail(listed.first_offsets, start)
        newest = await self._snapshots.newest_offset()
        if tail.fence is not None and newest is not None and newest >= tail.fence.base.offset:
            raise RecoveryRefused(
                f"the newest snapshot, at offset {newest}, cannot be read, and earlier ones"
                " belong to the history before a recovery"
            )
        image = snapshot.image if snapshot else MetadataImage()
        for at in range(0, len(tail.records), _REPLAY_COUNT):
            image.apply_all(decode_record(raw) for raw in tail.records[at : at + _REPLAY_COUNT])
            self._progress("replaying the backup", at)
            await asyncio.sleep(0)
        if image.cluster_id != self._cluster_id:
            raise RecoveryRefused(
                f"the metadata under {self._cluster_id!r} are those of cluster {image.cluster_id!r}"
            )
        is_fresh = snapshot is not None and not tail.records and tail.fence is None
        base = tail.base or (snapshot.base if snapshot else _NOTHING)
        already = is_fresh and await self._begins_here(listed.first_offsets, start)
        return _Found(
            image,
            snapshot.offset if snapshot else None,
            tail,
            base,
            len(listed.first_offsets),
            listed.newest_ms,
            already,
        )

    async def _begins_here(self, first_offsets: Sequence[int], start: int) -> bool:
        """Return whether a recovery started the history at `start`."""
        if not first_offsets:
            return False
        last = await self._log.read(first_offsets[-1])
        return last.is_fence and last.end_offset == start

    async def _refuse_unknown(self) -> None:
        known = await cluster_ids(self._store)
        there = (
            f"there are: {', '.join(known)}"
            if known
            else "there is no cluster in it at all: check the URL"
        )
        raise RecoveryRefused(
            f"the store contains neither a snapshot nor a backup of cluster {self._cluster_id!r};"
            f" {there}"
        )

    async def _end_history(self, voters: Sequence[int]) -> Base:
        """Write the fence at the next key of the backup, and return the start of the new history.

        If there already is a fence, it determines the start.
        """
        while True:
            found = await self._load()
            if found.tail.fence is not None:
                return found.tail.fence.base
            base = next_base(found.base, found.tail.end, voters)
            try:
                await self._log.put(
                    LogObject(
                        found.tail.end,
                        base,
                        self._now_ms(),
                        self._cluster_id,
                        is_fence=True,
                        records=[],
                    )
                )
            except PreconditionFailed:
                continue
            return base

    async def _survey(
        self, found: _Found, *, fence: bool, accept_loss: bool = False
    ) -> tuple[Report, Rebuilt, list[Record]]:
        image = found.image
        wal_stores = image.wal_store_identities()
        lost = {store.store_id for store in image.nodes.lost_wal_stores()}
        newly_lost: list[Record] = []
        if self._abandon_wal_store:
            await self._check_lost(wal_stores)
            newly_lost = [WalStoreLost(store.store_id) for store in wal_stores]
            lost |= {store.store_id for store in wal_stores}
            wal_stores = []
        await self._check_wal_stores(wal_stores)
        listed = await self._list(wal_stores)
        # Slots missing from the LIST are considered lost, so this must be the right store.
        await self._check_wal_stores(wal_stores)
        wals = await self._walk(
            image,
            wals_to_walk(image, listed.wals),
            listed.wals,
            lost,
            fence=fence,
            fence_vanished=accept_loss,
        )
        orphans = orphans_of(image, listed.data_ids)
        rebuilt = rebuild(image, wals, orphans=orphans, now_ms=self._now_ms(), lost=lost)
        missing = missing_objects(
            image, listed.data_ids, listed.wal_keys, without=objects_in(image, lost)
        )
        trims, given_up = without_missing(image, missing)
        lost_gaps, lost_intact = gaps_of_lost_stores(image, lost)
        kept = without_missing_kept(image, listed.data_ids, listed.wal_keys)
        newest_ms = max(found.newest_ms, listed.newest_ms)
        known = found.base.members.voters or (0,)
        report = Report(
            cluster_id=self._cluster_id,
            snapshot_offset=found.snapshot,
            backup_object_count=found.object_count,
            backup_offset=found.tail.end,
            quiet_ms=self._now_ms() - newest_ms if newest_ms else None,
            topic_count=len(list(image.topics)),
            partition_count=sum(len(topic.partitions) for topic in image.topics),
            voters=self._voters or known,
            wals=[_wal_found(image, wal) for wal in wals],
            range_count=rebuilt.range_count,
            record_count=rebuilt.record_count,
            size_bytes=rebuilt.size_bytes,
            gaps=missing + rebuilt.gaps + lost_gaps,
            given_up=given_up + lost_intact,
            lost_wal_stores=sorted(lost),
            orphan_count=len(orphans),
            history_ended=found.tail.fence is not None,
            already_recovered=found.already_recovered,
        )
        return report, rebuilt, [*kept, *trims, *newly_lost]

    async def _check_lost(self, wal_stores: Sequence[WalStoreIdentity]) -> None:
        """Check that the configured WAL store is not one of the abandoned ones. Raises
        RecoveryRefused if it is, or if none is configured.
        """
        self._wal_stores.follow(wal_store.store_id for wal_store in wal_stores)
        for wal_store in wal_stores:
            if reason := await self._why_not_lost(wal_store):
                raise RecoveryRefused(reason)
        self._wal_stores.follow(())

    async def _why_not_lost(self, wal_store: WalStoreIdentity) -> str:
        if self._wal_stores.configured is None:
            return (
                f"whether WAL store {wal_store.store_id} is lost cannot be checked: specify the URL"
                " that it had with --wal-store"
            )
        if await is_readable(self._store, wal_store):
            return (
                f"WAL store {wal_store.store_id} is not lost, its identity can be read: recover"
                " with it"
            )
        return ""

    async def _check_wal_stores(self, wal_stores: Sequence[WalStoreIdentity]) -> None:
        """Check that the WAL stores of the cluster are reachable and are the right ones, because
        slots that are missing in a different store are not lost. Raises RecoveryRefused,
        WalStoreWrong.
        """
        self._wal_stores.follow(wal_store.store_id for wal_store in wal_stores)
        for wal_store in wal_stores:
            if self._wal_stores.configured is None:
                raise RecoveryRefused(
                    f"the newest records of cluster {self._cluster_id!r} are in its WAL store"
                    f" {wal_store.store_id} with UUID {wal_store.uuid}, which is not configured:"
                    " specify it with --wal-store; if it is lost, --dry-run --abandon-wal-store"
                    " shows what this costs"
                )
            await check_identity(self._store, wal_store)

    async def _list(self, wal_stores: Sequence[WalStoreIdentity]) -> _Listed:
        """List all WAL slots and data objects. This takes one LIST per 1,000 keys."""
        listed = _Listed({}, set(), set(), 0)
        count = 0
        for root in [WAL_ROOT, *(wal_root(wal_store.store_id) for wal_store in wal_stores)]:
            async for info in self._store.list(root):
                slot = parse_wal_key(info.key)
                if slot is not None:
                    listed.wals[slot.writer] = slot.wal_store
                    listed.wal_keys.add(info.key)
                    listed.newest_ms = max(listed.newest_ms, info.modified_ms)
                count += 1
                self._progress("listing the WALs", count)
        count = 0
        async for info in self._store.list(DATA_ROOT):
            object_id = parse_data_key(info.key)
            if object_id is not None:
                listed.data_ids.add(object_id)
            count += 1
            self._progress("listing the objects", count)
        return listed

    async def _walk(
        self,
        image: MetadataImage,
        wals: Collection[tuple[BrokerIncarnation, WalSequence]],
        listed: Mapping[BrokerIncarnation, WalStoreId],
        lost: Collection[WalStoreId],
        *,
        fence: bool,
        fence_vanished: bool,
    ) -> list[WalkedWal]:
        turns = asyncio.Semaphore(_WALKS_MAX)
        by_id = {wal_store.store_id: wal_store for wal_store in image.wal_store_identities()}
        slot_count = 0

        async def walk(writer: BrokerIncarnation, start: WalSequence) -> WalkedWal:
            nonlocal slot_count
            async with turns:
                slots: list[WalkedSlot] = []
                wal_store = image.wal_store_of(writer)
                if image.nodes.wal(writer) is None:
                    wal_store = by_id.get(listed.get(writer, IN_STORE))
                store_id = IN_STORE if wal_store is None else wal_store.store_id
                if store_id in lost:
                    return WalkedWal(writer, start, start, (), (), store_id)
                walker = WalWalker(
                    self._store,
                    writer,
                    start,
                    recoverer=_RECOVERER if fence else None,
                    wal_store=wal_store,
                    # The backup may not contain the last streams that this broker opened.
                    must_exist=writer in listed or bool(image.streams.opened_by(writer)),
                    accepted=accepted_losses(image, writer),
                    now_ms=self._now_ms(),
                    config=_READING,
                    fence_vanished=fence_vanished,
                )
                bad: list[BadSlot] = []
                async for key, found in walker.slots():
                    if isinstance(found, BadSlot):
                        bad.append(found)
                    else:
                        slots.append(
                            WalkedSlot(walker.end, key, found.object_size_bytes, found.ranges)
                        )
                    slot_count += 1
                    self._progress("reading the WALs", slot_count)
                return WalkedWal(writer, start, walker.end, tuple(slots), tuple(bad), store_id)

        try:
            async with asyncio.TaskGroup() as group:
                walks = [group.create_task(walk(writer, start)) for writer, start in wals]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in walks]


def _place(gap: Gap) -> str:
    if gap.stream_id < 0:
        return gap.what
    name = f"{gap.topic}-{gap.partition}" if gap.topic else f"stream {gap.stream_id}"
    if gap.end_offset == END_UNKNOWN:
        return f"{name} from offset {gap.start_offset} on, {gap.what}"
    return f"{name} offsets [{gap.start_offset}, {gap.end_offset}), {gap.what}"


def _wal_found(image: MetadataImage, wal: WalkedWal) -> WalFound:
    return WalFound(
        node_id=wal.writer.node_id,
        node_epoch=wal.writer.node_epoch,
        known=image.nodes.wal(wal.writer) is not None,
        start=wal.start,
        end=wal.end,
        slot_count=len(wal.slots),
    )

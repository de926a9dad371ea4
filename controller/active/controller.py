"""The state that exists only while this controller is active: the writer, the broker sessions and
the periodic tasks. There is one object per epoch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog

from penstock.base.clock import MonotonicClock, WallClock
from penstock.controller.active.dead_wals import DeadWals
from penstock.controller.active.dispatch import Dispatch
from penstock.controller.active.forwarding import RequestAuthorizer
from penstock.controller.active.janitor import Janitor
from penstock.controller.active.leases import LeaseBook
from penstock.controller.active.lost_ranges import LostRanges
from penstock.controller.active.manifest.publisher import ManifestPublisher
from penstock.controller.active.move_traces import MoveListener
from penstock.controller.active.periodic import OVER, Ticks
from penstock.controller.active.record_ages import Timeline
from penstock.controller.active.server import ControllerService, Lead
from penstock.controller.active.sessions import Sessions
from penstock.controller.active.snapshotter import Snapshotter
from penstock.controller.active.wal_store import WalStoreRegistrar
from penstock.controller.active.writer import Runtime
from penstock.controller.api.errors import (
    BackupCorrupt,
    InvalidConfig,
    NotLeader,
    StoreNotEmpty,
)
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.new_streams import NewStreams
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.backup.writer import Backup
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.result import Result
from penstock.controller.metadata.features import newest_levels
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ClusterRecord, MetadataOffset, Record
from penstock.controller.raft.replicated_log import Quorum
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.stream.format.keys import (
    DATA_ROOT,
    LEASE_ROOT,
    MANIFEST_ROOT,
    META_ROOT,
    WAL_ROOT,
)
from penstock.stream.wal.wal_store import WalStores

_log = structlog.get_logger(__name__)
_CHECK_S = 1.0
"""Maximum time to wait for the store to return the end of the backup. An unavailable store must not
stop a quorum.
"""


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state recovered by a controller when it becomes active.

    image: the image as of the quorum's committed end, which belongs to the writer from now on.
    snapshot_offset: the offset of the newest snapshot, or None. began_empty: whether the disk
    contained no records at startup and no leader has committed any since.
    """

    image: MetadataImage
    snapshot_offset: MetadataOffset | None
    began_empty: bool


class ActiveController:
    """Runs the active controller for one epoch.

    It starts with an image of all committed records and with new sessions, so that a leader change
    does not fence brokers. At the end, fencing is stopped first, then the writer.
    """

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        state: RecoveredState,
        store: ObjectStore,
        snapshots: SnapshotStore,
        *,
        now: MonotonicClock,
        now_ms: WallClock,
        fail: Callable[[BaseException], None],
        wal_stores: WalStores,
        moved: MoveListener | None = None,
    ) -> None:
        """fail: called with the error that must end the process."""
        image = state.image
        wal_stores.follow(listed.store_id for listed in image.nodes.wal_stores())
        self._config = config
        self._store = store
        self._wal_stores = wal_stores
        self._has_wal_store = wal_stores.configured is not None
        self._began_empty = state.began_empty
        self._known_id = image.cluster_id
        self._fail = fail
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._timeline = Timeline()
        self.epoch = quorum.leadership.epoch
        self.sessions = _fresh_sessions(config, image, now)
        self._now_ms = now_ms
        self.runtime = Runtime(quorum, image, config, now_ms)
        self.runtime.failed.add_done_callback(self._runtime_over)
        self._forwarding = RequestAuthorizer(config, image)
        self.runtime.observe(self._forwarding.note)
        log = BackupLog(store, config.cluster_id)
        self.backup = Backup(config, quorum, log, self.epoch, now_ms)
        self._dead_wals = DeadWals(config.session_timeout_ms, now)
        self._dispatch = Dispatch(
            config,
            self.runtime,
            self.sessions,
            self.backup,
            new_streams=NewStreams(image.next_stream_id, image.end_offset),
            wake=self._wake.set,
            now=now,
            now_ms=now_ms,
            new_uuid=uuid4,
            wal_stores=wal_stores,
            dead_wals=self._dead_wals,
            moved=moved,
        )
        self.snapshotter = Snapshotter(
            config,
            quorum,
            self.runtime,
            snapshots,
            log,
            backup=self.backup,
            since=state.snapshot_offset,
        )
        self.publisher: ManifestPublisher | None = None
        if config.manifest_interval_ms:
            self.publisher = ManifestPublisher(config, self.runtime, store, now=now, now_ms=now_ms)
        leases = LeaseBook(store, config.cluster_id, now=now, now_ms=now_ms)
        self._janitor = self._create_janitor(leases)
        self._registrar = WalStoreRegistrar(self.runtime, wal_stores, config.cluster_id, uuid4)

    def _create_janitor(self, leases: LeaseBook) -> Janitor:
        """Create the janitor. Its holds must read the manifest before the leases (see
        `Janitor`).
        """
        manifest_hold = None if self.publisher is None else self.publisher.protected_from
        holds = [hold for hold in (manifest_hold, leases.protected_from) if hold is not None]
        return Janitor(
            self._config,
            self.runtime,
            self.backup,
            self._wal_stores,
            timeline=self._timeline,
            now=self._now,
            now_ms=self._now_ms,
            holds=holds,
            wal_hold=manifest_hold,
        )

    @property
    def excluded(self) -> int:
        """Number of brokers that receive no partitions because they are slow."""
        return self._dispatch.balancer.excluded_count

    @property
    def leased_bytes(self) -> int:
        """Bytes of rewritten slots in WAL stores that are protected by leases."""
        return self._janitor.leased_bytes

    @property
    def _deletable_offset(self) -> MetadataOffset:
        """Offset below which unneeded data may be deleted, because the metadata is in the backup
        and visible to readers of the store.
        """
        return (
            self.backup.offset
            if self.publisher is None
            else min(self.backup.offset, self.publisher.shown_offset)
        )

    async def start(self, service: ControllerService) -> None:
        """Start the writer, the service and the periodic tasks.

        Raises StoreNotEmpty, InvalidConfig (another cluster's log), LogBehindBackup, BackupGap,
        NotLeader, ObjectStoreError.
        """
        await self._check_backup()
        self.runtime.start()
        await self._check_cluster_id()
        if self._has_wal_store:
            await self._registrar.try_first()
        elif (needed := self.runtime.image.nodes.needed_wal_store) is not None:
            _log.error(
                "wal_store_not_configured",
                url=needed.url,
                next="set wal.store on this controller; until then, old WAL slots are not deleted",
            )
        service.lead(
            Lead(
                self.runtime,
                self.sessions,
                self._dispatch.methods(),
                self._forwarding,
                lambda: self._deletable_offset,
            )
        )
        for run in self._periodic_tasks(service):
            task = asyncio.get_running_loop().create_task(run(), name=run.__qualname__)
            task.add_done_callback(self._task_over)
            self._tasks.append(task)

    async def _check_cluster_id(self) -> None:
        """Set the id of a new cluster, or reject the log of another cluster."""
        cluster_id = self._config.cluster_id
        if not self._known_id:
            await _check_store_is_empty(self._store)
            levels = newest_levels(has_wal_store=self._has_wal_store)
            begin: list[Record] = [ClusterRecord(cluster_id), *levels]
            await self.runtime.submit("NameCluster", lambda _image, _now: Result(begin))
        elif self._known_id != cluster_id:
            raise InvalidConfig(
                "cluster_id", cluster_id, f"the journal belongs to cluster {self._known_id!r}"
            )

    def _periodic_tasks(
        self, service: ControllerService
    ) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        ticks = Ticks(
            self._config,
            self.runtime,
            self.sessions,
            disconnect=service.disconnect,
            due=self._wake,
            timeline=self._timeline,
            now=self._now,
            backed_up=lambda: self.backup.offset,
            dead_wals=self._dead_wals,
        )
        tasks = [
            ticks.watch_sessions,
            ticks.watch_moves,
            ticks.maintain,
            self._dispatch.balancer.run,
            self.backup.run,
            self.snapshotter.run,
            self._janitor.run,
            LostRanges(self.runtime, self._store, now_ms=self._now_ms).run,
        ]
        if self.publisher is not None:
            tasks.append(self.publisher.run)
        if self._has_wal_store:
            tasks.append(self._registrar.run)
        return tasks

    async def _check_backup(self) -> None:
        """Refuse to serve if the store contains records that the quorum lacks. A quorum with its
        original disks lacks none, so the wait for the store is short.
        """
        try:
            async with asyncio.timeout(None if self._began_empty else _CHECK_S):
                await self.backup.open()
        except (ObjectStoreError, BackupCorrupt, TimeoutError) as error:
            if self._began_empty:
                raise
            _log.warning("backup_check_failed", error=str(error))

    async def stop_tasks(self) -> None:
        """Stop the periodic tasks; no broker is fenced after this returns."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _runtime_over(self, over: "asyncio.Future[None]") -> None:
        error = over.exception()
        if error is not None and not isinstance(error, NotLeader):
            self._fail(error)

    def _task_over(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, OVER):
            _log.critical(
                "controller_task_failed",
                task=task.get_name(),
                error=f"{type(error).__name__}: {error}",
            )
            self._fail(error)


def _fresh_sessions(
    config: ControllerConfig, image: MetadataImage, now: MonotonicClock
) -> Sessions:
    """Return sessions in which every unfenced broker has its full timeout left."""
    sessions = Sessions(
        timeout_ms=config.session_timeout_ms,
        grace_ms=config.session_grace_ms,
        lag_limit_ms=config.lag_limit_ms,
    )
    for node in image.nodes:
        if not node.fenced:
            sessions.registered(node.node_id, node.node_epoch, int(now() * 1_000))
    return sessions


async def _check_store_is_empty(store: ObjectStore) -> None:
    """Raise StoreNotEmpty if the store contains objects. This takes five LIST requests, only on the
    first start of a cluster.
    """
    for root in (META_ROOT, WAL_ROOT, DATA_ROOT, MANIFEST_ROOT, LEASE_ROOT):
        async for info in store.list(root, limit=1):
            raise StoreNotEmpty(info.key)

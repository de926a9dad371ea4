"""What exists only while this controller leads: the writer, everybody's sessions, the periodic
tasks. One object per epoch.

Invariants: it begins with an image of everything committed and with fresh sessions, so that a
change of leader fences nobody; it ends with its epoch, and nothing of it is used again. Fencing
stops first, then the writer. Must not outlive its leadership.
Source: KRaft `QuorumController` (claim, renounce).
"""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import structlog

from base.clock import MonotonicClock, WallClock
from controller.api.errors import InvalidConfig, NotLeader, StoreNotEmpty
from controller.backup.log import BackupLog
from controller.backup.new_streams import NewStreams
from controller.backup.snapshots import SnapshotStore, Snapshotter
from controller.backup.writer import Backup
from controller.config import ControllerConfig
from controller.leader.dispatch import Dispatch
from controller.leader.janitor import Hold, Janitor
from controller.leader.leases import LeaseBook
from controller.leader.move_traces import MoveListener
from controller.leader.server import ControllerService, Lead
from controller.leader.ticks import OVER, Ticks
from controller.managers.result import Result
from controller.manifest.publisher import ManifestPublisher
from controller.metadata.image import MetadataImage
from controller.metadata.records import ClusterRecord, MetadataOffset
from controller.raft.replicated_log import Quorum
from controller.writer.runtime import Runtime
from controller.writer.sessions import Sessions
from controller.writer.timeline import Timeline
from objectstore.errors import ObjectStoreError
from objectstore.ports import ObjectStore
from stream.format.keys import (
    DATA_ROOT,
    LEASE_ROOT,
    MANIFEST_ROOT,
    META_ROOT,
    WAL_ROOT,
)

_log = structlog.get_logger()
_CHECK_S = 1.0
"""Longest wait for the end of the backup in the store. An unavailable store must not stop a quorum.
"""


class ActiveController:
    """image: as of the quorum's committed end; it belongs to the writer from now on. fail: told
    what should end the process.
    """

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        image: MetadataImage,
        store: ObjectStore,
        snapshots: SnapshotStore,
        *,
        since: MetadataOffset | None,
        began_empty: bool,
        now: MonotonicClock,
        now_ms: WallClock,
        fail: Callable[[BaseException], None],
        moved: MoveListener | None = None,
    ) -> None:
        """since: offset of the newest snapshot, None if there is none. began_empty: this process
        found nothing on its disk.
        """
        self._began_empty = began_empty
        self._config = config
        self._store = store
        self._known_id = image.cluster_id
        self._fail = fail
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self.sessions = sessions = Sessions(
            timeout_ms=config.session_timeout_ms,
            grace_ms=config.session_grace_ms,
            lag_limit_ms=config.lag_limit_ms,
        )
        for node in image.nodes:
            if not node.fenced:
                sessions.registered(node.node_id, node.node_epoch, int(now() * 1_000))
        self.epoch = quorum.leadership.epoch
        self.runtime = runtime = Runtime(quorum, image, config, now_ms)
        runtime.failed.add_done_callback(self._runtime_over)
        self._wake = asyncio.Event()
        log = BackupLog(store, config.cluster_id)
        self.backup = backup = Backup(config, quorum, log, self.epoch, now_ms)
        self._dispatch = Dispatch(
            config,
            runtime,
            sessions,
            backup,
            new_streams=NewStreams(image.next_stream_id, image.end_offset),
            wake=self._wake.set,
            now=now,
            now_ms=now_ms,
            new_uuid=uuid4,
            moved=moved,
        )
        self.snapshotter = Snapshotter(
            config, quorum, runtime, snapshots, log, backup=backup, since=since
        )
        holds: list[Hold] = []
        self.publisher: ManifestPublisher | None = None
        if config.manifest_interval_ms:
            self.publisher = ManifestPublisher(config, runtime, store, now=now, now_ms=now_ms)
            holds.append(self.publisher.protected_from)
        holds.append(LeaseBook(store, config.cluster_id, now=now, now_ms=now_ms).protected_from)
        wal_hold = None if self.publisher is None else self.publisher.protected_from
        self._timeline = Timeline()
        self._janitor = Janitor(
            config,
            runtime,
            backup,
            store,
            timeline=self._timeline,
            now=now,
            holds=holds,
            wal_hold=wal_hold,
        )

    @property
    def excluded(self) -> int:
        """Brokers that are given no work because they are slow."""
        return self._dispatch.balancer.excluded_count

    @property
    def _deletable_offset(self) -> MetadataOffset:
        """What was made useless below it may be deleted: the backup has it, and readers of the
        store can know it.
        """
        return (
            self.backup.offset
            if self.publisher is None
            else min(self.backup.offset, self.publisher.shown_offset)
        )

    async def start(self, service: ControllerService) -> None:
        """Write and serve.

        Raises StoreNotEmpty, InvalidConfig (another cluster's log), LogBehindBackup, BackupGap,
        NotLeader, ObjectStoreError.
        """
        runtime, config = self.runtime, self._config
        await self._check_backup()
        runtime.start()
        if not self._known_id:
            await _check_store_is_empty(self._store)
            await runtime.submit(
                "NameCluster", lambda _image, _now: Result([ClusterRecord(config.cluster_id)])
            )
        elif self._known_id != config.cluster_id:
            raise InvalidConfig(
                "cluster_id",
                config.cluster_id,
                f"the journal belongs to cluster {self._known_id!r}",
            )
        service.lead(
            Lead(runtime, self.sessions, self._dispatch.methods(), lambda: self._deletable_offset)
        )
        ticks = Ticks(
            config,
            runtime,
            self.sessions,
            disconnect=service.disconnect,
            due=self._wake,
            timeline=self._timeline,
            now=self._now,
        )
        runs = [
            ticks.watch_sessions,
            ticks.watch_moves,
            ticks.maintain,
            self._dispatch.balancer.run,
            self.backup.run,
        ]
        runs += [self.snapshotter.run, self._janitor.run]
        if self.publisher is not None:
            runs.append(self.publisher.run)
        for run in runs:
            task = asyncio.get_running_loop().create_task(run(), name=run.__qualname__)
            task.add_done_callback(self._task_over)
            self._tasks.append(task)

    async def _check_backup(self) -> None:
        """Nobody is served by a quorum that lacks what the store has. One that kept its disk lacks
        nothing: it need not wait for long.
        """
        try:
            async with asyncio.timeout(None if self._began_empty else _CHECK_S):
                await self.backup.open()
        except (ObjectStoreError, TimeoutError) as error:
            if self._began_empty:
                raise
            _log.warning("backup_not_found_yet", error=str(error))

    async def stop_tasks(self) -> None:
        """Nobody is fenced from now on."""
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


async def _check_store_is_empty(store: ObjectStore) -> None:
    """Five LIST requests, at the first start of a cluster only."""
    for root in (META_ROOT, WAL_ROOT, DATA_ROOT, MANIFEST_ROOT, LEASE_ROOT):
        async for info in store.list(root, limit=1):
            raise StoreNotEmpty(info.key)

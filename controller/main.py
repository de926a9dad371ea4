"""Runs one controller process: starts and stops its components in order. Imports are kept light so
that the process starts in well under 1 s.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from random import Random

import msgspec
import structlog

from penstock.base.clock import WallClock, wall_ms
from penstock.base.collector import tune_collector
from penstock.base.health import ServeHealth, no_health_endpoint
from penstock.base.log import NamedOutput
from penstock.base.readiness import report_ready
from penstock.base.stacks import dump_stacks_on_quit
from penstock.controller.active.controller import ActiveController, RecoveredState
from penstock.controller.active.dispatch import REQUESTS
from penstock.controller.active.move_traces import MoveListener
from penstock.controller.active.quorum_changes import QuorumChanges
from penstock.controller.active.server import OUTSIDE, ControllerService, Role
from penstock.controller.active.snapshotter import Snapshotter
from penstock.controller.active.writer import Runtime
from penstock.controller.api.caller_checks import Gate
from penstock.controller.api.client import ControllerClient, log_problem
from penstock.controller.api.errors import NotLeader, QuorumClosed
from penstock.controller.api.tls import TlsFiles
from penstock.controller.backup.snapshots import LoadedSnapshot, SnapshotStore, copy_image
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft import membership
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.directory import DataDirectory, LocalDirectory
from penstock.controller.raft.identity import Identity, new_id
from penstock.controller.raft.joining import find_cluster, join
from penstock.controller.raft.messages import Base, Endpoint, Members
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.controller.raft.transport import PeerTransport
from penstock.controller.standby import Standby
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.ports import ObjectStore
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores, close_stores

_log = structlog.get_logger(__name__)


class ControllerServer:
    """Runs a controller in this process. After `start`, clients may connect to `address`. Call
    `stop` once. The caller closes the store.

    The controller serves requests only while it leads and its image contains everything committed.
    `stop` first stops fencing, then informs the followers, then stops the writer, and finally
    closes the journal. If the writer or the journal fails, the process ends with status 1.
    """

    def __init__(
        self,
        config: ControllerConfig,
        store: ObjectStore,
        *,
        now_ms: WallClock = wall_ms,
        directory: DataDirectory | None = None,
        rng: Random | None = None,
        moved: MoveListener | None = None,
        tls: TlsFiles | None = None,
        wal_store: ConfiguredWalStore | None = None,
    ) -> None:
        """moved: see `controller.active.move_traces.MoveListener`. tls: None for plaintext.
        wal_store: store in which brokers open their WALs; None for `store`.
        """
        self._moved = moved
        self._tls = tls
        self.gate = Gate(None if tls is None else config.name_rules)
        self._config = config
        self._wal_stores = WalStores(store, wal_store)
        self._store = self._wal_stores.store
        self._now_ms = now_ms
        self._directory: DataDirectory = directory or LocalDirectory(config.data_dir)
        self._rng = rng or Random()  # noqa: S311 - election timeouts
        self._identity: Identity | None = None
        self.quorum: RaftQuorum | None = None
        self._transport: PeerTransport | None = None
        self._service: ControllerService | None = None
        self._active: ActiveController | None = None
        self._standby: Standby | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The bound port after the start."""
        self.failed: asyncio.Future[None] | None = None
        """Set by `start`. Receives the exception that ended the controller, or a result after
        `stop`.
        """

    @property
    def address(self) -> str:
        config = self._config
        host = config.host if config.host not in {"0.0.0.0", "::", ""} else "127.0.0.1"  # noqa: S104 - a comparison
        return config.advertised or config.voters.get(config.controller_id, f"{host}:{self.port}")

    @property
    def cluster_id(self) -> str:
        return self._config.cluster_id

    @property
    def partitions_max(self) -> int:
        """Maximum number of partitions in topics and snapshots combined, enforced while this
        controller leads.
        """
        return self._config.partitions_max

    @property
    def is_leading(self) -> bool:
        return self._service is not None and self._service.is_leading

    @property
    def is_serving(self) -> bool:
        return self._service is not None and bool(self.port)

    def why_not_following(self) -> list[str]:
        """Return the reasons why the metadata of this process may be outdated. The list is empty if
        a leader is known and its committed records are applied.
        """
        quorum, standby = self.quorum, self._standby
        if quorum is None or standby is None:
            return ["the controller is not running"]
        if self.is_leading:
            return []
        if quorum.is_outside:
            return [
                "this controller is not a member of the quorum: it was removed, or was not"
                " added yet"
            ]
        if standby.committed_image is None:
            return ["the image is being loaded again, because this controller has led"]
        if not quorum.leadership.address or quorum.leadership.active:
            return ["no leader of the quorum is known, or it is just becoming active"]
        behind = quorum.committed_offset - standby.image.end_offset
        return (
            [f"{behind} committed records are not applied yet"]
            if behind > 0 or quorum.needs_snapshot
            else []
        )

    @property
    def image(self) -> MetadataImage:
        """The current image, for metrics. Do not store or change any part of it. A leader's image
        may contain uncommitted records.
        """
        if self._active is not None:
            return self._active.runtime.image
        return MetadataImage() if self._standby is None else self._standby.image

    @property
    def active(self) -> ActiveController | None:
        """The active controller while this process leads; otherwise None."""
        return self._active

    @property
    def controller_id(self) -> int:
        return self._config.controller_id

    @property
    def runtime(self) -> Runtime | None:
        """The writer while this controller leads."""
        return None if self._active is None else self._active.runtime

    @property
    def snapshotter(self) -> Snapshotter | None:
        return None if self._active is None else self._active.snapshotter

    async def start(self) -> None:
        """Recover and serve. When this returns, a single controller is the leader, while one of
        several participates in the quorum.

        Raises DataDirInUse, StoreNotEmpty, JournalCorrupt, JournalStateLost, SnapshotMissing,
        SnapshotCorrupt, InvalidConfig, ObjectStoreError, and OSError if the port is in use.
        """
        began = time.monotonic()
        self.failed = asyncio.get_running_loop().create_future()
        self._identity = identity = self._directory.open()
        try:
            await self._claim(identity)
            await self._start_locked(identity, self.failed)
        except BaseException:
            await self.stop()
            raise
        assert self.quorum is not None
        _log.info(
            "controller_started",
            address=self.address,
            cluster_id=self.cluster_id,
            epoch=self.quorum.leadership.epoch,
            offset=self.quorum.committed_offset,
            tls=self._tls is not None,
            took_ms=int((time.monotonic() - began) * 1_000),
        )

    async def stop(self) -> None:
        """Stop in order. Waiting callers fail with UNAVAILABLE and try another controller."""
        if self._active is not None:
            await self._active.stop_tasks()
        if self._service is not None:
            await self._service.stop()
        if self._active is not None:
            await self._active.runtime.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transport is not None:
            await self._transport.stop()
        if self.quorum is not None:
            await self.quorum.close()
        self._service, self._active, self.quorum, self._transport, self._standby = (
            None,
            None,
            None,
            None,
            None,
        )
        self._tasks.clear()
        if self._identity is not None:
            self._identity.close()
            self._identity = None
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(None)

    async def _claim(self, identity: Identity) -> None:
        """Assign the directory to a cluster. In order of precedence: the cluster stored in it, the
        configured one, the one to join, or a new one.
        """
        config = self._config
        cluster_id = config.cluster_id or identity.cluster_id
        if not cluster_id:
            cluster_id = (
                await find_cluster(config, self._join_client()) if config.join else new_id()
            )
        identity.claim(cluster_id, joins=bool(config.join))
        self._config = msgspec.structs.replace(config, cluster_id=cluster_id)

    async def _start_locked(self, identity: Identity, failed: "asyncio.Future[None]") -> None:
        config, loop = self._config, asyncio.get_running_loop()
        core = CoreConfig(
            config.controller_id,
            heartbeat_ms=config.raft_heartbeat_ms,
            election_ms=config.election_timeout_ms,
            directory=identity.directory_id,
        )
        self.quorum = quorum = RaftQuorum(self._directory, identity, core, config.voters, self._rng)
        snapshots = SnapshotStore(self._store, config.cluster_id, kept=config.snapshots_kept)
        self._standby = standby = Standby(config, quorum, snapshots)
        loaded = await standby.load()

        own = Endpoint(config.controller_id, config.advertised, identity.directory_id)
        self._transport = transport = PeerTransport(
            config.cluster_id,
            own,
            config.voters,
            quorum.receive,
            members=lambda: quorum.members,
            introduce=quorum.introduce,
            memory=quorum,
            tls=self._tls,
            gate=self.gate,
        )
        base = _snapshot_base(loaded, own, identity)
        await quorum.start(
            self._founders(identity),
            base,
            transport,
            passed_over=loaded.passed_over if loaded else None,
        )

        def copy_standby() -> tuple[ImageCopy, MetadataOffset] | None:
            image = standby.committed_image
            return None if image is None else copy_image(image)

        self._service = service = ControllerService(
            config,
            quorum,
            REQUESTS,
            standby=copy_standby,
            raft=transport.serve,
            now=loop.time,
            now_ms=self._now_ms,
            about=QuorumChanges(config, quorum).methods(),
            role=lambda: Role(
                _role_of(quorum, config.controller_id), identity.directory_id, self.address
            ),
            tls=self._tls,
            gate=self.gate,
        )
        self.port = await service.start()
        quorum.introduce(Endpoint(config.controller_id, self.address, identity.directory_id))
        transport.start(self.address)
        self._start_task(self._run(quorum, standby, snapshots, service), "controller")
        self._start_task(_log_removal(quorum), "membership")
        if self._tls is not None:
            self._start_task(self._tls.watch(), "tls-files")
            self._start_task(self.gate.handshakes.watch(), "handshakes")
        if identity.is_joining:
            self._start_task(
                join(config, identity, quorum, self.address, self._join_client()), "joining"
            )
        if quorum.members.voters == (config.controller_id,) and quorum.core.is_voter:
            leading = loop.create_task(service.wait_leading())
            await asyncio.wait((leading, failed), return_when=asyncio.FIRST_COMPLETED)
            leading.cancel()
            if failed.done():
                failed.result()

    def _join_client(self) -> ControllerClient:
        """Return a client of the quorum to join."""
        return ControllerClient(
            self._config.join, rng=self._rng, tls=self._tls, on_problem=log_problem
        )

    def _founders(self, identity: Identity) -> Members:
        """Return the members of a new cluster, or none if this controller joins an existing one."""
        config = self._config
        if identity.is_joining:
            return Members(())
        return membership.founded(
            (config.voters or {config.controller_id: config.advertised}).items()
        )

    def _start_task(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    async def _run(
        self,
        quorum: RaftQuorum,
        standby: Standby,
        snapshots: SnapshotStore,
        service: ControllerService,
    ) -> None:
        """Apply committed records, and lead whenever elected, until cancelled."""
        began_at = quorum.committed_offset
        while True:
            await standby.catch_up()
            if standby.image.end_offset != quorum.committed_offset:
                continue
            if not quorum.leadership.active:
                await quorum.wait_changed()
                continue
            self._active = active = ActiveController(
                self._config,
                quorum,
                RecoveredState(
                    standby.hand_over(),
                    standby.since,
                    quorum.began_empty and quorum.committed_offset == began_at,
                ),
                self._store,
                snapshots,
                now=asyncio.get_running_loop().time,
                now_ms=self._now_ms,
                fail=self._fail,
                wal_stores=self._wal_stores,
                moved=self._moved,
            )
            await self._serve(quorum, active, service)
            self._active = None
            if active.runtime.has_uncommitted:
                await standby.rebuild()
            else:
                standby.take_back(active.snapshotter.since)

    async def _serve(
        self, quorum: RaftQuorum, active: ActiveController, service: ControllerService
    ) -> None:
        """Serve as the active controller until the epoch ends."""
        over = quorum.end_of(active.epoch)
        _log.info("leadership_gained", epoch=active.epoch, offset=quorum.committed_offset)
        try:
            await active.start(service)
            await asyncio.wait((over, active.runtime.failed), return_when=asyncio.FIRST_COMPLETED)
        except (NotLeader, QuorumClosed):
            pass
        finally:
            service.renounce()
            await active.stop_tasks()
            await active.runtime.stop()
            over.cancel()
        _log.warning("leadership_lost", epoch=active.epoch, leader=quorum.leadership.address)

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, QuorumClosed)
        ):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()


def _role_of(quorum: RaftQuorum, controller_id: int) -> str:
    if quorum.core.is_voter:
        return "voter"
    return (
        "learner" if controller_id in quorum.members.learners and quorum.core.is_member else OUTSIDE
    )


def _snapshot_base(loaded: LoadedSnapshot | None, own: Endpoint, identity: Identity) -> Base | None:
    """Return the position at which the snapshot ends. A single controller may lose its disk: there
    are no other voters that remember its votes, so a new disk replaces the old one.
    """
    if loaded is None:
        return None
    base = loaded.base
    if not identity.is_new or identity.is_joining or base.members.everyone != (own.node_id,):
        return base
    return Base(
        base.index,
        base.term,
        base.offset,
        Members(base.members.voters, (), (own,), base.members.version + 1),
    )


async def _log_removal(quorum: RaftQuorum) -> None:
    """Log that this controller was removed from the quorum."""
    was_member = False
    while True:
        if quorum.core.is_member:
            was_member = True
        elif was_member and quorum.is_outside:
            was_member = False
            _log.warning(
                "controller_removed",
                controller_id=quorum.core.id,
                members=quorum.members.everyone,
                next=(
                    "this controller no longer votes; stop it. To add it again, start it with "
                    "an empty directory and --controller-quorum-join-servers"
                ),
            )
        await quorum.wait_changed()


async def run_controller(
    config: ControllerConfig,
    store: ObjectStore,
    serve_health: ServeHealth = no_health_endpoint,
    requests: StoreMeter | None = None,
    *,
    moved: MoveListener | None = None,
    tls: TlsFiles | None = None,
    wal_store: ConfiguredWalStore | None = None,
    wal_store_calls: StoreMeter | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT (status 0) or a failure (status 1). requests: meter of store
    requests. tls: None for plaintext. wal_store: None if `store` contains the WALs.
    wal_store_calls: meter of WAL store calls.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    dump_stacks_on_quit(loop)
    server = ControllerServer(config, store, moved=moved, tls=tls, wal_store=wal_store)
    health = ControllerHealth(server, requests, wal_store_calls)
    async with serve_health(health):
        await server.start()
        report_ready(server.cluster_id)
        assert server.failed is not None
        waiting = loop.create_task(stopping.wait())
        await asyncio.wait((waiting, server.failed), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        failed = server.failed.done()
        health.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(config.stop_timeout_ms / 1_000):
                await server.stop()
    _log.info("controller_stopped", failed=failed)
    return 1 if failed else 0


class ControllerHealth:
    """Reports whether the controller is ready: it serves the committed metadata of a known
    quorum.
    """

    def __init__(
        self,
        server: ControllerServer,
        requests: StoreMeter | None = None,
        wal_store_calls: StoreMeter | None = None,
    ) -> None:
        self.server = server
        self.requests = requests or StoreMeter()
        """Meter of the store requests of this process, including WAL store requests."""
        self.wal_store_calls = wal_store_calls or StoreMeter()
        """Meter of WAL store calls; all retries of a call are one call."""
        self.stopping = False

    def not_started(self) -> list[str]:
        return [] if self.server.is_serving else ["the data directory is being read"]

    def not_alive(self) -> list[str]:
        failed = self.server.failed
        error = (
            failed.exception()
            if failed is not None and failed.done() and not failed.cancelled()
            else None
        )
        return [] if error is None else [f"the controller failed: {error!r}"]

    async def not_ready(self) -> list[str]:
        if self.stopping:
            return ["the controller is stopping"]
        return self.not_started() or self.not_alive() or self.server.why_not_following()


def run(
    config: ControllerConfig,
    store_url: str,
    serve_health: ServeHealth = no_health_endpoint,
    *,
    moved: MoveListener | None = None,
    tls: TlsFiles | None = None,
    wal_store_url: str = "",
) -> int:
    """Run the process and return its exit status. Logs are written to stderr."""
    import uvloop

    from penstock.objectstore.url import open_store
    from penstock.stream.wal.wal_store_url import open_wal_store

    structlog.configure(logger_factory=partial(NamedOutput, sys.stderr))

    async def main() -> int:
        tune_collector()
        requests, calls = StoreMeter(), StoreMeter()
        store = open_store(store_url, meter=requests)
        wal_store = open_wal_store(wal_store_url, store_url, meter=requests, calls=calls)
        try:
            return await run_controller(
                config,
                store,
                serve_health,
                requests,
                moved=moved,
                tls=tls,
                wal_store=wal_store,
                wal_store_calls=calls,
            )
        finally:
            await close_stores(store, wal_store)

    return uvloop.run(main())

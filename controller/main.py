"""One controller process: what is started in which order, and how it ends.

Invariants: requests are served only when the image holds everything committed; at the end fencing stops first, then followers are told,
then the writer ends, then the journal closes; a writer or journal that fails ends the process with status 1. One process per data
directory (a lock file). Imports stay light: a start takes well under a second. Source: KRaft `ControllerServer`.
"""

import asyncio
import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from controller.config import ControllerConfig
from controller.dispatch import Dispatch
from controller.errors import DataDirInUse, InvalidConfig, StoreNotEmpty
from controller.janitor import Janitor
from controller.journal import sync_directory
from controller.managers.result import Result
from controller.metadata.codec import decode_record
from controller.metadata.image import MetadataImage
from controller.metadata.records import ClusterRecord, ControllerEpoch
from controller.quorum import SingleQuorum
from controller.rpc.server import ControllerService
from controller.runtime import Runtime
from controller.sessions import Sessions
from controller.snapshots import SnapshotStore, Snapshotter
from controller.ticks import OVER, Ticks
from objectstore.ports import ObjectStore
from stream.clock import WallClock
from stream.ids import Millis
from stream.keys import DATA_ROOT, META_ROOT, WAL_ROOT

_log = structlog.get_logger()
_REPLAY_BYTES = 4 << 20
"""Records replayed before the event loop gets a turn."""


def _wall_ms() -> Millis:
    return Millis(time.time_ns() // 1_000_000)


class ControllerServer:
    """A controller inside this process. `start`, then clients may connect to `address`; `stop` once. The store stays the caller's."""

    def __init__(self, config: ControllerConfig, store: ObjectStore, *, now_ms: WallClock = _wall_ms) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._lock: int | None = None
        self._quorum: SingleQuorum | None = None
        self.runtime: Runtime | None = None
        self.snapshotter: Snapshotter | None = None
        self._service: ControllerService | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The bound port, once started."""
        self.failed: asyncio.Future[None] | None = None
        """Set by `start`; gets the exception that ended the controller, or a result when it was stopped."""

    @property
    def address(self) -> str:
        host = self._config.host if self._config.host not in {"0.0.0.0", "::", ""} else "127.0.0.1"  # noqa: S104 - a comparison
        return self._config.advertised or f"{host}:{self.port}"

    @property
    def cluster_id(self) -> str:
        return self._config.cluster_id

    async def start(self) -> None:
        """Recover and serve.

        Raises DataDirInUse, StoreNotEmpty, JournalCorrupt, SnapshotMissing, SnapshotCorrupt, InvalidConfig, ObjectStoreError, and
        OSError if the port is taken.
        """
        began = time.monotonic()
        self.failed = asyncio.get_running_loop().create_future()
        self._lock = _lock_directory(self._config.data_dir)
        try:
            self._config = msgspec.structs.replace(self._config, cluster_id=_cluster_id(self._config))
            await self._start_locked()
        except BaseException:
            await self.stop()
            raise
        assert self._quorum is not None
        _log.info(
            "controller_started",
            address=self.address,
            cluster_id=self.cluster_id,
            epoch=self._quorum.leadership.epoch,
            offset=self._quorum.committed_offset,
            took_ms=int((time.monotonic() - began) * 1_000),
        )

    async def stop(self) -> None:
        """End in order; callers that wait get UNAVAILABLE and go elsewhere."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._service is not None:
            await self._service.stop()
        if self.runtime is not None:
            await self.runtime.stop()
        if self._quorum is not None:
            await self._quorum.close()
        self._service, self.runtime, self._quorum = None, None, None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(None)

    async def _start_locked(self) -> None:
        config = self._config
        now = asyncio.get_running_loop().time
        snapshots = SnapshotStore(self._store, config.cluster_id, kept=config.snapshots_kept)
        loaded = await snapshots.load_newest()
        self._quorum = quorum = SingleQuorum(config.data_dir / "journal")
        await quorum.start(loaded.offset if loaded else None, loaded.epoch if loaded else ControllerEpoch(0))
        image = loaded.image if loaded else MetadataImage()
        await _replay(quorum, image)
        sessions = Sessions(timeout_ms=config.session_timeout_ms, grace_ms=config.session_grace_ms, lag_limit_ms=config.lag_limit_ms)
        for node in image.nodes:
            if not node.fenced:
                sessions.registered(node.node_id, node.node_epoch, int(now() * 1_000))
        self.runtime = runtime = Runtime(quorum, image, config, self._now_ms)
        runtime.failed.add_done_callback(self._runtime_over)
        known_id = image.cluster_id
        runtime.start()
        if not known_id:
            await _check_store_is_empty(self._store)
            await runtime.submit("NameCluster", lambda _image, _now: Result([ClusterRecord(config.cluster_id)]))
        elif known_id != config.cluster_id:
            raise InvalidConfig("cluster_id", config.cluster_id, f"the journal belongs to cluster {known_id!r}")
        wake = asyncio.Event()
        dispatch = Dispatch(config, quorum, runtime, sessions, wake=wake.set, now=now, now_ms=self._now_ms, new_uuid=uuid4)
        self._service = service = ControllerService(config, quorum, runtime, sessions, methods=dispatch.methods(), now=now)
        ticks = Ticks(config, runtime, sessions, disconnect=service.disconnect, due=wake, now=now)
        self.port = await service.start()
        self.snapshotter = snapshotter = Snapshotter(config, quorum, runtime, snapshots, since=loaded.offset if loaded else None)
        janitor = Janitor(config, runtime, self._store, self._now_ms)
        for run in (ticks.watch_sessions, ticks.watch_moves, ticks.maintain, snapshotter.run, janitor.run):
            task = asyncio.get_running_loop().create_task(run(), name=run.__qualname__)
            task.add_done_callback(self._task_over)
            self._tasks.append(task)

    def _runtime_over(self, over: "asyncio.Future[None]") -> None:
        error = over.exception()
        if error is not None:
            self._fail(error)

    def _task_over(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, OVER):
            _log.critical("controller_task_failed", task=task.get_name(), error=f"{type(error).__name__}: {error}")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()


async def run_controller(config: ControllerConfig, store: ObjectStore) -> int:
    """Serve until SIGTERM or SIGINT (status 0) or a failure (status 1)."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = ControllerServer(config, store)
    await server.start()
    assert server.failed is not None
    waiting = loop.create_task(stopping.wait())
    await asyncio.wait((waiting, server.failed), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    failed = server.failed.done()
    with suppress(TimeoutError):
        async with asyncio.timeout(config.stop_timeout_ms / 1_000):
            await server.stop()
    _log.info("controller_stopped", failed=failed)
    return 1 if failed else 0


def run(config: ControllerConfig, store_url: str) -> int:
    """Process entry: returns the exit status. Logs go to stderr."""
    import uvloop

    from objectstore.url import open_store

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    async def main() -> int:
        store = open_store(store_url)
        try:
            return await run_controller(config, store)
        finally:
            await store.close()

    return uvloop.run(main())


async def _check_store_is_empty(store: ObjectStore) -> None:
    """Three LIST requests, at the first start of a cluster only."""
    for root in (META_ROOT, WAL_ROOT, DATA_ROOT):
        async for info in store.list(root):
            raise StoreNotEmpty(info.key)


async def _replay(quorum: SingleQuorum, image: MetadataImage) -> None:
    while image.end_offset < quorum.committed_offset:
        committed = quorum.read(image.end_offset, _REPLAY_BYTES)
        image.apply_all(decode_record(record) for record in committed.records)
        await asyncio.sleep(0)


def _lock_directory(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise DataDirInUse(str(directory)) from None
    return lock


def _cluster_id(config: ControllerConfig) -> str:
    """From the config, else from the data directory, else a new one; kept in the directory from then on."""
    path = config.data_dir / "cluster_id"
    kept = path.read_text().strip() if path.exists() else ""
    if kept and config.cluster_id and kept != config.cluster_id:
        raise InvalidConfig("cluster_id", config.cluster_id, f"the directory {config.data_dir} belongs to cluster {kept!r}")
    cluster_id = kept or config.cluster_id or uuid4().hex[:22]
    if not kept:
        written = path.with_suffix(".new")
        with written.open("w") as file:
            file.write(cluster_id)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        sync_directory(config.data_dir)
    return cluster_id

"""One start of a simulated controller: the real runtime, managers, sessions, ticks, janitor and service over a simulated disk and network.

Invariant: what `propose` answered is on the disk; a kill loses what was not; the next start begins from the disk alone. Wired as
`controller.main.ControllerServer` wires it, without files, snapshots and sockets.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from controller.backup.log import BackupLog
from controller.backup.new_streams import NewStreams
from controller.backup.writer import Backup
from controller.config import ControllerConfig
from controller.dispatch import REQUESTS, Dispatch
from controller.janitor import Janitor
from controller.managers.result import Result
from controller.metadata.codec import decode_record
from controller.metadata.image import MetadataImage
from controller.metadata.records import ClusterRecord, ControllerEpoch, MetadataOffset
from controller.metadata.snapshot import ImageCopy
from controller.quorum import CommittedRecords, Leadership
from controller.raft.messages import Base, Members
from controller.rpc.server import ControllerService, Lead
from controller.rpc.transport import StreamContext
from controller.runtime import Runtime
from controller.sessions import Sessions
from controller.snapshots import LoadedSnapshot, copy_image
from controller.ticks import OVER, Ticks
from objectstore.ports import ObjectStore
from stream.ids import Millis

ADDRESS = "controller:1"


class Disk:
    """Survives the controller's process."""

    def __init__(self, base: LoadedSnapshot | None = None) -> None:
        """base: what a cluster that was rebuilt begins with."""
        self.records: list[bytes] = []
        """Behind the base."""
        self.base = Base(0, 0, 0, Members((0,))) if base is None else base.base
        self._base_image = None if base is None else ImageCopy.of(base.image)
        self.epoch = self.base.term
        self.image = self.load()
        """What the durable records add up to, kept by the simulator as the truth to check against."""
        self.on_commit: Callable[[], None] = lambda: None
        self.covered = MetadataOffset(self.base.offset)
        """How far the backup was seen to reach: no snapshot is taken behind it."""

    @property
    def end_offset(self) -> MetadataOffset:
        return MetadataOffset(self.base.offset + len(self.records))

    def load(self) -> MetadataImage:
        """As a process that starts does."""
        image = MetadataImage()
        if self._base_image is not None:
            for records in self._base_image.chunks(1_000):
                image.load(records)
            image.loaded(MetadataOffset(self.base.offset))
        image.apply_all(decode_record(record) for record in self.records)
        return image

    def note_covered(self, offset: MetadataOffset) -> MetadataOffset:
        self.covered = max(self.covered, offset)
        return offset

    def append(self, records: Sequence[bytes]) -> None:
        self.records.extend(records)
        self.image.apply_all(decode_record(record) for record in records)
        self.on_commit()


class SimQuorum:
    """`controller.quorum.Quorum` of one controller; records below `first_offset` are to be had as a snapshot only."""

    def __init__(self, disk: Disk, rng: Random, sync_ms: float) -> None:
        self._disk = disk
        self._rng = rng
        self._sync_s = sync_ms / 1000
        disk.epoch += 1
        self._epoch = ControllerEpoch(disk.epoch)
        self._committed_offset = disk.end_offset
        self._first = rng.choice((0, self._committed_offset, self._committed_offset // 2))
        self._first = max(min(self._first, disk.covered), disk.base.offset)
        self._committed = asyncio.Event()

    @property
    def leadership(self) -> Leadership:
        return Leadership(active=True, epoch=self._epoch, address=ADDRESS)

    @property
    def controllers(self) -> tuple[str, ...]:
        return (ADDRESS,)

    @property
    def first_offset(self) -> MetadataOffset:
        return MetadataOffset(self._first)

    @property
    def committed_offset(self) -> MetadataOffset:
        return MetadataOffset(self._committed_offset)

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        assert epoch == self._epoch
        await asyncio.sleep(self._sync_s * self._rng.random())
        self._disk.append(records)
        await asyncio.sleep(self._sync_s * self._rng.random())
        self._committed_offset = self._disk.end_offset
        waiters, self._committed = self._committed, asyncio.Event()
        waiters.set()
        return self.committed_offset

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        assert self._first <= offset <= self._committed_offset
        start = end = offset - self._disk.base.offset
        size_bytes = 0
        while end < self._committed_offset - self._disk.base.offset and (end == start or size_bytes < max_bytes):
            size_bytes += len(self._disk.records[end])
            end += 1
        return CommittedRecords(offset, self._disk.records[start:end])

    async def wait_committed(self, offset: MetadataOffset) -> None:
        while self._committed_offset <= offset:
            await self._committed.wait()

    async def drop_before(self, offset: MetadataOffset) -> None:
        del offset

    async def confirm(self, epoch: ControllerEpoch) -> None:
        assert epoch == self._epoch

    def point_at(self, offset: MetadataOffset) -> Base:
        return Base(offset, self._epoch, offset, Members((0,)))


async def run_controller(
    disk: Disk, store: ObjectStore, config: ControllerConfig, rng: Random, now_ms: Callable[[], Millis], sync_ms: float
) -> tuple[Runtime, list["asyncio.Task[None]"]]:
    """Start; returns the runtime and its periodic tasks."""
    now = asyncio.get_running_loop().time
    quorum = SimQuorum(disk, rng, sync_ms)
    image = disk.load()
    sessions = Sessions(timeout_ms=config.session_timeout_ms, grace_ms=config.session_grace_ms, lag_limit_ms=config.lag_limit_ms)
    for node in image.nodes:
        if not node.fenced:
            sessions.registered(node.node_id, node.node_epoch, int(now() * 1_000))
    runtime = Runtime(quorum, image, config, now_ms)
    runtime.start()
    if not image.cluster_id:
        await runtime.submit("NameCluster", lambda _image, _now: Result([ClusterRecord(config.cluster_id)]))
    wake = asyncio.Event()
    backup = Backup(config, quorum, BackupLog(store, config.cluster_id), runtime.epoch, now_ms)
    dispatch = Dispatch(
        config,
        runtime,
        sessions,
        backup,
        new_streams=NewStreams(image.next_stream_id, quorum.committed_offset),
        wake=wake.set,
        now=now,
        now_ms=now_ms,
        new_uuid=lambda: UUID(int=rng.getrandbits(128), version=4),
    )

    async def copy() -> tuple[ImageCopy, MetadataOffset]:
        return copy_image(image)

    async def no_peers(_: object, context: StreamContext) -> None:
        raise AssertionError(f"{context.peer()} looked for another voter")

    service = ControllerService(config, quorum, REQUESTS, standby=copy, raft=no_peers, now=now)
    service.lead(Lead(runtime, sessions, dispatch.methods(), lambda: disk.note_covered(backup.offset)))
    ticks = Ticks(config, runtime, sessions, disconnect=service.disconnect, due=wake, now=now)
    await service.start()
    janitor = Janitor(config, runtime, backup, store, now_ms)
    loop = asyncio.get_running_loop()
    runs = (ticks.watch_sessions, ticks.watch_moves, ticks.maintain, janitor.run, backup.run)
    return runtime, [loop.create_task(run()) for run in runs]


__all__ = ["ADDRESS", "OVER", "Disk", "run_controller"]

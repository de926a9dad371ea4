"""One start of a simulated controller: the real `ControllerServer` with its quorum, journal,
standby, active controller, snapshots and service.

Disk, network and clock are simulated. A kill loses data that the disk had not synced; the next
start uses only disk and store. The metadata log sees and judges every proposal, commit and term.
"""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from penstock.controller.active.controller import ActiveController, RecoveredState
from penstock.controller.api.errors import (
    BackupCorrupt,
    BackupFenced,
    JournalCorrupt,
    JournalFailed,
    JournalStateLost,
    LogBehindBackup,
    SnapshotCorrupt,
    SnapshotMissing,
)
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.wal.wal_store import ConfiguredWalStore
from tests.sim.disk import Disk, SimDirectory
from tests.sim.loop import PROCESS, Process
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

_ENDS = (JournalFailed, BackupCorrupt, SnapshotCorrupt, SnapshotMissing, ObjectStoreError)
"""Errors that may end a controller process: its disk fails, or the store fails during the start or
returns damaged reads.
"""

_FORGOT = (JournalStateLost, JournalCorrupt)
"""Errors that end a controller whose disk was changed, only in the scenario `rollback`."""

_HISTORY_OVER = (BackupFenced, LogBehindBackup)
"""Errors that end only the process of a controller that a recovery left behind."""


def addresses(count: int) -> list[str]:
    return [f"c{number}:1" for number in range(count)]


def config_of(number: int, count: int, common: ControllerConfig) -> ControllerConfig:
    peers = (
        tuple(f"{peer}@{address}" for peer, address in enumerate(addresses(count)))
        if count > 1
        else ()
    )
    return msgspec.structs.replace(
        common, controller_id=number, peers=peers, listeners=(f"c{number}:1",)
    )


class SimController:
    def __init__(self, world: "World", number: int, start: int, disk: Disk) -> None:
        self.world = world
        self.number = number
        self.disk = disk
        self.metadata = world.metadata
        """The log of its history."""
        self.rng = Random(f"{world.seed}/controller/{number}/{start}")
        self.process = Process(f"c{number}.{start}", link=f"c{number}")
        self.process.network = world.network
        self.process.controller = self
        self.store = SimStore(world.bucket, world.weather, self.rng, world.trace)
        self.wal_store = world.wal_client(Random(f"{world.seed}/wal/{self.process.name}"))
        self.skew_ms = world.draw_skew_ms(self.rng)
        self.server: ControllerServer | None = None

    @property
    def is_leading(self) -> bool:
        return self.server is not None and self.server.is_leading

    @property
    def epoch(self) -> int:
        return (
            0
            if self.server is None or self.server.quorum is None
            else self.server.quorum.leadership.epoch
        )

    def start(self) -> None:
        self.world.loop.call_soon(
            lambda: self.world.loop.create_task(self._run()), context=self.process.context()
        )

    async def _run(self) -> None:
        world = self.world
        config = config_of(self.number, world.limits.controllers, world.limits.controller)
        config = world.rollbacks.config_of(config, addresses(world.limits.controllers))
        self.server = server = ControllerServer(
            config,
            self.store,
            now_ms=lambda: world.now_ms(self.skew_ms),
            directory=SimDirectory(self.disk, self.process),
            rng=self.rng,
            wal_store=(
                None if self.wal_store is None else ConfiguredWalStore(self.wal_store, "memory:")
            ),
        )
        try:
            await server.start()
            assert server.failed is not None
            await server.failed
        except _HISTORY_OVER as error:
            if world.is_left_behind(self):
                world.controller_ended(self, repr(error))
            else:
                world.fail(f"controller {self.number} takes its history for ended: {error!r}")
        except _FORGOT as error:
            if not world.rollbacks.ended(self, repr(error)):
                world.fail(
                    f"controller {self.number} takes its own disk for another one: {error!r}"
                )
        except _ENDS as error:
            world.controller_ended(self, repr(error))
        except Exception as error:  # noqa: BLE001 - a defect
            world.fail(f"controller {self.number} ended: {error!r}")


def _of_this_process() -> SimController:
    process = PROCESS.get()
    assert process is not None
    controller: SimController = process.controller
    return controller


class SimQuorum(RaftQuorum):
    """The real quorum, which reports its decisions to the metadata log."""

    def __init__(self, *args: Any) -> None:
        self._sim = _of_this_process()
        self._commit_seen = 0
        super().__init__(*args)

    def _publish_changes(self) -> None:
        world = self._sim.world
        if not self.failed.done():
            self._commit_seen = self._sim.metadata.committed(
                self._sim.number, self, self._commit_seen
            )
        before = self._leadership
        super()._publish_changes()
        if self._leadership != before and self._leadership.active:
            world.trace("leads", self._sim.process.name, self._leadership.epoch)
            self._sim.metadata.leads(self._sim.number, self._leadership.epoch)

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        end = await super().propose(epoch, records)
        self._sim.metadata.proposed(epoch, records, end)
        return end

    async def confirm(self, epoch: ControllerEpoch) -> None:
        world = self._sim.world
        since_s = world.loop.time()
        await super().confirm(epoch)
        self._sim.metadata.confirmed(self._sim.number, epoch, self.core.log.members.voters, since_s)


class SimActiveController(ActiveController):
    def __init__(
        self, config: Any, quorum: Any, state: RecoveredState, *args: Any, **options: Any
    ) -> None:
        sim = _of_this_process()
        sim.metadata.leadership_begins(sim.number, state.image)
        super().__init__(config, quorum, state, *args, **options)


def new_uuid() -> UUID:
    return UUID(int=_of_this_process().rng.getrandbits(128), version=4)

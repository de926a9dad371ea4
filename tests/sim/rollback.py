"""A controller's data directory is restored from an old copy, emptied or damaged, then replaced.

One disk at a time, while all controllers run: a controller that remembers the disk's promises is
reachable, so the disk neither votes nor counts. Copies restored while no such controller runs are
outside the guarantees.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import AddVoter, RemoveController
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from tests.sim.chaos import Chaos
from tests.sim.disk import Disk, DiskCopy

if TYPE_CHECKING:
    from tests.sim.control import SimController
    from tests.sim.world import World

CONTROLLERS = 3
_COPIES_MAX = 4
_SETTLED_S = 6.0
"""After this time with the old disk, a controller has forgotten nothing important."""


@dataclass(slots=True)
class _Victim:
    disk: Disk
    ended_count: int = 0


class Rollbacks:
    """Disk changes. joined: controllers that were replaced."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.joined: set[int] = set()
        self.copies: dict[int, list[DiskCopy]] = {}
        self.victims: dict[int, _Victim] = {}
        self.is_busy = False
        """A disk is about to be changed, or its controller is not settled again."""
        self.refused_count = 0

    def config_of(self, config: ControllerConfig, addresses: list[str]) -> ControllerConfig:
        if config.controller_id not in self.joined:
            return config
        return msgspec.structs.replace(config, peers=(), join=tuple(addresses))

    def restore(self, controller: "SimController", kind: str, rng: Random) -> None:
        """Restore the disk after a crash, before the next start."""
        disk, copy = controller.disk, rng.choice(self.copies[controller.number])
        self._world.trace("rollback", controller.process.name, kind)
        if kind == "whole":
            disk.restore(copy.files, copy.identity)
        elif kind == "journal":
            disk.restore(copy.files, disk.identity)
        elif kind == "emptied":
            disk.restore({}, disk.identity)
        else:
            disk.restore(_damaged(disk.copy().files, rng), disk.identity)
        self.victims[controller.number] = _Victim(disk)
        self._world.later(_SETTLED_S, self._settled, disk)

    def ended(self, controller: "SimController", reason: str) -> bool:
        """Handle the end of a controller because of its disk. Return False if the disk was not
        changed. The same disk is tried once more, then replaced.
        """
        world, victim = self._world, self.victims.get(controller.number)
        if victim is None or victim.disk is not controller.disk or controller.process.dead:
            return victim is not None and controller.process.dead
        self.refused_count += 1
        victim.ended_count += 1
        world.trace("refused", controller.process.name, reason[:60])
        if victim.ended_count == 1:
            world.crash_controller(controller, 0.3)
        else:
            world.stop_controller(controller)
            world.admin.start(lambda: self._replace(controller.number))
        return True

    def _settled(self, disk: Disk) -> None:
        victim = next((victim for victim in self.victims.values() if victim.disk is disk), None)
        if victim is not None and not victim.ended_count:
            self.is_busy = False

    async def _replace(self, number: int) -> None:
        world, admin = self._world, self._world.admin.client
        await _until_done(
            world, lambda: admin.remove_controller(RemoveController(node_id=number), timeout_s=5)
        )
        forgot = world.disks[number].forgot
        world.disks[number] = Disk(
            Random(f"{world.seed}/disk/{number}/{world.loop.time()}"), world.limits.disk_sync_ms
        )
        world.disks[number].forgot = forgot
        self.copies.pop(number, None)
        self.joined.add(number)
        world.start_controller(number)
        await _until_done(
            world, lambda: admin.add_voter(AddVoter(controller=str(number)), timeout_s=5)
        )
        world.trace("replaced", number)
        self.is_busy = False


async def _until_done(world: "World", send_request: Any) -> None:
    while not world.is_over:
        with suppress(TimeoutError, ControllerError):
            await send_request()
            return
        await asyncio.sleep(0.3)


def _damaged(files: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """Flip one bit: anywhere, or in the last frame, where it looks like a write torn by a crash."""
    name = max(files) if rng.random() < 0.5 else rng.choice(sorted(files))
    data = bytearray(files[name])
    at = (
        len(data) - 1 - rng.randrange(min(20, len(data)))
        if rng.random() < 0.5
        else rng.randrange(len(data))
    )
    data[at] ^= 1 << rng.randrange(8)
    return files | {name: bytes(data)}


class RollbackChaos(Chaos):
    """Disturb controllers only while no disk is being repaired."""

    def copy_disks(self) -> None:
        """Copy the volumes while they are in use, as a backup does."""
        copies = self._world.rollbacks.copies
        for number, disk in sorted(self._world.disks.items()):
            copy = disk.copy()
            if copy.files:
                copies.setdefault(number, []).append(copy)
                del copies[number][:-_COPIES_MAX]

    def roll_back(self) -> None:
        world, rng = self._world, self._rng
        found = self._leader_and_follower()
        if found is None:
            return
        leader, victim = found
        world.rollbacks.is_busy = True
        (other,) = (
            each for each in world.controllers.values() if each is not leader and each is not victim
        )
        if rng.random() < 0.8:
            duration_s = rng.choice((2.0, 4.0, 8.0))
            self._cut_link(leader.process.link, other.process.link, duration_s)
            self._cut_link(other.process.link, leader.process.link, duration_s)
        kind = rng.choice(("whole", "whole", "whole", "journal", "emptied", "damaged", "damaged"))
        restart_s = rng.choice((0.01, 0.2, 1.0))
        world.later(rng.choice((0.1, 0.6, 1.5)), self._strike_disk, leader, victim, kind, restart_s)

    def _strike_disk(
        self, leader: "SimController", victim: "SimController", kind: str, restart_s: float
    ) -> None:
        world = self._world
        if (
            world.calm
            or victim.process.held is not None
            or leader.process.held is not None
            or not leader.is_leading
        ):
            world.rollbacks.is_busy = False
            return
        if self._rng.random() < 0.6:
            # The member with the promise is reached late, but before the starting controller
            # accepts messages from the other one.
            deaf_s = world.limits.controller.election_timeout_ms / 1_000
            for link in ((leader, victim), (victim, leader)):
                world.later(
                    restart_s,
                    self._cut_link,
                    link[0].process.link,
                    link[1].process.link,
                    0.4 * deaf_s,
                )
        world.crash_controller(victim, restart_s)
        world.rollbacks.restore(victim, kind, self._rng)

    def _leader_and_follower(self) -> "tuple[SimController, SimController] | None":
        """Return the leader, and a follower with known promises, if the quorum is healthy."""
        world = self._world
        if not world.rollbacks.copies:
            self.copy_disks()
        leader = world.active_controller()
        is_whole = len(world.controllers) == CONTROLLERS and not any(
            each.process.held for each in world.controllers.values()
        )
        if world.rollbacks.is_busy or leader is None or not is_whole or world.network.links.any_cut:
            return None
        assert leader.server is not None
        assert leader.server.quorum is not None
        core = leader.server.quorum.core
        known = [
            each
            for number, each in sorted(world.controllers.items())
            if (progress := core.progress_of(number)) is not None
            and progress.match > 0
            and number in world.rollbacks.copies
        ]
        if len(core.log.members.voters) < CONTROLLERS or len(known) < CONTROLLERS - 1:
            return None
        return leader, self._rng.choice(known)

    def pause_controller(self) -> None:
        if not self._world.rollbacks.is_busy:
            super().pause_controller()

    def cut_controller(self) -> None:
        if not self._world.rollbacks.is_busy:
            super().cut_controller()

    def transfer(self) -> None:
        if not self._world.rollbacks.is_busy:
            super().transfer()


async def wander(world: "World") -> None:
    """Follow the records from one controller after another, with the current image or from the
    beginning.

    Fails the run if an image goes back, or contains uncommitted records.
    """
    rng = Random(f"{world.seed}/wanderer")
    image = MetadataImage()
    while not world.is_over:
        client = ControllerClient(
            [rng.choice(sorted(world.network.listeners) or ["c0:1"])], rng=rng
        )
        follower = MetadataFollower(client, None, rng=rng)
        if rng.random() < 0.5:
            image = MetadataImage()
        follower._image = image
        known = image.end_offset

        def look(delta: MetadataDelta, seen: MetadataImage, known: int = known) -> None:
            if seen.end_offset < known:
                world.fail(f"an image went back from {known} to {seen.end_offset}")
            if delta.everything and seen.end_offset > known:
                world.metadata.compare(seen)

        follower.subscribe(look)
        with suppress(TimeoutError, ControllerError):
            await follower.start(1.0)
        await asyncio.sleep(rng.uniform(0, 0.4))
        image = follower.image
        await follower.stop()
        await client.close()

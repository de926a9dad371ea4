"""Scripts about a controller whose disk has lost its promises.

The leader commits a topic with one voter while the third one is cut off. Then that voter gets its
old disk back, and may vote again only when the leader cannot object.
"""

import asyncio
from random import Random
from typing import Final

from tests.sim.control import SimController
from tests.sim.directed import Script, in_cluster

_SOON_MS: Final = 100
_ELECTED_S: Final = 10.0


@in_cluster(controllers=3)
async def restore_a_disk(script: Script) -> None:
    """Restore a copy, and cut the leader off once it has had time to object."""
    await _Restored(script).run("whole", cut_off_after=0.9)


@in_cluster(controllers=3)
async def empty_a_journal(script: Script) -> None:
    """Remove the journal, and let no controller object."""
    await _Restored(script).run("emptied", cut_off_after=0.0)


@in_cluster(controllers=3)
async def restore_a_disk_before_an_election(script: Script) -> None:
    """Restore a copy just before the third controller requests votes, while the leader is cut off
    for less than an election timeout.
    """
    restored = _Restored(script)
    await restored.lose("whole")
    restored.link(restored.leader, restored.voter, cut=True)
    await script.until(restored.is_election_near)
    script.world.start_controller(restored.voter.number)
    await asyncio.sleep(0.4 * restored.timeout_s)
    restored.link(restored.leader, restored.voter, cut=False)
    await restored.settle()


class _Restored:
    """leader: the initial one. voter: the one whose disk is changed. other: lacks the
    last record.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        world = script.world
        leader = world.active_controller()
        assert leader is not None
        self.leader = leader
        self.voter, self.other = (
            each for _, each in sorted(world.controllers.items()) if each is not leader
        )
        self.timeout_s = world.limits.controller.election_timeout_ms / 1_000

    async def run(self, kind: str, cut_off_after: float) -> None:
        """cut_off_after: when the leader is cut off from the voter, in election timeouts."""
        await self.lose(kind)
        self._script.world.start_controller(self.voter.number)
        await asyncio.sleep(cut_off_after * self.timeout_s)
        if not self._script.world.rollbacks.refused_count:
            self.link(self.leader, self.voter, cut=True)
        await self.settle()

    async def lose(self, kind: str) -> None:
        """Commit a topic that the voter forgets, and leave its process stopped."""
        world = self._script.world
        world.rollbacks.copies[self.voter.number] = [self.voter.disk.copy()]
        self.link(self.leader, self.other, cut=True)
        await self._script.create("t")
        world.stop_controller(self.voter)
        world.rollbacks.restore(self.voter, kind, Random(0))

    def link(self, one: SimController, other: SimController, *, cut: bool) -> None:
        links = self._script.world.network.links
        change = links.cut if cut else links.mend
        change(one.process.link, other.process.link)
        change(other.process.link, one.process.link)

    def is_election_near(self) -> bool:
        server = self.other.server
        assert server is not None
        assert server.quorum is not None
        deadline_ms = server.quorum.core.deadline_ms
        now_ms = self._script.world.loop.time() * 1_000
        return deadline_ms is not None and 0 < deadline_ms - now_ms < _SOON_MS

    async def settle(self) -> None:
        """Give the others time for an election, then connect all. The disk is replaced if it was
        refused.
        """
        await asyncio.sleep(_ELECTED_S)
        for one, other in ((self.leader, self.other), (self.leader, self.voter)):
            self.link(one, other, cut=False)
        await self._script.create("u")
        assert self._script.world.rollbacks.refused_count, "a disk that lost a record is accepted"

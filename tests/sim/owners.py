"""The owners of a consumer group's partitions, according to its members.

No member gets a partition that another member owns, unless that one was silent for so long that the
coordinator may have fenced it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.sim.checkers import Part
from tests.sim.groups import crash_coordinators

if TYPE_CHECKING:
    from tests.sim.world import World

_LOST_MAX: Final = 2
"""After this many consecutive lost responses, the coordinator may be two epochs ahead."""


@dataclass(slots=True, eq=False)
class Life:
    """A member from its first heartbeat until it leaves, dies or is fenced."""

    member_id: str
    epoch: int = 0
    owned: set[Part] = field(default_factory=set[Part])
    revoked: set[Part] = field(default_factory=set[Part])
    """The part of `owned` to revoke before the next heartbeat."""
    heard_s: float = 0.0
    """When the last heartbeat that got a response was sent."""
    has_regex: bool = False
    """Whether it subscribes to the topics by a regular expression."""
    lost_count: int = 0
    """Number of responses that were lost since then."""
    is_reported: bool = False
    """Whether the coordinator has the list of its partitions."""
    owned_generation: bool = False
    """Whether it is a classic member, synced in the generation `epoch`."""
    is_replaced: bool = False
    """Whether another member was given its partitions."""


class Ownership:
    """The owners of partitions, according to the members."""

    def __init__(self, world: "World", name: str, silence_s: float) -> None:
        self._world = world
        self._name = name
        self.silence_s = silence_s
        self._lives: list[Life] = []

    def began(self, life: Life) -> None:
        self._lives.append(life)

    def ended(self, life: Life) -> None:
        self._lives.remove(life)

    def is_silent(self, life: Life) -> bool:
        """Return whether the coordinator may have fenced the member."""
        return self._is_over(life) or life.lost_count >= _LOST_MAX

    def _is_over(self, life: Life) -> bool:
        """Return whether a timeout of the member may have passed. Lost responses alone free none of
        its partitions.
        """
        return self._world.loop.time() - life.heard_s >= self.silence_s

    def given(self, life: Life, parts: set[Part]) -> None:
        """Record that a member now owns exactly these partitions."""
        for other in self._lives:
            both = sorted(other.owned & (parts - life.owned))
            if other is life or not both:
                continue
            if not self._is_over(other):
                self._world.fail(
                    f"{self._name}: {life.member_id} is given {both}, which {other.member_id} owns"
                )
            other.is_replaced = True
        life.owned = parts


async def check_new_coordinator(
    world: "World",
    group: str,
    session_timeout_ms: int,
    *,
    is_settled: Callable[[], Awaitable[bool]],
    held: Callable[[], list[Any]],
    may_change: bool = False,
) -> None:
    """Let the members of a group settle, then replace the coordinators, which must change nothing.

    is_settled: sends heartbeats. held: returns what each member has. may_change: members may have
    to rejoin.
    """
    # Members that died without leaving remain for a session.
    settled_s = 0.0
    while settled_s < 1.5 * session_timeout_ms / 1_000 + 2:
        settled_s = settled_s + 0.1 if await is_settled() else 0.0
        await asyncio.sleep(0.1)
    before = held()
    crash_coordinators(world)
    for _ in range(20):
        if not await is_settled():
            # Its heartbeat was late.
            return
        await asyncio.sleep(0.1)
    after = held()
    if after != before and not may_change:
        world.fail(f"{group} was {before}, a new coordinator makes it {after}")
    world.trace("settled", after)

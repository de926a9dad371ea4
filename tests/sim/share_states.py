"""Leaders read and write states of share partitions while these are initialized again.

A read contains every confirmed write and nothing else, and its start offset never decreases. A
leader is rejected if and only if a newer one has read. Each write acknowledges one distinct record.
Source: KIP-932.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.coordination.internal_topics import SHARE_STATES_TOPIC
from penstock.broker.groups.share.state.model import (
    ACKNOWLEDGED,
    NO_START_OFFSET,
    SharePartitionKey,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import initialize_share_group_state as initializing
from penstock.protocol.gen import read_share_group_state as reading
from penstock.protocol.gen import write_share_group_state as writing
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.groups import RETRIED, Asker

if TYPE_CHECKING:
    from tests.sim.world import World

SHARING: Final = frozenset({"share_states"})
_GROUP: Final = "queue"
_PARTS_MAX: Final = 3
_LEADERS_COUNT: Final = 2
_STATE_EPOCH: Final = 1
_SHARE_KEY_TYPE: Final = 2
_FIND_VERSION: Final = 6
_NOT_YET: Final = RETRIED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(frozen=True, slots=True)
class Fence:
    """Time of the first response to a leader: earlier leaders are fenced."""

    leader_epoch: int
    responded_s: float
    start_offset: int
    offsets: frozenset[int]


@dataclass(slots=True)
class StateHistory:
    """The state of one share partition as its clients see it."""

    world: "World"
    part: Part
    epochs_count: int = 0
    asked_epoch: int = 0
    """The highest leader epoch with which a state was requested."""
    writers: list[int] = field(default_factory=list[int])
    """The leader epoch of the write of each offset."""
    confirmed: dict[int, float] = field(default_factory=dict[int, float])
    """When the write of an offset was confirmed."""
    start_sent: int = 0
    starts: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Confirmed start offsets with their times."""
    fences: list[Fence] = field(default_factory=list[Fence])

    @property
    def name(self) -> str:
        topic = self.world.metadata.image.topics.by_name(self.part[0])
        assert topic is not None
        return SharePartitionKey(_GROUP, topic.topic_id, self.part[1]).coordinator_key

    @property
    def topic_id(self) -> Any:
        topic = self.world.metadata.image.topics.by_name(self.part[0])
        assert topic is not None
        return topic.topic_id

    def begin(self) -> int:
        """Return the epoch of the next leader."""
        self.epochs_count += 1
        return self.epochs_count

    def sent(self, leader_epoch: int) -> int:
        """Return the offset of the next write."""
        self.writers.append(leader_epoch)
        return len(self.writers) - 1

    def wrote(self, offset: int, start_offset: int, sent_s: float) -> None:
        """Record a confirmed write."""
        epoch, now_s = self.writers[offset], self.world.loop.time()
        for fence in self.fences:
            if fence.leader_epoch > epoch and fence.responded_s <= sent_s:
                self._fail(f"leader {epoch} writes after leader {fence.leader_epoch} has read")
        self.confirmed[offset] = now_s
        if start_offset != NO_START_OFFSET:
            self.starts.append((now_s, start_offset))

    def read(
        self, leader_epoch: int, start_offset: int, offsets: frozenset[int], began_s: float
    ) -> None:
        """Check the response to a read that began at `began_s`."""
        starts = [start for confirmed_s, start in self.starts if confirmed_s <= began_s]
        lowest = max(starts, default=NO_START_OFFSET)
        if not lowest <= start_offset <= self.start_sent:
            self._fail(f"starts at {start_offset}, {lowest} was confirmed")
        if missing := [
            offset
            for offset, confirmed_s in self.confirmed.items()
            if confirmed_s <= began_s and offset >= start_offset and offset not in offsets
        ]:
            self._fail(f"lacks {missing}, which were confirmed")
        if not all(offset < len(self.writers) for offset in offsets):
            self._fail(f"has {sorted(offsets)}, of which nobody wrote the last")
        for fence in self.fences:
            self._check_fence(fence, leader_epoch, offsets, began_s)
        if not any(fence.leader_epoch == leader_epoch for fence in self.fences):
            now_s = self.world.loop.time()
            self.fences.append(Fence(leader_epoch, now_s, start_offset, offsets))

    def _check_fence(
        self, fence: Fence, leader_epoch: int, offsets: frozenset[int], began_s: float
    ) -> None:
        if fence.responded_s > began_s:
            return
        if fence.leader_epoch > leader_epoch:
            self._fail(f"leader {leader_epoch} reads after leader {fence.leader_epoch} has read")
        late = [
            offset
            for offset in offsets
            if self.writers[offset] < fence.leader_epoch
            and offset >= fence.start_offset
            and offset not in fence.offsets
        ]
        if late:
            self._fail(f"has {late} of leaders before {fence.leader_epoch}, which did not see them")

    def _fail(self, what: str) -> None:
        self.world.fail(f"the state of {self.part} {what}")


class ShareAsker(Asker):
    """A client with a connection to the share coordinator of one share partition."""

    KEY_TYPE = _SHARE_KEY_TYPE
    FIND_VERSION = _FIND_VERSION

    def __init__(self, world: "World", history: StateHistory, name: str) -> None:
        super().__init__(world, history, name)
        self.history = history

    async def initialize(self) -> bool:
        """Return whether the state exists. Raises NoResponse."""
        request = initializing.InitializeShareGroupStateRequest(
            _GROUP,
            [
                initializing.InitializeStateData(
                    self.history.topic_id,
                    [
                        initializing.PartitionData(
                            self.history.part[1], _STATE_EPOCH, NO_START_OFFSET
                        )
                    ],
                )
            ],
        )
        response = await self.send_request(apis.INITIALIZE_SHARE_GROUP_STATE, 0, request, _code_of)
        code = ErrorCode(_code_of(response))
        if code not in _NOT_YET | {ErrorCode.NONE}:
            self.world.fail(f"{self.name} initializes a state and gets {code.name}")
        return code is ErrorCode.NONE

    async def read(self, leader_epoch: int) -> ErrorCode:
        """Read the state and check it. Raises NoResponse."""
        history = self.history
        history.asked_epoch = max(history.asked_epoch, leader_epoch)
        request = reading.ReadShareGroupStateRequest(
            _GROUP,
            [
                reading.ReadStateData(
                    history.topic_id, [reading.PartitionData(history.part[1], leader_epoch)]
                )
            ],
        )
        began_s = self.now_s()
        connection = await self._coordinator()
        response = await self.send_request(
            apis.READ_SHARE_GROUP_STATE, 0, request, _code_of, connection=connection
        )
        code = ErrorCode(_code_of(response))
        if code is not ErrorCode.NONE:
            return self._refused(code, leader_epoch)
        if connection.broker in self.world.zombies:
            # A process that was replaced while still running may lag by one session timeout.
            began_s -= self.world.limits.controller.session_timeout_ms / 1_000
        found = response.results[0].partitions[0]
        offsets = frozenset(
            offset
            for batch in found.state_batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        )
        self.world.trace("read", self.name, leader_epoch, found.start_offset, sorted(offsets))
        history.read(leader_epoch, found.start_offset, offsets, began_s)
        return code

    async def write(self, leader_epoch: int) -> ErrorCode:
        """Acknowledge one more record; sometimes everything below it is done. Raises NoResponse."""
        history, rng = self.history, self.rng
        offset, start = history.sent(leader_epoch), NO_START_OFFSET
        if rng.random() < 0.3:
            start = max(history.start_sent, offset - rng.randrange(8))
            history.start_sent = start
        data = writing.PartitionData(
            history.part[1],
            _STATE_EPOCH,
            leader_epoch,
            start,
            0,
            [writing.StateBatch(offset, offset, ACKNOWLEDGED, 1)],
        )
        request = writing.WriteShareGroupStateRequest(
            _GROUP, [writing.WriteStateData(history.topic_id, [data])]
        )
        sent_s = self.now_s()
        response = await self.send_request(apis.WRITE_SHARE_GROUP_STATE, 1, request, _code_of)
        code = ErrorCode(_code_of(response))
        if code is not ErrorCode.NONE:
            return self._refused(code, leader_epoch)
        history.wrote(offset, start, sent_s)
        return code

    def _refused(self, code: ErrorCode, leader_epoch: int) -> ErrorCode:
        is_older = leader_epoch < self.history.asked_epoch
        if code not in _NOT_YET and not (code is ErrorCode.FENCED_LEADER_EPOCH and is_older):
            self.world.fail(f"{self.name} gets {code.name} in epoch {leader_epoch}")
        return code


class ShareLeader(ShareAsker):
    """A client that is one leader after another."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._live(stop, self.history.begin())

    async def _live(self, stop: asyncio.Event, leader_epoch: int) -> None:
        end_s = self.now_s() + self.rng.choice((1.0, 5.0, 20.0))
        has_read = False
        while not stop.is_set() and self.now_s() < end_s:
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            with contextlib.suppress(NoResponse):
                if not has_read or self.rng.random() < 0.1:
                    code = await self.read(leader_epoch)
                    has_read = has_read or code is ErrorCode.NONE
                else:
                    code = await self.write(leader_epoch)
                # Some ignore that, and continue.
                if code is ErrorCode.FENCED_LEADER_EPOCH and self.rng.random() < 0.7:
                    return


class Initializer(ShareAsker):
    """A group coordinator that has lost the record of its completed steps."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            with contextlib.suppress(NoResponse):
                await self.initialize()


class ShareClients:
    """The states of some partitions in one group; empty in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        parts: Sequence[Part] = world.parts[:_PARTS_MAX] if world.scenario in SHARING else ()
        self._histories = [StateHistory(world, part) for part in parts]
        self._actors: list[ShareLeader | Initializer] = [
            ShareLeader(world, history, f"leader{number} {history.part}")
            for history in self._histories
            for number in range(_LEADERS_COUNT)
        ]
        self._actors += [
            Initializer(world, history, f"initializer {history.part}")
            for history in self._histories
        ]

    async def ready(self) -> None:
        """Wait until every state exists."""
        for history in self._histories:
            asker = ShareAsker(self._world, history, f"first {history.part}")
            await until_done(asker.initialize)

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [actor.run(stop) for actor in self._actors]

    async def check(self) -> None:
        """Read every state, also from coordinators that have just loaded."""
        askers = [
            ShareAsker(self._world, history, f"last {history.part}") for history in self._histories
        ]
        for asker in askers:
            await until_done(lambda asker=asker: _reads(asker))
        if askers:
            _crash_share_coordinators(self._world)
        for asker in askers:
            await until_done(lambda asker=asker: _reads(asker))
            self._world.trace("states", asker.history.part, len(asker.history.confirmed))


def _crash_share_coordinators(world: "World") -> None:
    topic = world.metadata.image.topics.by_name(SHARE_STATES_TOPIC)
    assert topic is not None
    for node_id in sorted({record.leader for record in topic.partitions}):
        if node_id in world.brokers:
            world.crash(world.brokers[node_id], 0.01)


async def _reads(asker: ShareAsker) -> bool:
    return await asker.read(asker.history.begin()) is ErrorCode.NONE


async def until_done(act: Any) -> None:
    while True:
        with contextlib.suppress(NoResponse):
            if await act():
                return
        await asyncio.sleep(0.2)


def _code_of(response: Any) -> int:
    return int(response.results[0].partitions[0].error_code)

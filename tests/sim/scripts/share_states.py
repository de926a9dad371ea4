"""Scripts about share partition states, as leaders read and write them."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.internal_topics import SHARE_STATES_TOPIC
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, NO_START_OFFSET
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import initialize_share_group_state as initializing
from penstock.protocol.gen import read_share_group_state as reading
from penstock.protocol.gen import write_share_group_state as writing
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.directed import Script

PART: Part = ("t", 0)
GROUP: Final = "g"
_EPOCH: Final = 1


class States:
    """The state of one share partition, whose coordinator is broker 1."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def begin(self) -> None:
        await self._script.create(SHARE_STATES_TOPIC, (1,), cleanup_policy="compact")
        await self._script.create("t", (2,))
        await self.initialize()

    async def initialize(self, epoch: int = _EPOCH) -> None:
        request = self._initializing(epoch)
        await self._repeat(apis.INITIALIZE_SHARE_GROUP_STATE, 0, request)

    async def try_initialize(self, epoch: int) -> ErrorCode:
        response = await self._script.send_request(
            self._script.broker(1),
            apis.INITIALIZE_SHARE_GROUP_STATE,
            0,
            self._initializing(epoch),
        )
        return ErrorCode(_item(response).error_code)

    def _initializing(self, epoch: int) -> Any:
        data = initializing.InitializeStateData(
            self._topic_id(), [initializing.PartitionData(PART[1], epoch, 0)]
        )
        return initializing.InitializeShareGroupStateRequest(GROUP, [data])

    async def read(self, leader_epoch: int) -> tuple[int, set[int]]:
        """Return the start offset, and the acknowledged offsets."""
        request = self._reading(leader_epoch)
        found = await self._repeat(apis.READ_SHARE_GROUP_STATE, 0, request)
        batches = found.state_batches
        return found.start_offset, {
            offset
            for batch in batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }

    async def try_read(self, leader_epoch: int) -> ErrorCode:
        request = self._reading(leader_epoch)
        response = await self._script.send_request(
            self._script.broker(1), apis.READ_SHARE_GROUP_STATE, 0, request
        )
        return ErrorCode(_item(response).error_code)

    def _reading(self, leader_epoch: int) -> Any:
        data = reading.ReadStateData(
            self._topic_id(), [reading.PartitionData(PART[1], leader_epoch)]
        )
        return reading.ReadShareGroupStateRequest(GROUP, [data])

    async def write(
        self, leader_epoch: int, offset: int, start_offset: int = NO_START_OFFSET
    ) -> None:
        """Acknowledge an offset."""
        request = self._writing(leader_epoch, offset, start_offset)
        await self._repeat(apis.WRITE_SHARE_GROUP_STATE, 1, request)

    async def try_write(self, leader_epoch: int, offset: int) -> ErrorCode | None:
        """Try once to acknowledge an offset. Return None without a response within 1 s."""
        request = self._writing(leader_epoch, offset, NO_START_OFFSET)
        try:
            response = await self._script.world.connect(self._script.broker(1)).send_request(
                apis.WRITE_SHARE_GROUP_STATE, 1, request, 1.0
            )
        except NoResponse:
            return None
        return ErrorCode(_item(response).error_code)

    def _writing(self, leader_epoch: int, offset: int, start_offset: int) -> Any:
        batch = writing.StateBatch(offset, offset, ACKNOWLEDGED, 1)
        data = writing.PartitionData(PART[1], _EPOCH, leader_epoch, start_offset, 0, [batch])
        return writing.WriteShareGroupStateRequest(
            GROUP, [writing.WriteStateData(self._topic_id(), [data])]
        )

    async def _repeat(self, api: Any, version: int, request: Any) -> Any:
        return await self._script.repeat(
            lambda: self._script.leader((SHARE_STATES_TOPIC, 0)), (api, version, request), _item
        )

    def _topic_id(self) -> Any:
        topic = self._script.world.metadata.image.topics.by_name("t")
        assert topic is not None
        return topic.topic_id


def _item(response: Any) -> Any:
    return response.results[0].partitions[0]


async def write_while_the_store_hangs(script: Script) -> None:
    states = States(script)
    await states.begin()
    script.hold(1)
    code = await states.try_write(0, 1)
    assert code is not ErrorCode.NONE, "a write is confirmed before it is durable"


async def use_an_old_leader_epoch(script: Script) -> None:
    """Read and write with the epoch of a leader whose successor has read the state, also after the
    coordinator has loaded it.
    """
    states = States(script)
    await states.begin()
    await states.read(2)
    code = await states.try_read(1)
    assert code is ErrorCode.FENCED_LEADER_EPOCH, f"an old leader reads: {code.name}"
    code = await states.try_write(1, 1)
    assert code is ErrorCode.FENCED_LEADER_EPOCH, f"an old leader writes: {code}"
    await script.restart(1)
    await script.until_led((SHARE_STATES_TOPIC, 0), 1)
    code = await states.try_write(1, 1)
    assert code is ErrorCode.FENCED_LEADER_EPOCH, f"an old leader writes after a restart: {code}"


async def initialize_again(script: Script) -> None:
    """Repeat the initialization of a state that is in use."""
    states = States(script)
    await states.begin()
    await states.write(1, 1)
    await states.initialize()
    found = await states.read(1)
    assert found == (0, {1}), f"the state is {found}"


async def initialize_without_an_epoch(script: Script) -> None:
    """Initialize a state without an epoch, before a request of an older group arrives."""
    states = States(script)
    await states.begin()
    await states.initialize(5)
    await states.initialize(-1)
    code = await states.try_initialize(4)
    assert code is ErrorCode.FENCED_STATE_EPOCH, f"an older group initializes: {code.name}"


async def load_a_state(script: Script) -> None:
    """Load a state with a start offset from a compacted log with snapshots."""
    world = script.world
    compaction = CompactionLimits(log_bytes_min=500, factor=1, retry_interval_s=0.1)
    world.coordination = replace(world.coordination, updates_max=2, compaction=compaction)
    await script.restart(1)
    states = States(script)
    await states.begin()
    await states.write(1, 1, start_offset=1)
    for offset in range(3, 30, 2):
        await states.write(1, offset)
        await asyncio.sleep(0.5)  # until the log is compacted
    expected = (1, set(range(1, 30, 2)))
    for _ in range(2):
        found = await states.read(1)
        assert found == expected, f"the state is {found}"
        await script.restart(1)

"""Scripts about requests that alter or delete the states of a share group while other requests, and
members, do the same.
"""

import asyncio
from typing import Any, Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, SHARE_STATES_TOPIC
from penstock.broker.groups.share.state.model import ACKNOWLEDGED
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import alter_share_group_offsets as altering
from penstock.protocol.gen import delete_groups
from penstock.protocol.gen import delete_share_group_offsets as deleting
from tests.sim.directed import Script
from tests.sim.scripts.late_requests import (
    Request,
    connections,
    read_state,
    send_request,
    share_heartbeat,
    state_code,
    write,
)

_PAUSE_S: Final = 0.5
_LEAVE_EPOCH: Final = -1


class Shared:
    """An empty share group with a state. Its coordinator is broker 1; the share coordinator is
    broker 2.
    """

    def __init__(self, script: Script) -> None:
        self._script = script

    async def begin(self) -> None:
        script = self._script
        await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
        await script.create(SHARE_STATES_TOPIC, (2,), cleanup_policy="compact")
        await script.create("t")
        await script.until_led((OFFSETS_TOPIC, 0), 1)
        await script.until_led((SHARE_STATES_TOPIC, 0), 2)
        await self.join()
        (member,) = await connections(script, 1)
        await send_request(member, share_heartbeat(_LEAVE_EPOCH))

    async def consume(self) -> None:
        """Acknowledge an offset, as the leader does for members."""
        state_epoch = (await read_state(self._script)).state_epoch
        written = await state_code(
            self._script, write(self._script, ACKNOWLEDGED, 1, epoch=state_epoch)
        )
        assert written is ErrorCode.NONE, written

    async def check_consumed(self) -> None:
        found = await read_state(self._script)
        offsets = [batch.first_offset for batch in found.state_batches]
        assert offsets == [1], f"after an alteration that failed, {offsets} are acknowledged"

    async def join(self) -> None:
        """Let a member join, and wait until it gets the partition."""
        (member,) = await connections(self._script, 1)
        reported = await send_request(member, share_heartbeat(0, "t"))
        while not (reported.assignment and reported.assignment.topic_partitions):
            await asyncio.sleep(_PAUSE_S)
            beat = share_heartbeat(reported.member_epoch, "t")
            reported = await send_request(member, beat)

    def send(self, request: Request) -> "asyncio.Task[Any]":
        """Send a request on a separate connection."""
        broker = self._script.broker(1)
        return self._script.world.loop.create_task(self._script.send_request(broker, *request))

    async def check_readable(self) -> None:
        code = ErrorCode((await read_state(self._script)).error_code)
        assert code is ErrorCode.NONE, f"the leader reads the state and gets {code.name}"


def alter() -> Request:
    part = altering.AlterShareGroupOffsetsRequestPartition(0, 7)
    topic = altering.AlterShareGroupOffsetsRequestTopic("t", [part])
    request = altering.AlterShareGroupOffsetsRequest("g", [topic])
    return apis.ALTER_SHARE_GROUP_OFFSETS, 0, request


def delete() -> Request:
    topic = deleting.DeleteShareGroupOffsetsRequestTopic("t")
    request = deleting.DeleteShareGroupOffsetsRequest("g", [topic])
    return apis.DELETE_SHARE_GROUP_OFFSETS, 0, request


async def delete_share_offsets_twice(script: Script) -> None:
    """Repeat a deletion on another connection. One of the two completes, a member joins, then the
    other one reaches the share coordinator.
    """
    shared = Shared(script)
    await shared.begin()
    with script.cut(1, 2):
        first = shared.send(delete())
        await asyncio.sleep(_PAUSE_S)
    second = shared.send(delete())
    await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
    with script.cut(1, 2):  # the other one is repeating its request
        await asyncio.sleep(_PAUSE_S)
    await shared.join()
    await asyncio.wait((first, second))
    await shared.check_readable()


async def alter_share_offsets_during_a_deletion(script: Script) -> None:
    """Alter offsets while the deletion request to the share coordinator is lost, which the group
    coordinator repeats.
    """
    shared = Shared(script)
    await shared.begin()
    with script.cut(1, 2):
        deletion = shared.send(delete())
        await asyncio.sleep(_PAUSE_S)
    altered = (await shared.send(alter())).responses[0].partitions[0]
    assert altered.error_code == ErrorCode.NONE, altered
    await deletion
    await shared.check_readable()
    offset = (await read_state(script)).start_offset
    assert offset == 7, f"the group begins at {offset}"


async def alter_share_offsets_late(script: Script) -> None:
    """Deliver the initialization of a failed alteration after a member has joined and acknowledged
    a record.
    """
    shared = Shared(script)
    await shared.begin()
    sent = script.record(apis.INITIALIZE_SHARE_GROUP_STATE)
    with script.cut(1, 2):  # each attempt has a separate connection
        altered = (await shared.send(alter())).responses[0].partitions[0]
    assert altered.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, altered
    late = sent[0]
    await shared.join()
    await shared.consume()
    await state_code(script, late)
    await shared.check_consumed()


async def alter_share_offsets_and_move(script: Script) -> None:
    """Let another broker coordinate the group while the former one repeats the initialization of an
    alteration, until a member has joined and acknowledged a record.
    """
    shared = Shared(script)
    await shared.begin()
    with script.cut(1, 2):
        altered = shared.send(alter())
        await asyncio.sleep(_PAUSE_S)
        await script.move((OFFSETS_TOPIC, 0), 2)
        await shared.join()
        await shared.consume()
    await altered
    await shared.check_consumed()


async def delete_the_former_group_late(script: Script) -> None:
    """Deliver the deletion of a group's state again after another group with its id has started.
    The share coordinator has loaded in between.
    """
    shared = Shared(script)
    sent = script.record(apis.DELETE_SHARE_GROUP_STATE)
    await shared.begin()
    request = delete_groups.DeleteGroupsRequest(["g"])
    deleted = (await shared.send((apis.DELETE_GROUPS, 2, request))).results[0]
    assert deleted.error_code == ErrorCode.NONE, deleted
    await script.restart(2)
    await script.until_led((SHARE_STATES_TOPIC, 0), 2)
    await shared.join()
    await state_code(script, sent[0])
    await shared.check_readable()

"""Scripts about members that join while their empty group is being deleted."""

import asyncio
from typing import Any, Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_groups
from tests.sim.directed import Script
from tests.sim.scripts.late_requests import (
    Request,
    connections,
    consumer_heartbeat,
    given,
    send_request,
    streams_heartbeat,
    tasks,
    topic_id_of,
)

_BOTH: Final = frozenset({0, 1})
_APPENDED_S: Final = 0.5
"""After this time, a request has been appended and waits for the store."""
_LEAVE_EPOCH: Final = -1
_DELETION: Final[Request] = (
    apis.DELETE_GROUPS,
    2,
    delete_groups.DeleteGroupsRequest(["g"]),
)


async def consumer_joins_while_its_group_is_deleted(script: Script) -> None:
    """Let a member join whose pattern matches no topics yet, replace the coordinator, and let the
    member subscribe.
    """
    await _create(script)
    topic_id = topic_id_of(script)
    joining = consumer_heartbeat("m", 0, topic_id)
    joining[2].subscribed_topic_names = []
    response = await _join_meanwhile(
        script,
        consumer_heartbeat("m", 0, topic_id),
        consumer_heartbeat("m", _LEAVE_EPOCH, topic_id),
        joining,
    )
    (member,) = await connections(script, 1)
    request = consumer_heartbeat("m", response.member_epoch, topic_id, frozenset())
    request[2].subscribed_topic_names = ["t"]
    response = await send_request(member, request)
    found = given(response)
    assert found == _BOTH, f"the member subscribes and gets {sorted(found)}"


async def streams_thread_joins_while_its_group_is_deleted(script: Script) -> None:
    """Let a streams thread join while its group is being deleted, replace the coordinator, and let
    the thread get its tasks.
    """
    await _create(script)
    joining = streams_heartbeat("m", 0)
    response = await _join_meanwhile(script, joining, streams_heartbeat("m", _LEAVE_EPOCH), joining)
    (member,) = await connections(script, 1)
    response = await send_request(member, streams_heartbeat("m", response.member_epoch))
    code = ErrorCode(response.error_code)
    assert code is ErrorCode.NONE, f"the member gets {code.name}"
    found = tasks(response)
    assert found == _BOTH, f"the member gets the tasks {sorted(found)}"


async def _create(script: Script) -> None:
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (1, 1))


async def _join_meanwhile(
    script: Script, first: Request, leaving: Request, joining: Request
) -> Any:
    """Let a member join and leave, then join again while the deletion of the group is not durable.
    Return the response after a restart of the coordinator.
    """
    administrator, member = await connections(script, 2)
    for request in (first, leaving):
        await send_request(member, request)
    held, loop = script.hold(1), script.world.loop
    deletion = loop.create_task(administrator.send_request(*_DELETION, 10.0))
    await asyncio.sleep(_APPENDED_S)
    joined = loop.create_task(send_request(member, joining))
    await asyncio.sleep(_APPENDED_S)
    held.release()
    deleted = ErrorCode((await deletion).results[0].error_code)
    assert deleted is ErrorCode.NONE, f"DeleteGroups gets {deleted.name}"
    response = await joined
    await script.restart(1)
    return response

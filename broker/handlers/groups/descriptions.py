"""Describe groups of one type. If the client may not describe a topic of the group, the response
contains an error, because the assignments would reveal the topic.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.base.acls import Operation, ResourceType
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.authorization import (
    allows_group,
    find_denied_topics,
    is_broker,
    operations,
)
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import each_once
from penstock.protocol.error_codes import ErrorCode

_HIDDEN_TOPICS: Final = (
    "The group has described topic(s) that the client is not authorized to describe."
)


class DescribedGroup(Protocol):
    """A group in the response of any of these APIs."""

    error_code: int
    error_message: str | None
    authorized_operations: int
    members: Sequence[Any]


_Described = TypeVar("_Described", bound=DescribedGroup)


async def describe_groups(
    node: Node,
    ctx: RequestContext,
    group_ids: Sequence[str],
    describe: Callable[[str], Awaitable[_Described | ErrorCode]],
    *,
    kind: str,
    refused: Callable[[int, str | None, str], _Described],
    topic_names: Callable[[_Described], set[str]],
    with_operations: bool,
    serves_brokers: bool = False,
) -> list[_Described]:
    """Return a group, or an error, for each distinct id.

    describe: describes a group after its coordinator has loaded it. kind: the group type in
    messages. refused: builds a group from an error code, a message and an id. topic_names: returns
    all topics of a description. serves_brokers: whether other brokers may describe every group.
    """
    sees_all = serves_brokers and is_broker(node, ctx)
    groups: list[_Described] = []
    async for group_id in each_once(group_ids):
        if not (sees_all or allows_group(node, ctx, Operation.DESCRIBE, group_id)):
            groups.append(refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, None, group_id))
            continue
        if not group_id:
            groups.append(refused(ErrorCode.INVALID_GROUP_ID, None, group_id))
            continue
        await node.groups.ready(group_id, ctx.received_at)
        group = await describe(group_id)
        if isinstance(group, ErrorCode):
            groups.append(refused(group, _refusal(node, group_id, group, kind), group_id))
            continue
        if with_operations:
            group.authorized_operations = operations(node, ctx, ResourceType.GROUP, group_id)
        if not sees_all and await find_denied_topics(
            node, ctx, Operation.DESCRIBE, topic_names(group)
        ):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = _HIDDEN_TOPICS
            group.members = []
        groups.append(group)
    return groups


def _refusal(node: Node, group_id: str, code: ErrorCode, kind: str) -> str:
    """Return the reason why a group of this type cannot be described."""
    if code is not ErrorCode.GROUP_ID_NOT_FOUND:
        return code.message
    is_known = not isinstance(node.groups.find(group_id, create=False), ErrorCode)
    return f"Group {group_id} is not a {kind}." if is_known else f"Group {group_id} not found."

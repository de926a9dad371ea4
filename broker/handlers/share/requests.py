"""Common parts of ShareFetch and ShareAcknowledge: acknowledgments, and the end of a session."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.share.partitions.partition import Outcome
from penstock.broker.groups.share.partitions.sessions import (
    ShareSession,
    ShareSessionKey,
    TopicIdPartition,
)
from penstock.broker.groups.share.partitions.spans import REJECT, RENEW, Acknowledgement
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import allows_topic
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import each_once
from penstock.controller.metadata.features import SHARE_VERSION

RENEW_FROM: Final = 2
"""The first version of both requests that supports renewing locks."""
NO_TOPIC_ID: Final = UUID(int=0)


def are_shares_on(node: Node) -> bool:
    """Return whether share groups are enabled in the cluster. If not, share group requests fail
    with UNSUPPORTED_VERSION, as in Kafka.
    """
    return node.image.features.level(SHARE_VERSION) >= 1


class AcknowledgementBatch(Protocol):
    """Protocol implemented by the generated structs of both requests."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


Wanted: TypeAlias = Sequence[tuple[TopicIdPartition, Sequence[AcknowledgementBatch]]]


def unreadable_topics(
    node: Node, ctx: RequestContext, items: Iterable[TopicIdPartition]
) -> AbstractSet[UUID]:
    """Return the topics of these partitions that the client may not read."""
    if node.authorizer is None:
        return frozenset()
    found = {item.topic_id: node.image.topics.by_id(item.topic_id) for item in items}
    return {
        topic_id
        for topic_id, topic in found.items()
        if topic is not None and not allows_topic(node, ctx, Operation.READ, topic.name)
    }


async def find_unreadable_topics(
    node: Node, ctx: RequestContext, items: Iterable[TopicIdPartition]
) -> AbstractSet[UUID]:
    """Like `unreadable_topics`, but yield to the event loop in between."""
    if node.authorizer is None:
        return frozenset()
    topics = node.image.topics
    return {
        topic_id
        async for topic_id in each_once(item.topic_id for item in items)
        if (topic := topics.by_id(topic_id)) is not None
        and not allows_topic(node, ctx, Operation.READ, topic.name)
    }


async def acknowledge(
    node: Node,
    session: ShareSession,
    wanted: Wanted,
    *,
    may_renew: bool,
    denied: AbstractSet[UUID] = frozenset(),
) -> dict[TopicIdPartition, ErrorCode]:
    """Return the outcome for each partition once all outcomes are stored. denied: topics that the
    client may not read. If the session has ended, the member may have acquired the same records
    again in another session, so nothing is acknowledged.
    """
    if not node.share_sessions.is_open(session):
        return dict.fromkeys((item for item, _ in wanted), ErrorCode.INVALID_RECORD_STATE)
    outcomes: dict[TopicIdPartition, Outcome] = {}
    for item, batches in wanted:
        outcomes[item] = (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if item.topic_id in denied
            else _begin(node, session.key, item, batches, may_renew=may_renew)
        )
    return {
        item: outcome if isinstance(outcome, ErrorCode) else await asyncio.shield(outcome)
        for item, outcome in outcomes.items()
    }


def _begin(
    node: Node,
    key: ShareSessionKey,
    item: TopicIdPartition,
    batches: Sequence[AcknowledgementBatch],
    *,
    may_renew: bool,
) -> Outcome:
    if not _are_valid(batches, RENEW if may_renew else REJECT):
        return ErrorCode.INVALID_REQUEST
    partition = find_partition(node, item)
    if not isinstance(partition, Partition):
        return partition
    share = node.shares.get(key.group_id, item.topic_id, item.partition)
    if share is None or share.partition is not partition:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return share.acknowledge(
        key.member_id,
        [
            Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in batches
        ],
    )


def _are_valid(batches: Sequence[AcknowledgementBatch], type_max: int) -> bool:
    last_offset = -1
    for batch in batches:
        types = batch.acknowledge_types
        if not (
            last_offset <= batch.first_offset <= batch.last_offset
            and types
            and len(types) in (1, batch.last_offset - batch.first_offset + 1)
            and min(types) >= 0
            and max(types) <= type_max
        ):
            return False
        last_offset = batch.last_offset
    return True


def find_partition(node: Node, item: TopicIdPartition) -> Partition | ErrorCode:
    """Return the partition if this broker leads it and may respond for it, otherwise an error."""
    topic = node.image.topics.by_id(item.topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    found = node.partitions.get(topic.name, item.partition)
    if found is ErrorCode.LEADER_NOT_AVAILABLE or not node.can_write():
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return found


async def end_session(node: Node, session: ShareSession) -> None:
    """Close the session of a leaving member, unless the session was replaced, and release the
    member's records.
    """
    if node.share_sessions.close(session):
        await release(node, session)


def release(node: Node, session: ShareSession) -> Coroutine[Any, Any, None]:
    """Release the records of a member whose session was closed, before the member can open another
    one. Return a coroutine that waits until this is stored, and drops the group if it has no
    sessions left.
    """
    group_id, member_id = session.key
    outcomes: list[Outcome] = []
    for item in session.partitions:
        share = node.shares.get(group_id, item.topic_id, item.partition)
        if share is not None:
            outcomes.append(share.release(member_id))
    return _await_release(node, group_id, outcomes)


async def _await_release(node: Node, group_id: str, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if not isinstance(outcome, ErrorCode):
            await asyncio.shield(outcome)
    if not node.share_sessions.has_group(group_id):
        node.shares.drop_group(group_id)

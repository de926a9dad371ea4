"""Refuse changes of topics that are over the quota of the client (KIP-599).

Partitions that are created or deleted count. Clients that know of the quota get an error for each
topic over it; older ones wait instead. What the controller would refuse anyway does not count where
this broker can tell.
Source: Kafka `ControllerMutationQuotaManager`, `ReplicationControlManager`.
"""

from typing import Final

from broker.handlers.node import Node
from broker.network.request import RequestContext
from broker.wire import apis
from controller.api.messages import NewPartitions, NewTopic
from controller.metadata.topics import TopicState

_STRICT_FROM: Final = {
    apis.CREATE_TOPICS.key: 6,
    apis.DELETE_TOPICS.key: 5,
    apis.CREATE_PARTITIONS.key: 3,
}
"""The first version whose clients know of the error."""


def _may_change(ctx: RequestContext, count: int) -> bool:
    quota = ctx.quota
    if quota is None or count <= 0:
        return True
    return quota.may_change(count, is_strict=ctx.api_version >= _STRICT_FROM.get(ctx.api_key, 0))


def may_create(node: Node, ctx: RequestContext, topic: NewTopic) -> bool:
    if ctx.quota is None or node.image.topics.by_name(topic.name) is not None:
        return True
    count = topic.partitions if topic.assignment is None else len(topic.assignment)
    return _may_change(ctx, 1 if count == -1 else count)


def may_delete(ctx: RequestContext, topic: TopicState | None) -> bool:
    return topic is None or _may_change(ctx, len(topic.partitions))


def may_grow(node: Node, ctx: RequestContext, wanted: NewPartitions) -> bool:
    topic = node.image.topics.by_name(wanted.name)
    return topic is None or _may_change(ctx, wanted.total - len(topic.partitions))

"""Decide which topics a client may create and delete, and which configs the responses contain
(KIP-525).

Creating a topic requires Create on the cluster or on the topic, and permissions on the topic's
sources (`controller.metadata.topic_sources`). Frozen topics use the ACLs of their source topic.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.authorization import (
    allows_cluster,
    allows_topic,
    find_denied_topics,
)
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.controller.api import messages
from penstock.controller.metadata.topic_sources import TopicSource, sources_of
from penstock.protocol.gen import create_topics, delete_topics

_UNKNOWN: Final = -1
_INVALID: Final = int(ErrorCode.INVALID_REQUEST)


async def denied_creations(
    node: Node, ctx: RequestContext, topics: Collection[messages.NewTopic]
) -> AbstractSet[str]:
    """Return the topics that the client may not create."""
    if node.authorizer is None:
        return frozenset()
    denied: set[str] = set()
    if not allows_cluster(node, ctx, Operation.CREATE, logs=False):
        names = (topic.name for topic in topics)
        denied |= await find_denied_topics(node, ctx, Operation.CREATE, names)
    async for topic in sliced(topics):
        if topic.name not in denied and not all(
            _allows_source(node, ctx, source)
            for source in sources_of(node.image, topic.name, topic.configs)
        ):
            denied.add(topic.name)
    return denied


def _allows_source(node: Node, ctx: RequestContext, source: TopicSource) -> bool:
    return all(
        any(allows_topic(node, ctx, operation, source.name, logs=False) for operation in others)
        or allows_topic(node, ctx, first, source.name)
        for first, *others in source.rights
    )


async def hide_configs(
    node: Node, ctx: RequestContext, results: Mapping[str, create_topics.CreatableTopicResult]
) -> None:
    """Remove the configs that the client may not see from the response."""
    created = [name for name, result in results.items() if not result.error_code]
    denied = await find_denied_topics(node, ctx, Operation.DESCRIBE_CONFIGS, created, logs=False)
    for name in denied:
        result = results[name]
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = _UNKNOWN
        result.configs = []


def refuse_undeletable(
    node: Node,
    ctx: RequestContext,
    result: delete_topics.DeletableTopicResult,
    *,
    is_named: bool,
) -> None:
    """Reject the deletion of a topic that the client may not delete. If the client may not describe
    the topic either, the response reveals neither whether the name exists nor the name for an id.

    is_named: whether the request contains the topic's name instead of its id.
    """
    name = result.name
    if (
        node.authorizer is None
        or name is None
        or result.error_code == _INVALID
        or allows_cluster(node, ctx, Operation.DELETE, logs=False)
    ):
        return
    is_hidden = not allows_topic(node, ctx, Operation.DESCRIBE, name)
    is_denied = not allows_topic(node, ctx, Operation.DELETE, name)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if is_named and (is_hidden or (is_denied and not result.error_code)):
        result.error_code, result.error_message = code, code.message
        result.topic_id = None
    elif not is_named and is_denied:
        result.error_code, result.error_message = code, code.message
        result.name = None if is_hidden else name

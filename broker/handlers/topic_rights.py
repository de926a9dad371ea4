"""Decide which topics a client may create and delete, and what the answers show.

A topic needs Create on the cluster or on its name. One that begins with the records of another one
(a fork, a snapshot, an undeleted topic) also needs Read on that one. Frozen topics have the ACLs of
the topic whose log they have (`broker.handlers.authorization`).
Source: Kafka `ControllerApis.createTopics`, `ControllerApis.deleteTopics`; KIP-525.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final
from uuid import UUID

from base.acls import Operation
from broker.errors import ErrorCode
from broker.handlers.authorization import allows_cluster, allows_topic, find_denied_topics
from broker.handlers.node import Node
from broker.handlers.slices import sliced
from broker.network.request import RequestContext
from broker.wire.gen import create_topics, delete_topics
from controller.metadata.topic_configs import FORK_SOURCE, UNDELETE

_UNKNOWN: Final = -1
_INVALID: Final = int(ErrorCode.INVALID_REQUEST)


async def not_creatable(
    node: Node,
    ctx: RequestContext,
    topics: Sequence[create_topics.CreatableTopic],
    counts: Mapping[str, int],
) -> AbstractSet[str]:
    """Return the topics that the client may not create. counts: how often each is requested; those
    that are requested twice are refused anyway.
    """
    if node.authorizer is None:
        return frozenset()
    names = {topic.name for topic in topics if counts[topic.name] == 1}
    denied: set[str] = set()
    if not allows_cluster(node, ctx, Operation.CREATE, logs=False):
        denied |= await find_denied_topics(node, ctx, Operation.CREATE, names)
    async for topic in sliced(topics):
        sources = _sources(node, topic) if topic.name in names and topic.name not in denied else ()
        if any(not allows_topic(node, ctx, Operation.READ, name) for name in sources):
            denied.add(topic.name)
    return denied


def _sources(node: Node, topic: create_topics.CreatableTopic) -> Iterator[str]:
    """Yield the names of the topics whose records the new topic would have."""
    for config in topic.configs:
        if config.name == FORK_SOURCE and config.value:
            yield config.value
        elif config.name == UNDELETE and config.value:
            yield _deleted_name(node, config.value)


def _deleted_name(node: Node, wanted: str) -> str:
    """Return the name that a deleted topic had. wanted: its id, or this name."""
    try:
        found = node.image.frozen_topics.deleted_by_id(UUID(wanted))
    except ValueError:
        found = None
    return wanted if found is None else found.name


async def hide_configs(
    node: Node, ctx: RequestContext, results: Mapping[str, create_topics.CreatableTopicResult]
) -> None:
    """Remove from the answer what the client may not see of the configs of its topics."""
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
    """Refuse a topic that the client may not delete. A client that may not describe it learns
    neither whether the name exists nor what the name of an id is.

    is_named: the request has its name, not its id.
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

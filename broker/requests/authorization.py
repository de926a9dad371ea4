"""Authorization checks for request handlers, based on the ACLs in `acl_authorizer`. Without an
authorizer, everything is allowed, and a check only tests one attribute.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from penstock.base.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.base.ids import NodeId
from penstock.base.principal import ANONYMOUS
from penstock.broker.errors import ErrorCode, kafka_error
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.controller.api.messages import Requester
from penstock.controller.metadata.acl_index import ALL_OPERATIONS
from penstock.controller.metadata.topic_sources import of_log
from penstock.protocol import apis

NOT_REQUESTED: Final = -(2**31)
"""The value of the authorized operations if the client did not request them."""

_NONE: Final[AbstractSet[str]] = frozenset()
_FEW_TOPICS: Final = 10
"""Number of topics that are checked without yielding to the event loop. If a request contains many
groups with few topics each, yielding would take longer than the checks.
"""


def allows(
    node: Node,
    ctx: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    logs: bool = True,
) -> bool:
    authorizer = node.authorizer
    return authorizer is None or authorizer.allows(ctx, operation, resource_type, name, logs=logs)


def allows_topic(
    node: Node, ctx: RequestContext, operation: Operation, name: str, *, logs: bool = True
) -> bool:
    """Return whether the client may perform the operation on the topic."""
    if node.authorizer is None:
        return True
    return allows(node, ctx, operation, ResourceType.TOPIC, of_log(name), logs=logs)


def allows_group(
    node: Node, ctx: RequestContext, operation: Operation, name: str, *, logs: bool = True
) -> bool:
    return allows(node, ctx, operation, ResourceType.GROUP, name, logs=logs)


def allows_cluster(
    node: Node, ctx: RequestContext, operation: Operation, *, logs: bool = True
) -> bool:
    return allows(node, ctx, operation, ResourceType.CLUSTER, CLUSTER_NAME, logs=logs)


def is_broker(node: Node, ctx: RequestContext) -> bool:
    """Return whether the client may act as a broker."""
    return allows_cluster(node, ctx, Operation.CLUSTER_ACTION, logs=False)


def check_cluster(node: Node, ctx: RequestContext, operation: Operation) -> None:
    """Raise KafkaError if the client may not perform the operation on the cluster."""
    if not allows_cluster(node, ctx, operation):
        raise kafka_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def check_group(node: Node, ctx: RequestContext, operation: Operation, group_id: str) -> None:
    """Raise KafkaError if the client may not perform the operation on the group."""
    if not allows_group(node, ctx, operation, group_id):
        raise kafka_error(ErrorCode.GROUP_AUTHORIZATION_FAILED)


async def check_topics(
    node: Node, ctx: RequestContext, operation: Operation, names: Iterable[str]
) -> None:
    """Raise KafkaError if the client may not perform the operation on one of the topics."""
    if await find_denied_topics(node, ctx, operation, names):
        raise kafka_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def check_transactional_id(
    node: Node, ctx: RequestContext, operation: Operation, transactional_id: str
) -> None:
    """Raise KafkaError if the client may not perform the operation on the transactional id."""
    if not allows(node, ctx, operation, ResourceType.TRANSACTIONAL_ID, transactional_id):
        raise kafka_error(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def denied_topics(
    node: Node,
    ctx: RequestContext,
    operation: Operation,
    names: Iterable[str],
    *,
    logs: bool = True,
) -> AbstractSet[str]:
    """Return the topics on which the client may not perform the operation."""
    if node.authorizer is None:
        return _NONE
    return {name for name in set(names) if not allows_topic(node, ctx, operation, name, logs=logs)}


async def find_denied_topics(
    node: Node,
    ctx: RequestContext,
    operation: Operation,
    names: Iterable[str],
    *,
    logs: bool = True,
) -> AbstractSet[str]:
    """Like `denied_topics`, but yield to the event loop, because a check takes up to 40 us."""
    if node.authorizer is None:
        return _NONE
    once = dict.fromkeys(names)
    if len(once) <= _FEW_TOPICS:
        return denied_topics(node, ctx, operation, once, logs=logs)
    return {
        name
        async for name in sliced(once)
        if not allows_topic(node, ctx, operation, name, logs=logs)
    }


def operations(node: Node, ctx: RequestContext, resource_type: ResourceType, name: str) -> int:
    """Return the operations that the client may perform on the resource, as a bit field."""
    authorizer = node.authorizer
    if authorizer is None:
        return ALL_OPERATIONS[resource_type]
    if resource_type is ResourceType.TOPIC:
        name = of_log(name)
    return authorizer.operations(ctx, resource_type, name)


def cluster_operations(node: Node, ctx: RequestContext) -> int:
    """Return the operations that the client may perform on the cluster, as a bit field, or 0 if it
    may not describe the cluster.
    """
    if not allows_cluster(node, ctx, Operation.DESCRIBE):
        return 0
    return operations(node, ctx, ResourceType.CLUSTER, CLUSTER_NAME)


def describes_group(node: Node, ctx: RequestContext, group_id: str) -> bool:
    """Return whether the client may describe the group. Brokers may describe every group, because
    they read the offsets of all groups for snapshots.
    """
    return is_broker(node, ctx) or allows_group(node, ctx, Operation.DESCRIBE, group_id)


async def undescribed_topics(
    node: Node, ctx: RequestContext, names: Iterable[str]
) -> AbstractSet[str]:
    """Return the topics that the client may not describe. Brokers may describe every topic."""
    if node.authorizer is None or is_broker(node, ctx):
        return _NONE
    return await find_denied_topics(node, ctx, Operation.DESCRIBE, names)


def requester_of(node: Node, ctx: RequestContext) -> Requester:
    """Return the client's identity, which the controller authorizes again."""
    connection = ctx.connection
    return Requester(
        principal=str(connection.principal),
        host=connection.peer_host,
        broker_id=NodeId(node.node_id),
    )


def record_change(node: Node, ctx: RequestContext, change: str, resources: Sequence[str]) -> None:
    """Write a change made by the client to the audit log. Changes are logged only if clients have
    an identity, that is, if they are authenticated or there is an authorizer.
    """
    is_known = node.authorizer is not None or ctx.connection.principal != ANONYMOUS
    if is_known and resources:
        node.change_log.write(
            change,
            resources,
            principal=str(ctx.connection.principal),
            host=ctx.connection.peer_host,
            api=apis.APIS[ctx.api_key].name,
            client_id=ctx.client_id or "",
        )

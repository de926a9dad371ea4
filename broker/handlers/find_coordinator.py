"""FindCoordinator: return the coordinator of a group, a transactional id or a share partition
(KIP-699, KIP-932), and create its internal topic on the first request, as Kafka does.

Requests up to version 3 contain one key, later versions contain a list. From version 6 on, keys may
be share partitions, as group:topicId:partition.
"""

from collections.abc import Mapping
from typing import Final

from penstock.base.acls import Operation, ResourceType
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
    ensure_topic,
)
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.groups.share.state.model import is_coordinator_key
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.advertised import address_of
from penstock.broker.requests.authorization import allows, allows_cluster
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import find_coordinator

GROUP_KEY_TYPE: Final = 0
TRANSACTION_KEY_TYPE: Final = 1
SHARE_KEY_TYPE: Final = 2
_FIRST_WITH_SHARE: Final = 6
_TOPICS: Final = {
    GROUP_KEY_TYPE: OFFSETS_TOPIC,
    TRANSACTION_KEY_TYPE: TRANSACTIONS_TOPIC,
    SHARE_KEY_TYPE: SHARE_STATES_TOPIC,
}


async def handle_find_coordinator(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, find_coordinator.decode_request)
    keys = request.coordinator_keys if ctx.api_version >= 4 else [request.key]
    topic_name = _TOPICS.get(request.key_type)
    if topic_name is None or (
        request.key_type == SHARE_KEY_TYPE and ctx.api_version < _FIRST_WITH_SHARE
    ):
        why = (
            f"coordinators of key type {request.key_type} are not served; 0 (groups), 1"
            " (transactional ids) and, from version 6 on, 2 (share partitions) are"
        )
        coordinators = await listed(_refused(key, ErrorCode.INVALID_REQUEST, why) for key in keys)
    else:
        denials = await listed((key, _denial(node, ctx, key, topic_name)) for key in keys)
        denied = {key: code for key, code in denials if code}
        if len(denied) < len(set(keys)):
            await ensure_topic(node, topic_name)
        coordinators = await listed(
            _refused(key, denied[key], denied[key].message)
            if key in denied
            else _coordinator(node, ctx, key, topic_name)
            for key in keys
        )
    if ctx.api_version >= 4:
        response = find_coordinator.FindCoordinatorResponse(coordinators=coordinators)
    else:
        only = coordinators[0]
        response = find_coordinator.FindCoordinatorResponse(
            error_code=only.error_code,
            error_message=only.error_message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )
    return encode_response(ctx, response)


def _denial(node: Node, ctx: RequestContext, key: str, topic_name: str) -> ErrorCode | None:
    """Return the reason why the client may not look up this coordinator, or None if it may."""
    if topic_name == SHARE_STATES_TOPIC:
        allowed = allows_cluster(node, ctx, Operation.CLUSTER_ACTION)
        return None if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    kind, code = (
        (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if topic_name == OFFSETS_TOPIC
        else (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    )
    return None if allows(node, ctx, Operation.DESCRIBE, kind, key) else code


def _coordinator(
    node: Node, ctx: RequestContext, key: str, topic_name: str
) -> find_coordinator.Coordinator:
    if topic_name == SHARE_STATES_TOPIC and not is_coordinator_key(key):
        why = f"{key!r} is not a share partition: use group:topicId:partition"
        return _refused(key, ErrorCode.INVALID_REQUEST, why)
    coordinators: Mapping[str, GroupCoordinator | TransactionCoordinator | ShareCoordinator] = {
        OFFSETS_TOPIC: node.groups,
        TRANSACTIONS_TOPIC: node.transactions,
        SHARE_STATES_TOPIC: node.share_coordinator,
    }
    partition = coordinators[topic_name].partition_of(key)
    topic = node.image.topics.by_name(topic_name)
    if partition is None or topic is None:
        return _refused(
            key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic_name} does not exist yet"
        )
    record = topic.partitions[partition]
    leader = node.image.nodes.get(record.leader)
    if leader is None or leader.fenced or leader.node_epoch != record.leader_node_epoch:
        return _refused(
            key,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{topic_name}-{partition} has no leader at the moment",
        )
    address = address_of(node, leader, ctx.connection)
    return find_coordinator.Coordinator(
        key, address.node_id, address.host, address.port, ErrorCode.NONE, None
    )


def _refused(key: str, code: ErrorCode, why: str) -> find_coordinator.Coordinator:
    return find_coordinator.Coordinator(key, -1, "", -1, code, why)

"""FindCoordinator (10): which broker coordinates a group. Creates `__consumer_offsets` on the first question, as Kafka does.

Up to version 3 one key, from version 4 a list with an error each. Transaction coordinators (key type 1) and share coordinators (2) are
not served yet. For those the answer is TRANSACTIONAL_ID_AUTHORIZATION_FAILED with the reason in the message: the one code that makes every
client fail at once instead of asking again until its own timeout.
Source: Kafka `KafkaApis.handleFindCoordinatorRequest`, KIP-699.
"""

from typing import Final

from broker.advertised import address_of
from broker.dispatch import encode_response
from broker.groups.offsets_log import OFFSETS_TOPIC
from broker.ports import Node, RequestContext, Response
from broker.wire.error_codes import ErrorCode
from broker.wire.framing import decode_body
from broker.wire.gen import find_coordinator
from controller.rpc.messages import CreateTopics, NewTopic

GROUP_KEY_TYPE: Final = 0

_OFFSETS_TOPIC_CONFIGS: Final[dict[str, str | None]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


async def handle_find_coordinator(node: Node, ctx: RequestContext) -> Response:
    request = decode_body(find_coordinator.decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    keys = request.coordinator_keys if ctx.api_version >= 4 else [request.key]
    if request.key_type == GROUP_KEY_TYPE and node.groups.partition_of("") is None:
        await _create_offsets_topic(node)
    coordinators = [_coordinator(node, ctx, key, request.key_type) for key in keys]
    if ctx.api_version >= 4:
        response = find_coordinator.FindCoordinatorResponse(coordinators=coordinators)
    else:
        only = coordinators[0]
        response = find_coordinator.FindCoordinatorResponse(
            error_code=only.error_code, error_message=only.error_message, node_id=only.node_id, host=only.host, port=only.port
        )
    return encode_response(ctx, response)


async def _create_offsets_topic(node: Node) -> None:
    """Two brokers may do this at once: the second is told that the topic exists, which is what it wanted."""
    topic = NewTopic(name=OFFSETS_TOPIC, partitions=node.config.offsets_topic_num_partitions, configs=_OFFSETS_TOPIC_CONFIGS)
    await node.client.create_topics(CreateTopics(topics=[topic]), timeout_s=node.config.topic_create_timeout_ms / 1_000)


def _coordinator(node: Node, ctx: RequestContext, key: str, key_type: int) -> find_coordinator.Coordinator:
    if key_type != GROUP_KEY_TYPE:
        why = f"coordinators of key type {key_type} are not served yet; 0 (consumer groups) is"
        return _refused(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, why)
    partition = node.groups.partition_of(key)
    topic = node.image.topics.by_name(OFFSETS_TOPIC)
    if partition is None or topic is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} does not exist yet")
    record = topic.partitions[partition]
    leader = node.image.nodes.get(record.leader)
    if leader is None or leader.fenced or leader.node_epoch != record.leader_node_epoch:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{partition} has no leader at the moment")
    address = address_of(node, leader, ctx.connection)
    return find_coordinator.Coordinator(key, address.node_id, address.host, address.port, ErrorCode.NONE, None)


def _refused(key: str, code: ErrorCode, why: str) -> find_coordinator.Coordinator:
    return find_coordinator.Coordinator(key, -1, "", -1, code, why)

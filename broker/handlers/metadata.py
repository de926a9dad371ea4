"""Metadata: topics, partitions, leaders and addresses; creates topics on first use where that is allowed.

Invariants: a topic without error has all its partitions; a partition whose leader is not alive says LEADER_NOT_AVAILABLE and names nobody
(one that moves, or whose leader is dead, names the next leader if that is known, `broker.leaders`);
leaders, replicas and controller are ids that `brokers` lists (replicas that are away stand in `offline_replicas`).
Must not: block answers about existing topics on the controller: only creating topics waits for it.

Source: Kafka's KafkaApis.handleTopicMetadataRequest, DefaultAutoTopicCreationManager, KIP-516 (topic ids).
"""

import re
from collections.abc import Awaitable, Sequence
from typing import Final
from uuid import UUID

from broker import advertised
from broker.config import BrokerConfig
from broker.dispatch import encode_response
from broker.errors import ErrorCode, code_of, code_of_status
from broker.leaders import announced_leader
from broker.ports import Node, RequestContext, Response
from broker.wire import framing
from broker.wire.gen.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    decode_request,
)
from controller.errors import ControllerError
from controller.metadata.topics import PartitionState, TopicState
from controller.rpc import messages
from stream.ids import NodeId

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Created by their coordinators with settings of their own, never by asking for them."""

TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Bits of Kafka's AclOperation: without an authorizer everything that applies is allowed."""

_NOT_ASKED: Final = -(2**31)
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FIRST_WITH_EMPTY_AS_NONE: Final = 1


def is_valid_topic_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def handle_metadata(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    asked = request.topics
    if asked is None or (not asked and ctx.api_version < _FIRST_WITH_EMPTY_AS_NONE):
        return _encode(node, ctx, request, [_known(node, topic) for topic in node.image.topics])
    missing = _creatable(node, request, asked)
    if missing:
        return _create_and_answer(node, ctx, request, asked, missing)
    return _encode(node, ctx, request, _asked(node, asked, {}))


def _creatable(node: Node, request: MetadataRequest, asked: Sequence[MetadataRequestTopic]) -> list[str]:
    if not (request.allow_auto_topic_creation and node.config.auto_create_topics_enable):
        return []
    names = {topic.name for topic in asked if topic.name is not None and topic.topic_id is None}
    return sorted(
        name for name in names if node.image.topics.by_name(name) is None and is_valid_topic_name(name) and name not in INTERNAL_TOPICS
    )


async def _create_and_answer(
    node: Node, ctx: RequestContext, request: MetadataRequest, asked: Sequence[MetadataRequestTopic], names: list[str]
) -> Response:
    return _encode(node, ctx, request, _asked(node, asked, await _create(node, names)))


async def _create(node: Node, names: list[str]) -> dict[str, ErrorCode]:
    """Create what is missing. Returns the errors; what can be cured by asking again is told as a missing leader, as in Kafka."""
    config: BrokerConfig = node.config
    topics = [
        messages.NewTopic(name=name, partitions=config.num_partitions, replication_factor=config.default_replication_factor)
        for name in names
    ]
    try:
        created = await node.client.create_topics(messages.CreateTopics(topics=topics), timeout_s=config.topic_create_timeout_ms / 1_000)
    except (ControllerError, TimeoutError) as error:
        code = code_of(error)
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE if code.retriable else code)
    errors = {topic.name: code_of_status(topic.status) for topic in created.topics}
    return {name: code for name, code in errors.items() if code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}}


def _asked(node: Node, asked: Sequence[MetadataRequestTopic], errors: dict[str, ErrorCode]) -> list[MetadataResponseTopic]:
    unique: dict[tuple[UUID | None, str | None], None] = dict.fromkeys((topic.topic_id, topic.name) for topic in asked)
    return [_by_id(node, topic_id) if topic_id is not None else _by_name(node, name, errors) for topic_id, name in unique]


def _by_id(node: Node, topic_id: UUID) -> MetadataResponseTopic:
    topic = node.image.topics.by_id(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _known(node, topic)


def _by_name(node: Node, name: str | None, errors: dict[str, ErrorCode]) -> MetadataResponseTopic:
    if name is None:
        return MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=None)
    topic = node.image.topics.by_name(name)
    if topic is not None:
        return _known(node, topic)
    fallback = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=errors.get(name, fallback), name=name, is_internal=name in INTERNAL_TOPICS)


def _known(node: Node, topic: TopicState) -> MetadataResponseTopic:
    live = {state.node_id for state in node.image.nodes if not state.fenced}
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(node, partition, live) for partition in topic.partitions],
    )


def _partition(node: Node, partition: PartitionState, live: set[NodeId]) -> MetadataResponsePartition:
    leader = announced_leader(node.image, partition)
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.partition,
        leader_id=-1 if leader is None else leader.node_id,
        leader_epoch=partition.leader_epoch if leader is None else leader.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=[replica for replica in partition.replicas if replica in live],
        offline_replicas=[replica for replica in partition.replicas if replica not in live],
    )


def _encode(node: Node, ctx: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]) -> Response:
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = _NOT_ASKED if topic.error_code else TOPIC_OPERATIONS
    brokers = (advertised.known_brokers if request.topics else advertised.live_brokers)(node, ctx.connection)
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(broker.node_id, broker.host, broker.port, broker.rack) for broker in brokers],
        cluster_id=node.cluster_id,
        controller_id=advertised.controller_id(node),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED,
    )
    return encode_response(ctx, response)

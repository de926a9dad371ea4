"""Streams group APIs (KIP-1071): convert wire messages for `StreamsGroups`, which implements the
rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.base.acls import Operation
from penstock.broker.errors import kafka_error
from penstock.broker.groups.common.model import merged
from penstock.broker.groups.coordinator.streams import StreamsGroupDescription
from penstock.broker.groups.streams.model import (
    EndpointPartitions,
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
    StreamsMember,
)
from penstock.broker.groups.streams.values import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    TaskIds,
    Tasks,
    Topology,
)
from penstock.broker.handlers.groups.descriptions import describe_groups
from penstock.broker.handlers.groups.streams_topics import with_missing_topics
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_group, check_topics
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import each_once, sliced
from penstock.controller.metadata.features import STREAMS_VERSION
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.topic_names import is_topic_name
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import streams_group_describe as describing
from penstock.protocol.gen import streams_group_heartbeat as heartbeats

_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_HIDDEN_TOPICS: Final = (
    "The described group uses topics that the client is not authorized to describe."
)


async def handle_streams_group_heartbeat(node: Node, ctx: RequestContext) -> Response:
    """StreamsGroupHeartbeat (88): join a streams group, remain a member, or leave."""
    request = decoded(ctx, heartbeats.decode_request)
    if not _is_on(node):
        raise kafka_error(ErrorCode.UNSUPPORTED_VERSION)
    check_group(node, ctx, Operation.READ, request.group_id)
    topology = None if request.topology is None else await _topology(request.topology)
    if topology is not None:
        problem = await _name_problem(topology)
        if problem is not None:
            return encode_response(ctx, _response(problem))
        await check_topics(node, ctx, Operation.DESCRIBE, _topic_names(topology))
    await node.groups.ready(request.group_id)
    result = await node.groups.streams.heartbeat(
        request.group_id, _heartbeat(ctx, request, topology), ctx.connection.id
    )
    result = await with_missing_topics(node, ctx, result)
    return encode_response(ctx, _response(result))


def _is_on(node: Node) -> bool:
    return node.image.features.level(STREAMS_VERSION) >= 1


async def _name_problem(topology: Topology) -> StreamsHeartbeatResult | None:
    """Return the reason for rejecting a topology that contains a topic name that applications may
    not use, or None.
    """
    internal: list[str] = []
    invalid: list[str] = []
    async for name in each_once(_topic_names(topology)):
        if name in INTERNAL_TOPICS:
            internal.append(name)
        elif not is_topic_name(name):
            invalid.append(name)
    if internal:
        message = (
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is"
            " prohibited."
        )
    elif invalid:
        message = f"Topic names {','.join(invalid)} are not valid topic names."
    else:
        return None
    return StreamsHeartbeatResult(error=ErrorCode.STREAMS_INVALID_TOPOLOGY, message=message)


def _topic_names(topology: Topology) -> Iterator[str]:
    """Yield all topics of a topology, in Kafka's order."""
    for subtopology in topology.subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.changelog_topics)


# --- the request ----------------------------------------------------------------------------------


def _heartbeat(
    ctx: RequestContext,
    request: heartbeats.StreamsGroupHeartbeatRequest,
    topology: Topology | None,
) -> StreamsHeartbeatRequest:
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeatRequest(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.peer_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=topology,
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=None if tags is None else {tag.key: tag.value for tag in tags},
        has_task_offsets=request.task_offsets is not None,
        has_task_end_offsets=request.task_end_offsets is not None,
        is_shutdown=request.shutdown_application,
        connection_id=ctx.connection.id,
    )


def _tasks(sent: Sequence[heartbeats.TaskIds] | None) -> TaskIds | None:
    if sent is None:
        return None
    return merged((item.subtopology_id, item.partitions) for item in sent if item.partitions)


async def _topology(sent: heartbeats.Topology) -> Topology:
    return Topology(
        sent.epoch,
        tuple([_subtopology(item) async for item in sliced(sent.subtopologies)]),
    )


def _subtopology(sent: heartbeats.Subtopology) -> Subtopology:
    return Subtopology(
        sent.subtopology_id,
        tuple(sent.source_topics),
        tuple(sent.source_topic_regex),
        _internal_topics(sent.state_changelog_topics),
        tuple(sent.repartition_sink_topics),
        _internal_topics(sent.repartition_source_topics),
        tuple(
            CopartitionGroup(
                tuple(group.source_topics),
                tuple(group.source_topic_regex),
                tuple(group.repartition_source_topics),
            )
            for group in sent.copartition_groups
        ),
    )


def _internal_topics(sent: Sequence[heartbeats.TopicInfo]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            tuple((config.key, config.value) for config in topic.topic_configs),
        )
        for topic in sent
    )


# --- response -------------------------------------------------------------------------------------


def _response(result: StreamsHeartbeatResult) -> heartbeats.StreamsGroupHeartbeatResponse:
    tasks, endpoints = result.tasks, result.endpoints
    return heartbeats.StreamsGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        status=[heartbeats.Status(status, detail) for status, detail in result.statuses],
        active_tasks=None if tasks is None else _sent_tasks(tasks.active),
        standby_tasks=None if tasks is None else _sent_tasks(tasks.standby),
        warmup_tasks=None if tasks is None else [],
        endpoint_information_epoch=result.endpoint_epoch,
        partitions_by_user_endpoint=None if endpoints is None else list(map(_endpoint, endpoints)),
    )


def _sent_tasks(tasks: TaskIds) -> list[heartbeats.ResponseTaskIds]:
    return [heartbeats.ResponseTaskIds(key, sorted(tasks[key])) for key in sorted(tasks)]


def _endpoint(found: EndpointPartitions) -> heartbeats.EndpointToPartitions:
    return heartbeats.EndpointToPartitions(
        heartbeats.ResponseEndpoint(*found.endpoint),
        _topic_partitions(found.active),
        _topic_partitions(found.standby),
    )


def _topic_partitions(found: Mapping[str, Sequence[int]]) -> list[heartbeats.TopicPartition]:
    return [heartbeats.TopicPartition(name, indexes) for name, indexes in found.items()]


# --- describing -----------------------------------------------------------------------------------


async def handle_streams_group_describe(node: Node, ctx: RequestContext) -> Response:
    """StreamsGroupDescribe (89)."""
    request = decoded(ctx, describing.decode_request)
    if not _is_on(node):
        code = ErrorCode.UNSUPPORTED_VERSION
        refused = [
            describing.DescribedGroup(error_code=code, error_message=None, group_id=group_id)
            for group_id in request.group_ids
        ]
        return encode_response(ctx, describing.StreamsGroupDescribeResponse(groups=refused))

    async def describe(group_id: str) -> describing.DescribedGroup | ErrorCode:
        found = await node.groups.streams.describe(group_id)
        return found if isinstance(found, ErrorCode) else _described(found)

    groups = await describe_groups(
        node,
        ctx,
        request.group_ids,
        describe,
        kind="streams group",
        refused=describing.DescribedGroup,
        topic_names=_described_names,
        with_operations=request.include_authorized_operations,
    )
    shown = [_hidden(group) if group.error_code == _DENIED else group for group in groups]
    return encode_response(ctx, describing.StreamsGroupDescribeResponse(groups=shown))


def _hidden(group: describing.DescribedGroup) -> describing.DescribedGroup:
    """Return Kafka's response for a group with topics that the client may not describe."""
    return describing.DescribedGroup(
        error_code=group.error_code, error_message=_HIDDEN_TOPICS, group_id=group.group_id
    )


def _described_names(group: describing.DescribedGroup) -> set[str]:
    names: set[str] = set()
    for subtopology in () if group.topology is None else group.topology.subtopologies or ():
        names.update(subtopology.source_topics)
        names.update(subtopology.repartition_sink_topics)
        names.update(topic.name for topic in subtopology.repartition_source_topics)
        names.update(topic.name for topic in subtopology.state_changelog_topics)
    return names


def _described(group: StreamsGroupDescription) -> describing.DescribedGroup:
    subtopologies = sorted(group.topology.subtopologies, key=lambda each: each.subtopology_id)
    return describing.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=describing.Topology(
            group.topology.epoch,
            [
                describing.Subtopology(
                    each.subtopology_id,
                    sorted(each.source_topics),
                    sorted(each.repartition_sink_topics),
                    _topic_infos(each.changelog_topics),
                    _topic_infos(each.repartition_source_topics),
                )
                for each in subtopologies
            ],
        ),
        members=[_member(member, target) for member, target in group.members],
    )


def _topic_infos(topics: Sequence[InternalTopic]) -> list[describing.TopicInfo]:
    return [
        describing.TopicInfo(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            [describing.KeyValue(*config) for config in topic.configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(member: StreamsMember, target: Tasks) -> describing.Member:
    metadata = member.metadata
    endpoint = metadata.endpoint
    return describing.Member(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=None if endpoint is None else describing.Endpoint(*endpoint),
        client_tags=[describing.KeyValue(*tag) for tag in metadata.client_tags],
        assignment=_assignment(member.current.assigned.without_epochs()),
        target_assignment=_assignment(target),
    )


def _assignment(tasks: Tasks) -> describing.Assignment:
    return describing.Assignment(
        _described_tasks(tasks.active), _described_tasks(tasks.standby), []
    )


def _described_tasks(tasks: TaskIds) -> list[describing.TaskIds]:
    return [describing.TaskIds(key, sorted(tasks[key])) for key in sorted(tasks)]

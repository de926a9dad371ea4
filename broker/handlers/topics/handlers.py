"""CreateTopics, DeleteTopics and CreatePartitions: forward requests to the controller. Any broker
accepts them.

After the response, this broker's metadata contains the change (read your writes). Names and the
wire format are checked here, so that invalid requests do not load the controller.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from penstock.base.acls import Operation
from penstock.base.ids import NodeId
from penstock.broker.errors import ErrorCode, KafkaError, code_of, code_of_status
from penstock.broker.handlers.topics import forks, snapshot_groups, topic_creation
from penstock.broker.handlers.topics.mutation_quota import quota_client, set_throttle_time
from penstock.broker.handlers.topics.topic_creation import DENIED, TOO_MANY, is_frozen
from penstock.broker.handlers.topics.topic_rights import (
    denied_creations,
    hide_configs,
    refuse_undeletable,
)
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import find_denied_topics, record_change, requester_of
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.topic_change_queue import chunks
from penstock.broker.requests.yielding import counted, listed, sliced
from penstock.broker.schemas.rules import is_schema_config
from penstock.controller.api import messages
from penstock.controller.api.errors import ControllerError
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.topic_configs import FORK_SOURCE, UNDELETE
from penstock.controller.metadata.topic_names import topic_name_problem
from penstock.protocol.gen import create_partitions, create_topics, delete_topics
from penstock.protocol.topic_key import NO_TOPIC_ID

_TIMEOUT_MS_MIN: Final = 1_000
_TIMED_OUT: Final = ErrorCode.REQUEST_TIMED_OUT
"""The response to a request with timeout 0, which has no effect, as in Kafka."""
_FORK_ATTEMPTS_MAX: Final = 5
_MOVED: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_UNSET: Final = -1
_Created = create_topics.CreatableTopicResult
_FIRST_WITH_STATES: Final = 6


def _timeout_s(node: Node, requested_ms: int) -> float:
    return min(max(requested_ms, _TIMEOUT_MS_MIN), node.config.topic_create_timeout_ms) / 1_000


# --- create ---------------------------------------------------------------------------------------


async def handle_create_topics(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, create_topics.decode_request)
    counts = await counted(topic.name for topic in request.topics)
    if request.timeout_ms <= 0:
        timed_out = await listed(_Created(name, error_code=_TIMED_OUT) for name in counts)
        return encode_response(ctx, create_topics.CreateTopicsResponse(topics=timed_out))
    results: dict[str, _Created] = {}
    wanted: list[messages.NewTopic] = []
    requested = {
        topic.name: _new_topic(node, topic)
        async for topic in sliced(request.topics)
        if counts[topic.name] == 1  # duplicates are rejected
    }
    # Planning a fork reads the source, so check permissions first.
    denied = await denied_creations(node, ctx, requested.values())
    async for topic in sliced(request.topics):
        problem = (
            DENIED
            if topic.name in denied
            else _problem(topic, requested.get(topic.name)) or await _schema_problem(node, topic)
        )
        if problem is not None:
            code, message = problem
            results[topic.name] = _Created(topic.name, error_code=code, error_message=message)
            continue
        wanted.append(requested[topic.name])
    timeout_s = _timeout_s(node, request.timeout_ms)
    deadline = asyncio.get_running_loop().time() + timeout_s
    for _ in range(_FORK_ATTEMPTS_MAX if wanted else 0):
        planned = _all_or_no_snapshots(wanted, await _with_forks(node, wanted, deadline))
        ready: list[messages.NewTopic] = []
        async for item in sliced(planned):
            if isinstance(item, _Created):
                results[item.name] = item
            else:
                ready.append(item)
        if ready:
            results |= await topic_creation.create_topics(
                node, ctx, ready, validate_only=request.validate_only, timeout_s=timeout_s
            )
        # Retry if log compaction has moved a batch boundary between the two steps of a fork.
        wanted = await listed(topic for topic in wanted if results[topic.name].error_code == _MOVED)
        if not wanted:
            break
    await hide_configs(node, ctx, results)
    responses = await listed(results[name] for name in counts)
    return encode_response(ctx, create_topics.CreateTopicsResponse(topics=responses))


async def _succeeded(
    results: Mapping[str, create_partitions.CreatePartitionsTopicResult],
) -> list[str]:
    return await listed(name for name, result in results.items() if not result.error_code)


def _problem(
    topic: create_topics.CreatableTopic, requested: messages.NewTopic | None
) -> tuple[ErrorCode, str] | None:
    """Return the reason why a topic is rejected, or None. requested: the topic, or None if the
    request contains it more than once.
    """
    if requested is None:
        return ErrorCode.INVALID_REQUEST, "the request names this topic more than once"
    if not is_frozen(topic.name) and (problem := topic_name_problem(topic.name)):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    if requested.assignment is not None and (
        topic.num_partitions != _UNSET or topic.replication_factor != _UNSET
    ):
        message = "with replica assignments, num_partitions and replication_factor must be -1"
        return ErrorCode.INVALID_REQUEST, message
    if topic.assignments and not requested.assignment:
        message = "assignments must cover partitions 0 to n-1, each once"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
    empty = next((item.name for item in topic.configs if item.value is None), None)
    if empty is not None:
        return ErrorCode.INVALID_CONFIG, f"config {empty}: null is not allowed; omit it"
    return None


async def _schema_problem(
    node: Node, topic: create_topics.CreatableTopic
) -> tuple[ErrorCode, str] | None:
    configs = {item.name: item.value or "" for item in topic.configs}
    if not any(map(is_schema_config, configs)):
        return None
    found = await node.record_checks.problem(configs)
    return (ErrorCode.INVALID_CONFIG, found) if found else None


def _assignment(
    items: Sequence[create_topics.CreatableReplicaAssignment],
) -> list[list[NodeId]] | None:
    """Return the candidates by partition. Return None if the request contains none, or [] if the
    partitions are not numbered from 0.
    """
    if not items:
        return None
    by_index = {
        item.partition_index: [NodeId(broker) for broker in item.broker_ids] for item in items
    }
    if sorted(by_index) != list(range(len(items))):
        return []
    return [by_index[index] for index in range(len(items))]


def _new_topic(node: Node, topic: create_topics.CreatableTopic) -> messages.NewTopic:
    assignment = _assignment(topic.assignments)
    options = {item.name: item.value for item in topic.configs}
    partitions, replication_factor = topic.num_partitions, topic.replication_factor
    if assignment is None and UNDELETE not in options:
        source = options.get(FORK_SOURCE)
        image = node.image
        forked = (
            image.topics.by_name(source) or image.frozen_topics.by_full_name(source)
            if source
            else None
        )
        if partitions == _UNSET:
            partitions = node.config.num_partitions if forked is None else len(forked.partitions)
        if replication_factor == _UNSET:
            replication_factor = node.config.default_replication_factor
    return messages.NewTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=replication_factor,
        assignment=assignment,
        configs=options,
    )


async def _with_forks(
    node: Node, topics: Sequence[messages.NewTopic], deadline: float
) -> list[messages.NewTopic | _Created]:
    """Find the fork points that the topics' configs require and, for snapshot topics, the committed
    group offsets. For each topic, return the topic to create or an error.
    """
    planned: list[messages.NewTopic | _Created] = []
    requested: dict[int, forks.ForkRequest] = {}
    async for at, topic in sliced(enumerate(topics)):
        try:
            found, request = _requested_fork(node, topic)
        except KafkaError as error:
            planned.append(_refused(topic, error))
            continue
        planned.append(found)
        if request is not None and found.fork is None:
            requested[at] = request
    frozen = {request.source for at, request in requested.items() if is_frozen(topics[at].name)}
    committed: snapshot_groups.Committed = {}
    try:
        if frozen:
            committed = await snapshot_groups.committed_offsets(node, frozen, deadline)
        points = (
            await forks.plan_forks(node, list(requested.values()), deadline) if requested else []
        )
    except KafkaError as error:
        points = [error] * len(requested)
    for (at, request), fork in zip(requested.items(), points, strict=True):
        plan = planned[at]
        if isinstance(fork, KafkaError):
            planned[at] = _refused(topics[at], fork)
        elif isinstance(plan, messages.NewTopic):
            offsets = committed.get(request.source, []) if is_frozen(plan.name) else []
            planned[at] = msgspec.structs.replace(plan, fork=fork, group_offsets=offsets)
    return planned


def _requested_fork(
    node: Node, topic: messages.NewTopic
) -> tuple[messages.NewTopic, forks.ForkRequest | None]:
    """Return the topic without its fork options, and the options. A fork of a snapshot already
    contains its fork points. Raises KafkaError.
    """
    configs = dict(topic.configs)
    request = forks.take_fork_request(configs)
    if request is None:
        return topic, None
    if is_frozen(topic.name):
        forks.check_at_end(request, "a snapshot is of now")
        forks.check_without_kept(request)
    fork = forks.fork_of_snapshot(node, request)
    return msgspec.structs.replace(topic, configs=configs, fork=fork), request


def _refused(topic: messages.NewTopic, error: KafkaError) -> _Created:
    return _Created(topic.name, error_code=error.code, error_message=str(error))


def _all_or_no_snapshots(
    topics: Sequence[messages.NewTopic], planned: Sequence[messages.NewTopic | _Created]
) -> list[messages.NewTopic | _Created]:
    """Reject all snapshot topics if one of them is rejected."""
    refused = next(
        (item for item in planned if isinstance(item, _Created) and is_frozen(item.name)),
        None,
    )
    if refused is None:
        return list(planned)
    message = f"not created, because {refused.name!r} is not: {refused.error_message}"
    return [
        item
        if isinstance(item, _Created) or not is_frozen(topic.name)
        else _Created(topic.name, error_code=refused.error_code, error_message=message)
        for topic, item in zip(topics, planned, strict=True)
    ]


# --- delete ---------------------------------------------------------------------------------------


async def handle_delete_topics(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, delete_topics.decode_request)
    if ctx.api_version >= _FIRST_WITH_STATES:
        requested = [(state.name, state.topic_id) for state in request.topics]
    else:
        requested = [(name, None) for name in request.topic_names]
    found: dict[UUID, delete_topics.DeletableTopicResult] = {}
    counts = await counted(requested)
    if request.timeout_ms <= 0:
        results = await listed(
            delete_topics.DeletableTopicResult(name, topic_id, _TIMED_OUT)
            for name, topic_id in counts
        )
        return encode_response(ctx, delete_topics.DeleteTopicsResponse(responses=results))
    results = list[delete_topics.DeletableTopicResult]()
    async for (name, topic_id), count in sliced(counts.items()):
        result = _find(node, name, topic_id, count)
        refuse_undeletable(node, ctx, result, is_named=name is not None)
        first = None if result.error_code else found.get(result.topic_id or NO_TOPIC_ID)
        if first is not None:
            _refuse(first, "the request contains this topic by name and by id")
            continue
        results.append(result)
        if result.topic_id is not None and not result.error_code:
            found[result.topic_id] = result
    found = {topic_id: result for topic_id, result in found.items() if not result.error_code}
    if found:
        await _delete(node, ctx, found, _timeout_s(node, request.timeout_ms))
        deleted = [result.name or "" for result in found.values() if not result.error_code]
        record_change(node, ctx, "topics_deleted", deleted)
    return encode_response(ctx, delete_topics.DeleteTopicsResponse(responses=results))


def _refuse(result: delete_topics.DeletableTopicResult, message: str) -> None:
    result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, message


def _find(
    node: Node, name: str | None, topic_id: UUID | None, count: int
) -> delete_topics.DeletableTopicResult:
    """Return the result for a topic that the request contains `count` times. As in Kafka,
    duplicates share one result.
    """
    topics = node.image.topics
    problem = (
        "the request names this topic more than once"
        if count > 1
        else "the request contains both a name and an id for this topic"
        if name is not None and topic_id is not None
        else None
    )
    if problem is not None:
        result = delete_topics.DeletableTopicResult(name, topic_id)
        _refuse(result, problem)
        return result
    if topic_id is not None:
        topic, unknown = topics.by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    elif name is not None:
        topic, unknown = topics.by_name(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic, unknown = None, ErrorCode.INVALID_REQUEST
    if topic is not None:
        return delete_topics.DeletableTopicResult(topic.name, topic.topic_id)
    frozen = _find_frozen(node, name, topic_id)
    if frozen is not None:
        return delete_topics.DeletableTopicResult(frozen.full_name, frozen.topic_id)
    return delete_topics.DeletableTopicResult(name, topic_id, unknown, unknown.message)


def _find_frozen(node: Node, name: str | None, topic_id: UUID | None) -> FrozenTopic | None:
    """Return the snapshot topic, or the deleted topic with the name NAME@ID. A deleted topic is not
    found by its id, because repeating a deletion by id would otherwise remove it permanently.
    """
    frozen_topics = node.image.frozen_topics
    if topic_id is None:
        return None if name is None else frozen_topics.by_full_name(name)
    topic = frozen_topics.by_id(topic_id)
    return None if topic is None or topic.is_deleted else topic


async def _delete(
    node: Node,
    ctx: RequestContext,
    found: dict[UUID, delete_topics.DeletableTopicResult],
    timeout_s: float,
) -> None:
    """Delete the topics in chunks, and set the errors in the results."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    async for ids in sliced(chunks(found, lambda topic_id: _known_count(node, topic_id))):
        purged_ids = [topic_id for topic_id in ids if is_frozen(found[topic_id].name or "")]
        request = messages.DeleteTopics(
            topic_ids=ids,
            purged_ids=purged_ids,
            client=quota_client(ctx),
            forwarded_for=requester_of(node, ctx),
        )
        count = sum(_known_count(node, topic_id) for topic_id in ids)
        try:
            async with node.partition_turns.turn(count, deadline) as left_s:
                response = await node.client.delete_topics(request, timeout_s=left_s)
        except (ControllerError, TimeoutError) as error:
            for topic_id in ids:
                found[topic_id].error_code = code_of(error)
                found[topic_id].error_message = str(error)
            continue
        set_throttle_time(ctx, response)
        for topic_id, item in zip(ids, response.items, strict=True):
            if item.status is not messages.Status.OK:
                found[topic_id].error_code = code_of_status(item.status)
                found[topic_id].error_message = item.detail or None


def _known_count(node: Node, topic_id: UUID) -> int:
    """Return the partition count of a topic in this broker's metadata."""
    topic = node.image.topics.by_id(topic_id) or node.image.frozen_topics.by_id(topic_id)
    return 0 if topic is None else len(topic.partitions)


# --- partitions -----------------------------------------------------------------------------------


async def handle_create_partitions(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, create_partitions.decode_request)
    counts = await counted(topic.name for topic in request.topics)
    if request.timeout_ms <= 0:
        timed_out = await listed(
            create_partitions.CreatePartitionsTopicResult(name, _TIMED_OUT) for name in counts
        )
        return encode_response(ctx, create_partitions.CreatePartitionsResponse(results=timed_out))
    results: dict[str, create_partitions.CreatePartitionsTopicResult] = {}
    wanted: list[messages.NewPartitions] = []
    denied = await find_denied_topics(node, ctx, Operation.ALTER, counts)
    async for topic in sliced(request.topics):
        if counts[topic.name] > 1:
            message = "the request names this topic more than once"
            results[topic.name] = create_partitions.CreatePartitionsTopicResult(
                topic.name, ErrorCode.INVALID_REQUEST, message
            )
            continue
        if topic.name in denied:
            results[topic.name] = create_partitions.CreatePartitionsTopicResult(
                topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
            )
            continue
        assignment = (
            [[NodeId(broker) for broker in item.broker_ids] for item in topic.assignments]
            if topic.assignments is not None
            else None
        )
        wanted.append(
            messages.NewPartitions(name=topic.name, total=topic.count, assignment=assignment)
        )
    results |= await _grow(node, ctx, request, wanted)
    if wanted and not request.validate_only:
        record_change(node, ctx, "partitions_added", await _succeeded(results))
    responses = await listed(results[name] for name in counts)
    return encode_response(ctx, create_partitions.CreatePartitionsResponse(results=responses))


async def _grow(
    node: Node,
    ctx: RequestContext,
    request: create_partitions.CreatePartitionsRequest,
    wanted: Sequence[messages.NewPartitions],
) -> dict[str, create_partitions.CreatePartitionsTopicResult]:
    """Add the partitions in chunks, so that the controller can handle other requests in between."""
    deadline = asyncio.get_running_loop().time() + _timeout_s(node, request.timeout_ms)
    results: dict[str, create_partitions.CreatePartitionsTopicResult] = {}
    added_count = 0
    async for chunk in sliced(chunks(wanted, lambda topic: _added_count(node, topic))):
        chunk_count = sum(_added_count(node, topic) for topic in chunk)
        added_count += chunk_count
        if results and added_count > messages.PARTITIONS_PER_REQUEST_MAX:
            results |= {topic.name: _too_many_added(topic) for topic in chunk}
            continue
        change = messages.CreatePartitions(
            topics=chunk,
            validate_only=request.validate_only,
            client=quota_client(ctx),
            forwarded_for=requester_of(node, ctx),
        )
        names = [topic.name for topic in chunk]
        try:
            async with node.partition_turns.turn(chunk_count, deadline) as left_s:
                response = await node.client.create_partitions(change, timeout_s=left_s)
        except (ControllerError, TimeoutError) as error:
            code, detail = code_of(error), str(error)
            results |= {
                name: create_partitions.CreatePartitionsTopicResult(name, code, detail)
                for name in names
            }
            continue
        set_throttle_time(ctx, response)
        async for name, item in sliced(zip(names, response.items, strict=True)):
            results[name] = create_partitions.CreatePartitionsTopicResult(
                name, code_of_status(item.status), item.detail or None
            )
    return results


def _added_count(node: Node, topic: messages.NewPartitions) -> int:
    """Return the number of partitions that are added to the topic according to this broker's
    metadata; 0 if the request is rejected.
    """
    found = node.image.topics.by_name(topic.name)
    added_count = 0 if found is None else topic.total - len(found.partitions)
    return added_count if 0 < added_count <= messages.PARTITIONS_PER_REQUEST_MAX else 0


def _too_many_added(
    topic: messages.NewPartitions,
) -> create_partitions.CreatePartitionsTopicResult:
    return create_partitions.CreatePartitionsTopicResult(
        topic.name, ErrorCode.POLICY_VIOLATION, TOO_MANY
    )

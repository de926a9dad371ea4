"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders (KIP-455, KIP-460,
KIP-860): forward requests to the controller, or respond from the image.

After the response, this broker's image contains the change. Reassignments are acknowledged once
they have started, elections once they have completed or timed out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from penstock.base.acls import Operation
from penstock.base.ids import NodeId
from penstock.broker.errors import ErrorCode, code_of, code_of_status
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import (
    allows_cluster,
    check_cluster,
    record_change,
    requester_of,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import (
    AlterReassignments,
    ElectPreferred,
    ItemResults,
    PartitionName,
    PartitionTarget,
)
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.metadata.topics import (
    PartitionMetadata,
    TopicState,
    is_moving,
    is_reassigning,
)
from penstock.protocol.gen import alter_partition_reassignments as alter
from penstock.protocol.gen import elect_leaders as elect
from penstock.protocol.gen import list_partition_reassignments as listing

_TIMEOUT_MS_MIN: Final = 1_000
_TIMEOUT_MS_MAX: Final = 60_000
_ITEMS_PER_REQUEST_MAX: Final = 1_000
"""Maximum number of partitions in one request to the controller. Larger client requests are
split.
"""
_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_ELECTION_TYPES: Final = frozenset({_PREFERRED, _UNCLEAN})

Problem = tuple[ErrorCode, str | None]
_DENIED: Final[Problem] = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message,
)
_TIMED_OUT: Final[Problem] = (ErrorCode.REQUEST_TIMED_OUT, None)
"""The response to a request with timeout 0, which has no effect, as in Kafka."""
_NO_UNCLEAN_ELECTION: Final[Problem] = (
    ErrorCode.ELECTION_NOT_NEEDED,
    "the controller elects leaders of leaderless partitions by itself",
)
_T = TypeVar("_T")


def _deadline(timeout_ms: int) -> float:
    return (
        asyncio.get_running_loop().time()
        + min(max(timeout_ms, _TIMEOUT_MS_MIN), _TIMEOUT_MS_MAX) / 1_000
    )


async def _send_in_chunks(
    items: Sequence[_T], deadline: float, send: Callable[[list[_T], float], Awaitable[ItemResults]]
) -> list[Problem]:
    """Send the items in chunks, and return the result of each item. If the controller does not
    respond to a chunk, all its items fail with that error.
    """
    problems: list[Problem] = []
    for at in range(0, len(items), _ITEMS_PER_REQUEST_MAX):
        chunk = list(items[at : at + _ITEMS_PER_REQUEST_MAX])
        try:
            results = (await send(chunk, deadline - asyncio.get_running_loop().time())).items
        except (ControllerError, TimeoutError) as error:
            problems += [(code_of(error), str(error))] * len(chunk)
        else:
            problems += [
                (code_of_status(result.status), result.detail or None) for result in results
            ]
    return problems


# --- alter ----------------------------------------------------------------------------------------


async def handle_alter_partition_reassignments(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, alter.decode_request)
    if not allows_cluster(node, ctx, Operation.ALTER):
        return encode_response(ctx, _refused_change(request, _DENIED))
    if request.timeout_ms <= 0:
        return encode_response(ctx, _refused_change(request, _TIMED_OUT))
    targets = await listed(
        PartitionTarget(
            topic=topic.name,
            partition=part.partition_index,
            replicas=None if part.replicas is None else [*map(NodeId, part.replicas)],
        )
        for topic in request.topics
        for part in topic.partitions
    )

    def send(chunk: list[PartitionTarget], timeout_s: float) -> Awaitable[ItemResults]:
        return node.client.alter_reassignments(
            AlterReassignments(
                partitions=chunk,
                may_resize=request.allow_replication_factor_change,
                forwarded_for=requester_of(node, ctx),
            ),
            timeout_s=timeout_s,
        )

    problems = await _send_in_chunks(targets, _deadline(request.timeout_ms), send)
    parts = iter(
        await listed(
            alter.ReassignablePartitionResponse(target.partition, *problem)
            for target, problem in zip(targets, problems, strict=True)
        )
    )
    responses = [
        alter.ReassignableTopicResponse(topic.name, list(islice(parts, len(topic.partitions))))
        for topic in request.topics
    ]
    changed = [
        f"{topic.name}-{part.partition_index}"
        for topic in responses
        for part in topic.partitions
        if not part.error_code
    ]
    record_change(node, ctx, "partitions_reassigned", changed)
    return encode_response(
        ctx,
        alter.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        ),
    )


def _refused_change(
    request: alter.AlterPartitionReassignmentsRequest, problem: Problem
) -> alter.AlterPartitionReassignmentsResponse:
    code, message = problem
    return alter.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        responses=[
            alter.ReassignableTopicResponse(
                topic.name,
                [
                    alter.ReassignablePartitionResponse(part.partition_index, code, message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


# --- list -----------------------------------------------------------------------------------------


async def handle_list_partition_reassignments(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, listing.decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE)
    topics = node.image.topics
    if request.topics is None:
        requested = [(topic, topic.partitions) for topic in topics]
    else:
        requested = await listed(
            (
                topic,
                [
                    topic.partitions[index]
                    for index in item.partition_indexes
                    if 0 <= index < len(topic.partitions)
                ],
            )
            for item in request.topics
            if (topic := topics.by_name(item.name)) is not None
        )
    found = await listed(_ongoing(topic, partitions) for topic, partitions in requested)
    response = listing.ListPartitionReassignmentsResponse(
        error_message=None, topics=[topic for topic in found if topic.partitions]
    )
    return encode_response(ctx, response)


def _ongoing(
    topic: TopicState, partitions: Iterable[PartitionMetadata]
) -> listing.OngoingTopicReassignment:
    ongoing: list[listing.OngoingPartitionReassignment] = []
    for partition in partitions:
        if is_reassigning(partition):
            old, new = partition.replicas, partition.target_replicas or ()
            adding = [node_id for node_id in new if node_id not in old]
            removing = [node_id for node_id in old if node_id not in new]
            ongoing.append(
                listing.OngoingPartitionReassignment(
                    partition.partition, [*new, *removing], adding, removing
                )
            )
    return listing.OngoingTopicReassignment(topic.name, ongoing)


# --- elect ----------------------------------------------------------------------------------------


async def handle_elect_leaders(node: Node, ctx: RequestContext) -> Response:
    """ElectLeaders (43). Unclean elections are never needed: any broker can become leader, and the
    controller elects the leaders of leaderless partitions on its own.
    """
    request = decoded(ctx, elect.decode_request)
    if not allows_cluster(node, ctx, Operation.ALTER):
        return encode_response(ctx, _refused_election(request, _DENIED))
    if request.timeout_ms <= 0:
        return encode_response(ctx, _refused_election(request, _TIMED_OUT))
    if ctx.api_version > 0 and request.election_type not in _ELECTION_TYPES:
        problem = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        return encode_response(ctx, _refused_election(request, problem))
    names = _partitions_to_elect(node, request)
    if ctx.api_version > 0 and request.election_type != _PREFERRED:
        problems = [_NO_UNCLEAN_ELECTION] * len(names)
    else:
        problems = await _elect_preferred(node, ctx, names, _deadline(request.timeout_ms))
    wants_all = request.topic_partitions is None
    elected: list[str] = []
    results: dict[str, list[elect.PartitionResult]] = {}
    async for name, (code, message) in sliced(zip(names, problems, strict=True)):
        if code is ErrorCode.NONE:
            elected.append(f"{name.topic}-{name.partition}")
        if not (wants_all and code is ErrorCode.ELECTION_NOT_NEEDED):
            results.setdefault(name.topic, []).append(
                elect.PartitionResult(name.partition, code, message)
            )
    record_change(node, ctx, "leaders_elected", elected)
    return encode_response(
        ctx,
        elect.ElectLeadersResponse(
            replica_election_results=[*map(elect.ReplicaElectionResult, results, results.values())]
        ),
    )


def _refused_election(
    request: elect.ElectLeadersRequest, problem: Problem
) -> elect.ElectLeadersResponse:
    return elect.ElectLeadersResponse(
        error_code=problem[0],
        replica_election_results=[
            elect.ReplicaElectionResult(
                topic.topic, [elect.PartitionResult(index, *problem) for index in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _partitions_to_elect(node: Node, request: elect.ElectLeadersRequest) -> list[PartitionName]:
    if request.topic_partitions is None:
        return [
            PartitionName(topic=topic.name, partition=index)
            for topic in node.image.topics
            for index in range(len(topic.partitions))
        ]
    return [
        PartitionName(topic=topic.topic, partition=index)
        for topic in request.topic_partitions
        for index in topic.partitions
    ]


async def _elect_preferred(
    node: Node, ctx: RequestContext, names: list[PartitionName], deadline: float
) -> list[Problem]:
    """Request the elections, and wait until they end or `deadline` passes."""

    def send(chunk: list[PartitionName], timeout_s: float) -> Awaitable[ItemResults]:
        request = ElectPreferred(partitions=chunk, forwarded_for=requester_of(node, ctx))
        return node.client.elect_preferred(request, timeout_s=timeout_s)

    problems = await _send_in_chunks(names, deadline, send)
    begun = [
        name for name, (code, _) in zip(names, problems, strict=True) if code is ErrorCode.NONE
    ]
    waiting = set(await _until_elected(node, begun, deadline))
    return [
        (ErrorCode.REQUEST_TIMED_OUT, "the election started but did not complete in time")
        if name in waiting
        else problem
        for name, problem in zip(names, problems, strict=True)
    ]


async def _until_elected(
    node: Node, names: Iterable[PartitionName], deadline: float
) -> list[PartitionName]:
    """Wait for the moves to end, checking after each metadata change. Return the moves that are
    still in progress at the deadline.
    """
    waiting = [name for name in names if _still_moves(node, name)]
    while waiting:
        try:
            await node.follower.reached(MetadataOffset(node.image.end_offset + 1), deadline)
        except (TimeoutError, ControllerError):
            break
        waiting = [name for name in waiting if _still_moves(node, name)]
    return waiting


def _still_moves(node: Node, name: PartitionName) -> bool:
    topic = node.image.topics.by_name(name.topic)
    return (
        topic is not None
        and name.partition < len(topic.partitions)
        and is_moving(topic.partitions[name.partition])
    )

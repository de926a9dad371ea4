"""The APIs of the share coordinator (KIP-932), which brokers call: map wire messages to and from
`ShareCoordinator`, which has the rules.

Each partition has a result of its own. The partitions of a request are written together.
Source: Kafka `KafkaApis`, ShareCoordinatorService; KIP-932.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar
from uuid import UUID

from base.acls import Operation
from broker.handlers.authorization import allows_cluster
from broker.handlers.dispatch import encode_response
from broker.handlers.long_requests import decoded
from broker.handlers.node import Node
from broker.handlers.slices import gathered
from broker.network.request import RequestContext, Response
from broker.share.state import SharePartitionKey, ShareStateError, StateBatch
from broker.wire.error_codes import ErrorCode
from broker.wire.gen import delete_share_group_state as deleting
from broker.wire.gen import initialize_share_group_state as initializing
from broker.wire.gen import read_share_group_state as reading
from broker.wire.gen import read_share_group_state_summary as summing
from broker.wire.gen import write_share_group_state as writing

_Result = TypeVar("_Result")


class _Request(Protocol):
    """Any of the requests."""

    group_id: str
    topics: Sequence[Any]


async def handle_initialize_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """InitializeShareGroupState (83)."""
    request = decoded(ctx, initializing.decode_request)

    async def run(
        key: SharePartitionKey, data: initializing.PartitionData
    ) -> initializing.PartitionResult:
        await node.share_coordinator.initialize(
            key, state_epoch=data.state_epoch, start_offset=data.start_offset
        )
        return initializing.PartitionResult(key.partition)

    found = await _run_all(node, ctx, request, run, initializing.PartitionResult)
    results = [initializing.InitializeStateResult(*result) for result in found]
    return encode_response(ctx, initializing.InitializeShareGroupStateResponse(results))


async def handle_read_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """ReadShareGroupState (84)."""
    request = decoded(ctx, reading.decode_request)

    async def run(key: SharePartitionKey, data: reading.PartitionData) -> reading.PartitionResult:
        state = await node.share_coordinator.read(key, data.leader_epoch)
        return reading.PartitionResult(
            key.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=[
                reading.StateBatch(
                    b.first_offset, b.last_offset, b.delivery_state, b.delivery_count
                )
                for b in state.batches
            ],
        )

    found = await _run_all(node, ctx, request, run, reading.PartitionResult)
    results = [reading.ReadStateResult(*result) for result in found]
    return encode_response(ctx, reading.ReadShareGroupStateResponse(results))


async def handle_write_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """WriteShareGroupState (85)."""
    request = decoded(ctx, writing.decode_request)

    async def run(key: SharePartitionKey, data: writing.PartitionData) -> writing.PartitionResult:
        await node.share_coordinator.write(
            key,
            state_epoch=data.state_epoch,
            leader_epoch=data.leader_epoch,
            start_offset=data.start_offset,
            delivery_complete_count=data.delivery_complete_count,
            batches=[
                StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
                for b in data.state_batches
            ],
        )
        return writing.PartitionResult(key.partition)

    found = await _run_all(node, ctx, request, run, writing.PartitionResult)
    results = [writing.WriteStateResult(*result) for result in found]
    return encode_response(ctx, writing.WriteShareGroupStateResponse(results))


async def handle_delete_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """DeleteShareGroupState (86)."""
    request = decoded(ctx, deleting.decode_request)

    async def run(key: SharePartitionKey, data: deleting.PartitionData) -> deleting.PartitionResult:
        await node.share_coordinator.delete(key)
        return deleting.PartitionResult(key.partition)

    found = await _run_all(node, ctx, request, run, deleting.PartitionResult)
    results = [deleting.DeleteStateResult(*result) for result in found]
    return encode_response(ctx, deleting.DeleteShareGroupStateResponse(results))


async def handle_read_share_group_state_summary(node: Node, ctx: RequestContext) -> Response:
    """ReadShareGroupStateSummary (87)."""
    request = decoded(ctx, summing.decode_request)

    async def run(key: SharePartitionKey, data: summing.PartitionData) -> summing.PartitionResult:
        summary = await node.share_coordinator.summary(key, data.leader_epoch)
        return summing.PartitionResult(
            key.partition,
            state_epoch=summary.state_epoch,
            leader_epoch=summary.leader_epoch,
            start_offset=summary.start_offset,
            delivery_complete_count=summary.delivery_complete_count,
        )

    found = await _run_all(node, ctx, request, run, summing.PartitionResult)
    results = [summing.ReadStateSummaryResult(*result) for result in found]
    return encode_response(ctx, summing.ReadShareGroupStateSummaryResponse(results))


async def _run_all(
    node: Node,
    ctx: RequestContext,
    request: _Request,
    run: Callable[[SharePartitionKey, Any], Awaitable[_Result]],
    refused: Callable[[int, int, str], _Result],
) -> list[tuple[UUID | None, list[_Result]]]:
    """Run a step for each partition at the same time, for brokers only. Returns the results by
    topic.
    """
    may_run = allows_cluster(node, ctx, Operation.CLUSTER_ACTION)

    async def run_one(topic_id: UUID | None, data: Any) -> _Result:  # noqa: ANN401 - of any of the APIs
        if not may_run:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return refused(data.partition, code, code.message)
        if topic_id is None or not request.group_id:
            what = "The group id must be specified." if topic_id else "The topic id cannot be null."
            return refused(data.partition, ErrorCode.INVALID_REQUEST, what)
        key = SharePartitionKey(request.group_id, topic_id, data.partition)
        try:
            return await run(key, data)
        except ShareStateError as error:
            return refused(data.partition, error.code, str(error))

    results = iter(
        await gathered(
            run_one(topic.topic_id, data) for topic in request.topics for data in topic.partitions
        )
    )
    return [
        (topic.topic_id, list(islice(results, len(topic.partitions)))) for topic in request.topics
    ]

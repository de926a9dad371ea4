"""APIs of the share coordinator (KIP-932), which brokers call: convert wire messages for
`ShareCoordinator`. Each partition has its own result, and all partitions of a request are written
together.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from penstock.broker.handlers.share.owners import unowned_epochs
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows_cluster, is_broker
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_share_group_state as deleting
from penstock.protocol.gen import initialize_share_group_state as initializing
from penstock.protocol.gen import read_share_group_state as reading
from penstock.protocol.gen import read_share_group_state_summary as summing
from penstock.protocol.gen import write_share_group_state as writing

_Found = TypeVar("_Found")
_Result = TypeVar("_Result")


class _Request(Protocol):
    """Common fields of the requests."""

    group_id: str
    topics: Sequence[Any]


async def handle_initialize_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """InitializeShareGroupState (83)."""
    request = decoded(ctx, initializing.decode_request)

    def begin(key: SharePartitionKey, data: initializing.PartitionData) -> "asyncio.Future[None]":
        return node.share_coordinator.initialize(
            key, state_epoch=data.state_epoch, start_offset=data.start_offset
        )

    def respond(partition: int, _: None) -> initializing.PartitionResult:
        return initializing.PartitionResult(partition)

    found = await _run_all(
        node, ctx, request, begin, respond=respond, refused=initializing.PartitionResult
    )
    results = [initializing.InitializeStateResult(*result) for result in found]
    return encode_response(ctx, initializing.InitializeShareGroupStateResponse(results))


async def handle_read_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """ReadShareGroupState (84)."""
    request = decoded(ctx, reading.decode_request)

    def begin(key: SharePartitionKey, data: reading.PartitionData) -> "asyncio.Future[ShareState]":
        return node.share_coordinator.read(key, data.leader_epoch)

    def respond(partition: int, state: ShareState) -> reading.PartitionResult:
        return reading.PartitionResult(
            partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=[
                reading.StateBatch(
                    b.first_offset, b.last_offset, b.delivery_state, b.delivery_count
                )
                for b in state.batches
            ],
        )

    found = await _run_all(
        node, ctx, request, begin, respond=respond, refused=reading.PartitionResult
    )
    results = [reading.ReadStateResult(*result) for result in found]
    return encode_response(ctx, reading.ReadShareGroupStateResponse(results))


async def handle_write_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """WriteShareGroupState (85)."""
    request = decoded(ctx, writing.decode_request)

    def begin(key: SharePartitionKey, data: writing.PartitionData) -> "asyncio.Future[None]":
        return node.share_coordinator.write(
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

    def respond(partition: int, _: None) -> writing.PartitionResult:
        return writing.PartitionResult(partition)

    found = await _run_all(
        node, ctx, request, begin, respond=respond, refused=writing.PartitionResult
    )
    results = [writing.WriteStateResult(*result) for result in found]
    return encode_response(ctx, writing.WriteShareGroupStateResponse(results))


async def handle_delete_share_group_state(node: Node, ctx: RequestContext) -> Response:
    """DeleteShareGroupState (86). Kafka's request has no epoch, so the state is deleted only if no
    group uses it.
    """
    request = decoded(ctx, deleting.decode_request)
    unowned: Mapping[SharePartitionKey, int | ShareStateError] = {}
    # `_run_all` logs that the request was denied.
    if is_broker(node, ctx) and request.group_id:
        unowned = await unowned_epochs(
            node,
            request.group_id,
            (
                SharePartitionKey(request.group_id, topic.topic_id, data.partition)
                for topic in request.topics
                for data in topic.partitions
                if topic.topic_id is not None and data.state_epoch == ANY_EPOCH
            ),
        )

    def begin(key: SharePartitionKey, data: deleting.PartitionData) -> "asyncio.Future[None]":
        epoch = unowned.get(key, data.state_epoch)
        if isinstance(epoch, int):
            return node.share_coordinator.delete(key, state_epoch=epoch)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(epoch)
        refused.exception()  # mark the exception as retrieved: otherwise asyncio would log it
        return refused

    def respond(partition: int, _: None) -> deleting.PartitionResult:
        return deleting.PartitionResult(partition)

    found = await _run_all(
        node, ctx, request, begin, respond=respond, refused=deleting.PartitionResult
    )
    results = [deleting.DeleteStateResult(*result) for result in found]
    return encode_response(ctx, deleting.DeleteShareGroupStateResponse(results))


async def handle_read_share_group_state_summary(node: Node, ctx: RequestContext) -> Response:
    """ReadShareGroupStateSummary (87)."""
    request = decoded(ctx, summing.decode_request)
    has_deletions = any(data.deletions for topic in request.topics for data in topic.partitions)

    def begin(
        key: SharePartitionKey, data: summing.PartitionData
    ) -> "asyncio.Future[ShareStateSummary]":
        return node.share_coordinator.summary(key, data.leader_epoch)

    def respond(partition: int, summary: ShareStateSummary) -> summing.PartitionResult:
        return summing.PartitionResult(
            partition,
            state_epoch=summary.state_epoch,
            leader_epoch=summary.leader_epoch,
            start_offset=summary.start_offset,
            delivery_complete_count=summary.delivery_complete_count,
            deleted_epoch=summary.deleted_epoch if has_deletions else ANY_EPOCH,
        )

    found = await _run_all(
        node, ctx, request, begin, respond=respond, refused=summing.PartitionResult
    )
    results = [summing.ReadStateSummaryResult(*result) for result in found]
    return encode_response(ctx, summing.ReadShareGroupStateSummaryResponse(results))


async def _run_all(
    node: Node,
    ctx: RequestContext,
    request: _Request,
    begin: Callable[[SharePartitionKey, Any], "asyncio.Future[_Found]"],
    *,
    respond: Callable[[int, _Found], _Result],
    refused: Callable[[int, int, str], _Result],
) -> list[tuple[UUID | None, list[_Result]]]:
    """Start a step for each partition and wait for all of them. Only brokers are authorized. Return
    the results by topic.
    """
    may_run = allows_cluster(node, ctx, Operation.CLUSTER_ACTION)

    def begun(
        topic_id: UUID | None,
        data: Any,  # noqa: ANN401 - of any of the APIs
    ) -> "asyncio.Future[_Found] | _Result":
        if not may_run:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return refused(data.partition, code, code.message)
        if topic_id is None or not request.group_id:
            what = "The group id must be specified." if topic_id else "The topic id cannot be null."
            return refused(data.partition, ErrorCode.INVALID_REQUEST, what)
        return begin(SharePartitionKey(request.group_id, topic_id, data.partition), data)

    steps = await listed(
        (data.partition, begun(topic.topic_id, data))
        for topic in request.topics
        for data in topic.partitions
    )
    results: list[_Result] = []
    async for partition, step in sliced(steps):
        if not isinstance(step, asyncio.Future):
            results.append(step)
            continue
        try:
            found = await cast("asyncio.Future[_Found]", step)
            results.append(respond(partition, found))
        except ShareStateError as error:
            results.append(refused(partition, error.code, str(error)))
    left = iter(results)
    return [(topic.topic_id, list(islice(left, len(topic.partitions)))) for topic in request.topics]

"""DescribeTopicPartitions: return topics sorted by name, in pages of partitions (KIP-966).

Eligible leader replicas are always empty, because every candidate can lead without data loss.
Unlike in Kafka, an empty topic name is rejected without failing the request, and a page has a
limited number of topics, because 35,000 nonexistent topics would take 1 s of CPU.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.base.acls import Operation, ResourceType
from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.metadata import partition_metadata
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.advertised import live_nodes
from penstock.broker.requests.authorization import find_denied_topics, operations
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced, smallest
from penstock.controller.metadata.topic_names import is_topic_name
from penstock.controller.metadata.topics import PartitionMetadata
from penstock.protocol.gen.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
    decode_request,
)

PARTITIONS_MAX: Final = 2_000
"""Maximum number of partitions in one response, like Kafka's `max.request.partition.size.limit`."""

TOPICS_MAX: Final = 2_000
"""Maximum number of topics in one response, including those that do not exist or that the client
may not describe.
"""


async def handle_describe_topic_partitions(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    if not await _is_cursor_valid(request):
        response = DescribeTopicPartitionsResponse(
            topics=await listed(
                _refused(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics
            )
        )
        return encode_response(ctx, response)
    if not request.topics:
        names = await _described_names(node, ctx, request)
        response = await _page(node, ctx, names[:TOPICS_MAX], request)
    else:
        names = await _smallest(_first(request), (topic.name for topic in request.topics))
        shown = names[:TOPICS_MAX]
        denied = await find_denied_topics(node, ctx, Operation.DESCRIBE, shown)
        response = await _page(node, ctx, (name for name in shown if name not in denied), request)
        refused = (_refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in sorted(denied))
        response.topics = [*response.topics, *await listed(refused)]
    if response.next_cursor is None and len(names) > TOPICS_MAX:
        response.next_cursor = ResponseCursor(names[TOPICS_MAX], 0)
    return encode_response(ctx, response)


def _first(request: DescribeTopicPartitionsRequest) -> str:
    return "" if request.cursor is None else request.cursor.topic_name


async def _is_cursor_valid(request: DescribeTopicPartitionsRequest) -> bool:
    """Return whether the request has no cursor, or a cursor for one of its topics."""
    cursor = request.cursor
    if cursor is None:
        return True
    if cursor.partition_index < 0:
        return False
    names = {topic.name async for topic in sliced(request.topics)}
    return not names or cursor.topic_name in names


async def _smallest(first: str, names: Iterable[str]) -> list[str]:
    """Return the names from `first` on, sorted, up to one more than fit into a response."""
    return await smallest((name for name in names if name >= first), TOPICS_MAX + 1)


async def _described_names(
    node: Node, ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> list[str]:
    """Return the names of topics that the client may describe, starting at the cursor, sorted, up
    to one more than fit into a response.
    """
    first, described = _first(request), list[str]()
    while True:
        names = await _smallest(first, [topic.name for topic in node.image.topics])
        hidden = await find_denied_topics(node, ctx, Operation.DESCRIBE, names, logs=False)
        described += [name for name in names if name not in hidden]
        if len(names) <= TOPICS_MAX or len(described) > TOPICS_MAX:
            return described[: TOPICS_MAX + 1]
        first = f"{names[-1]}\0"  # the next possible name in sorted order


async def _page(
    node: Node,
    ctx: RequestContext,
    names: Iterable[str],
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse:
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    cursor = request.cursor or Cursor()
    describe = _Describe(node, ctx)
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    found: list[DescribeTopicPartitionsResponseTopic] = []
    async for name in sliced(names):
        if left == 0:
            response.next_cursor = ResponseCursor(name, 0)
            break
        start = cursor.partition_index if name == cursor.topic_name else 0
        topic, next_partition = describe.topic(name, start, left)
        found.append(topic)
        left -= len(topic.partitions)
        if next_partition is not None:
            response.next_cursor = ResponseCursor(name, next_partition)
            break
    response.topics = found
    return response


class _Page(NamedTuple):
    topic: DescribeTopicPartitionsResponseTopic
    next_partition: int | None


class _Describe:
    """Describes topics as of one point in time."""

    def __init__(self, node: Node, ctx: RequestContext) -> None:
        self._node = node
        self._ctx = ctx
        self._live = {state.node_id for state in live_nodes(node)}
        self._unnamed: NodeId | None = None if node.can_write() else node.node_id

    def topic(self, name: str, start: int, count: int) -> _Page:
        """Describe a topic and up to `count` of its partitions, starting with `start`."""
        state = self._node.image.topics.by_name(name)
        allowed = operations(self._node, self._ctx, ResourceType.TOPIC, name)
        if state is None:
            known = is_topic_name(name)
            topic = _refused(
                name,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if known
                else ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
            topic.is_internal = name in INTERNAL_TOPICS
            topic.topic_authorized_operations = allowed
            return _Page(topic, None)
        end = min(start + count, len(state.partitions))
        topic = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=state.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=self._partitions(state.partitions[start:end]),
            topic_authorized_operations=allowed,
        )
        return _Page(topic, end if start < end < len(state.partitions) else None)

    def _partitions(
        self, records: Sequence[PartitionMetadata]
    ) -> list[DescribeTopicPartitionsResponsePartition]:
        described = [
            partition_metadata(self._node.image, record, self._live, self._unnamed, self._node.gone)
            for record in records
        ]
        return [
            DescribeTopicPartitionsResponsePartition(
                partition_index=found.partition_index,
                leader_id=found.leader_id,
                leader_epoch=found.leader_epoch,
                replica_nodes=found.replica_nodes,
                isr_nodes=found.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=found.offline_replicas,
            )
            for found in described
        ]


def _refused(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)

"""Fork topics: CreateTopics with the `penstock.fork.source` config creates a topic that starts with
the log of another topic and shares its objects. The leaders of the source return a fork point after
everything below it is committed. Then one request to the controller creates all partitions of the
fork atomically. See docs/design/forks-and-snapshots.md.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from penstock.base.errors import StreamError
from penstock.base.ids import NodeId, Offset
from penstock.broker.errors import ErrorCode, KafkaError, code_of, kafka_error
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.fork_point import AT_END, WantedPoint, find_fork_point
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.lease import still_leads, wait_led
from penstock.broker.requests.node import Node
from penstock.controller.api.messages import ForkedPartition, TopicFork
from penstock.controller.metadata.streams import is_cleaned_beyond
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.protocol import apis
from penstock.protocol.error_codes import known_code
from penstock.protocol.errors import WireError
from penstock.protocol.gen import list_offsets

FORK_TIMESTAMP: Final = "penstock.fork.timestamp.ms"
FORK_OFFSETS: Final = "penstock.fork.offsets"
FORK_DELETED_RECORDS: Final = "penstock.fork.deleted.records"
NO_FORK: Final = -2
"""`fork_offset` in ListOffsets requests that do not request fork points."""

_API: Final = apis.LIST_OFFSETS
_VERSION: Final = 11
_POINTS_AT_ONCE_COUNT: Final = 32
_RETRY_PAUSE_S: Final = 0.1
_TIMEOUT_MS_MAX: Final = 60_000
_MISSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors of a partition that has a different leader or none yet. The request is retried."""


class PointRefusal(msgspec.Struct, frozen=True, array_like=True):
    """The reason why a leader returned no fork point."""

    code: ErrorCode
    message: str


_NO_RESPONSE: Final = PointRefusal(ErrorCode.LEADER_NOT_AVAILABLE, "no leader responded")
_COMPACTED: Final = PointRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its log is being compacted")
_LEADER_CHANGED: Final = PointRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader changed")

Points: TypeAlias = dict[int, ForkedPartition | PointRefusal]
"""Fork points by partition of one topic."""

WantedPoints: TypeAlias = tuple[str, Mapping[int, WantedPoint]]
"""A topic and the requested fork points of its partitions."""

_encode_point = msgspec.msgpack.Encoder().encode
_decode_point = msgspec.msgpack.Decoder(ForkedPartition).decode


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The fork options of a new topic. wanted: offsets by partition; other partitions are forked at
    `timestamp_ms`, or at their end. with_kept: whether to include records that were deleted by
    DeleteRecords and can be restored.
    """

    source: str
    timestamp_ms: int
    wanted: Mapping[int, WantedPoint]
    with_kept: bool = False

    def point_of(self, partition: int) -> WantedPoint:
        return self.wanted.get(partition, WantedPoint(timestamp_ms=self.timestamp_ms))


def take_fork_request(configs: dict[str, str | None]) -> ForkRequest | None:
    """Remove the fork options from the configs of a new topic, and return them, or None if there
    are none. Raises InvalidConfig.
    """
    source, timestamp, offsets, kept = (
        configs.get(FORK_SOURCE),
        configs.pop(FORK_TIMESTAMP, None),
        configs.pop(FORK_OFFSETS, None),
        configs.pop(FORK_DELETED_RECORDS, None),
    )
    if not source:
        if timestamp is None and offsets is None and kept is None:
            return None
        raise _invalid(
            f"{FORK_TIMESTAMP}, {FORK_OFFSETS} and {FORK_DELETED_RECORDS} need {FORK_SOURCE}, a"
            " topic to fork"
        )
    if timestamp is not None and offsets is not None:
        raise _invalid(f"{FORK_TIMESTAMP} and {FORK_OFFSETS} exclude each other")
    if kept not in {None, "true", "false"}:
        raise _invalid(f"{FORK_DELETED_RECORDS}={kept!r} is not valid: true or false")
    request = ForkRequest(
        source,
        AT_END if timestamp is None else _number(FORK_TIMESTAMP, timestamp),
        {} if offsets is None else _wanted(offsets),
        with_kept=kept == "true",
    )
    if request.with_kept:
        check_at_end(request, f"{FORK_DELETED_RECORDS} restores the whole log")
    return request


def _wanted(offsets: str) -> dict[int, WantedPoint]:
    wanted: dict[int, WantedPoint] = {}
    for item in offsets.split(","):
        partition, colon, offset = item.strip().partition(":")
        number = _number(FORK_OFFSETS, partition)
        if not colon or number in wanted:
            raise _invalid(
                f"{FORK_OFFSETS}: {item[:50]!r} is not valid: partition:offset, separated by"
                " commas, each partition once"
            )
        wanted[number] = WantedPoint(offset=_number(FORK_OFFSETS, offset))
    return wanted


def _number(name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**63)) - 1):
        raise _invalid(f"{name}: {text[:50]!r} is not valid: use a non-negative number")
    return int(text)


def _invalid(message: str) -> KafkaError:
    return kafka_error(ErrorCode.INVALID_CONFIG, message)


# --- the broker that creates the topics -----------------------------------------------------------


def fork_of_snapshot(node: Node, request: ForkRequest) -> TopicFork | None:
    """Return the fork point of a snapshot topic, which is its end and never changes. Return None if
    the source is not a snapshot topic. Raises KafkaError.
    """
    source = node.image.frozen_topics.by_full_name(request.source)
    if source is None or source.is_deleted:
        return None
    check_at_end(request, f"topic {request.source!r} of a snapshot can be forked only at its end")
    check_without_kept(request)
    streams, points = node.image.streams, list[ForkedPartition]()
    for partition in source.partitions:
        left = partition.fork
        assert left is not None, "topics of snapshots are forks"
        points.append(
            ForkedPartition(
                end_offset=left.end_offset,
                scan_offset=left.scan_offset,
                txn_end_offset=streams.known(partition.txn_stream_id).end_offset,
                epochs=list(left.epochs),
            )
        )
    return TopicFork(source_topic_id=source.topic_id, partitions=points)


def check_at_end(request: ForkRequest, reason: str) -> None:
    """Raise InvalidConfig if the request contains offsets or a timestamp."""
    if request.wanted or request.timestamp_ms != AT_END:
        raise _invalid(f"{FORK_TIMESTAMP} and {FORK_OFFSETS} are not allowed: {reason}")


def check_without_kept(request: ForkRequest) -> None:
    """Raise InvalidConfig if the request includes deleted records."""
    if request.with_kept:
        raise _invalid(
            f"{FORK_DELETED_RECORDS} is not allowed: a snapshot contains no deleted records"
        )


@dataclass(slots=True)
class _Plan:
    """The state of one fork while its fork points are requested."""

    request: ForkRequest
    topic_id: UUID
    count: int
    points: dict[int, ForkedPartition] = field(default_factory=dict[int, ForkedPartition])
    last: PointRefusal = _NO_RESPONSE
    problem: KafkaError | None = None

    def missing(self) -> list[int]:
        if self.problem is not None or len(self.points) == self.count:
            return []
        return [number for number in range(self.count) if number not in self.points]

    def take(self, found: Points) -> None:
        for number, point in found.items():
            if isinstance(point, ForkedPartition):
                self.points[number] = point
            elif point.code in _MISSING:
                self.last = point
            else:
                message = f"{self.request.source}-{number}: {point.message}"
                self.problem = kafka_error(point.code, message)

    def give_up(self) -> None:
        missing = self.missing()
        if not missing:
            return
        message = (
            f"{len(missing)} of {self.count} partitions of {self.request.source!r} returned no"
            f" fork point in time, the first is {missing[0]}: {self.last.message}"
        )
        self.problem = kafka_error(ErrorCode.REQUEST_TIMED_OUT, message)

    def outcome(self) -> TopicFork | KafkaError:
        if self.problem is not None:
            return self.problem
        points = [self.points[number] for number in range(self.count)]
        return TopicFork(
            source_topic_id=self.topic_id, partitions=points, with_kept=self.request.with_kept
        )


async def plan_forks(
    node: Node, requests: Sequence[ForkRequest], deadline: float
) -> list[TopicFork | KafkaError]:
    """Request fork points from the leaders of the sources, with one request per leader for all
    forks. Retries while leaders change, until `deadline` (`loop.time()`).

    The error of a fork is UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG (for a partition that does not
    exist in the source), OFFSET_OUT_OF_RANGE or REQUEST_TIMED_OUT.
    """
    found = [_begin(node, request) for request in requests]
    plans = [item for item in found if isinstance(item, _Plan)]
    peers = node.connect_peers()
    try:
        async with asyncio.timeout_at(deadline):
            while any(plan.missing() for plan in plans):
                await _query_leaders(node, peers, plans)
                if any(plan.missing() for plan in plans):
                    await asyncio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        for plan in plans:
            plan.give_up()
    finally:
        peers.close()
    return [item.outcome() if isinstance(item, _Plan) else item for item in found]


def _begin(node: Node, request: ForkRequest) -> _Plan | KafkaError:
    topic = node.image.topics.by_name(request.source)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return kafka_error(code, f"there is no topic {request.source!r} to fork")
    count = len(topic.partitions)
    if stray := sorted(number for number in request.wanted if number >= count):
        return _invalid(
            f"{FORK_OFFSETS} names partition {stray[0]}, topic {request.source!r} has {count}"
        )
    return _Plan(request, topic.topic_id, count)


async def _query_leaders(node: Node, peers: PeerConnections, plans: Iterable[_Plan]) -> None:
    by_leader: dict[NodeId, list[tuple[_Plan, dict[int, WantedPoint]]]] = {}
    for plan in plans:
        topic = node.image.topics.by_name(plan.request.source)
        if topic is None:
            message = f"topic {plan.request.source!r} was deleted"
            plan.problem = kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            continue
        led: dict[NodeId, dict[int, WantedPoint]] = {}
        for number in plan.missing():
            leader = topic.partitions[number].leader
            if leader >= 0:
                led.setdefault(leader, {})[number] = plan.request.point_of(number)
        for leader, wanted in led.items():
            by_leader.setdefault(leader, []).append((plan, wanted))
    responses = await asyncio.gather(
        *(
            _query_leader(
                node, peers, leader, [(plan.request.source, wanted) for plan, wanted in items]
            )
            for leader, items in by_leader.items()
        )
    )
    for items, found in zip(by_leader.values(), responses, strict=True):
        for (plan, _), points in zip(items, found, strict=True):
            plan.take(points)


async def _query_leader(
    node: Node, peers: PeerConnections, leader: NodeId, wanted: Sequence[WantedPoints]
) -> list[Points]:
    if leader == node.node_id:
        return await find_fork_points(node, wanted)
    topics = [
        list_offsets.ListOffsetsTopic(
            topic,
            [
                list_offsets.ListOffsetsPartition(
                    number, timestamp=point.timestamp_ms, fork_offset=point.offset
                )
                for number, point in points.items()
            ],
        )
        for topic, points in wanted
    ]
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=topics, timeout_ms=_TIMEOUT_MS_MAX
    )
    try:
        response = await peers.send_request(
            leader, _API, _VERSION, request, list_offsets.ListOffsetsResponse
        )
    except (PeerGone, OSError, EOFError, WireError) as error:
        refusal = PointRefusal(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {leader}: {error!r}")
        return [dict.fromkeys(points, refusal) for _, points in wanted]
    return [
        {item.partition_index: _point_of(leader, item) for item in reply.partitions}
        for reply in response.topics
    ]


def _point_of(
    leader: NodeId, item: list_offsets.ListOffsetsPartitionResponse
) -> ForkedPartition | PointRefusal:
    if item.error_code:
        code = known_code(item.error_code)
        return PointRefusal(code, item.error_message)
    if not item.fork_point:
        message = f"broker {leader} does not support forks: upgrade it"
        return PointRefusal(ErrorCode.UNSUPPORTED_VERSION, message)
    return _decode_point(item.fork_point)


# --- the leaders ----------------------------------------------------------------------------------


async def handle_fork_points(
    node: Node, ctx: RequestContext, request: list_offsets.ListOffsetsRequest
) -> Response:
    """Respond to another broker's ListOffsets request for fork points."""
    wanted = [
        (
            topic.name,
            {
                item.partition_index: WantedPoint(item.fork_offset, item.timestamp)
                for item in topic.partitions
            },
        )
        for topic in request.topics
    ]
    found = await find_fork_points(node, wanted)
    topics = [
        list_offsets.ListOffsetsTopicResponse(
            name, [_response(number, points[number]) for number in numbers]
        )
        for (name, numbers), points in zip(wanted, found, strict=True)
    ]
    return encode_response(ctx, list_offsets.ListOffsetsResponse(topics=topics))


def _response(
    number: int, found: ForkedPartition | PointRefusal
) -> list_offsets.ListOffsetsPartitionResponse:
    if isinstance(found, PointRefusal):
        return list_offsets.ListOffsetsPartitionResponse(
            number, found.code, error_message=found.message
        )
    return list_offsets.ListOffsetsPartitionResponse(
        number, offset=found.end_offset, fork_point=_encode_point(found)
    )


async def find_fork_points(node: Node, wanted: Sequence[WantedPoints]) -> list[Points]:
    """Return the fork points of partitions that this broker leads, by topic in the same order,
    after everything below them is committed. This costs one upload for all of them, and the reads
    of `find_fork_point` for each.

    Without an offset or a timestamp, the fork point is the committed end after the upload, which
    log compaction cannot have passed. This end may be above the high watermark at the time of the
    request.
    """
    now = asyncio.get_running_loop().time()
    led = [
        {number: await wait_led(node, topic, number, now) for number in points}
        for topic, points in wanted
    ]
    acked_ends = [
        {at: found.high_watermark for at, found in topic.items() if isinstance(found, Partition)}
        for topic in led
    ]
    try:
        await node.storage.upload()
    except StreamError as error:
        refusal = PointRefusal(code_of(error), str(error))
        return [dict.fromkeys(points, refusal) for _, points in wanted]
    limit = asyncio.Semaphore(_POINTS_AT_ONCE_COUNT)

    async def find(at: int, number: int, point: WantedPoint) -> ForkedPartition | PointRefusal:
        found = led[at][number]
        if not isinstance(found, Partition):
            return PointRefusal(found, found.message)
        async with limit:
            end = _committed_end(node, found)
            if end < acked_ends[at][number]:
                return _LEADER_CHANGED
            try:
                fork_point = await find_fork_point(node.storage, found, point, end)
            except Exception as error:  # noqa: BLE001 - refuse one partition, respond for the others
                return PointRefusal(code_of(error), str(error))
            if not still_leads(node, found):
                return _LEADER_CHANGED
            return _compacted(node, found, point, fork_point) or fork_point

    keys = [
        (at, number, point)
        for at, (_, points) in enumerate(wanted)
        for number, point in points.items()
    ]
    responses: list[Points] = [{} for _ in wanted]
    found = await asyncio.gather(*(find(*key) for key in keys))
    for (at, number, _), point in zip(keys, found, strict=True):
        responses[at][number] = point
    return responses


def _committed_end(node: Node, partition: Partition) -> Offset:
    """Return the end of the records that are both acknowledged and committed, or 0 if the topic was
    deleted.
    """
    data = node.image.streams.get(partition.log.data.stream_id)
    return Offset(0) if data is None else min(data.end_offset, partition.high_watermark)


def _compacted(
    node: Node, partition: Partition, wanted: WantedPoint, found: ForkedPartition
) -> PointRefusal | None:
    """Return an error if log compaction has removed records that a fork at this point would need.
    The error is retriable for a fork at the end of the log; otherwise the records are gone.
    """
    data, txn = (
        node.image.streams.get(handle.stream_id)
        for handle in (partition.log.data, partition.log.txn)
    )
    if data is None or txn is None or txn.end_offset < found.txn_end_offset:
        return _LEADER_CHANGED
    # Log compaction may have left an empty batch around the requested offset.
    end = Offset(max(found.end_offset, wanted.offset))
    if not is_cleaned_beyond(data, end):
        return None
    if wanted == WantedPoint():
        return _COMPACTED
    message = (
        f"a fork at offset {end} may lack keys: log compaction has reached offset"
        f" {data.cleaned_end}, and removed values that were replaced before it; fork the topic as"
        " it is now, or a snapshot of that time"
    )
    return PointRefusal(ErrorCode.OFFSET_OUT_OF_RANGE, message)


def is_fork_point_request(topics: Sequence[list_offsets.ListOffsetsTopic]) -> bool:
    """Return whether this is a ListOffsets request of a broker that forks a topic."""
    return any(item.fork_offset != NO_FORK for topic in topics for item in topic.partitions)

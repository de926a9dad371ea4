"""Produce: the hot write path, which creates no task and copies no records. Parse, check and append
the records as one group, and respond when they are durable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from penstock.base.acls import Operation, ResourceType
from penstock.base.clock import monotonic_ms
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers import verification
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import LongResponse, RequestContext, Respond
from penstock.broker.partition.append import NAMED_TWICE, CheckedBatch, Content, PartitionAppend
from penstock.broker.partition.mirrored import MirroredBatches
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.verification import WITHOUT_ID, Guard
from penstock.broker.quotas.clients import RequestQuota
from penstock.broker.requests.authorization import allows, denied_topics, find_denied_topics
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.broker.requests.long_requests import LongRequest
from penstock.broker.requests.node import Node
from penstock.broker.requests.record_checks import CheckRequest, InlineLimits, Verdict
from penstock.broker.requests.yielding import Slices, sliced
from penstock.protocol.batch.header import record_count_of
from penstock.protocol.errors import TooManyElements
from penstock.protocol.leader_hint import NodeEndpoint
from penstock.protocol.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    decode_produce_request,
    encode_produce_response,
    read_produce_request,
)
from penstock.protocol.topic_key import TopicKey

_WAIT_OPEN_MAX_S: Final = 30.0
_WAIT_ELECTED_MAX_S: Final = 0.8
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_NOT_FOR_CLIENTS: Final = (
    "only coordinators write to this topic: commit offsets by OffsetCommit, transactions by EndTxn"
)
_PARTS_PER_SLICE_COUNT: Final = 100
"""Partitions of a long request that are appended without yielding to the event loop, which takes 2
to 3 ms.
"""
_ACKS_NONE: Final = 0
_NONE: Final[AbstractSet[str]] = frozenset()
_ACKS: Final = frozenset({-1, 0, 1})


def handle_produce(node: Node, ctx: RequestContext, respond: Respond) -> Awaitable[None] | None:
    """See `broker.requests.node.InlineHandler`.

    Raises WireError. Raises CannotRespond if the broker has no session, or to report an error to a
    client with acks=0.
    """
    if not node.can_write():
        raise CannotRespond(
            "Produce request while the controller is unreachable: the client should look up the"
            " leader at another broker"
        )
    if ctx.body is not None:
        return _ProduceCall(node, ctx, ctx.body, respond).run_in_slices()
    try:
        request = decode_produce_request(ctx.frame, ctx.body_offset, ctx.api_version)
    except TooManyElements:
        raise LongRequest(read_produce_request) from None
    _ProduceCall(node, ctx, request, respond).run()
    return None


class _ProduceCall:
    """One Produce request. It is complete when all its parts have an outcome.

    The parts for open partitions are appended immediately in one group, so that the requests of a
    connection enter the log in order. If a partition is still opening, its part is appended as soon
    as it is open, before later requests. Once a part has been rejected, later batches of its
    producer are rejected until that part is resent. Records are checked first: inline if that is
    fast, otherwise after earlier batches of the partition (`broker.requests.record_checks`). The
    first batch of a transaction waits for the transaction coordinator
    (`broker.handlers.verification`), and later batches wait with it.

    acks=1 is the same as acks=-1. Clients cannot write to internal topics, regardless of their
    client id. If the broker has no session, nothing is appended and the connection is closed: after
    NOT_LEADER_OR_FOLLOWER, librdkafka would continue to fetch stale metadata from this broker. Only
    a broker that is certain to be the only leader returns OUT_OF_ORDER_SEQUENCE_NUMBER
    (`broker.requests.lease`), because clients do not retry after this error.

    A part waits for its partition to open, at most for the request timeout or 30 s, whichever is
    shorter. If this broker is not elected yet, the part waits only for 0.8 s: responses of a
    connection are sent in order, so a hanging source or a long recovery must not delay the other
    responses.
    """

    __slots__ = (
        "_adds",
        "_budget",
        "_ctx",
        "_denied",
        "_groups",
        "_guard",
        "_names",
        "_node",
        "_pending_count",
        "_request",
        "_respond",
        "_results",
        "_trace",
    )

    def __init__(
        self, node: Node, ctx: RequestContext, request: ProduceRequest, respond: Respond
    ) -> None:
        self._node = node
        self._ctx = ctx
        self._request = request
        self._respond = respond
        self._denied: AbstractSet[str] = _NONE
        """Topics to which the client may not write."""
        self._results: list[tuple[TopicKey, list[ProducePartitionResult]]] = []
        self._names: list[str | None] = []
        """The name of each topic in `_results`, or None if no topic has this id."""
        self._groups: list[tuple[PartitionAppend, list[ProducePartitionResult]]] = []
        self._pending_count = 1
        self._budget = InlineLimits()
        self._adds = verification.produce_adds(ctx.api_version)
        self._guard = verification.required_guard(node, request.transactional_id, adds=self._adds)
        tracing = node.storage.tracing
        self._trace = (
            None if tracing is None else tracing.begin(ctx.received_at, ctx.client_id or "")
        )

    def run(self) -> None:
        """Handle a short request in one event loop iteration."""
        for _ in self._take(self._request_error(), None):
            pass
        self._end()

    async def run_in_slices(self) -> None:
        """Handle a long request. The connection does not start other requests in the meantime."""
        request_error = await self._request_error_in_slices()
        slices = Slices()
        for _ in self._take(request_error, slices):
            await slices.turn()
        self._end()

    def _take(self, request_error: ErrorCode | None, slices: Slices | None) -> Iterator[None]:
        """Append all parts that can be appended now, as one group. With `slices`, append one group
        per slice, and yield between slices.
        """
        parts: list[tuple[Partition, Content]] = []
        targets: list[ProducePartitionResult] = []
        named: dict[TopicKey, set[int]] = {}
        for topic in self._request.topics:
            results: list[ProducePartitionResult] = []
            name = self._name_of(topic.key)
            self._results.append((topic.key, results))
            self._names.append(name)
            indexes = named.setdefault(topic.key, set())
            for wanted in topic.partitions:
                index = wanted.index
                result = ProducePartitionResult(index)
                results.append(result)
                if name is None:
                    self._refuse(topic.key, wanted.records, result, ErrorCode.UNKNOWN_TOPIC_ID)
                elif index in indexes:
                    result.error_code = ErrorCode.INVALID_REQUEST
                    result.error_message = NAMED_TWICE
                else:
                    indexes.add(index)
                    part = self._route(name, wanted, result, request_error)
                    if part is not None:
                        parts.append(part)
                        targets.append(result)
                if slices is not None and (len(parts) >= _PARTS_PER_SLICE_COUNT or slices.is_over):
                    if parts:
                        self._append(parts, targets)
                        parts, targets = [], []
                    yield
                    if not self._node.can_write():
                        request_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if parts:
            self._append(parts, targets)

    def _end(self) -> None:
        if self._request.acks == _ACKS_NONE:
            self._finish_without_response()
        else:
            self._watch()
        self._settle_one()

    def _watch(self) -> None:
        """Report the request to the watch for producers with unsuitable settings."""
        ctx, topics = self._ctx, self._request.topics
        is_single = len(topics) == 1 and len(topics[0].partitions) == 1
        self._node.partitions.producer_watch.began(
            ctx.connection.id,
            ctx.client_id or "",
            ctx.connection.peer_host,
            ctx.received_at,
            size_bytes=len(ctx.frame),
            records=record_count_of(topics[0].partitions[0].records) if is_single else None,
        )

    def _name_of(self, key: TopicKey) -> str | None:
        """Return the name of the topic, or None if no topic has this id."""
        if isinstance(key, str):
            return key
        topic = self._node.image.topics.by_id(key)
        return None if topic is None else topic.name

    def _route(
        self,
        topic_name: str,
        wanted: ProducePartition,
        result: ProducePartitionResult,
        request_error: ErrorCode | None,
    ) -> tuple[Partition, Content] | None:
        """Return a part if it can be appended now; otherwise park or reject it."""
        found = (
            self._node.partitions.get(topic_name, wanted.index)
            if request_error is None
            else request_error
        )
        if topic_name in self._denied:
            self._refuse(topic_name, wanted.records, result, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return None
        if topic_name in INTERNAL_TOPICS:
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            result.error_message = _NOT_FOR_CLIENTS
            return None
        if isinstance(found, Partition):
            content = self._checked(found, wanted.records, result)
            if content is None or self._query_coordinator(found, content, result):
                return None
            return found, content
        if found is ErrorCode.LEADER_NOT_AVAILABLE:
            self._append_when_open(topic_name, wanted.records, result)
        else:
            self._refuse(topic_name, wanted.records, result, found)
        return None

    def _request_error(self) -> ErrorCode | None:
        """Return the error of the whole request, or None."""
        if self._node.authorizer is not None:
            if any(map(_is_transactional, self._wanted())) and not self._may_use_transaction():
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            for operation in self._operations():
                self._denied |= denied_topics(self._node, self._ctx, operation, self._topic_names())
        return self._wrong_option()

    async def _request_error_in_slices(self) -> ErrorCode | None:
        """Like `_request_error`, but for a long request, in slices."""
        if self._node.authorizer is not None:
            is_transactional = False
            async for wanted in sliced(self._wanted()):
                is_transactional = is_transactional or _is_transactional(wanted)
            if is_transactional and not self._may_use_transaction():
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            for operation in self._operations():
                self._denied |= await find_denied_topics(
                    self._node, self._ctx, operation, self._topic_names()
                )
        return self._wrong_option()

    def _operations(self) -> Sequence[Operation]:
        """Return the required operations. A mirror sets offsets, which requires the permissions of
        a topic owner.
        """
        mirrors = bool(self._request.mirror_source)
        return (Operation.WRITE, Operation.ALTER) if mirrors else (Operation.WRITE,)

    def _wrong_option(self) -> ErrorCode | None:
        if self._request.mirror_source and self._request.transactional_id is not None:
            return ErrorCode.INVALID_REQUEST
        return None if self._request.acks in _ACKS else ErrorCode.INVALID_REQUIRED_ACKS

    def _wanted(self) -> Iterator[ProducePartition]:
        return (wanted for topic in self._request.topics for wanted in topic.partitions)

    def _topic_names(self) -> Iterator[str]:
        names = (self._name_of(topic.key) for topic in self._request.topics)
        return (name for name in names if name is not None)

    def _may_use_transaction(self) -> bool:
        transactional_id = self._request.transactional_id
        return transactional_id is not None and allows(
            self._node,
            self._ctx,
            Operation.WRITE,
            ResourceType.TRANSACTIONAL_ID,
            transactional_id,
        )

    def _append(
        self,
        parts: Sequence[tuple[Partition, Content]],
        targets: list[ProducePartitionResult],
        guard: Guard | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        node = self._node
        group = PartitionAppend(
            self._appended,
            node.partitions.refused,
            leads_alone=node.leads_alone,
            guard=guard or self._guard,
            trace=self._trace,
            refusal=refusal,
            sender=None if self._request.acks == _ACKS_NONE else self._ctx.connection.sender,
        )
        self._groups.append((group, targets))
        self._pending_count += 1
        node.partitions.append_times.begin(group, asyncio.get_running_loop().time())
        group.run(node.storage, parts, node.now_ms())

    def _appended(self, group: PartitionAppend) -> None:
        self._node.partitions.append_times.end(
            group,
            asyncio.get_running_loop().time(),
            counts=group.outcomes[0].code is ErrorCode.NONE,
        )
        self._settle_one()

    def _query_coordinator(
        self, partition: Partition, content: Content, result: ProducePartitionResult
    ) -> bool:
        """If the transaction coordinator must verify the part, append it after the coordinator's
        response, and return True. Otherwise, return False.
        """
        transactional_id = self._request.transactional_id
        if transactional_id is None or not isinstance(content, CheckedBatch):
            return False
        records = content.records
        producer = verification.transactional_producer(records)
        if producer is None or isinstance(content.verdict, Refusal):
            return False
        node, adds = self._node, self._adds
        if not verification.needs_verification(
            node, transactional_id, partition, producer, adds=adds
        ):
            return False
        self._pending_count += 1

        def admitted(response: Guard | ErrorCode) -> None:
            if isinstance(response, Guard) and node.can_write():
                self._append([(partition, content)], [result], response)
            elif isinstance(response, Guard):
                self._refuse(
                    partition.topic_name, records, result, ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
            else:
                code, result.error_message = verification.refusal_of_produce(
                    response, self._ctx.api_version
                )
                self._refuse(partition.topic_name, records, result, code)
            self._settle_one()

        verification.send_request(node, transactional_id, partition, producer, admitted, adds=adds)
        return True

    def _checked(
        self, partition: Partition, records: memoryview | None, result: ProducePartitionResult
    ) -> Content | None:
        """Return the part with the verdict on its records, or None if the records are checked
        later.
        """
        if not partition.checks_count:
            if self._request.mirror_source:
                return MirroredBatches(self._request.mirror_source, records)
            if partition.log.rules.schemas is None:
                request = self._check_request(partition, records)
                verdict = self._node.record_checks.check_inline(request, self._budget)
                if verdict is not None:
                    return CheckedBatch(records, verdict)
        self._append_when_checked(partition, records, result)
        return None

    def _check_request(self, partition: Partition, records: memoryview | None) -> CheckRequest:
        ctx = self._ctx
        return CheckRequest(
            records,
            partition.log.rules,
            self._node.now_ms(),
            ctx.client_id or "",
            ctx.api_version,
            allows_transactions=self._guard is not WITHOUT_ID,
        )

    def _append_when_checked(
        self, partition: Partition, records: memoryview | None, result: ProducePartitionResult
    ) -> None:
        """Append the part after its records have been checked."""
        self._pending_count += 1
        source = self._request.mirror_source

        def checked(verdict: Verdict, refusal: Refusal | None) -> None:
            content = MirroredBatches(source, records) if source else CheckedBatch(records, verdict)
            if not self._node.can_write():
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self._refuse(partition.topic_name, records, result, code)
            elif refusal is not None or not self._query_coordinator(partition, content, result):
                self._append([(partition, content)], [result], refusal=refusal)
            self._settle_one()

        request = None if source else self._check_request(partition, records)
        self._node.record_checks.begin(partition, request, checked)

    def _append_when_open(
        self, topic_name: str, records: memoryview | None, result: ProducePartitionResult
    ) -> None:
        loop = asyncio.get_running_loop()
        self._pending_count += 1
        is_done = False
        cancel_wait: Callable[[], None] | None = None

        def on_open(found: Partition | ErrorCode) -> None:
            nonlocal is_done
            if is_done:
                return
            is_done = True
            timer.cancel()
            if isinstance(found, Partition) and self._node.can_write():
                content = self._checked(found, records, result)
                if content is not None and not self._query_coordinator(found, content, result):
                    self._append([(found, content)], [result])
            else:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(found, Partition) else found
                self._refuse(topic_name, records, result, code)
            self._settle_one()

        def on_timeout() -> None:
            if cancel_wait is not None:
                cancel_wait()
            on_open(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        longest_s = (
            _WAIT_ELECTED_MAX_S
            if self._node.partitions.is_expected(topic_name, result.index)
            else _WAIT_OPEN_MAX_S
        )
        timer = loop.call_later(min(max(self._request.timeout_ms, 0) / 1000, longest_s), on_timeout)
        cancel_wait = self._node.partitions.when_open(topic_name, result.index, on_open)

    def _refuse(
        self,
        topic: TopicKey,
        records: memoryview | None,
        result: ProducePartitionResult,
        code: ErrorCode,
    ) -> None:
        result.error_code = code
        self._node.partitions.refused.remember(topic, result.index, records, code, monotonic_ms())

    def _settle_one(self) -> None:
        self._pending_count -= 1
        if self._pending_count == 0:
            if self._request.acks != _ACKS_NONE:
                self._send_response()
            if self._trace is not None:
                self._trace.ended(self._errors())

    def _send_response(self) -> None:
        leaving: list[tuple[Partition, ProducePartitionResult]] = []
        for group, targets in self._groups:
            for outcome, result in zip(group.outcomes, targets, strict=True):
                result.error_code = outcome.code
                result.base_offset = outcome.base_offset
                result.log_append_time_ms = outcome.log_append_time_ms
                result.log_start_offset = outcome.log_start_offset
                result.error_message = outcome.message
                result.record_errors = outcome.record_errors
                if outcome.partition is not None and outcome.partition.notice is not None:
                    leaving.append((outcome.partition, result))
        ctx = self._ctx
        now_s = asyncio.get_running_loop().time()
        self._node.partitions.producer_watch.ended(
            ctx.connection.id, now_s, now_s - ctx.received_at
        )
        endpoints: Sequence[NodeEndpoint] = ()
        code = self._first_error()
        if code:
            ctx.meter.failed(ctx.api_key, code)
        if code or leaving:
            endpoints = self._point_to_leaders(
                [(partition.topic_name, result) for partition, result in leaving]
            )
        throttle_ms = 0 if ctx.quota is None else self._throttle(ctx.quota, has_response=True)
        response = ctx.correlation_id, ctx.api_version, self._results, throttle_ms, endpoints
        self._respond(
            encode_produce_response(*response)
            if ctx.body is None
            else LongResponse(partial(encode_produce_response, *response))
        )
        for partition, _ in leaving:
            if partition.notice is not None:
                partition.notice.mark_announced(partition)

    def _first_error(self) -> int:
        """Return the code of the first failed part, or 0."""
        for _, results in self._results:
            for result in results:
                if result.error_code:
                    return result.error_code
        return 0

    def _point_to_leaders(
        self, leaving: Sequence[tuple[str, ProducePartitionResult]]
    ) -> Sequence[NodeEndpoint]:
        """Return the current leaders of partitions that this broker does not lead or will soon stop
        leading (KIP-951).
        """
        elsewhere = [
            (name, result)
            for name, (_, results) in zip(self._names, self._results, strict=True)
            if name is not None
            for result in results
            if result.error_code == _NOT_LEADER
        ]
        elsewhere += leaving
        if not elsewhere:
            return ()
        hints = LeaderHints(self._node, self._ctx)
        for name, result in elsewhere:
            result.current_leader = hints.current_leader(name, result.index)
        return hints.endpoints()

    def _finish_without_response(self) -> None:
        """Finish a request with acks=0. Closing the connection is the only way to report an error;
        the client then refreshes its metadata.
        """
        names = self._errors()
        if names:
            raise CannotRespond(f"Produce request with acks=0 failed: {', '.join(names)}")
        if self._ctx.quota is not None:
            self._throttle(self._ctx.quota, has_response=False)
        self._respond(None)

    def _throttle(self, quota: RequestQuota, *, has_response: bool) -> int:
        """Count the request against the quota. If the client is throttled, mute its connection
        before the response starts the next request.
        """
        throttle_ms = quota.produced(len(self._ctx.frame), has_response=has_response)
        if throttle_ms:
            self._ctx.connection.mute(throttle_ms)
        return throttle_ms

    def _errors(self) -> list[str]:
        codes = {result.error_code for _, results in self._results for result in results}
        codes |= {outcome.code for group, _ in self._groups for outcome in group.outcomes}
        return sorted(
            code.name for code in ErrorCode if code in codes and code is not ErrorCode.NONE
        )


def _is_transactional(wanted: ProducePartition) -> bool:
    return verification.transactional_producer(wanted.records) is not None

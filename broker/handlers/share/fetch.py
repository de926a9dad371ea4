"""ShareFetch (KIP-932): members of share groups acknowledge records and acquire new ones."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

import structlog

from penstock.base.acls import Operation
from penstock.base.buffers import Buffer
from penstock.base.ids import Offset
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.groups.share.partitions.batches import FetchedBatches
from penstock.broker.groups.share.partitions.sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    ShareSession,
    ShareSessionKey,
    ShareSessionRefused,
    TopicIdPartition,
)
from penstock.broker.groups.share.partitions.window import AcquireOptions
from penstock.broker.handlers.share.fetch_target import PendingShareFetch, ShareFetchTarget
from penstock.broker.handlers.share.requests import (
    NO_TOPIC_ID,
    RENEW_FROM,
    Wanted,
    acknowledge,
    are_shares_on,
    end_session,
    find_partition,
    find_unreadable_topics,
    unreadable_topics,
)
from penstock.broker.network.request import LongResponse, RequestContext, Response
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import allows_group
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import chunked, listed, sliced
from penstock.protocol.gen.share_fetch import ShareFetchRequest, decode_request
from penstock.protocol.share_fetch import ShareFetchPartitionResult, encode_share_fetch_response
from penstock.stream.errors import OffsetOutOfRange

_log = structlog.get_logger(__name__)

_AT_ONCE_COUNT: Final = 500
"""Partitions that are looked up without yielding to the event loop, which takes about 3 ms."""
_WAIT_MAX_MS: Final = 300_000
_COLD_READ_MAX_S: Final = 30.0
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum number of bytes read from one partition by one fetch. Members request a number of
records, but allow any number of bytes.
"""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_RECORD_LIMIT: Final = 1
_ACQUIRE_MODES: Final = (0, _RECORD_LIMIT)
_BATCH_RECORDS_MIN: Final = 1


def handle_share_fetch(node: Node, ctx: RequestContext) -> Response | Awaitable[Response]:
    """See `broker.requests.node.Handler`. Raises WireError, LateRequest."""
    request = decoded(ctx, decode_request)
    try:
        if not are_shares_on(node):
            raise ShareSessionRefused(ErrorCode.UNSUPPORTED_VERSION)
        if not allows_group(node, ctx, Operation.READ, request.group_id or ""):
            raise ShareSessionRefused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        call = _ShareFetchCall(node, ctx, request)
    except ShareSessionRefused as refused:
        ctx.meter.failed(ctx.api_key, refused.code)
        return encode_share_fetch_response(ctx.correlation_id, (), error_code=refused.code)
    if call.wanted:
        return call.acknowledge_and_finish()
    return call.begin()


def _acknowledgements(request: ShareFetchRequest) -> Wanted:
    return [
        (
            TopicIdPartition(topic.topic_id or NO_TOPIC_ID, partition.partition_index),
            partition.acknowledgement_batches,
        )
        for topic in request.topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    ]


class _ShareFetchCall:
    __slots__ = (
        "_codes",
        "_ctx",
        "_deadline",
        "_denied",
        "_is_final",
        "_is_long",
        "_is_wait_over",
        "_key",
        "_min_bytes",
        "_node",
        "_options",
        "_read",
        "_reads_committed",
        "_request",
        "_session",
        "_size_bytes",
        "_targets",
        "_turns",
        "wanted",
    )

    def __init__(self, node: Node, ctx: RequestContext, request: ShareFetchRequest) -> None:
        """Begin or resume the session. Raises ShareSessionRefused, LateRequest."""
        self._node = node
        self._ctx = ctx
        self._request = request
        self._key = ShareSessionKey(request.group_id or "", request.member_id or "")
        self._is_final = request.share_session_epoch == FINAL_EPOCH
        self.wanted = _acknowledgements(request)
        self._codes: dict[TopicIdPartition, ErrorCode] = {}
        self._session = self._begin_session()
        self._reads_committed = node.shares.config(self._key.group_id).reads_committed
        wait_ms = min(max(request.max_wait_ms, 0), _WAIT_MAX_MS)
        self._deadline = ctx.received_at + wait_ms / 1000
        self._is_wait_over = wait_ms == 0
        self._options = AcquireOptions(
            max(request.max_records, 0),
            max(request.batch_size, _BATCH_RECORDS_MIN),
            request.share_acquire_mode == _RECORD_LIMIT,
        )
        self._size_bytes = 0
        self._min_bytes = min(request.min_bytes, _READ_BYTES_MAX)
        self._denied: AbstractSet[UUID] = frozenset()
        self._targets: list[ShareFetchTarget] = []
        self._turns = self._targets
        reads = not self._is_final and not request.is_renew_ack
        self._read = tuple(self._session.partitions) if reads else ()
        self._is_long = ctx.is_long or len(self._read) > _AT_ONCE_COUNT
        """Whether the partitions are processed in slices."""
        if not self._is_long:
            self._denied = unreadable_topics(node, ctx, self._items())
            self._set_targets([ShareFetchTarget(item) for item in self._read])

    def _items(self) -> Iterator[TopicIdPartition]:
        return chain(self._session.partitions, (item for item, _ in self.wanted))

    def _set_targets(self, targets: list[ShareFetchTarget]) -> None:
        self._targets = self._turns = targets
        if targets:
            first = self._ctx.correlation_id % len(targets)
            self._turns = targets[first:] + targets[:first]

    async def _prepare(self) -> None:
        """Perform the part of the initialization that is deferred for long calls."""
        if self._is_long:
            self._denied = await find_unreadable_topics(self._node, self._ctx, self._items())
            self._set_targets(await listed(ShareFetchTarget(item) for item in self._read))

    def _begin_session(self) -> ShareSession:
        request, sessions = self._request, self._node.share_sessions
        epoch = request.share_session_epoch
        if request.is_renew_ack and (
            request.max_records or request.max_wait_ms or request.min_bytes or request.max_bytes
        ):
            raise ShareSessionRefused(ErrorCode.INVALID_REQUEST)
        if request.share_acquire_mode not in _ACQUIRE_MODES:
            raise ShareSessionRefused(ErrorCode.INVALID_REQUEST)
        named = [
            TopicIdPartition(topic.topic_id or NO_TOPIC_ID, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if epoch == FIRST_EPOCH and self.wanted:
            raise ShareSessionRefused(ErrorCode.INVALID_REQUEST)
        sessions.admit(self._ctx.api_key, self._key, self._ctx.connection.id)
        if epoch == FIRST_EPOCH:
            client = self._ctx.connection
            owner = f"{client.principal} {client.peer_host}"
            session = sessions.open(self._key, client.id, named, owner)
            self._node.shares.keep_group(self._key.group_id)
            return session
        forgotten = [
            TopicIdPartition(topic.topic_id or NO_TOPIC_ID, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        return sessions.resume(self._key, epoch, named, forgotten, self._ctx.connection.id)

    # --- one attempt ------------------------------------------------------------------------------

    def begin(self) -> Response | Awaitable[Response]:
        """Respond now, or return a coroutine that responds later."""
        if self._is_final:
            return self.acknowledge_and_finish()
        if not self._is_long:
            self._evaluate()
            is_cold = any(target.is_cold for target in self._targets)
            if self._is_complete and not is_cold and self._acquire():
                return self._build_response()
        return self._evaluate_and_finish()

    async def acknowledge_and_finish(self) -> Response:
        await self._prepare()
        may_renew = self._ctx.api_version >= RENEW_FROM and self._request.is_renew_ack
        self._codes = await acknowledge(
            self._node, self._session, self.wanted, may_renew=may_renew, denied=self._denied
        )
        if self._is_final:
            await end_session(self._node, self._session)
        if not self._targets:
            return await self._respond_later()
        await self._evaluate_later()
        return await self._finish()

    async def _evaluate_and_finish(self) -> Response:
        """Evaluate again, because other work has run before this task started, and changes notify
        only parked fetches.
        """
        await self._prepare()
        await self._evaluate_later()
        return await self._finish()

    @property
    def _is_complete(self) -> bool:
        """Return whether enough records can be read, or waiting would be pointless."""
        if self._is_wait_over or not self._targets:
            return True
        if self._size_bytes and self._size_bytes >= self._min_bytes:
            return True
        codes = [0 if target.is_opening else target.result.error_code for target in self._targets]
        return all(codes) or _NOT_LEADER in codes

    def _evaluate(self) -> None:
        """Locate every share partition and its cached data. This locks no records and does no
        I/O.
        """
        self._size_bytes = 0
        readable = self._readable(self._turns)
        for target in readable:
            self._read_cached(target, self._share_bytes(len(readable)))

    def _drop_targets_of_ended(self) -> None:
        """Drop all partitions if the session has ended in the meantime. Its records were released,
        and records acquired now would stay locked until the timeout.
        """
        if not self._node.share_sessions.is_open(self._session):
            self._set_targets([])

    async def _evaluate_later(self) -> None:
        """Like `_evaluate`, but in slices if there are many partitions."""
        self._drop_targets_of_ended()
        if not self._is_long:
            self._evaluate()
            return
        self._size_bytes = 0
        readable: list[ShareFetchTarget] = []
        async for targets in chunked(self._turns):
            readable += self._readable(targets)
        async for target in sliced(readable):
            self._read_cached(target, self._share_bytes(len(readable)))
        if not self._node.can_write():
            self._refuse_all()

    def _readable(self, targets: Iterable[ShareFetchTarget]) -> list[ShareFetchTarget]:
        readable: list[ShareFetchTarget] = []
        for target in targets:
            target.reset()
            if self._locate(target):
                readable.append(target)
        return readable

    def _share_bytes(self, count: int) -> int:
        """Return the read limit per partition if this many partitions are read."""
        max_bytes = min(max(self._request.max_bytes, 0), self._node.config.fetch_bytes_max)
        return min(max_bytes // count, _READ_BYTES_MAX)

    def _refuse_all(self) -> None:
        for target in self._targets:
            target.reset()
            target.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _locate(self, target: ShareFetchTarget) -> bool:
        """Locate the share partition. Return whether it has available records."""
        if target.item.topic_id in self._denied:
            target.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return False
        found = find_partition(self._node, target.item)
        if not isinstance(found, Partition):
            target.fail(found)
            target.is_opening = self._is_opening(target.item)
            return False
        target.partition = found
        share = target.share = self._node.shares.load(self._key.group_id, found)
        window = share.window
        if window is None:
            if share.error_code:
                target.fail(share.error_code)
                self._node.shares.drop(share, share.error_code)
            target.is_waiting = True
            return False
        window.trim(found.log_start_offset)
        if share.is_reading or not window.may_acquire:
            target.is_waiting = True
            return False
        target.offset = window.next_fetch_offset
        return target.offset < self._end_offset(found)

    def _is_opening(self, item: TopicIdPartition) -> bool:
        """Return whether this broker is opening the partition. The fetch then waits."""
        topic = self._node.image.topics.by_id(item.topic_id)
        return (
            topic is not None
            and self._node.can_write()
            and self._node.partitions.get(topic.name, item.partition)
            is ErrorCode.LEADER_NOT_AVAILABLE
        )

    def _end_offset(self, partition: Partition) -> int:
        return partition.last_stable_offset if self._reads_committed else partition.high_watermark

    def _wanted_end(self, target: ShareFetchTarget) -> int:
        """Return the end of the range of records to acquire, not counting the rest of the last
        batch.
        """
        window = None if target.share is None else target.share.window
        end_offset = target.offset if window is None else window.end_offset
        return end_offset + self._options.records_max

    def _read_cached(self, target: ShareFetchTarget, limit_bytes: int) -> None:
        partition = target.partition
        assert partition is not None
        target.limit_bytes = limit_bytes
        records = partition.read_cached(
            Offset(target.offset), limit_bytes, committed=self._reads_committed
        )
        if records:
            self._take(target, partition, records, limit_bytes)
        batches = target.batches
        is_undetermined = batches is not None and batches.aborted is None
        target.is_cold = records is None or (self._reads_committed and is_undetermined)
        if target.is_cold:
            self._size_bytes += max(limit_bytes, 1)

    def _take(
        self,
        target: ShareFetchTarget,
        partition: Partition,
        records: Sequence[Buffer],
        limit_bytes: int,
    ) -> None:
        batches = FetchedBatches(records, self._wanted_end(target))
        size_bytes = batches.size_bytes
        if self._size_bytes and size_bytes > limit_bytes:
            return
        if self._reads_committed:
            batches.find_aborted(
                partition.log.transactions.aborted_within(
                    Offset(target.offset), Offset(batches.end_offset)
                )
            )
        target.batches = batches
        self._size_bytes += sum(map(len, records))

    # --- completion -------------------------------------------------------------------------------

    async def _finish(self) -> Response:
        """Read uncached data or wait for records until there is a response."""
        while True:
            if self._is_complete:
                cold = [target for target in self._targets if target.is_cold]
                seen = self._sources()
                if cold:
                    await self._read_cold(cold)
                if self._acquire() or self._is_wait_over:
                    return await self._respond_later()
                if self._sources() != seen:
                    # This fetch was not notified of changes during the reads.
                    await self._evaluate_later()
                    continue
            if not await self._park():
                self._is_wait_over = True
            await self._evaluate_later()

    def _sources(self) -> list[tuple[int, int, int]]:
        """Return the state on which the next attempt depends: for each partition, the version of
        the share partition and the start and end of its log.
        """
        return [
            (
                0 if target.share is None else target.share.news_count,
                target.partition.log_start_offset,
                self._end_offset(target.partition),
            )
            for target in self._targets
            if target.partition is not None
        ]

    def _acquire(self) -> bool:
        """Lock the read records for the member. Return whether the call can respond."""
        self._drop_targets_of_ended()
        left = self._options.records_max
        has_error = all(
            target.result.error_code and not target.is_opening for target in self._targets
        )
        for target in self._turns:
            share, batches, result = target.share, target.batches, target.result
            has_error |= result.error_code == _NOT_LEADER and not target.is_opening
            if share is None or batches is None or result.error_code or left <= 0:
                continue
            options = AcquireOptions(
                left, self._options.batch_records, self._options.is_record_limit
            )
            acquired = share.acquire(
                self._key.member_id,
                batches.bounds,
                target.offset,
                options,
                aborted=batches.aborted or (),
            )
            if acquired:
                result.acquired = acquired
                result.records = batches.within(acquired[0].first_offset, acquired[-1].last_offset)
                left -= sum(item.last_offset - item.first_offset + 1 for item in acquired)
        return has_error or left < self._options.records_max or not self._options.records_max

    async def _read_cold(self, cold: Sequence[ShareFetchTarget]) -> None:
        for target in cold:
            if target.share is not None:
                target.share.is_reading = True
        try:
            async with asyncio.TaskGroup() as reads:
                for target in cold:
                    reads.create_task(self._read_one(target))
        finally:
            for target in cold:
                if target.share is not None:
                    target.share.end_read()
        if not self._node.can_write():
            self._refuse_all()

    async def _read_one(self, target: ShareFetchTarget) -> None:
        partition = target.partition
        assert partition is not None
        offset = Offset(target.offset)
        try:
            async with (
                asyncio.timeout(_COLD_READ_MAX_S),
                self._node.partitions.cold_reads.hold(_READ_BYTES_MAX),
            ):
                records = await partition.read(
                    offset, target.limit_bytes, committed=self._reads_committed
                )
                if not records:
                    return
                batches = FetchedBatches(records, self._wanted_end(target))
                if self._reads_committed:
                    end_offset = Offset(batches.end_offset)
                    batches.find_aborted(await partition.read_aborted(offset, end_offset))
                target.batches = batches
        except OffsetOutOfRange:
            # The log start has passed these records in the meantime. The next attempt starts after
            # them.
            target.batches = None
        except Exception as error:  # noqa: BLE001 - one unreadable partition must not fail the others; logged
            target.batches = None
            target.fail(code_of(error))
            _log.warning(
                "share_cold_read_failed",
                topic=partition.topic_name,
                partition=target.item.partition,
                offset=target.offset,
                error=str(error),
                kind=type(error).__name__,
            )

    async def _park(self) -> bool:
        """Wait until records may have become available. Return False when max_wait has passed."""
        self._ctx.waits()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = FetchWait(
            self._min_bytes - self._size_bytes,
            lambda: None if woken.done() else woken.set_result(None),
            reads_committed=self._reads_committed,
        )
        cleanups: list[Callable[[], object]] = []
        for target in self._targets:
            if target.share is not None:
                target.share.add_wait(wait)
                cleanups.append(partial(target.share.remove_wait, wait))
            if target.partition is not None and not target.is_waiting:
                target.partition.add_fetch_wait(wait)
                cleanups.append(partial(target.partition.remove_fetch_wait, wait))
            topic = self._node.image.topics.by_id(target.item.topic_id)
            if target.is_opening and topic is not None:
                cleanups.append(
                    self._node.partitions.when_open(
                        topic.name, target.item.partition, lambda _: wait.interrupt()
                    )
                )
        try:
            async with asyncio.timeout_at(self._deadline):
                if self._is_long:
                    # Records may have become available while the last slices ran.
                    before_bytes = self._size_bytes
                    await self._evaluate_later()
                    if self._size_bytes > before_bytes:
                        return True
                await woken
        except TimeoutError:
            return False
        finally:
            for clean_up in cleanups:
                clean_up()
        return True

    # --- response ---------------------------------------------------------------------------------

    def _build_response(self) -> Response:
        response = PendingShareFetch(LeaderHints(self._node, self._ctx))
        self._record_bytes()
        self._count(self._targets, response)
        self._add_codes(response)
        self._name_leaders(list(response.results.items()), response)
        return self._encode(response)()

    async def _respond_later(self) -> Response:
        """Like `_build_response`, but in slices if there are many partitions."""
        if not self._is_long and len(self._codes) <= _AT_ONCE_COUNT:
            return self._build_response()
        response = PendingShareFetch(LeaderHints(self._node, self._ctx))
        self._record_bytes()
        async for targets in chunked(self._targets):
            self._count(targets, response)
        self._add_codes(response)
        async for items in chunked(list(response.results.items())):
            self._name_leaders(items, response)
        return LongResponse(self._encode(response))

    def _record_bytes(self) -> None:
        if self._ctx.quota is not None:
            self._ctx.quota.sent(
                sum(len(part) for item in self._targets for part in item.result.records)
            )

    def _count(self, targets: Iterable[ShareFetchTarget], response: PendingShareFetch) -> None:
        for target in targets:
            if self._is_news(target):
                response.results[target.item] = target.result
            if target.partition is not None and target.result.records:
                self._count_records(target, target.partition)

    def _add_codes(self, response: PendingShareFetch) -> None:
        for item, code in self._codes.items():
            result = response.results.setdefault(item, ShareFetchPartitionResult(item.partition))
            result.acknowledge_error_code = code

    def _name_leaders(
        self,
        results: Sequence[tuple[TopicIdPartition, ShareFetchPartitionResult]],
        response: PendingShareFetch,
    ) -> None:
        for item, result in results:
            failed = result.error_code or result.acknowledge_error_code
            if failed:
                self._ctx.meter.failed(self._ctx.api_key, failed)
            if failed == _NOT_LEADER:
                topic = self._node.image.topics.by_id(item.topic_id)
                if topic is not None:
                    result.current_leader = response.hints.current_leader(
                        topic.name, item.partition
                    )
            response.by_topic.setdefault(item.topic_id, []).append(result)

    def _encode(self, response: PendingShareFetch) -> Callable[[], list[Buffer]]:
        return partial(
            encode_share_fetch_response,
            self._ctx.correlation_id,
            list(response.by_topic.items()),
            lock_timeout_ms=self._node.shares.config(self._key.group_id).lock_duration_ms,
            node_endpoints=response.hints.endpoints(),
        )

    def _is_news(self, target: ShareFetchTarget) -> bool:
        """Return whether the response must include the partition."""
        partitions, item = self._session.partitions, target.item
        is_due = partitions.get(item, False)
        if item in partitions:
            partitions[item] = bool(target.result.error_code)
            if target.result.records:
                # Move the partition to the end, so that the next fetch starts with others.
                partitions[item] = partitions.pop(item)
        return bool(is_due or target.result.error_code or target.result.records)

    def _count_records(self, target: ShareFetchTarget, partition: Partition) -> None:
        partition.requests_count += 1
        partition.bytes_out += sum(map(len, target.result.records))
        partition.records_out += sum(last - first + 1 for first, last, _ in target.result.acquired)

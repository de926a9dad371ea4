"""State of one Fetch request: the data found so far, pending reads and waits, and the response."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from penstock.base.acls import Operation
from penstock.base.buffers import Buffer
from penstock.base.ids import NodeId, Offset
from penstock.broker.config import RACK_AWARE
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.fetch.cold_reads import ColdReads, set_out_of_range
from penstock.broker.handlers.fetch.fetch_target import (
    NO_EPOCH,
    FetchTarget,
    aborted_of,
    check_leader_epoch,
    end_offset_of,
)
from penstock.broker.handlers.fetch.racks import broker_in_rack, is_far_behind
from penstock.broker.network.request import LongResponse, RequestContext, Response
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import allows_topic
from penstock.broker.requests.fetch_coalescing import SameKey, SameWait, SharedResponse
from penstock.broker.requests.fetch_sessions import SessionCall
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import chunked, sliced
from penstock.broker.tail.partition import TailPartition, TailView
from penstock.protocol.fetch import (
    FetchPartitionResult,
    encode_fetch_response,
)
from penstock.protocol.gen.fetch import FetchRequest
from penstock.protocol.topic_key import TopicKey
from penstock.stream.cache.log_cache import READ_ENTRIES_MAX

_AT_ONCE_COUNT: Final = 1_000
"""Partitions that are looked up without yielding to the event loop, which takes about 2 ms. A fetch
of more partitions is treated as a long request, even if its session provides them.
"""
_WAIT_MAX_MS: Final = 300_000
_UNKNOWN: Final = -1
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_READ_COMMITTED: Final = 1
_LOADED_COUNT_MAX: Final = 4
"""Maximum number of partitions per request for which read-ahead data is returned inline. The others
are read in tasks, so that small batches of many partitions do not block the event loop.
"""
_DEBUGGING_CONSUMER: Final = -2
"""The replica id of tools that compare replicas. Requests with larger ids respect the isolation
level; replicas do not.
"""
_RACKS_FROM: Final = 11
"""The first version whose clients follow `preferred_read_replica`."""


class FetchCall:
    """One Fetch request.

    A response contains no records at or above the high watermark. Committed reads end at the last
    stable offset, and list every aborted transaction in their range. A broker without a session
    reads nothing. Only a broker that is certain to be the only leader returns OFFSET_OUT_OF_RANGE,
    because the client then resets its offset (`broker.requests.lease`). The response is sent once
    min_bytes are available or a partition has an error, otherwise at max_wait. The first partition
    with data returns at least one whole batch (KIP-74); all other data stays within the limits. A
    damaged object fails only fetches that start in it.

    A partition with another leader is read only for clients in the rack of this broker (KIP-392)
    and for debugging consumers, and only records known to be acknowledged: those in committed
    objects and in the tail reported by the leader (`broker.tail`). If this broker cannot read them,
    the client returns to the leader, which does not redirect it again for a minute. Clients that
    fetch as replicas receive NOT_LEADER_OR_FOLLOWER, because there are no replicas, except that
    live brokers receive a report of the tail (`broker.handlers.fetch.tail_fetch`).
    """

    __slots__ = (
        "_budget_bytes",
        "_call",
        "_config",
        "_counts",
        "_ctx",
        "_deadline",
        "_entries_count",
        "_hints",
        "_is_wait_over",
        "_loaded_count",
        "_max_bytes",
        "_node",
        "_rack",
        "_reads_committed",
        "_replica_id",
        "_request",
        "_size_bytes",
        "_targets",
        "_turns",
        "_wait",
        "key",
    )

    def __init__(
        self,
        node: Node,
        ctx: RequestContext,
        request: FetchRequest,
        call: SessionCall,
        key: SameKey | None,
    ) -> None:
        self.key = key
        self._wait: SameWait | None = None
        """The wait that this call owns, and that identical fetches follow."""
        self._config = node.config
        self._counts: list[tuple[Partition, int, int]] = []
        """Partition, byte count and record count for each partition in the response."""
        self._call = call
        self._hints: LeaderHints | None = None
        self._node = node
        self._ctx = ctx
        self._request = request
        state = request.replica_state
        self._replica_id = request.replica_id if state is None else state.replica_id
        self._reads_committed = (
            request.isolation_level == _READ_COMMITTED and self._replica_id >= _DEBUGGING_CONSUMER
        )
        is_rack_aware = node.config.replica_selector == RACK_AWARE
        self._rack = request.rack_id if is_rack_aware and ctx.api_version >= _RACKS_FROM else ""
        wait_ms = min(max(request.max_wait_ms, 0), _WAIT_MAX_MS)
        self._deadline = ctx.received_at + wait_ms / 1000
        self._is_wait_over = wait_ms == 0
        self._max_bytes = min(max(request.max_bytes, 0), node.config.fetch_bytes_max)
        if ctx.quota is not None:
            self._max_bytes = ctx.quota.fetch_bytes_max(self._max_bytes)
            request.min_bytes = min(request.min_bytes, self._max_bytes)
        self._budget_bytes = self._max_bytes
        self._size_bytes = 0
        self._entries_count = 0
        self._loaded_count = 0
        self._targets = [FetchTarget(item.key, item.wanted) for item in call.partitions]
        if node.authorizer is not None and not self.is_long:
            for target in self._targets:
                self._deny(target)
        self._turns = self._targets
        if self._targets and call.session is None:
            # If the byte limit is too small for all partitions, the first ones use them all, so the
            # order is rotated. Sessions maintain their own order.
            first = self._first(ctx)
            self._turns = self._targets[first:] + self._targets[:first]

    def _first(self, ctx: RequestContext) -> int:
        return ctx.correlation_id % len(self._targets)

    def _deny(self, target: FetchTarget) -> None:
        """Check whether the client may read the topic. As in Kafka, the check is not repeated while
        the fetch waits.
        """
        node, name = self._node, target.topic_name
        if target.topic_id is not None:
            topic = node.image.topics.by_id(target.topic_id)
            name = None if topic is None else topic.name
        target.is_denied = name is not None and not allows_topic(
            node, self._ctx, Operation.READ, name
        )

    @property
    def is_shared(self) -> bool:
        """Return whether clients with an identical request may receive the same response."""
        if self.key is None or not self._targets:
            return False
        return all(target.is_plain for target in self._targets)

    def serves(self, ctx: RequestContext) -> bool:
        """See `broker.requests.fetch_coalescing.SharedCall`."""
        node = self._node
        if node.config is not self._config or self._first(ctx) != self._first(self._ctx):
            return False
        return node.authorizer is None or all(
            target.topic_name is not None
            and allows_topic(node, ctx, Operation.READ, target.topic_name, logs=False)
            for target in self._targets
        )

    def is_valid(self) -> bool:
        """See `broker.requests.fetch_coalescing.SharedCall`."""
        return self._node.can_write() and all(target.is_led() for target in self._targets)

    def count_again(self) -> None:
        """See `broker.requests.fetch_coalescing.SharedCall`."""
        for partition, size_bytes, records in self._counts:
            partition.requests_count += 1
            if size_bytes:
                partition.bytes_out += size_bytes
                partition.records_out += records
                self._node.storage.cached_read_count += 1

    @property
    def is_complete(self) -> bool:
        """Return True if the response can be sent as is. As in Kafka, partitions that the client
        may not read do not end the wait for other partitions.
        """
        is_due = (
            self._is_wait_over
            or self._loaded_count > 0
            or self._size_bytes >= self._request.min_bytes
        )
        is_readable = False
        for target in self._targets:
            if target.is_cold:
                return False
            if not target.is_denied:
                is_readable = True
                is_due = is_due or target.ends_wait
        return is_due or not is_readable

    def evaluate(self) -> None:
        """Locate every partition and collect the data in memory, without I/O. This takes about 1.4
        us per partition without new data.
        """
        self._restart()
        self._evaluate(self._turns)

    def _restart(self) -> None:
        self._budget_bytes = self._max_bytes
        self._size_bytes = 0
        self._entries_count = 0
        self._loaded_count = 0

    def _evaluate(self, targets: Iterable[FetchTarget]) -> None:
        may_read = self._node.can_write()
        topic_id = topic_name = None
        for target in targets:
            if target.topic_id is not None:
                # The topic may have been deleted, and its name reused, while the fetch waited.
                if target.topic_id is not topic_id:
                    topic_id = target.topic_id
                    topic = self._node.image.topics.by_id(topic_id)
                    topic_name = None if topic is None else topic.name
                target.topic_name = topic_name
            if not may_read:
                self._refuse(target)
                continue
            target.reset()
            partition = self._locate(target)
            if partition is not None:
                self._take_cached(target, partition)

    @property
    def is_long(self) -> bool:
        return len(self._targets) > _AT_ONCE_COUNT

    async def respond_in_slices(self) -> Response:
        """Respond to a fetch of many partitions, yielding to the event loop between slices."""
        if self._node.authorizer is not None:
            async for target in sliced(self._targets):
                self._deny(target)
        await self._evaluate_in_slices()
        return await (self._respond_in_slices() if self.is_complete else self.finish())

    async def _evaluate_in_slices(self) -> None:
        self._restart()
        async for targets in chunked(self._turns):
            self._evaluate(targets)

    def _refuse(self, target: FetchTarget) -> None:
        """Discard the data and offsets of a partition, because this broker has lost its session."""
        target.reset()
        target.result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _locate(self, target: FetchTarget) -> Partition | None:
        """Return the partition if it can be read at the requested offset; otherwise set the error
        and return None.
        """
        wanted, result = target.wanted, target.result
        if target.topic_name is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            return None
        if target.is_denied:
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.aborted_transactions = ()
            return None
        found = self._node.partitions.get(target.topic_name, wanted.partition)
        if not isinstance(found, Partition):
            target.is_opening = found is ErrorCode.LEADER_NOT_AVAILABLE
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if target.is_opening else found
            if found is ErrorCode.NOT_LEADER_OR_FOLLOWER and (
                self._is_near or self._replica_id == _DEBUGGING_CONSUMER
            ):
                self._locate_elsewhere(target, target.topic_name)
            return None
        target.find(found)
        result.error_code = check_leader_epoch(
            found.leader_epoch, max(wanted.current_leader_epoch, NO_EPOCH)
        )
        if result.error_code == ErrorCode.NONE and self._replica_id >= 0:
            # Kafka returns this error if the broker is not a replica, and no Penstock broker is
            # one.
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if result.error_code != ErrorCode.NONE:
            return None
        result.high_watermark = found.high_watermark
        result.last_stable_offset = found.last_stable_offset
        result.log_start_offset = log_start = found.log_start_offset
        if self._reads_committed:
            result.aborted_transactions = ()
        if not log_start <= wanted.fetch_offset <= found.log_end_offset:
            set_out_of_range(self._node, result)
        return found if result.error_code == ErrorCode.NONE else None

    @property
    def _is_near(self) -> bool:
        """Return whether the client is in the rack of this broker."""
        return bool(self._rack) and self._rack == self._node.config.rack

    def _locate_elsewhere(self, target: FetchTarget, topic_name: str) -> None:
        """Prepare a read of a partition with another leader, as far as this broker can read its
        records. Otherwise, keep the error that sends the client to the leader.
        """
        wanted, result = target.wanted, target.result
        found = self._node.partitions.committed(topic_name, wanted.partition)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if found is not None:
            code = check_leader_epoch(
                found.leader_epoch, max(wanted.current_leader_epoch, NO_EPOCH)
            )
        if found is None or code != ErrorCode.NONE:
            result.error_code = code
            if self._is_near and code != ErrorCode.FENCED_LEADER_EPOCH:
                # Either the leader is changing, or it redirected the client before this broker's
                # image contained the change.
                target.await_image(self._node.tails.batches_count)
                self._know_nothing(result)
            return
        if wanted.fetch_offset < found.log_start_offset:
            return
        tail = self._node.tails.find(found) if self._is_near else None
        if tail is None and self._is_near and wanted.fetch_offset >= found.committed_end:
            tail = self._node.tails.follow(found)
        if tail is not None and tail.covers(found.committed_end, committed=self._reads_committed):
            self._locate_tail(target, found, tail)
        elif wanted.fetch_offset < found.committed_end:
            self._locate_committed(target, found)
        elif tail is not None:
            target.follow(tail)
            self._know_nothing(result)

    def _know_nothing(self, result: FetchPartitionResult) -> None:
        """Return neither records nor offsets, so that the client fetches again immediately. If it
        received an error, it would wait for half a second.
        """
        result.error_code = ErrorCode.NONE
        result.high_watermark = result.last_stable_offset = result.log_start_offset = _UNKNOWN
        if self._reads_committed:
            result.aborted_transactions = ()

    def _locate_committed(self, target: FetchTarget, found: CommittedPartition) -> None:
        """Read objects with committed records, without involving the leader."""
        result = target.result
        result.error_code = ErrorCode.NONE
        result.high_watermark = found.committed_end
        result.log_start_offset = found.log_start_offset
        if self._reads_committed:
            result.aborted_transactions = ()
        self._read_near(target, found)

    def _locate_tail(
        self, target: FetchTarget, found: CommittedPartition, tail: TailPartition
    ) -> None:
        """Read records that the leader has reported, or wait for more."""
        offset, result = target.wanted.fetch_offset, target.result
        end_offset = max(tail.high_watermark, found.committed_end)
        if not tail.log_start_offset <= offset <= end_offset:
            return  # the leader must decide whether the offset is out of range
        target.follow(tail)
        result.error_code = ErrorCode.NONE
        result.high_watermark = end_offset
        result.log_start_offset = max(tail.log_start_offset, found.log_start_offset)
        result.last_stable_offset = tail.last_stable_offset
        if self._reads_committed:
            result.aborted_transactions = ()
        target.view = tail.view(
            Offset(offset), found.committed_end, committed=self._reads_committed
        )
        if target.view is not None and not self._take_tail(target, target.view):
            self._read_near(target, found)

    def _take_tail(self, target: FetchTarget, view: TailView) -> bool:
        """Add slots of the tail that are in memory. Return False if they must be read from the
        store.
        """
        if not view.ranges:
            return False
        if self._refuses_limit(target):
            return True
        offset = Offset(target.wanted.fetch_offset)
        limit_bytes = min(max(target.wanted.partition_max_bytes, 0), self._budget_bytes)
        if limit_bytes == 0 and self._size_bytes > 0:
            return True
        records = self._node.storage.reader.read_tail_kept(
            view.ranges, offset, view.end_offset, limit_bytes
        )
        if not records:
            return False
        if self._reads_committed:
            found = view.aborted_within(offset, end_offset_of(records))
            target.result.aborted_transactions = aborted_of(found)
        self._take(target, records, limit_bytes)
        return True

    def _read_near(self, target: FetchTarget, found: CommittedPartition) -> None:
        if self._refuses_limit(target):
            return
        limit_bytes = min(max(target.wanted.partition_max_bytes, 0), self._budget_bytes)
        if limit_bytes or not self._size_bytes:
            target.committed = found
            self._reserve(target, limit_bytes)

    def _is_sent_away(
        self, target: FetchTarget, partition: Partition, *, is_cold: bool = False
    ) -> bool:
        """Redirect a client in another rack to a broker in that rack. Return False if there is no
        such broker, if the read is not cold and the broker does not follow the tail of this
        partition, or if the client has recently returned from that broker.
        """
        rack, node = self._rack, self._node
        if not rack or rack == node.config.rack or not partition.accepts_records:
            return False
        nearer = broker_in_rack(node.image, rack, partition.topic_id, partition.index)
        redirect = self._ctx.connection.id, partition.topic_id, partition.index
        now = self._ctx.received_at
        if nearer is None or node.tail_followers.redirects.has_returned(redirect, now):
            return False
        offset = Offset(target.wanted.fetch_offset)
        if not node.tail_followers.has(nearer) and not (
            is_cold and is_far_behind(node.image, partition.log.data.stream_id, offset)
        ):
            return False
        target.result.preferred_read_replica = nearer
        node.tail_followers.redirects.add(redirect, now)
        node.partitions.committed_reads.sent += 1
        return True

    def _refuses_limit(self, target: FetchTarget) -> bool:
        """Reject a negative read limit. Kafka also fails in this case, but only if there are
        records to read.
        """
        if target.wanted.partition_max_bytes >= 0 and self._request.max_bytes >= 0:
            return False
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        target.result = FetchPartitionResult(target.wanted.partition, code)
        return True

    def _take_cached(self, target: FetchTarget, partition: Partition) -> None:
        offset, result = target.wanted.fetch_offset, target.result
        if offset <= result.high_watermark and self._is_sent_away(target, partition):
            return
        if offset >= (
            result.last_stable_offset if self._reads_committed else result.high_watermark
        ):
            return
        if self._refuses_limit(target):
            return
        limit_bytes = min(max(target.wanted.partition_max_bytes, 0), self._budget_bytes)
        if limit_bytes == 0 and self._size_bytes > 0:
            return
        records = partition.read_cached(
            Offset(offset), limit_bytes, committed=self._reads_committed
        )
        if records is not None and self._has_aborted(target, partition, records):
            self._take(target, records, limit_bytes)
            return
        if self._is_sent_away(target, partition, is_cold=True):
            return
        if records is not None or not self._take_loaded(target, partition, limit_bytes):
            self._reserve(target, limit_bytes)

    def _take_loaded(self, target: FetchTarget, partition: Partition, limit_bytes: int) -> bool:
        """Add read-ahead data to the response. Like a cold read, this ends the wait and uses all
        reserved bytes.
        """
        if self._loaded_count == _LOADED_COUNT_MAX:
            return False
        records = partition.read_loaded(
            Offset(target.wanted.fetch_offset), limit_bytes, committed=self._reads_committed
        )
        if records is None or not self._has_aborted(target, partition, records):
            return False
        self._loaded_count += 1
        size_bytes = sum(map(len, records))
        if size_bytes <= limit_bytes or not self._size_bytes:
            target.result.records = records
            self._budget_bytes = max(0, self._budget_bytes - size_bytes)
        self._size_bytes += max(size_bytes, limit_bytes)
        return True

    def _reserve(self, target: FetchTarget, limit_bytes: int) -> None:
        """Reserve the bytes that the cold read may return. Reserve at least one byte, so that this
        partition counts as the first one with data.
        """
        target.is_cold = True
        target.size_bytes = max(limit_bytes, 1)
        self._size_bytes += target.size_bytes
        self._budget_bytes -= limit_bytes

    def _has_aborted(
        self, target: FetchTarget, partition: Partition, records: Sequence[Buffer]
    ) -> bool:
        """Set the transactions that were aborted in `records`, for committed reads. Return False if
        they must be read from the store.
        """
        if not self._reads_committed:
            return True
        offset, known = Offset(target.wanted.fetch_offset), partition.log.transactions
        found = known.aborted_within(offset, partition.last_stable_offset)
        if found:
            found = known.aborted_within(offset, end_offset_of(records))
        if found is not None:
            target.result.aborted_transactions = aborted_of(found)
        return found is not None

    def _take(self, target: FetchTarget, records: Sequence[Buffer], limit_bytes: int) -> None:
        size_bytes = sum(map(len, records))
        if size_bytes > limit_bytes and self._size_bytes > 0:
            return
        target.result.records = records
        self._size_bytes += size_bytes
        self._budget_bytes = max(0, self._budget_bytes - size_bytes)
        self._entries_count += len(records)
        if self._entries_count >= READ_ENTRIES_MAX:
            # The response is full even if it uses few bytes, so do not wait or add other
            # partitions.
            self._size_bytes = max(self._size_bytes, self._request.min_bytes)
            self._budget_bytes = 0

    async def finish(self, wait: SameWait | None = None) -> Response:
        """Complete a request that has no immediate response: run its cold reads, or wait for
        records. wait: the wait of an identical fetch that has ended; this call becomes responsible
        for the other followers.
        """
        if wait is None and self.is_shared and self.key is not None:
            wait = self._node.coalesced_fetches.lead(self.key, self)
        elif wait is not None:
            wait.call = self
        self._wait = wait
        try:
            while not self.is_complete:
                cold = [target for target in self._targets if target.is_cold]
                if cold:
                    await self._read_all_cold(cold)
                    break
                if await self._park() or not self.is_current():
                    if self.is_long:
                        await self._evaluate_in_slices()
                    else:
                        self.evaluate()
            return await self._respond_in_slices() if self.is_long else self.respond()
        finally:
            if wait is not None:
                self._wait = None  # avoids a reference cycle per waiting request
                wait.pass_on()

    async def _read_all_cold(self, cold: list[FetchTarget]) -> None:
        if self._wait is not None:
            self._wait.settle(None)
        reads = ColdReads(
            self._node, reads_committed=self._reads_committed, follows_tails=self._is_near
        )
        await reads.read(cold, self._targets)
        if not self._node.can_write():
            for target in self._targets:
                self._refuse(target)

    def is_current(self) -> bool:
        """Return whether no partition has changed since it was looked up. This costs a quarter of
        `evaluate`.
        """
        return self._node.can_write() and all(target.is_current() for target in self._targets)

    def _has_moved(self) -> bool:
        """Return whether a partition has changed since it was looked up. Parked fetches are
        notified of changes, but other work may run between the first lookup and this task, or
        between the slices of a long fetch.
        """
        batches_count = self._node.tails.batches_count
        return any(target.has_moved(batches_count) for target in self._targets)

    async def _park(self) -> bool:
        """Wait until enough bytes or an error are available, but no longer than max_wait. Return
        False if nothing has changed.
        """
        self._ctx.waits()
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()

        def wake(came: bool = True) -> None:
            if not woken.done():
                woken.set_result(came)

        wait = FetchWait(
            self._request.min_bytes - self._size_bytes, wake, reads_committed=self._reads_committed
        )
        cancels = self._register(wait)
        try:
            if self._has_moved():
                return True
            # A timer costs half as much as `asyncio.timeout_at`.
            cancels.append(loop.call_at(self._deadline, wake, False).cancel)
            self._is_wait_over = not await woken
            return not self._is_wait_over
        finally:
            for target in self._targets:
                if target.partition is not None:
                    target.partition.remove_fetch_wait(wait)
                elif target.tail is not None:
                    target.tail.remove_fetch_wait(wait)
            for cancel in cancels:
                cancel()

    def _register(self, wait: FetchWait) -> list[Callable[[], None]]:
        """Register the wait with all partitions. Return callbacks that unregister it from
        partitions that are opening and from the image.
        """
        cancels: list[Callable[[], None]] = []
        for target in self._targets:
            if target.partition is not None:
                target.partition.add_fetch_wait(wait)
            elif target.tail is not None:
                target.tail.add_fetch_wait(wait)
            elif target.awaits_image:
                cancels.append(self._node.tails.await_image(wait))
            elif target.is_opening and target.topic_name is not None:
                cancels.append(
                    self._node.partitions.when_open(
                        target.topic_name, target.wanted.partition, lambda _: wait.interrupt()
                    )
                )
        return cancels

    def respond(self) -> Response:
        throttle_ms = self._throttle_ms()
        if throttle_ms:
            return self._throttled(throttle_ms)
        if error := self._count(self._targets):
            self._ctx.meter.failed(self._ctx.api_key, error)
        frame = self._encode()()
        if self.key is not None and not self._is_wait_over:
            self._share(self.key, frame)
        return frame

    def _share(self, key: SameKey, frame: Sequence[Buffer]) -> None:
        """Share the response with identical requests if their clients may receive it."""
        response = SharedResponse(self, frame) if self.is_shared else None
        if response is not None:
            self._node.coalesced_fetches.note(key, response)
        if self._wait is not None:
            self._wait.settle(response)

    async def _respond_in_slices(self) -> Response:
        throttle_ms = self._throttle_ms()
        if throttle_ms:
            return self._throttled(throttle_ms)
        error = 0
        async for targets in chunked(self._targets):
            found = self._count(targets)
            error = error or found
        if error:
            self._ctx.meter.failed(self._ctx.api_key, error)
        return LongResponse(self._encode())

    def _throttle_ms(self) -> int:
        quota = self._ctx.quota
        if quota is None:
            return 0
        return quota.fetched(
            sum(len(part) for item in self._targets for part in item.result.records)
        )

    def _count(self, targets: Iterable[FetchTarget]) -> int:
        """Count the returned records, and add leader hints for partitions with other leaders.
        Return the first error.
        """
        error = 0
        for target in targets:
            error = error or target.result.error_code
            if target.partition is not None:
                size_bytes = records = 0
                if target.result.records:
                    size_bytes = sum(map(len, target.result.records))
                    records = end_offset_of(target.result.records) - target.wanted.fetch_offset
                    target.partition.bytes_out += size_bytes
                    target.partition.records_out += records
                target.partition.requests_count += 1
                self._counts.append((target.partition, size_bytes, records))
            elif target.result.records:
                self._count_committed(target)
            if target.result.error_code == _NOT_LEADER and target.topic_name is not None:
                self._add_leader(target, target.topic_name)
        return error

    def _add_leader(self, target: FetchTarget, topic_name: str) -> None:
        """Add the leader, so that the client returns to it.

        A librdkafka consumer that refreshes its metadata during a redirect fetches from the broker
        in its rack, but mistakes it for the leader (librdkafka PR 5593). NOT_LEADER_OR_FOLLOWER
        then has no effect and the redirect does not expire, but the consumer still follows a
        preferred replica.
        """
        if self._hints is None:
            self._hints = LeaderHints(self._node, self._ctx)
        leader = self._hints.current_leader(topic_name, target.wanted.partition)
        target.result.current_leader = leader
        if leader is None or not self._is_near:
            return
        state = self._node.image.nodes.get(NodeId(leader.leader_id))
        # Do not redirect clients in the leader's rack. The leader did not redirect them here, and
        # two brokers in one rack with different images could redirect a client back and forth
        # without a pause.
        if state is not None and state.rack != self._rack:
            target.result.preferred_read_replica = leader.leader_id

    def _throttled(self, throttle_ms: int) -> Response:
        """Return a response without records, because the client has exceeded its quota."""
        error_code, session_id = self._node.fetch_sessions.throttled(self._call)
        return encode_fetch_response(
            self._ctx.correlation_id,
            self._ctx.api_version,
            [],
            throttle_ms=throttle_ms,
            error_code=error_code,
            session_id=session_id,
        )

    def _count_committed(self, target: FetchTarget) -> None:
        counts, records = self._node.partitions.committed_reads, target.result.records
        counts.served += 1
        counts.size_bytes += sum(map(len, records))
        counts.records += end_offset_of(records) - target.wanted.fetch_offset

    def _encode(self) -> Callable[[], list[Buffer]]:
        results = [target.result for target in self._targets]
        error_code, session_id, held = self._node.fetch_sessions.finish(
            self._call, results, asyncio.get_running_loop().time()
        )
        by_topic: dict[TopicKey, list[FetchPartitionResult]] = {}
        for at in held:
            by_topic.setdefault(self._call.partitions[at].key, []).append(results[at])
        return partial(
            encode_fetch_response,
            self._ctx.correlation_id,
            self._ctx.api_version,
            list(by_topic.items()),
            error_code=error_code,
            session_id=session_id,
            node_endpoints=() if self._hints is None else self._hints.endpoints(),
        )

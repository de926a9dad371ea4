"""Open and close partitions, so that this broker serves exactly the partitions that the metadata
image assigns to this incarnation.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from penstock.base.clock import WallClock
from penstock.base.errors import StreamError
from penstock.base.ids import Offset, StreamId
from penstock.base.shared_backoff import SharedBackoff
from penstock.broker.partition.byte_limiter import ByteLimiter
from penstock.broker.partition.committed_reader import (
    CommittedPartition,
    CommittedReads,
    committed_partition,
)
from penstock.broker.partition.hosted_partition import HostedPartition, OpenCallback
from penstock.broker.partition.leaders import Gone, is_next_leader
from penstock.broker.partition.load_meter import AppendTimes
from penstock.broker.partition.log import LogConfig
from penstock.broker.partition.metrics import OperationCounts, PartitionStates, Traffic
from penstock.broker.partition.move_notice import MoveNoticeConfig
from penstock.broker.partition.moves import Moves
from penstock.broker.partition.opener import BATCH_COUNT_MAX, OpenPartition, PartitionOpener
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.producer_state import ProducerCounts
from penstock.broker.partition.producer_watch import ProducerWatch
from penstock.broker.partition.refused_batches import RefusedBatches
from penstock.broker.partition.validation import TopicRules
from penstock.controller.api.load_messages import FailingPartition
from penstock.controller.api.messages import MoveTiming
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.topics import PartitionKey
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.storage import Storage

_log = structlog.get_logger(__name__)

Operation: TypeAlias = Callable[[], Coroutine[None, None, None]]
"""Called when its task starts, so that a task cancelled before that leaves no coroutine that was
never awaited.
"""

Subscribe: TypeAlias = Callable[[Callable[[MetadataDelta, MetadataImage], None]], None]

COLD_BYTES_MAX: Final = 128 * 1024 * 1024
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_CHECKPOINT_INTERVAL_S: Final = 1.0
_FULL_CHECKPOINT_INTERVALS: Final = 30
"""After this many intervals, partitions with little new data are also checkpointed, all in one
group.
"""


LeaderChangeListener: TypeAlias = Callable[[str, int, bool], None]
"""Called on the event loop with (topic name, partition, opened). `opened` is False when this broker
stops leading the partition. Must not block.
"""


class PartitionManager:
    """Level-triggered: an image change only selects the partitions to check; the action is derived
    from the image and the current state. At most one operation runs per partition, and the
    partition is checked again when it ends. A leader that changes twice in the meantime, a lost
    response or a failed open therefore needs no special case.

    `get` returns a partition only while it may be served. Parked requests run in order of arrival,
    before later requests. Listeners are called alternately for opening and closing. Partitions that
    are moving here, or whose dead leader this broker will replace, are already hosted, so that
    early requests wait here in order.
    """

    def __init__(
        self,
        me: BrokerIncarnation,
        storage: Storage,
        image: Callable[[], MetadataImage],
        subscribe: Subscribe,
        now_ms: WallClock,
        *,
        config: LogConfig | None = None,
        notice: MoveNoticeConfig | None = None,
        report: Callable[[list[MoveTiming]], None] | None = None,
        gone: Callable[[], Gone] = frozenset,
    ) -> None:
        """report: receives the step times of moves, at most `BATCH_COUNT_MAX` at a time. gone:
        returns the brokers whose processes have died. Both must not block or raise.
        """
        self._me = me
        self._storage = storage
        self._image = image
        self._subscribe = subscribe
        self._now_ms = now_ms
        self._log_config = config or LogConfig()
        self._opener = PartitionOpener(storage, now_ms, self._log_config)
        self._hosted: dict[PartitionKey, HostedPartition] = {}
        self._served: dict[tuple[str, int], Partition] = {}
        self._listeners: list[LeaderChangeListener] = []
        self.cold_reads = ByteLimiter(COLD_BYTES_MAX)
        """Limits the concurrent cold reads of all fetches."""
        self.committed_reads = CommittedReads()
        self.append_times = AppendTimes()
        self.producer_watch = ProducerWatch()
        self.refused = RefusedBatches()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries = SharedBackoff[PartitionKey](
            _RETRY_FIRST_S, _RETRY_MAX_S, lambda due: self._reconcile(set(due))
        )
        self._moves = Moves(
            image, notice or MoveNoticeConfig(), report or _ignore_timings, self._reconcile
        )
        self._gone = gone
        self.opens = OperationCounts()
        self.closes = OperationCounts()
        self._past_traffic = Traffic()
        """Traffic of partitions that this broker no longer serves."""
        self._past_dropped_count = 0
        self._is_closing = False
        self._is_over = False
        self._released = asyncio.Event()

    def reconfigure(self, *, producer_silent_ms: int) -> None:
        """Set the time after which inactive producers are dropped, starting with the next
        checkpoints.
        """
        self._log_config.producer_silent_ms = producer_silent_ms

    # --- handlers ---------------------------------------------------------------------------------

    def get(self, topic_name: str, index: int) -> Partition | ErrorCode:
        """Return the partition if this broker serves it.

        Otherwise, return UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or
        LEADER_NOT_AVAILABLE while this broker is opening it.
        """
        partition = self._served.get((topic_name, index))
        if partition is not None:
            return partition
        topic = self._image().topics.by_name(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        key = PartitionKey(topic.topic_id, index)
        # A partition that is not hosted cannot park callbacks, so the request would never complete.
        is_ours = key in self._hosted and (self._desired(key) is not None or self._is_expected(key))
        return ErrorCode.LEADER_NOT_AVAILABLE if is_ours else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def committed(self, topic_name: str, index: int) -> CommittedPartition | None:
        """Return the committed part of a partition with another leader, or None if the partition
        has no leader or does not exist.
        """
        image = self._image()
        topic = image.topics.by_name(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return committed_partition(image, self._storage, topic.partitions[index])

    def when_open(self, topic_name: str, index: int, callback: OpenCallback) -> Callable[[], None]:
        """Call `callback`, possibly immediately, when `get` no longer returns LEADER_NOT_AVAILABLE.
        Return a function that cancels the callback.

        Callbacks of a partition run in order, before later requests. There is no timeout.
        """
        found = self.get(topic_name, index)
        topic = self._image().topics.by_name(topic_name)
        hosted = (
            self._hosted.get(PartitionKey(topic.topic_id, index)) if topic is not None else None
        )
        if found != ErrorCode.LEADER_NOT_AVAILABLE or hosted is None:
            callback(found)
            return _nothing_to_cancel
        return hosted.park(callback)

    async def wait_open(
        self, topic_name: str, index: int, deadline: float
    ) -> Partition | ErrorCode:
        """Return the same as `get`, but wait until `deadline` (`loop.time()`) for a partition that
        this broker is opening.
        """
        found: asyncio.Future[Partition | ErrorCode] = asyncio.get_running_loop().create_future()

        def opened(result: Partition | ErrorCode) -> None:
            if not found.done():
                found.set_result(result)

        cancel = self.when_open(topic_name, index, opened)
        try:
            async with asyncio.timeout_at(deadline):
                return await found
        except TimeoutError:
            return ErrorCode.LEADER_NOT_AVAILABLE
        finally:
            cancel()

    def is_expected(self, topic_name: str, index: int) -> bool:
        """Return True if this broker will lead the partition after an election that has not
        completed yet.
        """
        topic = self._image().topics.by_name(topic_name)
        return topic is not None and self._is_expected(PartitionKey(topic.topic_id, index))

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._served.values()))

    def __len__(self) -> int:
        return len(self._served)

    def wake_readers(self) -> None:
        """Make every parked fetch check its partitions again because the session was lost. This
        takes O(partitions).
        """
        for partition in self._served.values():
            partition.wake_readers()

    def traffic(self) -> Traffic:
        """Return the total traffic since the start. This takes O(partitions)."""
        return self._past_traffic.with_partitions(self._served.values())

    def producers(self) -> ProducerCounts:
        """Count the tracked producers. This takes O(partitions)."""
        states = [partition.log.producers for partition in self._served.values()]
        return ProducerCounts(
            sum(map(len, states)),
            max(map(len, states), default=0),
            self._past_dropped_count + sum(state.dropped_count for state in states),
        )

    def states(self) -> PartitionStates:
        """Count the partitions by state. This takes O(partitions)."""
        found: Counter[str] = Counter(hosted.state for hosted in self._hosted.values())
        return PartitionStates(**found)

    def failing(self) -> list[FailingPartition]:
        """Return the partitions that fail to open, sorted by how long they have failed. This takes
        O(partitions).
        """
        now_s = asyncio.get_running_loop().time()
        found = [hosted.failure(now_s) for hosted in self._hosted.values() if hosted.is_failing]
        return sorted(found, key=lambda item: -item.for_ms)

    def add_leader_change_listener(self, listener: LeaderChangeListener) -> None:
        """Add a listener, and call it for the partitions that are already open. It must not block
        or raise.
        """
        self._listeners.append(listener)
        for partition in self:
            listener(partition.topic_name, partition.index, True)

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe to the image. The subscription starts with a full delta, and partitions are
        opened in the background.
        """
        self._subscribe(self.on_batch)
        self._spawn(self._checkpoint_periodically())

    async def close(self) -> None:
        """Stop opening partitions, and close all open ones with few RPCs. There is no timeout; the
        caller may cancel.
        """
        self._is_closing = True
        self._reconcile(list(self._hosted))
        try:
            await self.settled()
        finally:
            await self.abandon()

    async def settled(self) -> None:
        """Wait until the image assigns every open partition to this broker. There is no timeout;
        the caller may cancel.
        """
        while any(
            (hosted.busy or hosted.open_partition is not None) and self._desired(key) is None
            for key, hosted in self._hosted.items()
        ):
            self._released.clear()
            await self._released.wait()

    async def abandon(self) -> None:
        """Stop immediately, as in a crash, without closing anything, and ignore the image. Has no
        effect after `close`.
        """
        self._is_over = True
        self._retries.cancel()
        self._moves.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply an image change. Runs on the event loop, without waiting."""
        if self._is_over:
            return
        if delta.everything:
            keys = set(self._hosted) | image.topics.led_by(self._me) | self._leaderless_keys()
            names = {partition.topic_name for partition in self._served.values()}
        else:
            keys = set(delta.partitions)
            if delta.node_ids:
                keys |= self._leaderless_keys()
            if delta.removed_topic_ids:
                keys.update(key for key in self._hosted if key.topic_id in delta.removed_topic_ids)
            names = {name for kind, name in delta.configs if kind == TOPIC_RESOURCE}
        if names:
            self._refresh_rules(names)
        self._take_over_starts(delta, image)
        self._reconcile(keys)

    def on_gone(self, peer: BrokerIncarnation) -> None:
        """Start expecting the partitions of a departed broker, or stop expecting them if the broker
        has returned. This takes O(partitions that it leads).
        """
        if not self._is_over:
            self._reconcile(self._image().topics.led_by(peer))

    def _take_over_starts(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the log starts in the image, which include trims whose response was lost."""
        trimmed: Iterable[StreamId] = delta.trimmed_stream_ids
        if delta.everything:
            trimmed = [handle.stream_id for handle in self._storage.open_handles()]
        for stream_id in trimmed:
            stream = image.streams.get(stream_id)
            if stream is not None:
                self._storage.on_trimmed(stream_id, stream.start_offset)

    def _leaderless_keys(self) -> set[PartitionKey]:
        """Return the partitions whose next leader may have changed because a broker has joined or
        left: those without a live leader, and those expected here. This takes O(partitions without
        a live leader + hosted partitions).
        """
        image = self._image()
        keys = {key for key, hosted in self._hosted.items() if hosted.open_partition is None}
        for leader, led in image.topics.leaders().items():
            if not image.nodes.is_alive(leader):
                keys |= led
        return keys

    def _refresh_rules(self, topic_names: set[str]) -> None:
        rules = {name: self._rules_of(name) for name in topic_names}
        for partition in self._served.values():
            if partition.topic_name in rules:
                partition.log.rules = rules[partition.topic_name]

    def _rules_of(self, topic_name: str) -> TopicRules:
        return TopicRules.from_configs(
            self._image().configs.topic(topic_name), self._storage.decompressed_batch_bytes_max
        )

    # --- reconciliation ---------------------------------------------------------------------------

    def _desired(self, key: PartitionKey) -> PartitionRecord | None:
        record = self._image().topics.partition(key)
        if record is None or self._is_closing:
            return None
        return (
            record
            if (record.leader, record.leader_node_epoch) == (self._me.node_id, self._me.node_epoch)
            else None
        )

    def _is_expected(self, key: PartitionKey) -> bool:
        """Return True if this broker is the next leader of a partition that is moving, or whose
        leader is dead or gone.
        """
        image = self._image()
        record = image.topics.partition(key)
        return (
            record is not None
            and not self._is_closing
            and is_next_leader(image, record, self._me.node_id, self._gone())
        )

    def _reconcile(self, keys: Iterable[PartitionKey]) -> None:
        """Compare the image with the open partitions. Stop serving partitions that this broker does
        not lead, and start opening and closing partitions.
        """
        to_open: list[tuple[HostedPartition, PartitionRecord]] = []
        to_close: list[HostedPartition] = []
        for key in keys if self._is_closing else self._moves.begin_notices(keys, self._hosted):
            record = self._desired(key)
            hosted = self._update_hosted(key, record)
            if hosted is None:
                continue
            is_stale = self._stop_if_stale(hosted, record)
            if hosted.busy:
                continue
            if is_stale:
                to_close.append(hosted)
            elif record is not None and not hosted.is_open:
                to_open.append((hosted, record))
        for at in range(0, len(to_close), BATCH_COUNT_MAX):
            closing = to_close[at : at + BATCH_COUNT_MAX]
            self._start_operation(partial(self._close, closing), closing)
        for at in range(0, len(to_open), BATCH_COUNT_MAX):
            opening = to_open[at : at + BATCH_COUNT_MAX]
            self._start_operation(partial(self._open, opening), [hosted for hosted, _ in opening])

    def _update_hosted(
        self, key: PartitionKey, record: PartitionRecord | None
    ) -> HostedPartition | None:
        """Add or remove the hosted partition according to the image, and return it, or None if this
        broker does not host it.
        """
        hosted = self._hosted.get(key)
        if record is not None or self._is_expected(key):
            if hosted is None:
                hosted = self._hosted[key] = HostedPartition(key)
        elif hosted is not None:
            self._call_parked(hosted)
            if not hosted.busy and hosted.open_partition is None:
                self._forget(hosted)
                return None
        return hosted

    def _stop_if_stale(self, hosted: HostedPartition, record: PartitionRecord | None) -> bool:
        """Stop serving the partition if the image no longer assigns it to this broker."""
        open_partition = hosted.open_partition
        is_stale = open_partition is not None and (
            record is None or record.leader_epoch != open_partition.record.leader_epoch
        )
        if open_partition is not None and is_stale:
            self._stop_serving(open_partition)
        return is_stale

    def _forget(self, hosted: HostedPartition) -> None:
        del self._hosted[hosted.key]
        self._released.set()

    def _call_parked(self, hosted: HostedPartition) -> None:
        """Run the parked callbacks of this partition."""
        parked = hosted.take_parked()
        if not parked:
            return
        topic = self._image().topics.by_id(hosted.key.topic_id)
        for callback in parked:
            callback(
                self.get(topic.name, hosted.key.partition)
                if topic is not None
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )

    # --- operations -------------------------------------------------------------------------------

    async def _open(self, batch: list[tuple[HostedPartition, PartitionRecord]]) -> None:
        def done(position: int, result: OpenPartition | Exception) -> None:
            hosted, record = batch[position]
            if isinstance(result, OpenPartition):
                hosted.open_partition = result
                if result.partition is not None:
                    self._serve(hosted, result.partition)
                else:
                    self._retry(hosted, result.error)
            else:
                self._retry(hosted, result)
            hosted.busy = False
            if self._desired(hosted.key) is not record:
                self._reconcile([hosted.key])

        began = asyncio.get_running_loop().time()
        await self._opener.open([(record, hosted.open_partition) for hosted, record in batch], done)
        self.opens.latencies.observe((asyncio.get_running_loop().time() - began) * 1_000)
        self._moves.report(
            (hosted.open_partition.record, hosted.open_partition.steps)
            for hosted, _ in batch
            if hosted.open_partition is not None and hosted.open_partition.partition is not None
        )

    def _serve(self, hosted: HostedPartition, partition: Partition) -> None:
        topic = self._image().topics.by_id(hosted.key.topic_id)
        record = self._desired(hosted.key)
        if topic is None or record is None or record.leader_epoch != partition.leader_epoch:
            return
        partition.topic_name = topic.name
        partition.log.rules = self._rules_of(topic.name)
        hosted.attempts_count = 0
        self.opens.partitions += 1
        self._served[topic.name, partition.index] = partition
        self._call_parked(hosted)
        for listener in self._listeners:
            listener(topic.name, partition.index, True)

    def _stop_serving(self, open_partition: OpenPartition) -> None:
        partition = open_partition.partition
        if (
            partition is None
            or self._served.get((partition.topic_name, partition.index)) is not partition
        ):
            return
        del self._served[partition.topic_name, partition.index]
        self._past_traffic = self._past_traffic.with_partitions((partition,))
        self._past_dropped_count += partition.log.producers.dropped_count
        partition.refuse_records()
        for listener in self._listeners:
            listener(partition.topic_name, partition.index, False)

    async def _close(self, batch: list[HostedPartition]) -> None:
        began = asyncio.get_running_loop().time()
        closed = [hosted.open_partition for hosted in batch if hosted.open_partition is not None]
        try:
            steps = await self._opener.close(closed)
            self._moves.report(((item.record, steps) for item in closed), gave_up=True)
        except StreamError:
            # Only a permanently failed WAL rejects a close. The next owner obtains the durable
            # records through recovery.
            if not self._storage.fenced:
                raise
        for hosted in batch:
            hosted.open_partition = hosted.notice = None
            hosted.attempts_count = 0
            hosted.busy = False
        self.closes.partitions += len(closed)
        self.closes.latencies.observe((asyncio.get_running_loop().time() - began) * 1_000)
        self._reconcile([hosted.key for hosted in batch])
        self._released.set()

    def _retry(self, hosted: HostedPartition, error: Exception | None) -> None:
        """Check the partition again after a pause, together with other partitions that have failed
        the same number of times. This repeats as long as the image assigns the partition to this
        broker.
        """
        hosted.failed(error, asyncio.get_running_loop().time())
        (self.closes if hosted.is_open else self.opens).failures += 1
        delay_s = self._retries.add(hosted.key, hosted.attempts_count - 1)
        _log.warning(
            "partition_operation_failed",
            topic_id=str(hosted.key.topic_id),
            partition=hosted.key.partition,
            attempts=hosted.attempts_count,
            retry_in_s=delay_s,
            error=str(error),
            kind=type(error).__name__,
        )

    # --- tasks ------------------------------------------------------------------------------------

    def _start_operation(self, operation: Operation, batch: list[HostedPartition]) -> None:
        for hosted in batch:
            hosted.busy = True
        self._spawn(self._run_operation(operation, batch))

    async def _run_operation(self, operation: Operation, batch: list[HostedPartition]) -> None:
        """Run an operation. Even if it fails, its partitions must not stay busy forever."""
        try:
            await operation()
        except Exception as error:  # noqa: BLE001 - logged and retried by `_retry`; a defect in one batch must not stop the others
            for hosted in batch:
                if hosted.busy:
                    hosted.busy = False
                    self._retry(hosted, error)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def trim(self, partition: Partition, start_offset: Offset) -> None:
        """See `PartitionOpener.trim`."""
        await self._opener.trim(partition, start_offset)

    async def trim_all(
        self, starts: Sequence[tuple[Partition, Offset]], *, keep: bool = False
    ) -> list[Exception | None]:
        """See `PartitionOpener.trim_all`."""
        return await self._opener.trim_all(starts, keep=keep)

    async def checkpoint_durably(self, partition: Partition) -> None:
        """See `PartitionOpener.checkpoint_durably`."""
        await self._opener.checkpoint_durably(partition)

    async def _checkpoint_periodically(self) -> None:
        round_number = 0
        while True:
            await asyncio.sleep(_CHECKPOINT_INTERVAL_S)
            round_number += 1
            is_full_round = round_number % _FULL_CHECKPOINT_INTERVALS == 0
            served = self._served.values()
            await self._opener.checkpoint(
                [p for p in served if p.log.is_dirty]
                if is_full_round
                else self._opener.due_checkpoints(served)
            )


def _ignore_timings(_: list[MoveTiming]) -> None:
    """The default for `report`, which does nothing."""


def _nothing_to_cancel() -> None:
    """Do nothing, because the callback has already run."""

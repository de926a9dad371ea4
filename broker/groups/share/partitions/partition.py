"""One share partition on its leader: loads its state, writes changes, and expires locks. Deliveries
that end while the share coordinator is unreachable are written as soon as it is available again.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import structlog

from penstock.base.clock import WallClock
from penstock.base.ids import Millis, Offset, StreamId
from penstock.broker.groups.share.partitions.settings import (
    ShareConfigs,
    ShareCounts,
    ShareGroupConfig,
)
from penstock.broker.groups.share.partitions.spans import Acknowledgement, AcquiredRange
from penstock.broker.groups.share.partitions.window import (
    AcknowledgementRefused,
    AcquireOptions,
    Bounds,
    ShareWindow,
    WindowChanges,
)
from penstock.broker.groups.share.state.model import (
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateStore,
)
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.partition import Partition
from penstock.protocol.error_codes import ErrorCode

_log = structlog.get_logger(__name__)

LOAD_RETRY_S: Final = 0.1
LOAD_RETRY_MAX_S: Final = 2.0
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
_CLIENT_CODES: Final = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}

Outcome: TypeAlias = "ErrorCode | asyncio.Future[ErrorCode]"


class TimestampIndex(Protocol):
    """Looks up offsets by timestamp; implemented by `stream.storage`."""

    async def offset_for_timestamp(
        self, stream_id: StreamId, timestamp_ms: int, end_offset: Offset
    ) -> tuple[Offset, int] | None: ...


class SharePartition:
    __slots__ = (
        "_config",
        "_counts",
        "_index",
        "_load_task",
        "_loop",
        "_now_ms",
        "_queue",
        "_retry",
        "_state_epoch",
        "_store",
        "_timer",
        "_waits",
        "_writer",
        "error_code",
        "is_reading",
        "key",
        "news_count",
        "partition",
        "window",
    )

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        store: ShareStateStore,
        config: ShareConfigs,
        index: TimestampIndex,
        *,
        now_ms: WallClock,
        counts: ShareCounts | None = None,
    ) -> None:
        self.key = key
        self.partition = partition
        self.window: ShareWindow | None = None
        """None before the state is loaded, and after `stop`."""
        self.error_code = ErrorCode.NONE
        """The reason why the window cannot be loaded or was dropped."""
        self.is_reading = False
        """Whether a fetch is reading from the store. Other fetches then skip this partition."""
        self.news_count = 0
        """Increases on changes that may allow a fetch to continue, such as delivered records that
        become available again.
        """
        self._store = store
        self._config = config
        self._index = index
        self._now_ms = now_ms
        self._counts = counts or ShareCounts()
        self._loop = asyncio.get_running_loop()
        self._state_epoch = 0
        self._queue: list[tuple[WindowChanges, asyncio.Future[ErrorCode] | None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waits: dict[FetchWait, None] = {}
        self._load_task = self._loop.create_task(self._load())

    @property
    def config(self) -> ShareGroupConfig:
        return self._config(self.key.group_id)

    @property
    def is_idle(self) -> bool:
        """Return whether the window can be dropped without losing state."""
        window = self.window
        return (
            not self._queue
            and self._writer is None
            and (window is None or (window.next_deadline is None and not window.has_unstored))
        )

    # --- waiting ----------------------------------------------------------------------------------

    def add_wait(self, wait: FetchWait) -> None:
        """Interrupt `wait` when delivered records become available again, or when the window has
        room for new ones.
        """
        self._waits[wait] = None

    def remove_wait(self, wait: FetchWait) -> None:
        self._waits.pop(wait, None)

    def wake(self) -> None:
        """Interrupt the waiting fetches after a change."""
        self.news_count += 1
        self._interrupt()

    def end_read(self) -> None:
        """Allow the next fetch to read from the store, even if the records were not used."""
        self.is_reading = False
        self._interrupt()

    def _interrupt(self) -> None:
        for wait in list(self._waits):
            wait.interrupt()

    # --- load and stop ----------------------------------------------------------------------------

    async def _load(self) -> None:
        pause_s = LOAD_RETRY_S
        while True:
            try:
                self.window = await self._read_window()
            except ShareStateError as error:
                if error.code in _RETRIABLE:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LOAD_RETRY_MAX_S)
                    continue
                self.error_code = _client_code(error.code)
            except Exception as error:  # noqa: BLE001 - whatever failed, waiting fetches get an error; logged
                self.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
                _log.warning(
                    "share_partition_load_failed",
                    group=self.key.group_id,
                    topic=self.partition.topic_name,
                    partition=self.key.partition,
                    error=str(error),
                    kind=type(error).__name__,
                )
            self.wake()
            return

    async def _read_window(self) -> ShareWindow:
        state = await self._store.read(self.key, self.partition.leader_epoch)
        self._state_epoch = state.state_epoch
        start_offset = state.start_offset
        if start_offset == NO_START_OFFSET:
            start_offset = await self._store_start_offset(state)
        window = ShareWindow(start_offset, self.config.limits, state.batches)
        window.trim(self.partition.log_start_offset)
        return window

    async def _store_start_offset(self, state: ShareState) -> int:
        start_offset = await self._find_start_offset()
        await self._store.write(
            self.key,
            state_epoch=state.state_epoch,
            leader_epoch=self.partition.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=0,
            batches=(),
        )
        return start_offset

    async def _find_start_offset(self) -> int:
        config, partition = self.config, self.partition
        if config.begins_ms_ago is not None:
            since_ms = Millis(max(0, self._now_ms() - config.begins_ms_ago))
            found = await self._index.offset_for_timestamp(
                partition.log.data.stream_id, since_ms, partition.high_watermark
            )
            return partition.high_watermark if found is None else found[0]
        if config.begins_earliest:
            return partition.log_start_offset
        return partition.last_stable_offset if config.reads_committed else partition.high_watermark

    def stop(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Drop the state. Waiting requests fail."""
        if self.error_code is ErrorCode.NONE:
            self.error_code = code
        self.window = None
        self._load_task.cancel()
        if self._writer is not None:
            self._writer.cancel()
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        queue, self._queue = self._queue, []
        _respond_all(queue, code)
        self.wake()

    # --- delivery ---------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[Bounds],
        fetch_offset: int,
        options: AcquireOptions,
        *,
        aborted: Sequence[Bounds] = (),
    ) -> list[AcquiredRange]:
        """See `ShareWindow.acquire`."""
        if self.window is None:
            return []
        deadline = self._loop.time() + self.config.lock_duration_s
        found = self.window.acquire(
            member_id, fetched, fetch_offset, options, deadline=deadline, aborted=aborted
        )
        self._counts.delivered += sum(item.last_offset - item.first_offset + 1 for item in found)
        if found and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._end_locks)
        return found

    def _end_locks(self) -> None:
        self._timer = None
        if self.window is None:
            return
        changes = self.window.expire(self._loop.time())
        if changes:
            self._counts.expired += sum(span.end - span.first for span in changes.spans)
            self._write(changes, None)
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = None if self.window is None else self.window.next_deadline
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._end_locks)

    # --- acknowledgments ------------------------------------------------------------------------

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement]) -> Outcome:
        """Acknowledge records. Return the outcome, or a future that completes when the change is
        stored.
        """
        if self.window is None:
            return self.error_code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        deadline = self._loop.time() + self.config.lock_duration_s
        try:
            changes = self.window.acknowledge(member_id, acknowledgements, deadline)
        except AcknowledgementRefused as refused:
            return refused.code
        return self._written(changes)

    def release(self, member_id: str) -> Outcome:
        """Release all records that the member has acquired. Same return value as `acknowledge`."""
        if self.window is None:
            return self.error_code
        return self._written(self.window.release(member_id))

    def _written(self, changes: WindowChanges) -> Outcome:
        if not changes:
            return ErrorCode.NONE
        outcome: asyncio.Future[ErrorCode] = self._loop.create_future()
        self._write(changes, outcome)
        return outcome

    def _write(self, changes: WindowChanges, outcome: "asyncio.Future[ErrorCode] | None") -> None:
        self._queue.append((changes, outcome))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Write queued changes, one write at a time. Changes that arrive during a write are written
        together by the next one.
        """
        window = self.window
        while self._queue and window is not None and self.error_code is ErrorCode.NONE:
            queue, self._queue = self._queue, []
            try:
                code = await self._write_once(window, [changes for changes, _ in queue])
            except asyncio.CancelledError:
                _respond_all(queue, self.error_code)
                raise
            for changes, _ in queue:
                window.settle(changes, is_written=code is ErrorCode.NONE)
            if code is not ErrorCode.NONE and code not in _RETRIABLE:
                # Another leader has written the state, or the group no longer has this state.
                self._writer = None
                self.stop(_client_code(code))
            _respond_all(queue, _client_code(code))
            self._set_timer()
            self.wake()
        self._writer = None
        if self.window is not None and self.window.has_unstored and self._retry is None:
            self._retry = self._loop.call_later(LOAD_RETRY_MAX_S, self._write_unstored)

    def _write_unstored(self) -> None:
        self._retry = None
        if self.window is not None and self.window.has_unstored:
            self._write(WindowChanges(), None)

    async def _write_once(self, window: ShareWindow, changes: Sequence[WindowChanges]) -> ErrorCode:
        window.trim(self.partition.log_start_offset)
        draft = window.draft(changes)
        try:
            await self._store.write(
                self.key,
                state_epoch=self._state_epoch,
                leader_epoch=self.partition.leader_epoch,
                start_offset=draft.start_offset,
                delivery_complete_count=draft.complete_count,
                batches=draft.batches,
            )
        except ShareStateError as error:
            self._counts.failed_writes += 1
            _log.info(
                "share_state_write_failed",
                group=self.key.group_id,
                topic=self.partition.topic_name,
                partition=self.key.partition,
                code=error.code.name,
            )
            return error.code
        except Exception:  # noqa: BLE001 - whatever failed, the member gets an error; logged
            self._counts.failed_writes += 1
            _log.exception("share_state_write_failed", group=self.key.group_id)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE


def _client_code(code: ErrorCode) -> ErrorCode:
    return (
        code if code is ErrorCode.NONE else _CLIENT_CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
    )


def _respond_all(
    queue: Sequence[tuple[WindowChanges, "asyncio.Future[ErrorCode] | None"]], code: ErrorCode
) -> None:
    for _, outcome in queue:
        if outcome is not None and not outcome.done():
            outcome.set_result(code)

"""Compact the logs that this broker leads, one at a time, dirtiest first. Coordinators compact
internal topics themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Final, TypeAlias

import structlog

from penstock.base.ids import Millis, Offset, StreamId
from penstock.base.suspensions import Suspensions
from penstock.broker.background.periodic import IntervalWait, check_periodically
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.partition.cleaning import CleaningPolicy, DirtyPart, is_due
from penstock.broker.partition.partition import Partition
from penstock.controller.metadata.image import MetadataImage
from penstock.protocol.batch.errors import BatchTooLarge
from penstock.stream.cleaning.cleaner import CleaningReport, CleaningTask
from penstock.stream.errors import NotContiguous, ObjectCorrupt
from penstock.stream.format.checkpoint import CleanedPart
from penstock.stream.ports import StreamMetadata

_log = structlog.get_logger(__name__)

_PARTITIONS_PER_SLICE_COUNT: Final = 100
"""Partitions checked between two yields to the event loop, which takes about 0.2 ms."""

UPLOAD_INTERVAL_S: Final = 10.0
"""Minimum interval between two uploads requested by the cleaner. Each upload costs one PUT,
regardless of how many logs are due.
"""
_UPLOAD_MAX_S: Final = 30.0
"""Maximum wait for an upload. After that, the cleaner compacts only the part of each log that is
already in objects.
"""

_Due: TypeAlias = tuple[float, Partition, CleaningPolicy]
"""The dirty ratio of a log that is due for compaction, its partition and its cleaning policy."""


class CleanerDuty:
    """Log compaction of one broker. Run `await duty.run()` in its own task.

    Before a pass, the producer state is checkpointed durably, because once records are removed, it
    can no longer be rebuilt by scanning the log. A pass ends at the current last stable offset. The
    end of the pass is stored only once the replaced ranges would survive the loss of all
    controllers. Otherwise, disaster recovery could restore a deleted record, and the next pass
    would remove its tombstone. A pass only reads objects. If logs are due because of records that
    are still only in the WAL, the cleaner requests a single upload for all of them, at most once
    per UPLOAD_INTERVAL_S.

    checkpoint: `PartitionManager.checkpoint_durably`. clean: `LogCleaner.clean`. upload:
    `Storage.upload`. buffered_bytes: `Storage.buffered_bytes`. now_ms: the wall clock, like record
    timestamps.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        led: Iterable[Partition],
        checkpoint: Callable[[Partition], Awaitable[None]],
        metadata: StreamMetadata,
        clean: Callable[[CleaningTask], Awaitable[CleaningReport]],
        *,
        upload: Callable[[], Awaitable[None]],
        buffered_bytes: Callable[[StreamId], int],
        now_ms: Callable[[], Millis],
        interval_s: float,
        rng: Random,
    ) -> None:
        self._image = image
        self._led = led
        self._checkpoint = checkpoint
        self._metadata = metadata
        self._clean = clean
        self._upload = upload
        self._buffered_bytes = buffered_bytes
        self._now_ms = now_ms
        self.interval = IntervalWait(interval_s)
        self._rng = rng
        self._suspended = Suspensions[StreamId](asyncio.get_running_loop().time)
        self._next_upload_at = 0.0
        """Event loop time, in seconds."""
        self.passes = 0
        """This counter and the following ones never decrease."""
        self.failures = 0
        self.uploads = 0
        """Uploads requested by the cleaner."""
        self.removed_records = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.cleaned_bytes = 0
        """Total size of the logs before they were compacted."""
        self.busy_s = 0.0
        """Total duration of passes."""

    async def run(self) -> None:
        """Check at every interval, until cancelled."""
        await check_periodically(self.check, self.interval, self._rng, "cleaner_check_failed")

    async def check(self) -> None:
        """Compact every log that is due now, dirtiest first."""
        due: list[_Due] = []
        buffered: list[_Due] = []
        """Logs that are due only because of records in the WAL."""
        for number, partition in enumerate(self._led):
            if number % _PARTITIONS_PER_SLICE_COUNT == _PARTITIONS_PER_SLICE_COUNT - 1:
                await asyncio.sleep(0)
            policy = self._policy(partition)
            if policy is None or partition.log.data.stream_id in self._suspended:
                continue
            size_bytes = self._buffered_part(partition)
            dirty, now_ms = self._dirty_part(partition, size_bytes), self._now_ms()
            if is_due(dirty, policy, now_ms):
                due.append((dirty.ratio, partition, policy))
            elif size_bytes and is_due(whole := dirty.plus(size_bytes), policy, now_ms):
                buffered.append((whole.ratio, partition, policy))
        if buffered and await self._upload_now():
            due += buffered
        for _, partition, policy in sorted(due, key=_ratio, reverse=True):
            await self._clean_one(partition, policy)

    def _buffered_part(self, partition: Partition) -> int:
        """Return the number of WAL bytes that a pass could compact after an upload: 0 if there are
        none, otherwise at least 1.
        """
        log = partition.log
        committed_end = self._metadata.committed_end(log.data.stream_id)
        if partition.last_stable_offset <= max(committed_end, log.cleaned.end):
            return 0
        return max(1, self._buffered_bytes(log.data.stream_id))

    async def _upload_now(self) -> bool:
        """Upload records that are only in the WAL. Return False if the last upload was too
        recent.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._next_upload_at:
            return False
        self.uploads += 1
        try:
            async with asyncio.timeout(_UPLOAD_MAX_S):
                await self._upload()
        except TimeoutError:
            _log.warning("upload_before_cleaning_slow", seconds=_UPLOAD_MAX_S)
        self._next_upload_at = clock() + UPLOAD_INTERVAL_S
        return True

    def _policy(self, partition: Partition) -> CleaningPolicy | None:
        if partition.topic_name in INTERNAL_TOPICS:
            return None
        return CleaningPolicy.from_configs(self._image().configs.topic(partition.topic_name))

    def _dirty_part(self, partition: Partition, buffered_bytes: int) -> DirtyPart:
        """Return the dirty part of the log in objects, and record when the log became dirty.
        buffered_bytes: size of the records that are only in the WAL.
        """
        log, now_ms = partition.log, self._now_ms()
        stream = self._image().streams.get(log.data.stream_id)
        size_bytes = self._log_bytes(partition)
        is_clean = stream is None or stream.end_offset <= log.cleaned.end
        # Retention and DeleteRecords may have removed ranges since the last pass.
        clean_bytes = min(log.cleaned.size_bytes, self._log_bytes(partition, log.cleaned.end))
        dirty_bytes = 0 if is_clean else max(1, size_bytes - clean_bytes)
        if is_clean and not buffered_bytes:
            log.dirty_since_ms = None
        elif log.dirty_since_ms is None:
            log.dirty_since_ms = now_ms
        return DirtyPart(size_bytes, dirty_bytes, log.dirty_since_ms or now_ms)

    def _log_bytes(self, partition: Partition, end: Offset | None = None) -> int:
        """Return the size of the part of the log that is in objects: all of it, or the ranges that
        start below `end`.
        """
        stream = self._image().streams.get(partition.log.data.stream_id)
        entries = () if stream is None else stream.entries
        return sum(item.size_bytes for item in entries if end is None or item.start_offset < end)

    async def _clean_one(self, partition: Partition, policy: CleaningPolicy) -> None:
        names: dict[str, str | int] = {
            "topic": partition.topic_name,
            "partition": partition.index,
        }
        log_bytes = self._log_bytes(partition)
        try:
            report = await self._pass(partition, policy)
        except Exception as error:  # noqa: BLE001 - stores and controllers fail in many ways; the next check tries again
            self.failures += 1
            if isinstance(error, (ObjectCorrupt, NotContiguous, BatchTooLarge)):
                if isinstance(error, BatchTooLarge):
                    names["remedy"] = "raise decompressed.batch.max.bytes and restart the broker"
                pause_s = self._suspended.add(partition.log.data.stream_id)
                _log.error(
                    "log_cleaning_suspended", **names, error=str(error), retry_in_s=round(pause_s)
                )
            else:
                _log.warning("log_cleaning_failed", **names, error=repr(error))
            return
        self._suspended.discard(partition.log.data.stream_id)
        if report is None:
            return
        self.passes += 1
        self.removed_records += report.removed_records
        self.read_bytes += report.read_bytes
        self.written_bytes += report.written_bytes
        self.cleaned_bytes += log_bytes
        self.busy_s += report.took_s
        _log.info(
            "log_cleaned",
            **names,
            end_offset=report.clean_end,
            removed_records=report.removed_records,
            kept_records=report.kept_records,
            read_bytes=report.read_bytes,
            written_bytes=report.written_bytes,
            took_ms=round(1_000 * report.took_s),
        )

    async def _pass(self, partition: Partition, policy: CleaningPolicy) -> CleaningReport | None:
        log, now_ms = partition.log, self._now_ms()
        start = partition.log_start_offset
        end = min(partition.last_stable_offset, self._metadata.committed_end(log.data.stream_id))
        dirty_from = Offset(max(start, log.cleaned.end))
        if end <= dirty_from:
            return None
        await self._checkpoint(partition)
        stream = self._image().streams.get(log.data.stream_id)
        keep_ms = 0 if stream is None else stream.keep_ms
        task = CleaningTask(
            stream_id=log.data.stream_id,
            start=start,
            dirty_from=dirty_from,
            end=end,
            young_from_ms=Millis(now_ms - policy.lag_ms_min) if policy.lag_ms_min else None,
            # A restore may bring back records that DeleteRecords removed, without the passes that
            # compacted others.
            tombstones_kept_ms=max(policy.tombstones_kept_ms, keep_ms),
            aborted=await partition.read_aborted(start, end),
        )
        report = await self._clean(task)
        await self._metadata.backed_up(self._metadata.position())
        log.cleaned = CleanedPart(report.clean_end, report.clean_bytes)
        log.dirty_since_ms = now_ms
        await self._checkpoint(partition)
        return report


def _ratio(item: _Due) -> float:
    return item[0]

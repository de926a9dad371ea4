"""The driver of a log compaction job: limit each partition to the durable state of its leader,
run the tasks, and commit their exchanges to the controller in order.

Source: docs/design/compaction.md, docs/design/log-cleaning.md.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from penstock.base.clock import WallClock
from penstock.base.ids import Millis, Offset, StreamId
from penstock.base.log import get_logger
from penstock.lake.cleaning.job import PassResult, PassTask
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.plan import ranges_of
from penstock.lake.rewrite.run import Exchange, until_published
from penstock.stream.cleaning.cleaner import CleanerConfig, CleaningTask
from penstock.stream.format.checkpoint import CleanedPart
from penstock.stream.ports import ObjectRange, PreparedObject

_log = get_logger(__name__)

STALE_MAX: Final = 5
"""Maximum number of consecutive passes that end because the log has changed or the time limit has
passed.
"""

_ITEMS_MAX: Final = 1_000
_SOURCES_MAX: Final = 10_000
"""Limits for one commit and one preparation at the controller."""


class Checkpoint(NamedTuple):
    """The newest committed checkpoint of a partition. keep_ms: the longest grace period of its
    deleted records that can be restored.
    """

    recovery_offset: Offset
    cleaned: CleanedPart
    keep_ms: int = 0


class PassMetadata(Protocol):
    """The controller's interface for jobs. Methods raise the errors of the client; the outcome of
    the call is then unknown.
    """

    async def prepare(self, count: int, ttl_ms: int) -> list[PreparedObject]: ...

    async def commit(
        self,
        stream_id: StreamId,
        exchanges: Sequence[Exchange],
        *,
        is_ordered: bool = False,
        tombstones_kept_ms: int | None = None,
    ) -> list[str]:
        """Commit in one transaction. Return, for each exchange, "" or the reason for a conflict.
        is_ordered: whether to reject every exchange after a conflict. tombstones_kept_ms: as in
        `CommitObjects`.
        """
        ...

    async def checkpoints(self, topic: str) -> Mapping[StreamId, Checkpoint]:
        """Return the committed checkpoints by data stream, because the topic may be recreated
        before its logs are read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningOptions:
    """The limits of a run, and the configs of the topic.

    lag_ms_min: `min.compaction.lag.ms`. tombstones_kept_ms: `delete.retention.ms`. ttl_ms: after
    this time, the controller deletes objects that a pass has not committed.
    """

    lag_ms_min: int
    tombstones_kept_ms: int
    key_map_bytes_max: int = 128 << 20
    object_bytes_max: int = 64 << 20
    round_bytes_max: int = 16 << 30
    """Total size of the logs whose passes run before the next commits. The size is limited because
    objects must be committed before they expire.
    """

    ttl_ms: int = 60 * 60_000

    @property
    def cleaner(self) -> CleanerConfig:
        return CleanerConfig(
            key_map_bytes_max=self.key_map_bytes_max,
            bytes_per_s_max=0,
            group_bytes_max=self.object_bytes_max,
            page_ranges=_SOURCES_MAX,
        )


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The part of a partition that a pass processes. dirty_bytes: estimated from whole objects."""

    partition: int
    log: CleaningTask
    ranges: tuple[ObjectRange, ...]
    log_bytes: int
    dirty_bytes: int


@dataclass(slots=True)
class PassReport:
    """The result of a run for one partition. clean_end: no key occurs twice below it."""

    partition: int
    passes: int = 0
    removed_records: int = 0
    objects_written: int = 0
    written_bytes: int = 0
    replaced_bytes: int = 0
    conflicts: int = 0
    clean_end: int = 0


@dataclass(slots=True)
class CleaningRun:
    """The result of a run. unresolved: partitions that changed during each of the last passes.
    damaged: partitions with objects that could not be read, whose passes ended there.
    """

    topic: str
    partitions: list[PassReport] = field(default_factory=list[PassReport])
    unresolved: list[int] = field(default_factory=list[int])
    damaged: list[str] = field(default_factory=list[str])


RunPasses = Callable[[Sequence[PassTask]], Awaitable[Sequence[PassResult]]]


class TopicCleaner:
    """One run for one topic. `run_passes` returns when all tasks have ended; `on_done` is called
    with the number of processed bytes of each partition.

    Invariants: a pass ends at the newest checkpoint of the partition that is committed, because a
    scan after a crash would miss records that the pass removes, and at most at the last stable
    offset. A commit stops at the first exchange that conflicts, so no tombstone is removed before a
    record that it deletes; each exchange succeeds only if the log index still contains its sources,
    so the leader's own cleaner, compaction and other jobs may run at the same time. The job does
    not store a cleaned end; the leader's next pass does, with little work. No broker is contacted.
    """

    def __init__(
        self,
        view: ClusterView,
        topic: str,
        metadata: PassMetadata,
        run_passes: RunPasses,
        options: CleaningOptions,
        *,
        now_ms: WallClock,
        on_done: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._view = view
        self._topic = topic
        self._metadata = metadata
        self._run_passes = run_passes
        self._options = options
        self._now_ms = now_ms
        self._on_done = on_done
        self._reports: dict[int, PassReport] = {}
        self._stale_counts: dict[int, int] = {}
        self._is_done: set[int] = set()
        self._report = CleaningRun(topic)

    async def plan(self) -> list[PassPlan]:
        """Return the plan of a pass from a fresh view. Raises UnknownPartition, ManifestNotFound,
        SeveralClusters, EndInDoubt or ObjectStoreError.
        """
        # Read before the view is refreshed, so that the view is at least as new.
        checkpoints = await self._metadata.checkpoints(self._topic)
        await self._view.refresh()
        offsets = {
            item.partition: item
            for item in await self._view.partitions([self._topic], committed=True)
        }
        now_ms = self._now_ms()
        found: list[PassPlan] = []
        for log in await self._view.committed(self._topic):
            checkpoint, ends = checkpoints.get(log.stream_id), offsets[log.partition]
            ranges = ranges_of(log)
            if checkpoint is None or not ranges or log.partition in self._is_done:
                continue
            assert ends.last_stable_offset is not None, "it was asked for"
            start = Offset(log.log_start)
            end = min(
                checkpoint.recovery_offset, ends.last_stable_offset, ranges[-1].range.end_offset
            )
            known = self._reports.get(log.partition)
            dirty_from = max(start, checkpoint.cleaned.end, known.clean_end if known else 0)
            if end <= dirty_from:
                continue
            lag_ms = self._options.lag_ms_min
            task = CleaningTask(
                stream_id=log.stream_id,
                start=start,
                dirty_from=Offset(dirty_from),
                end=Offset(end),
                young_from_ms=Millis(now_ms - lag_ms) if lag_ms else None,
                tombstones_kept_ms=max(
                    self._options.tombstones_kept_ms,
                    # The retention time of tombstones starts before the pass, which may take this
                    # long.
                    checkpoint.keep_ms + self._options.ttl_ms if checkpoint.keep_ms else 0,
                ),
            )
            wanted = tuple(
                item
                for item in ranges
                if item.range.end_offset > start and item.range.start_offset < end
            )
            found.append(
                PassPlan(
                    log.partition,
                    task,
                    wanted,
                    _bytes_of(wanted),
                    _bytes_of(item for item in wanted if item.range.end_offset > dirty_from),
                )
            )
        return found

    async def run(self) -> CleaningRun:
        """Compact the topic. Raises the errors of `plan`, of the metadata and of tasks. Earlier
        commits remain.
        """
        # This loop terminates: each pass is the last one of its partition, maps more keys than the
        # previous ones, or is one of at most STALE_MAX consecutive stale passes.
        while planned := await self.plan():
            replaced: list[tuple[ObjectRange, ...]] = []
            for some in _rounds(planned, self._options.round_bytes_max):
                for result in await self._run_passes(await self._tasks(some)):
                    replaced += await self._commit(result)
            await until_published(self._view, self._topic, replaced)
        self._report.partitions = [self._reports[partition] for partition in sorted(self._reports)]
        return self._report

    async def _tasks(self, planned: Sequence[PassPlan]) -> list[PassTask]:
        options, began_ms = self._options, self._now_ms()
        aborted = await self._view.aborted(
            [
                OffsetRange(self._topic, item.partition, item.log.start, item.log.end)
                for item in planned
            ]
        )
        tasks: list[PassTask] = []
        for item in planned:
            targets = await self._prepare(_objects_max(item, options))
            log = replace(item.log, aborted=tuple(aborted[item.log.stream_id]))
            # Half of the time is a safety margin, because the clocks of executors may differ.
            put_until_ms = began_ms + options.ttl_ms // 2
            tasks.append(
                PassTask(
                    item.partition,
                    log,
                    item.ranges,
                    targets,
                    options.cleaner,
                    Millis(began_ms),
                    put_until_ms,
                )
            )
        return tasks

    async def _prepare(self, count: int) -> tuple[PreparedObject, ...]:
        found: list[PreparedObject] = []
        while len(found) < count:
            wanted = min(count - len(found), _ITEMS_MAX)
            found += await self._metadata.prepare(wanted, self._options.ttl_ms)
        return tuple(found)

    async def _commit(self, result: PassResult) -> list[tuple[ObjectRange, ...]]:
        """Commit the objects that a task has written. Return the sources that should no longer be
        in the next manifest.
        """
        partition, stream_id = result.task.partition, result.task.log.stream_id
        report = self._reports.setdefault(partition, PassReport(partition))
        report.passes += 1
        replaced: list[tuple[ObjectRange, ...]] = []
        conflict = ""
        for chunk in _chunks(result.exchanges):
            responses = await self._metadata.commit(
                stream_id,
                chunk,
                is_ordered=True,
                tombstones_kept_ms=max(
                    0, result.task.log.tombstones_kept_ms - self._options.ttl_ms
                ),
            )
            for exchange, response in zip(chunk, responses, strict=True):
                conflict = conflict or response
                if not response:
                    replaced.append(exchange.sources)
                    report.objects_written += 1
                    report.written_bytes += exchange.new.size_bytes
                    report.replaced_bytes += _bytes_of(exchange.sources)
                    report.removed_records += _removed_records(exchange)
            if conflict:
                break
        if result.clean_end is not None and not conflict:
            report.clean_end = result.clean_end
            self._stale_counts.pop(partition, None)
            if not result.is_map_full:
                self._finish(result)
        elif conflict or result.is_stale:
            self._again(result, conflict or result.detail)
        else:
            self._report.damaged.append(f"{self._topic}-{partition}: {result.detail}")
            self._finish(result)
        return replaced

    def _again(self, result: PassResult, detail: str) -> None:
        partition = result.task.partition
        self._reports[partition].conflicts += 1
        count = self._stale_counts[partition] = self._stale_counts.get(partition, 0) + 1
        _log.info("cleaning_conflict", topic=self._topic, partition=partition, detail=detail)
        if count >= STALE_MAX:
            self._report.unresolved.append(partition)
            self._finish(result)

    def _finish(self, result: PassResult) -> None:
        self._is_done.add(result.task.partition)
        self._on_done(_bytes_of(result.task.ranges))


def _rounds(planned: Sequence[PassPlan], bytes_max: int) -> Iterator[Sequence[PassPlan]]:
    """Yield the partitions of concurrent passes: at least one, then as many as fit."""
    some: list[PassPlan] = []
    size_bytes = 0
    for item in planned:
        size_bytes += item.log_bytes
        if some and size_bytes > bytes_max:
            yield some
            some, size_bytes = [], item.log_bytes
        some.append(item)
    if some:
        yield some


def _objects_max(log: PassPlan, options: CleaningOptions) -> int:
    """Return the maximum number of objects of a pass: any two adjacent objects together exceed the
    maximum size of one object.
    """
    return min(len(log.ranges), 2 * log.log_bytes // options.object_bytes_max + 1)


def _chunks(exchanges: Sequence[Exchange]) -> Iterator[Sequence[Exchange]]:
    """Yield the exchanges in order, in chunks that fit into one commit."""
    chunk: list[Exchange] = []
    sources = 0
    for exchange in exchanges:
        sources += len(exchange.sources)
        if len(chunk) == _ITEMS_MAX or (chunk and sources > _SOURCES_MAX):
            yield chunk
            chunk, sources = [], len(exchange.sources)
        chunk.append(exchange)
    if chunk:
        yield chunk


def _bytes_of(ranges: Iterable[ObjectRange]) -> int:
    return sum(item.range.size_bytes for item in ranges)


def _removed_records(exchange: Exchange) -> int:
    before = sum(item.range.record_count for item in exchange.sources)
    return before - sum(part.record_count for part in exchange.new.ranges)

"""One task of a log compaction job, on any machine: a pass over one partition."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.base.clock import WallClock, wall_ms
from penstock.base.ids import Millis, Offset, StreamId
from penstock.lake.rewrite.job import NO_BROKER, READING
from penstock.lake.rewrite.run import Exchange
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.errors import BatchTooLarge
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cleaning.cleaner import CleanerConfig, CleaningTask, LogCleaner
from penstock.stream.compaction.compactor import OwnedStream
from penstock.stream.errors import NotContiguous, ObjectCorrupt, StreamFenced
from penstock.stream.ports import CommitObjects, ObjectRange, PreparedObject
from penstock.stream.read.object_reader import ObjectReader
from penstock.stream.wal.wal_store_url import open_for_reads


@dataclass(frozen=True, slots=True)
class PassTask:
    """One pass over one partition.

    ranges: cover [log.start, log.end), in order and without gaps. targets: the objects to write,
    enough for the whole pass. created_ms: the creation time of the objects, identical in every
    attempt. put_until_ms: no PUT begins after this time, according to the executor's clock.
    """

    partition: int
    log: CleaningTask
    ranges: tuple[ObjectRange, ...]
    targets: tuple[PreparedObject, ...]
    config: CleanerConfig
    created_ms: Millis
    put_until_ms: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """The objects that a task has written, in order.

    clean_end: once all exchanges are committed, no key occurs twice below it; None if the pass was
    not completed. In that case, plan again if `is_stale` (the sources have changed or the deadline
    has passed); otherwise, `detail` describes a damaged object. is_map_full: whether another pass
    must continue at `clean_end`.
    """

    task: PassTask
    exchanges: tuple[Exchange, ...] = ()
    clean_end: Offset | None = None
    is_map_full: bool = False
    is_stale: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PassJob:
    """A job for `Engine.map`: call it on a thread without an event loop, here or in an executor."""

    store_url: str
    wal_store_url: str = ""

    def __call__(self, task: PassTask, attempt: Callable[[], str]) -> PassResult:
        del attempt  # the same in every attempt
        return asyncio.run(self._run(task))

    async def _run(self, task: PassTask) -> PassResult:
        stores = open_for_reads(self.store_url, self.wal_store_url)
        try:
            return await run_pass(stores.store, task, wall_ms)
        finally:
            await stores.close()


class _Late(Exception):
    """Raised when the deadline of a task has passed."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """The stream of the task, as `OwnedStream`. The commit checks whether it has changed since it
    was read.
    """

    stream_id: StreamId
    start_offset: Offset


class _TaskMetadata:
    """Implements `CleaningMetadata` with data prepared by the driver. Commits are only recorded."""

    def __init__(self, task: PassTask, now_ms: WallClock) -> None:
        self._task = task
        self._now_ms = now_ms
        self._ends = [item.range.end_offset for item in task.ranges]
        self._targets = iter(task.targets)
        self.exchanges: list[Exchange] = []

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        """Return the next targets. Raises _Late."""
        if self._now_ms() > self._task.put_until_ms:
            raise _Late
        return [next(self._targets) for _ in range(count)]

    async def commit(self, commit: CommitObjects) -> None:
        (new,) = commit.objects
        (part,) = new.ranges
        sources = self.objects(
            part.stream_id, part.start_offset, part.end_offset, len(self._task.ranges)
        )
        self.exchanges.append(Exchange(new, tuple(sources)))

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        """Return the ranges of the task that intersect [start, end)."""
        del stream_id
        found: list[ObjectRange] = []
        at = bisect_right(self._ends, start_offset)
        for source in self._task.ranges[at : at + limit]:
            if source.range.start_offset >= end_offset:
                break
            found.append(source)
        return found


async def run_pass(store: ObjectStore, task: PassTask, now_ms: WallClock) -> PassResult:
    """Run one task. Raises ObjectStoreError.

    Invariants: a task works like the leader's log cleaner (`stream.cleaning.cleaner`), but on the
    ranges of one manifest, and uses only the store: the driver commits its exchanges, in order.
    Every attempt writes the same bytes to the same keys. Nothing is PUT after the task's deadline,
    because the controller may already have collected the object; objects written before it are
    used. Memory: the key map, and twice the size of an object.
    """
    metadata = _TaskMetadata(task, now_ms)
    reader = ObjectReader(store, BlockCache(1), READING)

    def owned() -> Iterable[OwnedStream]:
        return [_Stream(task.log.stream_id, task.log.start)]

    def forget(stream_id: StreamId, end: Offset) -> None:
        """Do nothing, because a job has no cache. Leaders may continue to serve removed records
        from their caches.
        """

    cleaner = LogCleaner(
        store,
        metadata,
        reader,
        NO_BROKER,
        owned=owned,
        turn=asyncio.Lock(),
        forget=forget,
        now_ms=lambda: task.created_ms,
        config=task.config,
    )
    is_stale, is_map_full, detail, end = True, False, "", None
    try:
        report = await cleaner.clean(task.log)
        is_stale, is_map_full, end = False, report.is_map_full, report.clean_end
    except (ObjectNotFound, StreamFenced) as error:
        detail = str(error)
    except _Late:
        detail = f"its objects were prepared too long ago, {len(metadata.exchanges)} were written"
    except (ObjectCorrupt, NotContiguous, BatchTooLarge) as error:
        is_stale, detail = False, str(error)
    finally:
        await reader.close()
    return PassResult(task, tuple(metadata.exchanges), end, is_map_full, is_stale, detail)

"""Object compaction: read the planned ranges, write new objects, and replace the old ranges in one
transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol, TypeAlias

import structlog

from penstock.base.clock import WallClock
from penstock.base.ids import ObjectId, Offset, StreamId
from penstock.base.suspensions import Suspensions
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.compaction.plan import (
    Compaction,
    CompactionConfig,
    Output,
    check_outputs,
    plan_round,
    plan_stream,
    replaced_by,
)
from penstock.stream.compaction.rewrite import (
    Cached,
    SourceEntries,
    build_output,
    nothing_cached,
    read_entries,
)
from penstock.stream.errors import (
    FormatUnknown,
    NotContiguous,
    ObjectCorrupt,
    RangesReplaced,
    StreamFenced,
    StreamNotOpened,
    WalFenced,
)
from penstock.stream.format.keys import WAL_STORE_ROOT
from penstock.stream.ports import (
    BrokerIncarnation,
    CommitObjects,
    NewObject,
    ObjectRange,
    StreamMetadata,
)
from penstock.stream.read.object_reader import ObjectReader

_log = structlog.get_logger(__name__)

_Unreadable: TypeAlias = ObjectNotFound | ObjectCorrupt | FormatUnknown | NotContiguous

_Ours: TypeAlias = Callable[[], Collection[StreamId]]
"""Returns the streams that this process may rewrite now."""

_STREAMS_PER_TURN = 20
"""Streams planned between two yields to the event loop."""

_PAGES_PER_LOOK = 8
_PAUSE_MAX_S = 60.0
"""Maximum pause between two attempts to reach a WAL store."""


class OwnedStream(Protocol):
    """A stream that is open here and not closing, such as `stream.stream.StreamHandle`."""

    @property
    def stream_id(self) -> StreamId: ...
    @property
    def start_offset(self) -> Offset: ...


@dataclass(frozen=True, slots=True)
class RoundReport:
    stream_count: int
    source_count: int
    object_count: int
    size_bytes: int


@dataclass(slots=True)
class CompactionCounts:
    """Counters of compaction.

    settled_at: event loop time when planning last found nothing to do, or when this broker started.
    conflicts: streams that were left out of a commit, because their ranges had already been
    replaced. from_wal_stores_bytes: rewritten bytes that were in WAL stores.
    """

    settled_at: float
    rounds: int = 0
    failures: int = 0
    conflicts: int = 0
    sources: int = 0
    objects: int = 0
    written_bytes: int = 0
    from_wal_stores_bytes: int = 0


class Compactor:
    """Compacts the streams of this broker in the background.

    Only streams that are open in this process are compacted. Streams that close during a round, or
    whose ranges are replaced by others, are left out of its commit, and the controller checks both
    conditions again. The commit is atomic; a failed round leaves behind only prepared objects,
    which expire. Streams with damaged objects are skipped for a while. Rounds run one at a time and
    use `round_bytes_max` twice (for the blocks and the body of a PUT). Ranges in WAL stores are
    replaced in rounds of their own, which alternate with normal rounds, so that a WAL store that is
    down does not stop the compaction of other ranges.

    owned: returns the streams that are open here. assigned: returns closed streams whose ranges in
    WAL stores are rewritten here, because they have no leader. writer: this broker, for object
    headers. cached: returns recently written entries, which saves one GET per WAL object (50 GETs
    per second, each taking 2 ms of CPU). turn: held during a round, because log compaction replaces
    the same ranges.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: StreamMetadata,
        reader: ObjectReader,
        writer: BrokerIncarnation,
        *,
        owned: Callable[[], Iterable[OwnedStream]],
        now_ms: WallClock,
        cached: Cached = nothing_cached,
        assigned: Callable[[], Iterable[StreamId]] = tuple,
        config: CompactionConfig | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._reader = reader
        self._writer = writer
        self._owned = owned
        self._now_ms = now_ms
        self._cached = cached
        self._assigned = assigned
        self._config = config or CompactionConfig()
        self._reconfigured = asyncio.Event()
        self._turn = turn or asyncio.Lock()
        self._settled: dict[StreamId, Offset] = {}
        self._tried_key = ""
        """The first object of the last round of ranges in WAL stores."""
        self._suspended = Suspensions[StreamId](asyncio.get_running_loop().time)
        self.counts = CompactionCounts(asyncio.get_running_loop().time())

    @property
    def config(self) -> CompactionConfig:
        """May be replaced at any time. The new values apply from the next step on; any pause ends,
        and whole logs are searched again.
        """
        return self._config

    @config.setter
    def config(self, config: CompactionConfig) -> None:
        if config != self._config:
            self._settled = {}
        self._config = config
        self._reconfigured.set()
        self._reconfigured = asyncio.Event()

    async def run(self) -> None:
        """Repeatedly run rounds until nothing is left to do, then pause. Cancel the task to stop
        it. Returns when this node is fenced.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run_wal_store_rounds())
                group.create_task(self._run_rounds())
        except* WalFenced as fenced:
            _log.warning("compaction_stopped", reason=str(fenced.exceptions[0]))

    async def _run_rounds(self) -> None:
        while True:
            try:
                is_done = await self._in_turn(self.run_round)
            except WalFenced:
                raise
            except Exception as error:  # noqa: BLE001 - stores and controllers fail in many ways; nothing is lost, the next round plans again
                self._failed(error)
                is_done = True
            if is_done:
                await self._pause(self.config.interval_ms / 1000)

    async def _run_wal_store_rounds(self) -> None:
        """Run rounds for ranges in WAL stores, with pauses that double after each failure. After a
        failure, the WAL store is probed before the turn is acquired, because a request to it may
        take 30 s.
        """
        pause_s = 0.0
        while True:
            interval_s = self.config.wal_store_interval_ms / 1000
            try:
                if pause_s:
                    await self._reach(self._tried_key)
                is_done = await self._in_turn(self.run_wal_store_round)
                pause_s = 0.0
            except WalFenced:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
                if isinstance(error, _Unreadable):  # the store responds, but streams are suspended
                    pause_s = 0.0
                else:
                    pause_s = min(2 * max(pause_s, interval_s), max(interval_s, _PAUSE_MAX_S))
                is_done = True
            if is_done:
                await self._pause(pause_s or interval_s)

    async def _pause(self, pause_s: float) -> None:
        """Sleep for `pause_s`, or until the configuration is replaced."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._reconfigured.wait()

    async def _in_turn(self, run: Callable[[], Awaitable[RoundReport | None]]) -> bool:
        """Run a round. Return whether nothing is left to do."""
        async with self._turn:
            return await run() is None

    def _failed(self, error: Exception) -> None:
        self.counts.failures += 1
        _log.warning("compaction_round_failed", error=repr(error))

    async def _reach(self, key: str) -> None:
        """Read a byte of an object, if there is an object. Raises errors of its store."""
        if key:
            with suppress(ObjectNotFound):
                await self._store.get_range(key, 0, 1)

    async def run_round(self) -> RoundReport | None:
        """Run one round. Return None if no compaction is worthwhile.

        Raises errors of the store and the controller. Skips streams with damaged sources.
        """
        outputs = plan_round(await self._find(), self.config)
        if not outputs:
            self.counts.settled_at = asyncio.get_running_loop().time()
            return None
        return await self._rewrite(outputs, self._open_here)

    async def run_wal_store_round(self) -> RoundReport | None:
        """Rewrite ranges that are in WAL stores. Return None if there are none. Raises the errors
        of `run_round`, and also skips damaged streams.
        """
        if not self._metadata.wal_store_bytes():
            return None
        ours: _Ours = self._open_here
        outputs = plan_round(await self._find_in_wal_stores(ours()), self.config)
        if not outputs:
            assigned = frozenset(self._assigned())

            def closed() -> set[StreamId]:
                # The assignment may end during the round, but the commit compares the ranges.
                return {stream_id for stream_id in assigned if self._metadata.is_closed(stream_id)}

            ours = closed
            found = await self._find_in_wal_stores(ours(), with_neighbors=False)
            outputs = plan_round(found, self.config)
        if not outputs:
            return None
        self._tried_key = outputs[0].compactions[0].sources[0].key
        return await self._rewrite(outputs, ours)

    def _open_here(self) -> set[StreamId]:
        return {stream.stream_id for stream in self._owned()}

    async def _rewrite(self, outputs: Sequence[Output], ours: _Ours) -> RoundReport | None:
        """Rewrite the ranges. Return None if this process no longer owns any of the streams."""
        try:
            entries = await read_entries(
                self._reader,
                [compaction for output in outputs for compaction in output.compactions],
                self._cached,
                throttled=True,
            )
            outputs = _parts_of(outputs, ours())
            objects = await self._write(outputs, entries)
        except (ObjectNotFound, ObjectCorrupt, FormatUnknown, NotContiguous) as error:
            self._suspend_blamed(outputs, error)
            raise
        outputs, committed = await self._commit(outputs, objects, ours)
        if not outputs:
            return None
        compactions = [compaction for output in outputs for compaction in output.compactions]
        for compaction in compactions:
            self._suspended.discard(compaction.stream_id)
        report = RoundReport(
            len(compactions),
            sum(len(compaction.sources) for compaction in compactions),
            len(committed),
            sum(new.size_bytes for new in committed),
        )
        self.counts.rounds += 1
        self.counts.sources += report.source_count
        self.counts.objects += report.object_count
        self.counts.written_bytes += report.size_bytes
        self.counts.from_wal_stores_bytes += sum(
            source.range.size_bytes
            for compaction in compactions
            for source in compaction.sources
            if _is_in_wal_store(source)
        )
        _log.info(
            "ranges_compacted",
            streams=report.stream_count,
            sources=report.source_count,
            size_bytes=report.size_bytes,
        )
        return report

    # --- finding ----------------------------------------------------------------------------------

    async def _find(self) -> list[Compaction]:
        compactions: list[Compaction] = []
        settled: dict[StreamId, Offset] = {}
        config = self._config
        for ordinal, stream in enumerate(list(self._owned())):
            if ordinal % _STREAMS_PER_TURN == _STREAMS_PER_TURN - 1:
                await asyncio.sleep(0)
            if stream.stream_id in self._suspended:
                continue
            try:
                compaction, settled[stream.stream_id] = self._plan_stream(stream)
            except NotContiguous as error:
                # The image may be ahead of `start_offset` during a trim: skip the stream in this
                # round.
                _log.warning(
                    "log_index_not_contiguous", stream_id=stream.stream_id, error=str(error)
                )
                continue
            if compaction is not None:
                compactions.append(compaction)
        self._settled = settled if self._config == config else {}
        return compactions

    async def _find_in_wal_stores(
        self, stream_ids: Iterable[StreamId], *, with_neighbors: bool = True
    ) -> list[Compaction]:
        """Plan the rewrites of ranges in WAL stores. with_neighbors: whether to merge them with
        small neighbors in `store`. A snapshot shares these neighbors with the live topic, so a
        merge would copy them.
        """
        metadata = self._metadata
        compactions: list[Compaction] = []
        for ordinal, stream_id in enumerate(sorted(stream_ids)):
            if ordinal % _STREAMS_PER_TURN == _STREAMS_PER_TURN - 1:
                await asyncio.sleep(0)
            start = metadata.first_in_wal_store(stream_id)
            if start is None or stream_id in self._suspended:
                continue
            end = metadata.committed_end(stream_id)
            ranges = metadata.objects(stream_id, start, end, self.config.page_ranges)
            if not with_neighbors:
                ranges = list(takewhile(_is_in_wal_store, ranges))
            compaction = plan_stream(ranges, self.config).compaction if ranges else None
            if compaction is not None:
                compactions.append(compaction)
        return compactions

    def _plan_stream(self, stream: OwnedStream) -> tuple[Compaction | None, Offset]:
        start = max(stream.start_offset, self._settled.get(stream.stream_id, Offset(0)))
        in_wal_store = self._metadata.first_in_wal_store(stream.stream_id)
        end = (
            self._metadata.committed_end(stream.stream_id)
            if in_wal_store is None
            else in_wal_store  # the remaining ranges are rewritten by the rounds for WAL stores
        )
        for _ in range(_PAGES_PER_LOOK):
            ranges = (
                self._metadata.objects(stream.stream_id, start, end, self.config.page_ranges)
                if start < end
                else []
            )
            if not ranges:
                break
            compaction, settled = plan_stream(ranges, self.config)
            if compaction is not None or settled <= start or len(ranges) < self.config.page_ranges:
                return compaction, max(start, settled)
            start = settled
        return None, start

    # --- writing ----------------------------------------------------------------------------------

    async def _write(self, outputs: Sequence[Output], entries: SourceEntries) -> list[NewObject]:
        built = [
            await build_output(output, self._writer, self._now_ms(), entries) for output in outputs
        ]
        check_outputs(outputs, [item.ranges for item in built])
        prepared = await self._metadata.prepare_objects(len(outputs))
        objects: list[NewObject] = []
        for output, item, target in zip(outputs, built, prepared, strict=True):
            await self._store.put(target.key, item.chunks)
            objects.append(
                NewObject(target.object_id, target.key, output.role, item.size_bytes, item.ranges)
            )
        return objects

    async def _commit(
        self, outputs: Sequence[Output], objects: Sequence[NewObject], ours: _Ours
    ) -> tuple[Sequence[Output], Sequence[NewObject]]:
        """Commit the parts of streams that this process still owns and whose ranges have not been
        replaced, and return these parts. Other streams keep their ranges, although the new objects
        contain copies.
        """
        replaced: set[StreamId] = set()
        while True:
            found = set(ours()) - replaced
            outputs = _parts_of(outputs, found)
            objects = [part for item in objects if (part := item.part_of(found)) is not None]
            if not outputs:
                return (), ()
            commit = CommitObjects(objects=tuple(objects), replaced=replaced_by(outputs))
            try:
                await self._metadata.commit(commit)
            except (StreamFenced, StreamNotOpened):
                # Nothing was committed, and the local image now includes the change that caused the
                # rejection.
                if _parts_of(outputs, ours()) == outputs:
                    raise
            except RangesReplaced:
                before = len(replaced)
                replaced |= self._replaced(outputs)
                if len(replaced) == before:
                    raise
                self.counts.conflicts += len(replaced) - before
            else:
                return outputs, objects

    def _replaced(self, outputs: Sequence[Output]) -> set[StreamId]:
        """Return the streams whose sources are no longer in the local image."""
        found: set[StreamId] = set()
        for output in outputs:
            for compaction in output.compactions:
                stream_id, sources = compaction.stream_id, compaction.sources
                span = sources[0].range.start_offset, sources[-1].range.end_offset
                ranges = self._metadata.objects(stream_id, *span, len(sources) + 1)
                if [_place(item) for item in ranges] != [_place(item) for item in sources]:
                    found.add(stream_id)
        return found

    def _suspend_blamed(self, outputs: Sequence[Output], error: _Unreadable) -> None:
        for output in outputs:
            for compaction in output.compactions:
                if any(_is_blamed(source, error) for source in compaction.sources):
                    pause_s = self._suspended.add(compaction.stream_id)
                    _log.error(
                        "compaction_stream_skipped",
                        stream_id=compaction.stream_id,
                        error=str(error),
                        retry_in_s=round(pause_s),
                    )


def _is_in_wal_store(source: ObjectRange) -> bool:
    return source.key.startswith(WAL_STORE_ROOT)


def _place(item: ObjectRange) -> tuple[ObjectId, Offset, Offset]:
    return item.object_id, item.range.start_offset, item.range.end_offset


def _parts_of(outputs: Sequence[Output], stream_ids: Collection[StreamId]) -> tuple[Output, ...]:
    """Return the parts of the outputs that belong to these streams."""
    parts = (
        tuple(found for found in output.compactions if found.stream_id in stream_ids)
        for output in outputs
    )
    return tuple(
        replace(output, compactions=part)
        for output, part in zip(outputs, parts, strict=True)
        if part
    )


def _is_blamed(source: ObjectRange, error: _Unreadable) -> bool:
    return (
        source.range.stream_id == error.stream_id
        if isinstance(error, NotContiguous)
        else source.key == error.key
    )

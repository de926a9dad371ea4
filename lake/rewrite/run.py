"""The driver of a bulk rewrite: plan from the manifest, run tasks that write objects, and commit
each partition to the controller.

Source: docs/design/compaction.md; Iceberg's `RewriteDataFiles`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from penstock.base.clock import WallClock
from penstock.base.ids import Offset, StreamId
from penstock.base.log import get_logger
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.job import RewriteResult, RewriteTask
from penstock.lake.rewrite.plan import (
    PartitionPlan,
    RewriteOptions,
    cut_rounds,
    plan_topic,
    within,
)
from penstock.stream.compaction.plan import Compaction
from penstock.stream.ports import NewObject, ObjectRange, PreparedObject

_log = get_logger(__name__)

PASSES_MAX: Final = 5
"""Maximum number of plans. Each plan after the first covers the conflicts of the previous one, in
smaller pieces, because brokers do not compact the older pieces.
"""

PUBLISH_S: Final = 30.0
"""Maximum wait for a manifest that contains the commits. It is usually published within seconds."""

_LOOK_S: Final = 0.2
_SOURCES_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """A new object that replaces its sources."""

    new: NewObject
    sources: tuple[ObjectRange, ...]


class RewriteMetadata(Protocol):
    """The controller's interface for jobs. Methods raise the errors of the client; the outcome of
    the call is then unknown.
    """

    async def prepare(self, count: int, ttl_ms: int) -> list[PreparedObject]: ...

    async def commit(self, stream_id: StreamId, exchanges: Sequence[Exchange]) -> list[str]:
        """Commit in one transaction. Return "" for each exchange, or why it was in conflict."""
        ...


RunTasks = Callable[[Sequence[RewriteTask]], Awaitable[Sequence[RewriteResult]]]


@dataclass(slots=True)
class PartitionReport:
    """The result of a run for one partition. `objects_before`: number of objects at the first
    plan.
    """

    partition: int
    objects_before: int
    sources_replaced: int = 0
    objects_written: int = 0
    rewritten_bytes: int = 0
    conflicts: int = 0


@dataclass(slots=True)
class RewriteReport:
    """The result of a run. `unresolved`: compactions that were still in conflict at the end.
    `damaged`: compactions whose sources could not be read and were not changed.
    """

    topic: str
    partitions: list[PartitionReport] = field(default_factory=list[PartitionReport])
    rounds: int = 0
    unresolved: int = 0
    damaged: list[str] = field(default_factory=list[str])


class BulkRewrite:
    """One run for one topic. `run_tasks` returns when all tasks have ended; `on_written` is called
    with the number of bytes in each commit.

    Invariants: the controller assigns an object's id before its first byte is written, so that it
    can delete the objects of a killed run. Nothing changes before a commit, and a commit changes
    the location of offsets, never their existence. After a conflict with brokers, retention or
    another run, the affected compactions are planned again. No broker is contacted. Any number of
    runs may be concurrent.
    """

    def __init__(
        self,
        view: ClusterView,
        topic: str,
        metadata: RewriteMetadata,
        run_tasks: RunTasks,
        options: RewriteOptions,
        *,
        now_ms: WallClock,
        on_written: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._view = view
        self._topic = topic
        self._metadata = metadata
        self._run_tasks = run_tasks
        self._options = options
        self._now_ms = now_ms
        self._on_written = on_written
        self._left_bytes = options.total_bytes_max
        self._reports: dict[int, PartitionReport] = {}
        self._report = RewriteReport(topic)
        self._passes = 0
        self._left_alone: set[tuple[str, Offset]] = set()

    async def plan(self) -> list[PartitionPlan]:
        """Plan from a fresh view. Raise UnknownPartition, ManifestNotFound, SeveralClusters or
        ObjectStoreError.
        """
        await self._view.refresh()
        fewer = max(_SOURCES_MIN, self._options.compaction_sources_max >> 3 * self._passes)
        plans = plan_topic(
            await self._view.committed(self._topic),
            replace(self._options, compaction_sources_max=fewer),
        )
        return within((_without(plan, self._left_alone) for plan in plans), self._left_bytes)

    async def run(self) -> RewriteReport:
        """Rewrite the topic. Raise the errors of `plan`, of the metadata and of tasks. Earlier
        commits remain.
        """
        for _ in range(PASSES_MAX):
            plans = await self.plan()
            for plan in plans:
                self._reports.setdefault(
                    plan.partition, PartitionReport(plan.partition, plan.object_count)
                )
            rounds = cut_rounds(plans, self._options)
            self._report.unresolved = 0
            if not rounds:
                break
            handled: list[Compaction] = []
            for plans_of_round in rounds:
                handled += await self._round(plans_of_round)
            await until_published(
                self._view, self._topic, [compaction.sources for compaction in handled]
            )
            self._passes += 1
            if not self._report.unresolved:
                break
        self._report.partitions = [self._reports[partition] for partition in sorted(self._reports)]
        return self._report

    async def _round(self, plans: Sequence[PartitionPlan]) -> list[Compaction]:
        """Rewrite one round. Return the compactions whose sources should no longer be in the next
        manifest.
        """
        self._report.rounds += 1
        options, began_ms = self._options, self._now_ms()
        compactions = [
            (plan.partition, compaction) for plan in plans for compaction in plan.compactions
        ]
        prepared = await self._metadata.prepare(len(compactions), options.ttl_ms)
        # Executors' clocks may differ: half of the time is a margin for them.
        put_until_ms = began_ms + options.ttl_ms // 2
        tasks = [
            RewriteTask(partition, compaction, target, began_ms, put_until_ms)
            for (partition, compaction), target in zip(compactions, prepared, strict=True)
        ]
        results: dict[int, list[RewriteResult]] = {}
        for result in await self._run_tasks(tasks):
            results.setdefault(result.task.partition, []).append(result)
        handled: list[Compaction] = []
        for plan in plans:
            handled += await self._commit(plan, results.get(plan.partition, []))
        return handled

    async def _commit(
        self, plan: PartitionPlan, results: Sequence[RewriteResult]
    ) -> list[Compaction]:
        report = self._reports[plan.partition]
        handled: list[Compaction] = []
        exchanges: list[Exchange] = []
        for result in sorted(results, key=lambda result: result.task.compaction.start_offset):
            compaction = result.task.compaction
            if result.new is not None:
                exchanges.append(Exchange(result.new, compaction.sources))
            elif result.gone or result.late:
                self._conflict(report, result.detail)
                handled += [compaction] if result.gone else []
            else:
                self._report.damaged.append(f"{self._topic}-{plan.partition}: {result.detail}")
                self._left_alone.update(_places(compaction.sources))
        if not exchanges:
            return handled
        for exchange, conflict in zip(
            exchanges, await self._metadata.commit(plan.stream_id, exchanges), strict=True
        ):
            handled.append(Compaction(exchange.sources))
            if conflict:
                self._conflict(report, conflict)
                continue
            size_bytes = handled[-1].size_bytes
            report.sources_replaced += len(exchange.sources)
            report.objects_written += 1
            report.rewritten_bytes += size_bytes
            self._left_bytes -= size_bytes
            self._on_written(size_bytes)
        return handled

    def _conflict(self, report: PartitionReport, detail: str) -> None:
        report.conflicts += 1
        self._report.unresolved += 1
        _log.info("rewrite_conflict", topic=self._topic, partition=report.partition, detail=detail)


async def until_published(
    view: ClusterView, topic: str, replaced: Iterable[Sequence[ObjectRange]]
) -> None:
    """Wait for a manifest that no longer lists one source of each exchange, so that the next plan
    does not repeat them. One source suffices, because the others are unchanged after a conflict.
    """
    left = [set(_places(sources)) for sources in replaced]
    deadline = asyncio.get_running_loop().time() + PUBLISH_S
    while left and asyncio.get_running_loop().time() < deadline:
        await view.refresh()
        shown = {
            (key, Offset(run.bounds[at]))
            for log in await view.committed(topic)
            for run in log.runs
            for at, key in enumerate(run.keys)
        }
        left = [places for places in left if places <= shown]
        if left:
            await asyncio.sleep(_LOOK_S)
    if left:
        _log.warning(
            "rewrite_not_in_manifest",
            topic=topic,
            exchanges=len(left),
            hint="check that a controller publishes the manifest",
        )


def _without(plan: PartitionPlan, places: set[tuple[str, Offset]]) -> PartitionPlan:
    return replace(
        plan,
        compactions=tuple(
            compaction
            for compaction in plan.compactions
            if places.isdisjoint(_places(compaction.sources))
        ),
    )


def _places(sources: Iterable[ObjectRange]) -> list[tuple[str, Offset]]:
    return [(source.key, source.range.start_offset) for source in sources]

"""A bulk rewrite based on the manifest: after a conflict, it plans again once the manifest contains
the cause, without waiting for unchanged sources.
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from penstock.base.ids import Millis, StreamId
from penstock.controller.active.manifest.publisher import ManifestPublisher
from penstock.controller.api.messages import Status
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.job import RewriteResult, RewriteTask
from penstock.lake.rewrite.plan import RewriteOptions
from penstock.lake.rewrite.run import (
    PUBLISH_S,
    BulkRewrite,
    Exchange,
    RewriteReport,
)
from penstock.objectstore.memory import MemoryStore
from penstock.stream.compaction.plan import Compaction
from penstock.stream.ports import NewObject, ObjectRole, PreparedObject, StreamRange
from tests.support.managers_cluster import part, replaced, uploaded
from tests.support.published_cluster import PublishedCluster


class Job:
    """A rewrite without data: these tests only check which objects contain which offsets."""

    def __init__(self, published: PublishedCluster, publisher: ManifestPublisher) -> None:
        self.published, self.publisher = published, publisher
        self.compactions: list[Compaction] = []
        self.meanwhile: list[Callable[[RewriteTask], RewriteResult | None]] = []

    async def prepare(self, count: int, ttl_ms: int) -> list[PreparedObject]:
        return [
            PreparedObject(item.object_id, item.key)
            for item in self.published.cluster.prepare(self.published.node, count)
        ]

    async def run_tasks(self, tasks: Sequence[RewriteTask]) -> list[RewriteResult]:
        return [self._written(task) for task in tasks]

    def _written(self, task: RewriteTask) -> RewriteResult:
        self.compactions.append(task.compaction)
        found = self.meanwhile.pop(0)(task) if self.meanwhile else None
        if found is not None:
            return found
        compaction, target = task.compaction, task.target
        held = StreamRange(
            compaction.sources[0].range.stream_id,
            compaction.start_offset,
            compaction.end_offset,
            1,
            compaction.size_bytes,
            Millis(0),
        )
        return RewriteResult(
            task,
            NewObject(
                target.object_id, target.key, ObjectRole.STREAM, compaction.size_bytes, (held,)
            ),
        )

    async def commit(self, stream_id: StreamId, exchanges: Sequence[Exchange]) -> list[str]:
        responses: list[str] = []
        for exchange in exchanges:
            span = exchange.new.ranges[0]
            new = uploaded(exchange.new, part(stream_id, span.start_offset, span.end_offset))
            held = {
                (low, high): object_id
                for low, high, object_id in self.published.cluster.spans(stream_id)
            }
            places = [
                (source.range.start_offset, source.range.end_offset) for source in exchange.sources
            ]
            old = [replaced(stream_id, held.get(place, -1), *place) for place in places]
            status = Status.OK if held.keys() >= set(places) else Status.COMPACTED_OBJECTS_NOT_FOUND
            self.published.cluster.commit(self.published.node, new, replaced=old, status=status)
            responses.append("" if status is Status.OK else status.name)
        await self.publisher.publish()
        return responses


async def rewritten(published: PublishedCluster, job: Job, store: MemoryStore) -> RewriteReport:
    await job.publisher.publish()
    options = RewriteOptions(target_bytes=1 << 20)
    async with asyncio.timeout(PUBLISH_S / 2):
        return await BulkRewrite(
            ClusterView(store), "t", job, job.run_tasks, options, now_ms=lambda: Millis(0)
        ).run()


@pytest.fixture
def published() -> PublishedCluster:
    published = PublishedCluster(partitions=1)
    published.append(0, 12)
    return published


def too_late(task: RewriteTask) -> RewriteResult:
    return RewriteResult(task, None, late=True, detail="prepared too long ago")


@pytest.mark.parametrize(
    ("meanwhile", "sources_counts", "replaced_count"),
    [
        # The first half of the compaction still has its sources.
        pytest.param(
            lambda published, _: published.compact(0, 6, 6), [12, 7], 7, id="half by another job"
        ),
        # Nothing changed, so a newer manifest would be the same.
        pytest.param(lambda _, task: too_late(task), [12, 12], 12, id="a task that is too late"),
        # The next plan is empty.
        pytest.param(
            lambda published, _: published.compact(0, 0, 12), [12], 0, id="all by another job"
        ),
    ],
)
async def test_a_conflict_is_resolved_without_waiting(
    published: PublishedCluster,
    meanwhile: Callable[[PublishedCluster, RewriteTask], RewriteResult | None],
    sources_counts: list[int],
    replaced_count: int,
) -> None:
    store = MemoryStore()
    job = Job(published, published.publisher(store, 1))
    job.meanwhile.append(lambda task: meanwhile(published, task))
    report = await rewritten(published, job, store)
    assert [len(compaction.sources) for compaction in job.compactions] == sources_counts
    (done,) = report.partitions
    assert (report.unresolved, done.conflicts, done.sources_replaced) == (0, 1, replaced_count)
    assert len(published.cluster.spans(published.cluster.partitions("t")[0].data_stream_id)) == 1

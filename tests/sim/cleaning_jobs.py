"""An external job that compacts a log by key, concurrently with the cleaners of the brokers: with
outdated metadata, slowly, several at once; it may stall or die at any point.

It plans, reads, writes and commits with the product's own functions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.base.errors import ExpectedError, StreamError
from penstock.base.ids import StreamId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.deploy.cli.compact_by_key import read_checkpoints
from penstock.deploy.cli.compact_job import ControllerRewrites
from penstock.lake.cleaning.job import PassResult, PassTask, run_pass
from penstock.lake.cleaning.run import Checkpoint, CleaningOptions, TopicCleaner
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from tests.sim.compacted import COMPACT_TOPIC
from tests.sim.control import addresses
from tests.sim.limits import PREPARED_TTL_MS
from tests.sim.rewriting import SimRewriter

if TYPE_CHECKING:
    from tests.sim.world import World

_RUNS_MAX = 4


class SimCleaningJob(SimRewriter):
    """One run of `penstock compact --by-key`."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self.retrying = RetryingStore(
            self.store, RetryPolicy(deadline_ms=5_000), clock=world.loop.time, rng=self.rng
        )

    async def _run(self) -> None:
        compacted = self.world.compacted
        assert compacted is not None
        client = ControllerClient(addresses(self.world.limits.controllers), rng=self.rng)
        options = CleaningOptions(
            lag_ms_min=int(compacted.configs["min.compaction.lag.ms"] or 0),
            tombstones_kept_ms=compacted.tombstones_kept_ms,
            key_map_bytes_max=compacted.cleaner.key_map_bytes_max,
            object_bytes_max=self.rng.choice((1, 2_000, 1 << 20)),
            ttl_ms=PREPARED_TTL_MS,
        )
        cleaning = TopicCleaner(
            ClusterView(self.retrying),
            COMPACT_TOPIC,
            _Metadata(self, client),
            self._run_passes,
            options,
            now_ms=self.now_ms,
        )
        for _ in range(_RUNS_MAX):
            try:
                report = await cleaning.run()
            except (
                ControllerError,
                ExpectedError,
                StreamError,
                ObjectStoreError,
                TimeoutError,
            ) as e:
                self.world.trace("cleaning job fails", self.process.name, type(e).__name__)
                await asyncio.sleep(self.rng.uniform(0.5, 2.0))
                continue
            done = [(item.partition, item.removed_records) for item in report.partitions]
            self.world.trace("cleaned by a job", self.process.name, done)
            return

    async def _run_passes(self, tasks: Sequence[PassTask]) -> list[PassResult]:
        results: list[PassResult] = []
        for task in tasks:
            await asyncio.sleep(self.rng.choice((0.0, 0.5, 3.0)))
            was_faulty = bool(self.world.weather.faults)  # faults may end during the read
            if self.rng.random() < 0.1:
                await run_pass(self.retrying, task, self.now_ms)  # a repeated attempt
            result = await run_pass(self.retrying, task, self.now_ms)
            is_damaged = result.clean_end is None and not result.is_stale
            if is_damaged and not (was_faulty or self.world.weather.faults):
                self.world.fail(f"{self.process.name} finds damage: {result.detail}")
            results.append(result)
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 1.0)))
        return results


class _Metadata(ControllerRewrites):
    """The controller, and the checkpoints in its image."""

    def __init__(self, job: SimCleaningJob, client: ControllerClient) -> None:
        super().__init__(client)
        self._job = job

    async def checkpoints(self, topic: str) -> Mapping[StreamId, Checkpoint]:
        return await read_checkpoints(self._job.world.metadata.image, self._job.retrying, topic)

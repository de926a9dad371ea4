"""An external job that rewrites ranges: with outdated metadata, slowly, several at once; it may
stall or die at any point.

It plans at random (any neighbors of a partition, many times), but reads, writes and commits with
the product's own functions.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from penstock.base.errors import ExpectedError, StreamError
from penstock.base.ids import Millis, ObjectId, StreamId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.metadata.objects import ObjectPhase
from penstock.deploy.cli.compact_job import ControllerRewrites
from penstock.lake.rewrite.job import RewriteResult, RewriteTask, rewrite
from penstock.lake.rewrite.run import Exchange
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.compaction.plan import Compaction
from tests.sim.control import addresses
from tests.sim.limits import PREPARED_TTL_MS
from tests.sim.loop import Process
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

SOURCES_MAX = 6
_READ_FROM_STORE_MAX = 1_000


class SimRewriter:
    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.rng = Random(f"{world.seed}/rewriter/{number}")
        self.process = Process(f"rewriter{number}")
        self.process.network = world.network
        self.skew_ms = world.draw_skew_ms(self.rng)
        self.store = SimStore(world.bucket, world.weather, self.rng, world.trace)

    def start(self) -> None:
        self.world.processes.append(self.process)
        self.world.loop.call_soon(
            lambda: self.world.loop.create_task(self._run()), context=self.process.context()
        )

    def now_ms(self) -> Millis:
        return self.world.now_ms(self.skew_ms)

    async def _run(self) -> None:
        client = ControllerClient(addresses(self.world.limits.controllers), rng=self.rng)
        try:
            for stream_id, compactions in self._planned():
                await asyncio.sleep(self.rng.choice((0.0, 0.5, 3.0)))
                await self._rewrite(ControllerRewrites(client), stream_id, compactions)
        except (
            ControllerError,
            ExpectedError,
            StreamError,
            ObjectStoreError,
            TimeoutError,
        ) as error:
            self.world.trace("rewriter gives up", self.process.name, type(error).__name__)

    def _planned(self) -> list[tuple[StreamId, list[Compaction]]]:
        """Return runs of neighboring ranges in some partitions, according to the
        current manifest.
        """
        image = self.world.metadata.image
        topic = image.topics.by_name(self.world.parts[0][0])
        if topic is None:
            return []
        found: list[tuple[StreamId, list[Compaction]]] = []
        for partition in self.rng.sample(
            list(topic.partitions), self.rng.randint(1, len(topic.partitions))
        ):
            stream = image.streams.known(partition.data_stream_id)
            ranges = image.find_ranges(
                stream.stream_id, stream.start_offset, stream.end_offset, _READ_FROM_STORE_MAX
            )
            compactions: list[Compaction] = []
            while ranges:
                count = self.rng.randint(1, SOURCES_MAX)
                taken, ranges = ranges[:count], ranges[count:]
                if self.rng.random() < 0.7:
                    compactions.append(Compaction(tuple(taken)))
            if compactions:
                found.append((stream.stream_id, compactions))
        return found

    async def _rewrite(
        self, metadata: ControllerRewrites, stream_id: StreamId, compactions: list[Compaction]
    ) -> None:
        prepared = await metadata.prepare(len(compactions), PREPARED_TTL_MS)
        began_ms = self.now_ms()
        exchanges: list[Exchange] = []
        for compaction, target in zip(compactions, prepared, strict=True):
            was_faulty = bool(self.world.weather.faults)  # faults may end during the read
            result = await self._written(
                RewriteTask(0, compaction, target, began_ms, began_ms + PREPARED_TTL_MS // 2)
            )
            if result.new is not None:
                exchanges.append(Exchange(result.new, compaction.sources))
            # A faulty store may damage two responses in a row.
            elif not (result.gone or result.late or was_faulty or self.world.weather.faults):
                self.world.fail(f"{self.process.name} finds damage: {result.detail}")
        if not exchanges:
            return
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 1.0)))
        conflicts = await metadata.commit(stream_id, exchanges)
        self.world.trace(
            "rewritten", self.process.name, stream_id, [not conflict for conflict in conflicts]
        )
        if self.rng.random() < 0.3:
            again = await metadata.commit(stream_id, exchanges)
            refused = [
                exchange
                for exchange, was, text in zip(exchanges, conflicts, again, strict=True)
                if text and not was
            ]
            if any(
                self._is_there(exchange.new.object_id) for exchange in refused
            ) and not self._is_deleted(stream_id):
                self.world.fail(f"{self.process.name} repeats a commit and gets {again}")

    async def _written(self, task: RewriteTask) -> RewriteResult:
        if self.rng.random() < 0.1:
            await rewrite(self.store, task, self.now_ms)  # a repeated attempt
        return await rewrite(self.store, task, self.now_ms)

    def _is_there(self, object_id: ObjectId) -> bool:
        """Return whether it is committed and has not been compacted since."""
        state = self.world.metadata.image.objects.get(object_id)
        return state is not None and state.phase == ObjectPhase.COMMITTED and state.refs > 0

    def _is_deleted(self, stream_id: StreamId) -> bool:
        return self.world.metadata.image.streams.get(stream_id) is None

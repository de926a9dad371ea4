"""Background tasks of a broker: object compaction, log compaction, retention, and load reports."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from penstock.broker.background.cleaner import CleanerDuty
from penstock.broker.background.load_report import LoadReporter
from penstock.broker.background.retention import RetentionDuty
from penstock.broker.requests.node import Node
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.objectstore.metered import StoreStats
from penstock.objectstore.ports import ObjectStore
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cleaning.cleaner import CleanerConfig, LogCleaner
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.read.object_reader import ObjectReader

PROBE_PREFIX: Final = "probe/"
COMPACTOR_CACHE_BYTES: Final = 1 << 20
"""Block cache size of each background task that reads objects. The cache is separate so that these
reads do not evict blocks that clients need.
"""


class Duties:
    """Runs the background tasks."""

    def __init__(
        self,
        node: Node,
        store: ObjectStore,
        metadata: ControllerStreamMetadata,
        me: BrokerIncarnation,
        *,
        rng: Random,
        store_stats: Callable[[], StoreStats] | None,
    ) -> None:
        """store_stats: returns the store request counters for load reports; None omits them from
        the reports.
        """
        self._node = node
        storage, partitions, config = node.storage, node.partitions, node.config
        turn = asyncio.Lock()
        self._log_cleaner = LogCleaner(
            store,
            metadata,
            ObjectReader(store, BlockCache(COMPACTOR_CACHE_BYTES)),
            me,
            owned=storage.open_handles,
            turn=turn,
            forget=storage.forget_cached,
            now_ms=node.now_ms,
            config=self._cleaner_config(),
        )
        self.compactor = Compactor(
            store,
            metadata,
            ObjectReader(store, BlockCache(COMPACTOR_CACHE_BYTES)),
            me,
            owned=storage.open_handles,
            now_ms=node.now_ms,
            cached=storage.cached_entries,
            assigned=lambda: self._reporter.rewrite,
            config=node.compaction_config,
            turn=turn,
        )
        self.retention = RetentionDuty(
            lambda: node.image,
            partitions,
            partitions.trim_all,
            now_ms=node.now_ms,
            interval_s=config.log_retention_check_interval_ms / 1_000,
            rng=rng,
        )
        self.cleaner = CleanerDuty(
            lambda: node.image,
            partitions,
            partitions.checkpoint_durably,
            metadata,
            self._log_cleaner.clean,
            upload=node.storage.upload,
            buffered_bytes=node.storage.buffered_bytes,
            now_ms=node.now_ms,
            interval_s=config.log_cleaner_backoff_ms / 1_000,
            rng=rng,
        )

        async def probe() -> None:
            await store.put(f"{PROBE_PREFIX}{me.node_id}", b"x")

        self._reporter = LoadReporter(
            me,
            node.client,
            partitions,
            probe,
            interval_s=config.load_report_interval_ms / 1_000,
            store_stats=store_stats,
            damage=storage.damage,
        )
        start = asyncio.get_running_loop().create_task
        self._compaction = start(self.compactor.run())
        self._others = [start(self.retention.run()), start(self._reporter.run())]
        if config.log_cleaner_enable:
            self._others.append(start(self.cleaner.run()))

    async def stop_compaction(self) -> None:
        """Cancel the compactor. An interrupted round leaves only prepared objects, which expire."""
        self._compaction.cancel()
        await asyncio.wait([self._compaction])

    async def close(self) -> None:
        for task in self._others:
            task.cancel()
        await self.stop_compaction()
        await asyncio.gather(*self._others, return_exceptions=True)

    def reconfigure(self) -> None:
        """Apply changed settings that background tasks do not read on each use."""
        config = self._node.config
        self.compactor.config = self._node.compaction_config
        self._log_cleaner.reconfigure(self._cleaner_config())
        self.retention.interval.change(config.log_retention_check_interval_ms / 1_000)
        self.cleaner.interval.change(config.log_cleaner_backoff_ms / 1_000)

    def _cleaner_config(self) -> CleanerConfig:
        return CleanerConfig(
            key_map_bytes_max=self._node.config.log_cleaner_dedupe_buffer_bytes,
            bytes_per_s_max=self._node.config.log_cleaner_bytes_per_s_max,
            decompressed_bytes_max=self._node.stream_config.decompressed_batch_bytes_max,
        )

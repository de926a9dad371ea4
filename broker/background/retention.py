"""Retention by age and size, for the partitions that this broker leads.
`broker.partition.retention` computes the log starts.

A check takes 1 us per partition. Each trimmed partition costs one RPC and one WAL batch, which
shares its flush with others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Final

import structlog

from penstock.base.ids import Millis, ObjectId, Offset
from penstock.broker.background.periodic import IntervalWait, check_periodically
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.retention import Retention, retained_from
from penstock.controller.metadata.image import MetadataImage

_log = structlog.get_logger(__name__)

_PARTITIONS_PER_SLICE_COUNT: Final = 200
"""Partitions checked between two yields to the event loop, which takes about 0.2 ms."""

_TRIMS_PER_FLUSH_COUNT: Final = 500


class RetentionDuty:
    """The retention checks of one broker. Run `await duty.run()` in its own task.

    trim: `PartitionManager.trim_all`. now_ms: the wall clock, like record timestamps.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        led: Iterable[Partition],
        trim: Callable[[Sequence[tuple[Partition, Offset]]], Awaitable[list[Exception | None]]],
        *,
        now_ms: Callable[[], Millis],
        interval_s: float,
        rng: Random,
    ) -> None:
        self._image = image
        self._led = led
        self._trim = trim
        self._now_ms = now_ms
        self.interval = IntervalWait(interval_s)
        self._rng = rng
        self.trimmed_partitions = 0
        """Never decreases."""
        self.failed_partitions = 0

    async def run(self) -> None:
        """Check at every interval, until cancelled."""
        await check_periodically(self.check, self.interval, self._rng, "retention_check_failed")

    async def check(self) -> None:
        """Trim every log led by this broker that exceeds the retention of its topic."""
        due: list[tuple[Partition, Offset]] = []
        retentions: dict[str, Retention] = {}
        for number, partition in enumerate(self._led):
            if number % _PARTITIONS_PER_SLICE_COUNT == _PARTITIONS_PER_SLICE_COUNT - 1:
                await asyncio.sleep(0)
                retentions.clear()
            start = self._retained_from(partition, retentions)
            if start is not None:
                due.append((partition, start))
        for at in range(0, len(due), _TRIMS_PER_FLUSH_COUNT):
            await self._trim_some(due[at : at + _TRIMS_PER_FLUSH_COUNT])

    def _retained_from(
        self, partition: Partition, retentions: dict[str, Retention]
    ) -> Offset | None:
        """Return the new log start, or None if it does not change."""
        image = self._image()
        name = partition.topic_name
        retention = retentions.get(name)
        if retention is None:
            retention = retentions[name] = Retention.from_configs(image.configs.topic(name))
        stream = image.streams.get(partition.log.data.stream_id)
        if stream is None or retention.is_unlimited:
            return None

        def committed_ms(object_id: ObjectId) -> Millis:
            found = image.objects.get(object_id)
            return self._now_ms() if found is None else found.since_ms

        start = retained_from(stream.entries, retention, self._now_ms(), committed_ms)
        if start is None or start <= partition.log_start_offset:
            return None
        return Offset(min(start, partition.high_watermark))

    async def _trim_some(self, starts: Sequence[tuple[Partition, Offset]]) -> None:
        before = [partition.log_start_offset for partition, _ in starts]
        errors = await self._trim(starts)
        for (partition, start), was, error in zip(starts, before, errors, strict=True):
            if error is None:
                self.trimmed_partitions += 1
                _log.info(
                    "old_records_deleted",
                    topic=partition.topic_name,
                    partition=partition.index,
                    from_offset=was,
                    to_offset=start,
                )
            else:
                self.failed_partitions += 1
                _log.warning(
                    "retention_failed",
                    topic=partition.topic_name,
                    partition=partition.index,
                    error=str(error),
                )

"""Measure costs of record removal outside the data path: retention checks, and loading a
coordinator whose log was compacted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks import coordinators, harness
from benchmarks.controllers import large_image
from benchmarks.harness import Measure
from penstock.base.clock import wall_ms
from penstock.broker.background.retention import RetentionDuty
from penstock.broker.config import BrokerConfig
from penstock.broker.partition.partition import Partition
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.records import ConfigRecord

PARTITIONS: Final = 10_000
OBJECTS: Final = 100_000
COMMITS: Final = 1_000_000
KEYS: Final = 1_000
_ROUNDS: Final = 5


def life() -> list[Measure]:
    """Check retention of 10,000 partitions, and load a group with 1,000,000 commits."""
    return [asyncio.run(_retention()), asyncio.run(_coordinator_load())]


async def _retention() -> Measure:
    """Measure the CPU time of one check by age and size of logs without expired records."""
    image = large_image(PARTITIONS, OBJECTS)
    image.apply_all(
        [
            ConfigRecord(TOPIC_RESOURCE, "large", "retention.ms", str(wall_ms() * 2)),
            ConfigRecord(TOPIC_RESOURCE, "large", "retention.bytes", str(1 << 40)),
        ]
    )
    topic = image.topics.by_name("large")
    assert topic is not None
    led = [
        SimpleNamespace(
            topic_name="large",
            index=item.partition,
            log=SimpleNamespace(data=SimpleNamespace(stream_id=item.data_stream_id)),
            log_start_offset=0,
            high_watermark=1 << 40,
        )
        for item in topic.partitions
    ]
    trimmed: list[Any] = []

    async def trim(starts: Sequence[Any]) -> list[Exception | None]:
        trimmed.extend(starts)
        return [None] * len(starts)

    duty = RetentionDuty(
        lambda: image,
        cast("list[Partition]", led),
        cast("Callable[[Sequence[Any]], Awaitable[list[Exception | None]]]", trim),
        now_ms=wall_ms,
        interval_s=0,
        rng=Random(1),
    )
    times: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        await duty.check()
        times.append(time.process_time() - began)
    assert not trimmed
    interval_s = BrokerConfig().log_retention_check_interval_ms / 1_000
    cpu_s = harness.quantile(times, 0.5)
    return Measure(
        f"retention: {PARTITIONS:,} partitions with {OBJECTS:,} ranges checked, share of a core",
        100 * cpu_s / interval_s,
        "%",
        1.0,
        "lower",
        note=f"{1_000 * cpu_s:.0f} ms every {interval_s:.0f} s, in the brokers",
    )


async def _coordinator_load() -> Measure:
    """Let a coordinator compact its log, then load it with another coordinator."""
    log = coordinators.Log()
    await coordinators.write_commits(log, COMMITS, groups=1, partitions=KEYS)
    await coordinators.compact(log)
    count, began = log.end - log.start, time.perf_counter()
    loaded = await coordinators.load(log)
    took_s = time.perf_counter() - began
    loaded.close()
    return Measure(
        f"load of a group with {COMMITS:,} commits by {KEYS:,} keys, compacted",
        took_s,
        "s",
        1.0,
        "lower",
        note=f"{count:,} records",
    )

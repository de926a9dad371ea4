"""Measure log compaction: its speed compared with Kafka's log cleaner on the same records, and its
effect on producers.
"""

import os
import re
import time
from random import Random
from typing import Final

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks import clients, harness
from benchmarks.harness import Measure
from benchmarks.kafka import KafkaMissing, kafka

MB: Final = int(os.environ.get("BENCH_COMPACTION_MB", "1000"))
_KEYS: Final = 100_000
_TOPIC: Final = "compacted"
_WAIT_S: Final = 600.0
_RECORD_BYTES: Final = 1_000
_PROCESSED: Final = re.compile(r"([\d,.]+) MB of log processed in ([\d,.]+) seconds")


def compaction() -> list[Measure]:
    """Compact `BENCH_COMPACTION_MB` of 1 KB records with 100,000 keys in both systems."""
    with harness.server(
        store="memory:", log_cache_bytes_max=128 << 20, cleaner_bytes_per_s_max=0
    ) as system:
        _fill(system.bootstrap)
        ours = _our_mb_per_s(system)
    try:
        theirs = _kafka_mb_per_s()
    except KafkaMissing as error:
        return [Measure(f"log compaction, {MB} MB", ours, "MB/s", 0, "higher", note=str(error))]
    return [
        Measure(
            f"log compaction, {MB} MB, {_KEYS:,} keys, memory store / Kafka's cleaner",
            ours,
            "MB/s",
            1.0,
            "higher",
            theirs,
        ),
        _produce_beside_compaction(),
    ]


def _produce_beside_compaction() -> Measure:
    with harness.server(store="memory:", log_cache_bytes_max=128 << 20) as system:
        _fill(system.bootstrap)
        clients.create_topic(system.bootstrap)
        quiet = clients.produce_latencies_ms(system.bootstrap, 5e6, 15)
        before = system.send_request()["get_bytes"]
        _set_ratio(system.bootstrap, "0")
        busy = clients.produce_latencies_ms(system.bootstrap, 5e6, 15)
        read_mb = (system.send_request()["get_bytes"] - before) / 1e6
    return Measure(
        "produce at 5 MB/s during compaction, p99 / without",
        harness.quantile(busy, 0.99),
        "ms",
        1.5,
        "lower",
        harness.quantile(quiet, 0.99),
        f"which read {read_mb:,.0f} MB meanwhile",
    )


def _fill(bootstrap: str) -> None:
    """Write the records to a topic whose compaction `_set_ratio` enables later."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "1",
        "segment.bytes": str(64 << 20),
    }
    admin.create_topics([NewTopic(_TOPIC, 1, 1, config=configs)])[_TOPIC].result(30)
    rng, value = Random(1), os.urandom(_RECORD_BYTES - 8)
    producer = clients.producer(bootstrap)
    for number in range(MB * 1_000_000 // _RECORD_BYTES):
        producer.produce(_TOPIC, value, b"%08d" % rng.randrange(_KEYS), partition=0)
        if number % 10_000 == 9_999:
            producer.flush(60)
    assert producer.flush(60) == 0


def _set_ratio(bootstrap: str, ratio: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(
        "min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(30)


def _our_mb_per_s(system: harness.ServerProcess) -> float:
    _set_ratio(system.bootstrap, "0")
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        found = system.send_request()
        if found["cleaned_bytes"]:
            return float(found["cleaned_bytes"] / found["cleaner_busy_s"] / 1e6)
        time.sleep(0.2)
    raise RuntimeError(f"no pass ended within {_WAIT_S:.0f} s")


def _kafka_mb_per_s() -> float:
    """Return the throughput that Kafka's cleaner logs for its longest pass, over both phases."""
    settings = {"log.cleaner.backoff.ms": "500", "log.cleaner.threads": "1"}
    with kafka(settings) as peer:
        _fill(peer.bootstrap)
        _set_ratio(peer.bootstrap, "0.01")
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            found = [match for line in peer.lines() if (match := _PROCESSED.search(line))]
            passes = [(_number(match[1]), _number(match[2])) for match in found]
            if passes and max(passes)[0] > MB / 2:
                megabytes, seconds = max(passes)
                return megabytes * (1 << 20) / 1e6 / seconds
            time.sleep(0.5)
    raise RuntimeError(f"Kafka cleaned nothing within {_WAIT_S:.0f} s")


def _number(text: str) -> float:
    return float(text.replace(",", ""))

"""Measure produce latency with the WAL in the store and in a faster one of its own, in one run.

PUTs of both stores, which are in memory, are delayed inside the process, log-normally. "Without
delay" sets `wal.linger.ms`, `wal.linger.idle.ms` and `wal.put.interval.ms` to 0, their defaults for
a WAL store with cheap requests.
"""

import os
import time
from typing import Final

from benchmarks import clients, harness
from benchmarks.harness import Measure

PARTITIONS: Final = 12
PACED_BYTES_PER_S: Final = 5e6
SECONDS: Final = 3 * float(os.environ.get("BENCH_SECONDS", "4"))
STORE: Final[dict[str, object]] = {
    "store": "memory:",
    "linger_ms": 250,
    "put_p50_ms": 60,
    "put_p99_ms": 250,
}
WAL_STORE: Final[dict[str, object]] = {"wal_put_p50_ms": 6, "wal_put_p99_ms": 15}
SETUPS: Final[dict[str, dict[str, object]]] = {
    "WAL store": STORE | WAL_STORE,
    "WAL store, without delay": STORE | WAL_STORE | {"waits": False},
}
RATIOS: Final = {
    "one record at a time, p50": 10 / 69,
    "one record at a time, p99": 22 / 251,
    "paced 5 MB/s, p50": 14 / 132,
    "paced 5 MB/s, p99": 30 / 542,
}
"""To the latency without a WAL store: PUT p50 + 4 ms and p99 + 7 ms, paced PUT p50 + 8 ms and p99 +
15 ms.
"""


def wal_store() -> list[Measure]:
    limits = latencies_ms(STORE)
    return [
        Measure(f"{setup}: {name}", value, "ms", ratio, "lower", limit)
        for setup, options in SETUPS.items()
        for (name, ratio), value, limit in zip(
            RATIOS.items(), latencies_ms(options), limits, strict=True
        )
    ]


def latencies_ms(options: dict[str, object]) -> list[float]:
    """Return the quantiles in the order of `RATIOS`."""
    with harness.server(**options) as system:
        clients.create_topic(system.bootstrap, PARTITIONS)
        runs = (
            one_at_a_time_ms(system.bootstrap, SECONDS),
            clients.produce_latencies_ms(
                system.bootstrap, PACED_BYTES_PER_S, SECONDS, partitions=PARTITIONS
            ),
        )
    return [harness.quantile(values, at) for values in runs for at in (0.5, 0.99)]


def one_at_a_time_ms(bootstrap: str, seconds: float) -> list[float]:
    """Measure from `produce` to its acknowledgement, with one record in flight."""
    writer = clients.producer(bootstrap, **{"linger.ms": 0})
    writer.produce(clients.TOPIC, b"warm", partition=0)
    writer.flush(30)
    found: list[float] = []
    until = time.perf_counter() + seconds
    while (sent := time.perf_counter()) < until:
        writer.produce(clients.TOPIC, b"x" * 100, partition=0)
        writer.flush(30)
        found.append((time.perf_counter() - sent) * 1_000)
    return found

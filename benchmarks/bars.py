"""Define the measurements with their targets. Each function performs one run, and starts and stops
its processes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import (
    acls,
    attacks,
    classic_groups,
    clients,
    compaction,
    console,
    control,
    controllers,
    forks,
    groups,
    harness,
    leaks,
    life,
    long_requests,
    metering,
    moves,
    plugin,
    quotas,
    record_validation,
    scale,
    security,
    sessions,
    shares,
    sql,
    tables,
    timers,
    transactions,
    wal_store,
)
from benchmarks import start as starts
from benchmarks.harness import Measure
from penstock.objectstore.url import open_store

SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "4"))
REPEATS: Final = int(os.environ.get("BENCH_REPEATS", "3"))
MIB: Final = 1 << 20


def sink_produce_mb_per_s() -> float:
    with harness.sink() as bootstrap:
        return clients.produce_for(bootstrap, SECONDS).mb_per_s


def throughput() -> list[Measure]:
    """Compare producing and tail consuming with the bare sink in alternating pairs; report the
    median pair.
    """
    pairs: list[tuple[float, float, float]] = []
    for _ in range(REPEATS):
        limit = sink_produce_mb_per_s()
        with harness.server(store="memory:", log_cache_bytes_max=3 << 30) as system:
            clients.create_topic(system.bootstrap)
            produced = clients.produce_for(system.bootstrap, SECONDS)
        with harness.server(store="memory:", log_cache_bytes_max=3 << 30) as system:
            clients.create_topic(system.bootstrap)
            count = clients.produce_for(system.bootstrap, SECONDS / 2).records
            consumed = clients.consume_all(system.bootstrap, min(count, 2_000_000))
        pairs.append((limit, produced.mb_per_s, consumed.mb_per_s))
    by_produce = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
    by_consume = sorted(pairs, key=lambda pair: pair[2] / pair[0])[len(pairs) // 2]
    return [
        Measure(
            "produce, 1 KiB records, acks=all, memory store / bare sink",
            by_produce[1],
            "MB/s",
            0.5,
            "higher",
            by_produce[0],
        ),
        Measure(
            "tail consume / bare sink's produce rate",
            by_consume[2],
            "MB/s",
            0.5,
            "higher",
            by_consume[0],
        ),
    ]


async def _plain_puts(url: str, seconds: float) -> float:
    """Return the throughput, in bytes per second, of 4 concurrent 8 MiB PUTs with Penstock's S3
    client.
    """
    store, body, done = open_store(url), bytes(8 * MIB), 0

    async def put_some(worker: int) -> None:
        nonlocal done
        number = 0
        while time.perf_counter() < deadline:
            await store.put(f"plain/{worker}/{number}", body)
            number += 1
            done += 1

    began = time.perf_counter()
    deadline = began + seconds
    await asyncio.gather(*(put_some(worker) for worker in range(4)))
    await store.close()
    return done * len(body) / (time.perf_counter() - began)


def store_writes() -> list[Measure]:
    """Compare the bytes per second that the broker writes to moto, WAL and uploads, with plain
    PUTs.
    """
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        with harness.moto() as url:
            limit = asyncio.run(_plain_puts(url, SECONDS))
            with harness.server(store=url, linger_ms=250) as system:
                clients.create_topic(system.bootstrap, 4)
                before, began = system.send_request(), time.perf_counter()
                clients.produce_for(system.bootstrap, SECONDS, partitions=4)
                after = system.send_request()
                pairs.append(
                    (
                        (after["put_bytes"] - before["put_bytes"]) / (time.perf_counter() - began),
                        limit,
                    )
                )
    value, limit = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return [
        Measure(
            "bytes written to moto / plain 8 MiB PUTs to it",
            value / 1e6,
            "MB/s",
            0.8,
            "higher",
            limit / 1e6,
        )
    ]


async def _plain_gets(url: str) -> float:
    """Return MB/s of 4 MiB range GETs, 2 at once, from 16 MiB objects such as uploads write, with
    Penstock's S3 client.
    """
    store, keys, done = open_store(url), [f"plain/get/{number}" for number in range(16)], 0
    for key in keys:
        await store.put(key, bytes(16 * MIB))
    began = time.perf_counter()

    async def get_some(worker: int) -> None:
        nonlocal done
        for key in keys[worker::2]:
            for start in range(0, 16 * MIB, 4 * MIB):
                done += len(await store.get_range(key, start, 4 * MIB))

    await asyncio.gather(get_some(0), get_some(1))
    seconds = time.perf_counter() - began
    await store.close()
    return done / seconds / 1e6


def cold_read() -> list[Measure]:
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        with harness.moto() as url:
            limit = asyncio.run(_plain_gets(url))
            with harness.server(store=url, linger_ms=250) as system:
                clients.create_topic(system.bootstrap)
                count = clients.produce_for(system.bootstrap, SECONDS, bytes_per_s=60e6).records
                system.send_request("restart-broker")
                pairs.append((clients.consume_all(system.bootstrap, count).mb_per_s, limit))
    value, limit = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return [Measure("cold read / plain ranged GETs from moto", value, "MB/s", 0.6, "higher", limit)]


def latency() -> list[Measure]:
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap)
        values = clients.end_to_end_latencies_ms(system.bootstrap, 100, 2 * SECONDS)
    note = f"p50 {harness.quantile(values, 0.5):.1f} ms"
    return [
        Measure(
            "produce to consume at 100 records/s, memory store, p99",
            harness.quantile(values, 0.99),
            "ms",
            15,
            "lower",
            note=note,
        )
    ]


def slow_store_latency() -> list[Measure]:
    with harness.server(store="memory:", linger_ms=250, put_p50_ms=100, put_p99_ms=400) as system:
        clients.create_topic(system.bootstrap)
        values = clients.produce_latencies_ms(system.bootstrap, 5e6, 4 * SECONDS)
    return [
        Measure(
            "produce at 5 MB/s, PUTs lognormal p50 100 p99 400 ms, p50",
            harness.quantile(values, 0.5),
            "ms",
            200,
            "lower",
        ),
        Measure("the same, p99", harness.quantile(values, 0.99), "ms", 550, "lower"),
    ]


def puts_per_mb() -> list[Measure]:
    """Count PUTs at a constant rate of about 20 MB/s. Uploads after the end, of at most one 64 MiB
    block, are not counted.
    """
    with harness.moto() as url, harness.server(store=url, linger_ms=250) as system:
        clients.create_topic(system.bootstrap, 4)
        before = system.send_request()
        rate = clients.produce_for(system.bootstrap, 5 * SECONDS, bytes_per_s=21e6, partitions=4)
        after = system.send_request()
    megabytes = rate.records * clients.RECORD_BYTES / 1e6
    value = (after["put_count"] - before["put_count"]) / megabytes
    return [
        Measure(
            f"PUTs per MB at {rate.mb_per_s:.0f} MB/s, WAL and upload",
            value,
            "PUT/MB",
            0.5,
            "lower",
        )
    ]


def small_requests() -> list[Measure]:
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        with harness.sink() as bootstrap:
            limit = clients.small_requests_per_s(bootstrap, 8, SECONDS / 2)
        with harness.server(store="memory:") as system:
            clients.create_topic(system.bootstrap)
            clients.produce_for(system.bootstrap, 0.1)
            pairs.append((clients.small_requests_per_s(system.bootstrap, 8, SECONDS / 2), limit))
    value, limit = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return [
        Measure(
            "small requests (100 B, 8 connections) / bare sink", value, "1/s", 0.3, "higher", limit
        )
    ]


def metrics() -> list[Measure]:
    return metering.cost(SECONDS / 2, 3 * REPEATS)


@contextmanager
def _dev(*arguments: str) -> Iterator[tuple[Path, float]]:
    """Run `penstock dev`; yield its state file and the seconds until `ready:`.

    It uses ports below the ephemeral range, because a client connection could otherwise take the
    port of a restarting broker. Its logs go to a file: an unread pipe is full after 64 KiB, and
    each process of the cluster would then block at its next log line.
    """
    command = [str(Path(sys.executable).parent / "penstock"), "dev", "--port", "0", *arguments]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        log, state = Path(directory, "log"), Path(directory, "state.json")
        command += ["--state-file", str(state)]
        began = time.perf_counter()
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            try:
                if not any(line.startswith("ready:") for line in process.stdout):
                    raise RuntimeError(
                        f"penstock dev ended before it was ready: {log.read_text()[-500:]}"
                    )
                yield state, time.perf_counter() - began
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(30)


def start_up() -> list[Measure]:
    seconds: list[float] = []
    for _ in range(REPEATS):
        with _dev("--brokers", "2") as (_, took_s):
            seconds.append(took_s)
    return [
        Measure(
            "penstock dev, moto and 2 brokers, exec to ready",
            harness.median_of(seconds),
            "s",
            3,
            "lower",
        )
    ]


def memory() -> list[Measure]:
    """Measure the resident bytes of a broker process: idle, and leading 1,000 partitions."""
    with _dev("--brokers", "1") as (state, _):
        nodes = json.loads(state.read_text())["processes"]
        broker = next(node for node in nodes if node["role"] == "broker")
        bootstrap = f"127.0.0.1:{broker['port']}"
        idle = _resident_mb(broker["pid"])
        clients.create_topic(bootstrap, 1_000, "many")
        writer = clients.producer(bootstrap)
        for index in range(1_000):
            writer.produce("many", b"x", partition=index)
        assert writer.flush(60) == 0
        full = _resident_mb(broker["pid"])
    return [
        Measure("broker process after start", idle, "MB", 100, "lower"),
        Measure("broker process with 1,000 partitions open", full, "MB", 250, "lower"),
    ]


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} is gone")


@contextmanager
def _cluster(brokers: int, *arguments: str) -> Iterator[tuple[str, Path]]:
    """Start a cluster of processes over moto; yield (bootstrap servers, state file)."""
    with _dev("--brokers", str(brokers), *arguments) as (state, _):
        nodes = json.loads(state.read_text())["processes"]
        yield (
            ",".join(f"127.0.0.1:{node['port']}" for node in nodes if node["role"] == "broker"),
            state,
        )


def planned_moves() -> list[Measure]:
    """Measure planned moves under 2 MB/s over 50 partitions, on plain moto and with PUTs as slow as
    those of S3.
    """
    with _cluster(3) as (bootstrap, _):
        plain = moves.planned_gaps_ms(bootstrap, [0, 1, 2], 10 * REPEATS + 6, 0.8)
    with harness.server(
        store="memory:", linger_ms=250, put_p50_ms=100, put_p99_ms=400, brokers=3
    ) as system:
        slow = moves.planned_gaps_ms(system.bootstrap, [0, 1, 2], 10 * REPEATS + 6, 2.0)
    return [
        Measure(
            "gap of a partition that moves, moto, p50",
            harness.quantile(plain, 0.5),
            "ms",
            150,
            "lower",
            note=f"{len(plain)} moves",
        ),
        Measure("the same, p99", harness.quantile(plain, 0.99), "ms", 500, "lower"),
        Measure(
            "the same, PUTs lognormal p50 100 p99 400 ms, p50",
            harness.quantile(slow, 0.5),
            "ms",
            400,
            "lower",
        ),
        Measure(
            "the same, PUTs lognormal, p99", harness.quantile(slow, 0.99), "ms", 1_000, "lower"
        ),
    ]


def kills() -> list[Measure]:
    """Kill a broker with SIGKILL and measure the gap of each partition that it led."""
    with _cluster(3) as (bootstrap, state):
        times = moves.kill_to_produce_ms(
            bootstrap, [0, 1, 2], max(2, REPEATS), moves.Kill(state, signal.SIGKILL)
        )
    return [
        Measure(
            "kill -9 to the next produce, p50",
            harness.quantile(times, 0.5),
            "ms",
            1_500,
            "lower",
            note=f"{len(times)} partitions",
        ),
        Measure("the same, p99", harness.quantile(times, 0.99), "ms", 3_000, "lower"),
    ]


def drain() -> list[Measure]:
    with _cluster(3) as (bootstrap, state):
        seconds = moves.drain_s(bootstrap, [0, 1, 2], 1_000, moves.Kill(state, signal.SIGTERM))
    return [
        Measure(
            "SIGTERM to exit of a broker that leads 1,000 partitions", seconds, "s", 10, "lower"
        )
    ]


def failover() -> list[Measure]:
    """Measure the whole failover: detection, WAL recovery, election, opening, produce."""
    with _cluster(3) as (bootstrap, state):
        seconds = moves.open_after_kill_s(
            bootstrap, [0, 1, 2], 1_000, moves.Kill(state, signal.SIGKILL)
        )
    return [
        Measure(
            "kill -9 of a broker with 1,000 partitions until the next leader produces to all",
            seconds,
            "s",
            5,
            "lower",
        )
    ]


def newcomer() -> list[Measure]:
    """Measure auto-balance with its default settings, under 2 MB/s over 50 partitions."""
    with _cluster(3, "--auto-balance", "--no-restart") as (bootstrap, state):
        seconds = moves.newcomer_s(bootstrap, moves.Kill(state, signal.SIGTERM), 2)
    return [
        Measure(
            "third broker of a loaded cluster, exec to leading its share", seconds, "s", 30, "lower"
        )
    ]


def controller_work() -> list[Measure]:
    """Measure the controller with large metadata and with many concurrent requests."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        store = f"file:{place}/store"
        count = controllers.write_snapshot(store)
        starts = [
            controllers.start_s(store, Path(place) / f"controller-{number}")
            for number in range(REPEATS)
        ]
    rates = [controllers.commits_per_s(SECONDS) for _ in range(REPEATS)]
    note = f"{count:,} records in its snapshot, {controllers.PARTITIONS:,} partitions"
    return [
        Measure(
            "controller start with 100,000 stream objects, exec to serving",
            harness.median_of(starts),
            "s",
            3,
            "lower",
            note=note,
        ),
        Measure(
            "metadata commits through 3 controllers in one process",
            harness.median_of(rates),
            "/s",
            5_000,
            "higher",
            note=(
                f"{controllers.RECORD_BYTES}-byte records, {controllers.IN_FLIGHT_COUNT} in flight"
            ),
        ),
    ]


def many_partitions() -> list[Measure]:
    """Measure 10,000 partitions on 3 brokers and 3 controllers, as processes on moto. There are no
    external targets for these figures.
    """
    brokers = [0, 1, 2]
    with _cluster(len(brokers), "--controllers", "3") as (bootstrap, state):
        created = scale.create_s(bootstrap, brokers)
        moved = scale.move_s(bootstrap, brokers)
        failed_over = scale.fail_over_s(bootstrap, brokers, moves.Kill(state, signal.SIGKILL))
    return [
        Measure("10,000 partitions created, until each took a record", created, "s", 30, "lower"),
        Measure(
            "10,000 partitions moved by one file, until each took a record", moved, "s", 30, "lower"
        ),
        Measure(
            "kill -9 of the broker that leads 3,333, until all 10,000 took a record",
            failed_over,
            "s",
            30,
            "lower",
        ),
    ]


def scale_work() -> list[Measure]:
    return [*controller_work(), *many_partitions()]


BARS: Final[dict[str, Callable[[], Sequence[Measure]]]] = {
    "throughput": throughput,
    "store-writes": store_writes,
    "cold-read": cold_read,
    "latency": latency,
    "slow-store": slow_store_latency,
    "wal_store": wal_store.wal_store,
    "wal_store_java": wal_store.java_producer,
    "puts-per-mb": puts_per_mb,
    "small-requests": small_requests,
    "metrics": metrics,
    "start-up": start_up,
    "memory": memory,
    "compaction": compaction.compaction,
    "console-topics": console.topics_in_browser,
    "console-faults": console.pages_with_a_hung_broker,
    "forks": forks.forks,
    "life": life.life,
    "leaks": leaks.leaks,
    "moves": planned_moves,
    "kills": kills,
    "drain": drain,
    "failover": failover,
    "newcomer": newcomer,
    "scale": scale_work,
    "sessions": sessions.sessions,
    "share": shares.shares,
    "sql": sql.sql,
    "tables": tables.tables,
    "timers": timers.timers,
    "groups": groups.groups,
    "classic-groups": classic_groups.classic_groups,
    "transactions": transactions.transactions,
    "control": control.control,
    "acls": acls.acls,
    "security": security.security,
    "attacks": attacks.attacks,
    "long-requests": long_requests.long_requests,
    "record_validation": lambda: record_validation.cost(20),
    "quotas": lambda: quotas.cost(SECONDS / 2, REPEATS),
    "plugin": plugin.plugin,
    "ready": starts.ready,
}

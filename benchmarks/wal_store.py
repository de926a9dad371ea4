"""Measure produce latency with the WAL in the store, in a faster store, and in a directory.

PUTs of in-memory stores are delayed within the process, log-normally. "Without delay" and `file:`
have the defaults of a WAL store with cheap requests: no batching delay. The directory is below
BENCH_WAL_DIR, /var/tmp by default; its disk is measured by fsyncs of small new files.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks import clients, harness
from benchmarks.harness import Measure
from benchmarks.kafka import KafkaMissing, prepared
from penstock.objectstore.mounts import mount_of, parse_mountinfo

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
"""Targets relative to the latency without a WAL store: PUT p50 + 4 ms and p99 + 7 ms, paced PUT p50
+ 8 ms and p99 + 15 ms.
"""


FILE_ALLOWED_MS: Final = (2, 6, 4, 12)
"""Milliseconds allowed above the p50 and p99 of fsync, in the order of `RATIOS`."""
FSYNCS: Final = 300
JAVA_PARTITIONS: Final = (1, 12)
JAVA_MB_PER_S: Final = {"WAL store": (7, 40), "file": (20, 50)}
"""Targets for Kafka's Java producer with default settings, by number of partitions."""
JAVA_RECORDS: Final = max(20_000, int(5_000 * SECONDS))
_JAVA_RATE: Final = re.compile(r" records/sec \(([\d.]+) MB/sec\)")


def wal_store() -> list[Measure]:
    limits = latencies_ms(STORE)
    in_memory = [
        Measure(f"{setup}: {name}", value, "ms", ratio, "lower", limit)
        for setup, options in SETUPS.items()
        for (name, ratio), value, limit in zip(
            RATIOS.items(), latencies_ms(options), limits, strict=True
        )
    ]
    return [*in_memory, *in_directory()]


def in_directory() -> list[Measure]:
    with tempfile.TemporaryDirectory(dir=_directory()) as directory:
        fsyncs = fsyncs_ms(Path(directory))
        disk = [harness.quantile(fsyncs, at) for at in (0.5, 0.99)]
        found = latencies_ms(STORE | {"wal_dir": directory})
    note = f"fsync {disk[0]:.1f} / {disk[1]:.1f} ms"
    return [
        Measure(f"file: {name}", value, "ms", 1, "lower", fsync_ms + allowed_ms, note)
        for name, value, fsync_ms, allowed_ms in zip(
            RATIOS, found, disk * 2, FILE_ALLOWED_MS, strict=True
        )
    ]


def fsyncs_ms(directory: Path) -> list[float]:
    """Measure fsync of small new files. Raises ValueError for an in-memory file system."""
    table = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    mount = mount_of(str(directory.resolve()), table)
    if mount is not None and mount.fs_type in {"tmpfs", "ramfs"}:
        raise ValueError(f"{directory} is in memory ({mount.fs_type}): set BENCH_WAL_DIR")
    found: list[float] = []
    for number in range(FSYNCS):
        with open(directory / f"fsync-{number}", "wb", buffering=0) as file:
            file.write(b"x" * 1_000)
            began = time.perf_counter()
            os.fsync(file.fileno())
            found.append((time.perf_counter() - began) * 1_000)
    return found


def java_producer() -> list[Measure]:
    """Measure Kafka's Java producer with default settings and 1 kB records."""
    try:
        class_path = prepared()
    except KafkaMissing as error:
        return [Measure("Java producer", 0, "MB/s", 0, "higher", note=str(error))]
    with tempfile.TemporaryDirectory(dir=_directory()) as directory:
        setups = {**SETUPS, "file": STORE | {"wal_dir": directory}}
        return [
            Measure(
                f"{setup}: Java producer, {partitions} partitions",
                java_mb_per_s(class_path, options, partitions),
                "MB/s",
                JAVA_MB_PER_S[setup.partition(",")[0]][at],
                "higher",
            )
            for setup, options in setups.items()
            for at, partitions in enumerate(JAVA_PARTITIONS)
        ]


def java_mb_per_s(class_path: str, options: dict[str, object], partitions: int) -> float:
    with harness.server(**options) as system:
        clients.create_topic(system.bootstrap, partitions)
        command = ["java", "-cp", class_path, "org.apache.kafka.tools.ProducerPerformance"]
        command += ["--topic", clients.TOPIC, "--num-records", str(JAVA_RECORDS)]
        command += ["--record-size", "1000", "--throughput", "-1"]
        command += ["--bootstrap-server", system.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    return float(_JAVA_RATE.findall(done.stdout)[-1])


def _directory() -> str:
    return os.environ.get("BENCH_WAL_DIR", "/var/tmp")


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
    """Measure from `produce` to the acknowledgment, with one record in flight."""
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

"""Shared parts of the Spark benchmarks: a session, Parquet files of a topic's rows, and rounds in
which all sides take turns.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

from penstock import scan
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.errors import UnknownPartition
from penstock.lake.manifest.view import PartitionOffsets

CORES: Final = 2
ROOT: Final = Path(__file__).resolve().parents[1]
ROW_GROUP_BYTES: Final = 128 << 20
SETTLED_S: Final = 120.0
_UNITS: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
CONSOLE: Final = Console(stderr=True)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # docs/reference/spark.md recommends the Unix domain socket.
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


def until_settled(store_url: str, topic: str, count: int) -> list[PartitionOffsets]:
    """Wait until everything is uploaded and committed, so that the brokers are idle."""
    cluster, deadline = StoreCluster(store_url), time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        try:
            states = cluster.partitions(topic)
        except UnknownPartition:
            states = []
        if sum(state.committed_end for state in states) == count:
            return states
        time.sleep(0.5)
    raise RuntimeError(
        f"the topic's {count:,} records are not all committed after {SETTLED_S:.0f} s"
    )


def write_parquet(store_url: str, topic: str, directory: Path, partitions: int) -> None:
    """Write one file per partition with row groups of 128 MiB and pyarrow's other defaults."""
    for partition in range(partitions):
        rows = scan(store_url, topic, partitions=[partition])
        with pq.ParquetWriter(directory / f"{partition}.parquet", rows.schema) as writer:
            group: list[Any] = []
            for batch in rows:
                group.append(batch)
                if sum(item.nbytes for item in group) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_whole(directory: Path) -> None:
    piece = bytearray(1 << 20)
    for folder, _, names in os.walk(directory):
        for name in names:
            # A broker may delete it in the meantime.
            with (
                suppress(FileNotFoundError),
                Path(folder, name).open("rb", buffering=0) as file,
            ):
                while file.readinto(piece):
                    pass


class Turns:
    """Wall times of the counted rounds, and the broker's CPU time during them. At the start of a
    turn, everything below `directory` is in the page cache; otherwise some turns read 2 GB from
    disk, because kernels with DAMON reclaim pages that were unread for a minute.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid = pid
        self._directory = directory
        self._took_s: dict[str, list[float]] = {}
        self._broker_s: dict[str, list[float]] = {}

    def take(
        self, name: str, work: Callable[[], object], expected: object = None, *, counts: bool = True
    ) -> None:
        read_whole(self._directory)
        broker_s, began = cpu_s(self._pid), time.monotonic()
        response = work()
        took_s, broker_s = time.monotonic() - began, cpu_s(self._pid) - broker_s
        if response != expected:
            raise RuntimeError(f"{name}: {response} instead of {expected}")
        CONSOLE.print(
            f"  {name}: {took_s:.2f} s, broker {broker_s / took_s:.0%} of a"
            f" core{'' if counts else ', to warm up'}"
        )
        if counts:
            self._took_s.setdefault(name, []).append(took_s)
            self._broker_s.setdefault(name, []).append(broker_s)

    def took_s(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self._took_s[name])

    def faster(self, name: str, other: str) -> float:
        """Return the median over all rounds of the speed relative to the other side in the same
        round.
        """
        return statistics.median(
            theirs / ours
            for ours, theirs in zip(self._took_s[name], self._took_s[other], strict=True)
        )

    def broker_share(self, name: str) -> float:
        return sum(self._broker_s[name]) / sum(self._took_s[name])


def parsed_bytes(text: str) -> int:
    """Return the number of bytes in text such as `200MB`."""
    unit = text[-2:].upper()
    return int(float(text[:-2]) * _UNITS[unit]) if unit in _UNITS else int(text)

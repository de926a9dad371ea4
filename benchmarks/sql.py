"""Measure SQL on topics: the time of `penstock sql` for the flights query, and JSON compared with
DuckDB's `read_json` of the same rows.

Both sides run in this process in turn; the median pair counts. CPU time is a second measure,
because other load on the machine slows one side of a pair. Run: `python -m benchmarks sql`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import Measure
from penstock import Cluster, topics
from penstock.deploy.demo.flights import Flight, read_flights
from penstock.lake.sql.session import Session

PAIRS: Final = int(os.environ.get("BENCH_REPEATS", "3"))
JSON_BYTES: Final = int(os.environ.get("BENCH_SQL_BYTES", str(1_000_000_000)))
QUERY: Final = "SELECT carrier, avg(dep_delay) FROM {} GROUP BY carrier ORDER BY carrier"
_WAIT_S: Final = 120.0


def sql() -> list[Measure]:
    """Measure the command and JSON decoding on a cluster with a directory store."""
    flights = list(read_flights(1_000_000))
    with tempfile.TemporaryDirectory() as directory:
        with Cluster(store=f"file:{directory}/objects") as cluster:
            store = cluster.store
            _produce(cluster, "flights", flights)
            repeats = max(1, JSON_BYTES // sum(len(flight.value) for flight in flights))
            _produce(cluster, "big", (flight for _ in range(repeats) for flight in flights))
            started = _exec_seconds(store)
            rows = Path(directory) / "rows.json"
            with rows.open("wb") as file:
                for _ in range(repeats):
                    file.writelines(flight.value + b"\n" for flight in flights)
            pairs = _json_pairs(store, rows)
        size_mb = rows.stat().st_size / 1e6
    wall, cpu = zip(*pairs, strict=True)
    what = "SQL on JSON in a topic / DuckDB's read_json of a file"
    return [
        Measure("penstock sql, flights by carrier, exec to result", started, "s", 1.5, "lower"),
        _compared(what, size_mb, wall),
        _compared("the same per CPU second", size_mb, cpu),
    ]


def _compared(what: str, size_mb: float, pairs: Sequence[tuple[float, float]]) -> Measure:
    topic_s, file_s = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
    return Measure(what, size_mb / topic_s, "MB/s", 0.6, "higher", size_mb / file_s)


def _produce(cluster: Cluster, topic: str, flights: Iterator[Flight] | list[Flight]) -> None:
    """Write flights as the demo does, and wait until the manifest contains the topic."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    config = {"retention.ms": "-1"}
    admin = AdminClient(servers)  # its requests end when it is deleted
    admin.create_topics([NewTopic(topic, 6, config=config)])[topic].result(60)
    producer = Producer({**servers, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for flight in flights:
        while True:
            try:
                producer.produce(topic, flight.value, flight.key, timestamp=flight.timestamp_ms)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(_WAIT_S) == 0
    deadline = time.monotonic() + _WAIT_S
    while topic not in [item.name for item in topics(cluster.store)]:
        assert time.monotonic() < deadline


def _exec_seconds(store: str) -> float:
    """Return the median seconds of the command, without the first run, which may compile
    modules.
    """
    command = (
        sys.executable,
        "-m",
        "penstock.deploy.cli",
        "sql",
        QUERY.format("flights"),
        "--store",
        store,
    )
    seconds: list[float] = []
    for _ in range(PAIRS + 1):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def _json_pairs(store: str, rows: Path) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return pairs of both sides for the same result: seconds, and CPU seconds."""
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    reader = duckdb.connect()
    from_file = QUERY.format(f"read_json('{rows}', format='newline_delimited')")
    with Session(store) as session:
        for _ in range(PAIRS + 1):
            began = _clocks()
            found = session.run(QUERY.format("big")).rows()
            between = _clocks()
            expected = reader.execute(from_file).fetchall()
            end = _clocks()
            wall, cpu = (
                (middle - first, last - middle)
                for first, middle, last in zip(began, between, end, strict=True)
            )
            pairs.append((wall, cpu))
            assert [carrier for carrier, _ in found] == [carrier for carrier, _ in expected]
            assert all(abs(a - b) < 1e-6 for (_, a), (_, b) in zip(found, expected, strict=True))
    return pairs[1:]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()

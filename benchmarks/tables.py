"""Measure the export of many topics by `penstock table run`: lag and CPU time.

Topics of 1 KB JSON records with six columns receive a constant rate, with the default commit
interval. A record's lag is the time from its acknowledgment to the snapshot that contains it. The
CPU time is that of exporting all records, divided by the time in which they were produced.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import harness
from benchmarks.harness import Measure
from penstock.lake.table.catalog import open_catalog
from penstock.lake.table.iceberg import OFFSETS
from penstock.lake.table.warehouse import Warehouse, table_name_of

TOPICS: Final = 20
BYTES_PER_S: Final = 10_000_000
VALUE_BYTES: Final = 1_000
SECONDS: Final = float(os.environ.get("BENCH_TABLES_SECONDS", "100"))
SAMPLE_EVERY: Final = 20
SETTLED_S: Final = 120.0
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "price": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "paid": {"type": "boolean"},
        "text": {"type": "string"},
    },
}
_CONFIGS: Final = {
    "penstock.table.enable": "true",
    "penstock.table.schema": json.dumps(_SCHEMA),
}

Sample = tuple[str, int, int, float]
"""Topic, partition, offset and time of the acknowledgment."""


def tables() -> list[Measure]:
    with tempfile.TemporaryDirectory() as directory:
        store, warehouse = f"file:{directory}/store", Path(directory) / "warehouse"
        with harness.server(store=store) as system:
            names = [f"bench-{number}" for number in range(TOPICS)]
            _create(system.bootstrap, names)
            with _runner(store, warehouse) as pid:
                before, began = _cpu_s(pid), time.monotonic()
                samples, sent = _produce(system.bootstrap, names)
                seconds = time.monotonic() - began
                rate = sent * VALUE_BYTES / seconds
                lags = _lags(warehouse, samples)
                cpu = (_cpu_s(pid) - before) / seconds
    note = f"{TOPICS} topics, {rate / 1e6:.1f} MB/s of JSON"
    return [
        Measure(
            "lag of exported records, p99",
            harness.quantile(lags, 0.99),
            "s",
            90,
            "lower",
            note=note,
        ),
        Measure("the same, p50", harness.quantile(lags, 0.5), "s", 90, "lower"),
        Measure("CPU of the table runner", cpu, "cores", 1, "lower", note=note),
    ]


def _create(bootstrap: str, names: list[str]) -> None:
    admin: Any = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(
        [NewTopic(name, 1, config=_CONFIGS) for name in names]
    ).values():
        future.result(60)


@contextmanager
def _runner(store: str, warehouse: Path) -> Generator[int]:
    command = (sys.executable, "-m", "penstock.deploy.cli", "table", "run", "--store", store)
    with subprocess.Popen(
        (*command, "--warehouse", str(warehouse)), stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _produce(bootstrap: str, names: list[str]) -> tuple[list[Sample], int]:
    """Produce at a constant rate, or at a lower rate on a slow machine. Return a sample of the
    records, and the number of records.
    """
    samples: list[Sample] = []

    def acknowledged(error: object, message: Message) -> None:
        assert error is None, error
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if offset is not None and offset % SAMPLE_EVERY == 0:
            assert topic is not None
            assert partition is not None
            samples.append((topic, partition, offset, time.time()))

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    row = {"name": "a name", "price": 12.5, "at": "2026-01-31T12:00:00Z", "paid": True}
    text = "x" * (VALUE_BYTES - 120)
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < SECONDS:
        for _ in range(int(elapsed * BYTES_PER_S / VALUE_BYTES) - sent):
            value = json.dumps({"id": sent, **row, "text": text})
            try:
                producer.produce(names[sent % len(names)], value, on_delivery=acknowledged)
            except BufferError:  # the machine is too slow for the rate
                break
            sent += 1
        producer.poll(0.01)
    assert producer.flush(60) == 0
    return samples, sent


def _lags(warehouse: Path, samples: list[Sample]) -> list[float]:
    """Wait until every table contains its records, and return the lags of the samples
    in seconds.
    """
    ends: dict[str, int] = {}
    for topic, _, offset, _ in samples:
        ends[topic] = max(offset, ends.get(topic, 0))
    lags: list[float] = []
    for topic, end in ends.items():
        history = _commits(warehouse, topic, end)
        offsets = [offset for offset, _ in history]
        for name, _, offset, at_s in samples:
            if name == topic:
                lags.append(history[bisect_right(offsets, offset)][1] - at_s)
    return lags


def _commits(warehouse: Path, topic: str, end: int) -> list[tuple[int, float]]:
    """Return the next offset and the time of each commit, as soon as one of them is after `end`."""
    deadline = time.monotonic() + SETTLED_S
    place = Warehouse(kind="iceberg", location=str(warehouse))
    identifier = f"default.{table_name_of(topic)}"
    while True:
        with open_catalog(place.catalog_name, place.properties()) as catalog:
            there = catalog.table_exists(identifier)
            snapshots = catalog.load_table(identifier).snapshots() if there else []
        summaries: list[tuple[Any, float]] = [
            (item.summary, item.timestamp_ms / 1_000) for item in snapshots
        ]
        found = sorted(
            (int(json.loads(summary[OFFSETS])[topic]["0"]), at_s)
            for summary, at_s in summaries
            if summary is not None and OFFSETS in summary.additional_properties
        )
        if found and found[-1][0] > end:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"table of {topic} ends at {found[-1:]}, not after {end}")
        time.sleep(1)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

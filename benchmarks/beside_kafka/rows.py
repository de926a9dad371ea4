"""Define the rows of the table, with units and targets. Pure: starts nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

KAFKA: Final = "kafka"


@dataclass(frozen=True, slots=True)
class Bar:
    """The target of a value. beside_kafka: whether it is a ratio to Kafka's value."""

    value: float
    beside_kafka: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A row. measurement: the measurement that yields its values. bars: targets by
    system, or "*".
    """

    key: str
    measurement: str
    title: str
    unit: str
    better: Literal["higher", "lower"]
    bars: Mapping[str, Bar] = field(default_factory=dict[str, Bar])

    def bar_of(self, system: str) -> Bar | None:
        """Return the target of a system; None for Kafka, and without a target."""
        if system == KAFKA:
            return None
        return self.bars.get(system, self.bars.get("*"))

    def ratio(self, values: Mapping[str, float], system: str) -> float | None:
        """Return the value divided by Kafka's, or None if either is missing or Kafka's is 0."""
        ours, theirs = values.get(system), values.get(KAFKA)
        return ours / theirs if ours is not None and theirs else None

    def passed(self, values: Mapping[str, float], system: str) -> bool | None:
        """Return whether the target is met, or None without a target or a value to compare with."""
        bar = self.bar_of(system)
        if bar is None:
            return None
        figure = self.ratio(values, system) if bar.beside_kafka else values.get(system)
        if figure is None:
            return None
        return figure >= bar.value if self.better == "higher" else figure <= bar.value


def medians(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each key over the rounds that contain it."""
    found: dict[str, list[float]] = {}
    for values in rounds:
        for key, value in values.items():
            found.setdefault(key, []).append(value)
    return {key: median(values) for key, values in found.items()}


def _every(value: float, *, beside_kafka: bool = True) -> Mapping[str, Bar]:
    return {"*": Bar(value, beside_kafka)}


def _processes(value: float) -> Mapping[str, Bar]:
    """Return an absolute target for brokers in separate processes."""
    return dict.fromkeys(("file", "moto", "versitygw"), Bar(value, beside_kafka=False))


_ROWS: Final = (
    Row("produce", "clients", "Produce, 1 KB records, librdkafka", "MB/s", "higher"),
    Row("produce-cpu", "clients", "CPU of the broker per MB produced", "ms", "lower", _every(1.0)),
    Row("consume", "clients", "Consume from the beginning, librdkafka", "MB/s", "higher"),
    Row("consume-cpu", "clients", "CPU of the broker per MB consumed", "ms", "lower", _every(1.0)),
    Row("tail", "clients", "Produce and consume the tail at once", "MB/s", "higher", _every(1.0)),
    Row("produce-100", "clients", "Produce, 100-byte records, librdkafka", "MB/s", "higher"),
    Row(
        "produce-100-cpu", "clients", "CPU of the broker per MB of 100-byte records", "ms", "lower"
    ),
    Row(
        "java-produce",
        "java",
        "Produce, 1 KB records, Java",
        "MB/s",
        "higher",
        {"memory": Bar(1.2), "file": Bar(1.0)},
    ),
    Row(
        "java-produce-cpu",
        "java",
        "CPU of the broker per MB produced, Java",
        "ms",
        "lower",
        _every(1.0),
    ),
    Row("java-consume", "java", "Consume from the beginning, Java", "MB/s", "higher"),
    Row(
        "java-consume-cpu",
        "java",
        "CPU of the broker per MB consumed, Java",
        "ms",
        "lower",
        _every(1.0),
    ),
    Row("small", "small", "Small requests, 8 connections", "/s", "higher", _every(1.0)),
    Row("small-cpu", "small", "CPU of the broker per small request", "us", "lower", _every(1.5)),
    Row("latency-p50", "latency", "Produce to consume, 100/s, p50", "ms", "lower"),
    Row(
        "latency-p99",
        "latency",
        "Produce to consume, 100/s, p99",
        "ms",
        "lower",
        {"memory": Bar(1.0)},
    ),
    Row("latency-p999", "latency", "Produce to consume, 100/s, p99.9", "ms", "lower"),
    Row("half-rate", "latency", "Produce to consume, maximum rate", "MB/s", "higher"),
    Row("half-p50", "latency", "Produce to consume at half of it, p50", "ms", "lower"),
    Row("half-p99", "latency", "Produce to consume at half of it, p99", "ms", "lower"),
    Row("half-p999", "latency", "Produce to consume at half of it, p99.9", "ms", "lower"),
    Row("fan-out", "fan-out", "20 consumers of the tail, together", "MB/s", "higher", _every(1.0)),
    Row(
        "fan-out-cpu",
        "fan-out",
        "CPU of the broker per MB delivered to them",
        "ms",
        "lower",
        _every(1.0),
    ),
    Row("partitions-p50", "partitions", "5 MB/s over 1,000 partitions, p50", "ms", "lower"),
    Row("partitions-p99", "partitions", "5 MB/s over 1,000 partitions, p99", "ms", "lower"),
    Row(
        "partitions-cpu",
        "partitions",
        "5 MB/s over 1,000 partitions, CPU of the broker",
        "% of a core",
        "lower",
    ),
    Row(
        "rss-idle",
        "footprint",
        "Memory of the broker, idle",
        "MB",
        "lower",
        _processes(80),
    ),
    Row(
        "rss-partitions",
        "footprint",
        "Memory of the broker, 1,000 partitions",
        "MB",
        "lower",
        _processes(100),
    ),
    Row("rss-loaded", "footprint", "Memory of the broker after 500 MB", "MB", "lower"),
    Row("group", "group", "Group of 50, last join to settled", "s", "lower"),
    Row("start", "start", "Start of broker and controller to first record", "s", "lower"),
    Row("cold-read", "cold-read", "Cold read after a restart", "MB/s", "higher"),
    Row("move", "move", "Move of a partition with 1 GB", "s", "lower", _every(0.1)),
    Row(
        "kill-p50",
        "kill",
        "kill -9 of a leader to the next record, p50",
        "s",
        "lower",
        _every(0.8, beside_kafka=False),
    ),
    Row(
        "kill-p99",
        "kill",
        "kill -9 of a leader to the next record, p99",
        "s",
        "lower",
        _every(1.5, beside_kafka=False),
    ),
    Row(
        "kill-all",
        "kill-all",
        "kill -9 of all brokers to the next record, p50",
        "s",
        "lower",
        _every(3.0, beside_kafka=False),
    ),
    Row(
        "planned-p50",
        "planned",
        "Gap of a planned move, p50",
        "ms",
        "lower",
        _every(75, beside_kafka=False),
    ),
    Row(
        "planned-p99",
        "planned",
        "Gap of a planned move, p99",
        "ms",
        "lower",
        _every(200, beside_kafka=False),
    ),
    Row(
        "store-writes",
        "store-writes",
        "Bytes written to the store / plain PUTs",
        "of 1",
        "higher",
        _every(0.8, beside_kafka=False),
    ),
)
ROWS: Final[Mapping[str, Row]] = {row.key: row for row in _ROWS}
MEASUREMENTS: Final = tuple(dict.fromkeys(row.measurement for row in _ROWS))

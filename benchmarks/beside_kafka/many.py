"""Measure one broker with many partitions, connections and groups, at several sizes.

Fits the exponent of each cost's growth: 1 is linear, above 1 is superlinear.
"""

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks import clients
from benchmarks.beside_kafka import systems
from benchmarks.beside_kafka.chart import figure, save
from benchmarks.beside_kafka.node import quiet_cpu_s
from benchmarks.beside_kafka.results import ROOT, commit
from benchmarks.beside_kafka.systems import System

FILE: Final = ROOT / "build" / "beside_kafka_many.json"
CHART: Final = ROOT / "docs" / "many.svg"
_TOPIC: Final = "many"
_ROUNDS: Final = 5
_LIMIT_S: Final = 300.0
_CONNECTIONS_EACH: Final = 0.5
_GROUPS_EACH: Final = 0.05
"""Number of connections and groups per partition."""

Values = dict[str, dict[int, float]]
"""By measured quantity, then by size."""


def exponent(values: Mapping[int, float]) -> float | None:
    """Return the exponent b of the best fit a * size**b, or None for fewer than two sizes or
    without costs.
    """
    points = [(math.log(size), math.log(cost)) for size, cost in values.items() if cost > 0]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None


def partitions(system: System, count: int) -> Mapping[str, float]:
    """Open `count` partitions, produce to all of them once per second, and restart the broker if
    its records survive a restart.
    """
    bootstrap, node = system.bootstrap, system.node
    idle_mb, cpu_s = node.resident_mb(), quiet_cpu_s(system.nodes)
    began = time.perf_counter()
    clients.create_topic(bootstrap, count, _TOPIC)
    to_all(bootstrap, count, 1)
    opened_s = time.perf_counter() - began
    opened_cpu_s = quiet_cpu_s(system.nodes) - cpu_s
    opened_mb = node.resident_mb()
    cpu_s, began = quiet_cpu_s(system.nodes), time.perf_counter()
    to_all(bootstrap, count, _ROUNDS)
    produced_cpu_s = quiet_cpu_s(system.nodes) - cpu_s
    measured = {
        "open, s": opened_s,
        "open, CPU s": opened_cpu_s,
        "memory of the open partitions, MB": opened_mb - idle_mb,
        "memory of the broker, MB": opened_mb,
        "memory after the load, MB": node.resident_mb(),
        "a record to each, CPU s": produced_cpu_s / _ROUNDS,
    }
    if system.survives:
        node.terminate()
        began = time.perf_counter()
        node.start()
        system.until_served()
        to_all(bootstrap, count, 1)
        measured["restart, s"] = time.perf_counter() - began
        measured["restart, CPU s"] = node.cpu_s()
    return measured


def to_all(bootstrap: str, count: int, rounds: int) -> None:
    """Produce a record to each partition once per second. Raises RuntimeError if one fails."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    settings = {"queue.buffering.max.messages": 2 * rounds * count, "linger.ms": 5}
    writer, began = clients.producer(bootstrap, **settings), time.perf_counter()
    for number in range(rounds):
        while time.perf_counter() < began + number:
            writer.poll(0.05)
        for index in range(count):
            writer.produce(_TOPIC, b"x" * 100, partition=index, on_delivery=delivered)
        writer.poll(0)
    unsent = writer.flush(_LIMIT_S)
    if unsent or failed:
        raise RuntimeError(f"{unsent} records were not acknowledged, {len(failed)} failed")


def connections(system: System, count: int) -> Mapping[str, float]:
    """Open `count` connections; each sends one ApiVersions request."""
    frame = _api_versions()
    host, _, port = system.bootstrap.rpartition(":")
    before_mb, cpu_s = system.node.resident_mb(), quiet_cpu_s(system.nodes)
    began, opened = time.perf_counter(), list[socket.socket]()
    try:
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=_LIMIT_S)
            opened.append(connection)
            connection.sendall(frame)
        for connection in opened:
            if not connection.recv(4_096):
                raise RuntimeError("the broker closed a connection")
        took_s = time.perf_counter() - began
        used_s = quiet_cpu_s(system.nodes) - cpu_s
        return {
            "connections, s": took_s,
            "connections, CPU s": used_s,
            "memory of the connections, MB": system.node.resident_mb() - before_mb,
        }
    finally:
        for connection in opened:
            connection.close()


def _api_versions() -> bytes:
    from penstock.protocol import apis
    from penstock.protocol.framing import encode_request_frame
    from penstock.protocol.gen import api_versions

    request = api_versions.ApiVersionsRequest("bench", "1")
    return bytes(
        encode_request_frame(
            apis.API_VERSIONS, 3, 7, api_versions.encode_request, request, client_id="bench"
        )
    )


def groups(system: System, count: int) -> Mapping[str, float]:
    """Commit an offset in each of `count` groups, and list them."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap})
    clients.create_topic(system.bootstrap, 1, "read")
    offsets = [TopicPartition("read", 0, 0)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("first", offsets)])[
        "first"
    ].result(_LIMIT_S)
    before_mb, cpu_s = system.node.resident_mb(), quiet_cpu_s(system.nodes)
    began = time.perf_counter()
    for number in range(count):
        name = f"group-{number}"
        request = [ConsumerGroupTopicPartitions(name, offsets)]
        admin.alter_consumer_group_offsets(request)[name].result(_LIMIT_S)
    listed = admin.list_consumer_groups().result(_LIMIT_S)
    if len(listed.valid or ()) < count:
        raise RuntimeError(f"{len(listed.valid or ())} of {count} groups are listed")
    took_s = time.perf_counter() - began
    return {
        "groups, s": took_s,
        "groups, CPU s": quiet_cpu_s(system.nodes) - cpu_s,
        "memory of the groups, MB": system.node.resident_mb() - before_mb,
    }


_PARTS: Final[Mapping[str, tuple[float, Callable[[System, int], Mapping[str, float]]]]] = {
    "partitions": (1.0, partitions),
    "connections": (_CONNECTIONS_EACH, connections),
    "groups": (_GROUPS_EACH, groups),
}


def main(console: Console, chosen: Sequence[str], sizes: Sequence[int]) -> None:
    """Measure each system at each size, print the costs and their exponents, and store those of
    the last system.
    """
    for name in chosen:
        values: Values = {}
        for size in sizes:
            for part, (each, measure) in _PARTS.items():
                count = int(each * size)
                console.print(f"{name}: {count:,} {part}")
                with systems.running(name) as system:
                    for key, value in measure(system, count).items():
                        values.setdefault(key, {})[count] = value
        console.print(table_of(name, values))
        FILE.parent.mkdir(exist_ok=True)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        measured = Measured(name, values, commit(), date)
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")


def table_of(name: str, values: Values) -> Table:
    table = Table(title=f"Many of everything, {name}", title_justify="left")
    table.add_column("cost")
    table.add_column("by size", justify="right")
    table.add_column("exponent", justify="right")
    for key, by_size in values.items():
        shown = ", ".join(f"{size:,}: {value:.2f}" for size, value in by_size.items())
        fitted = exponent(by_size)
        table.add_row(key, shown, "" if fitted is None else f"{fitted:.2f}")
    return table


class Measured(msgspec.Struct, frozen=True):
    """The measurements of one system, with the commit and the UTC date."""

    system: str
    values: Values
    commit: str
    date: str


def stored() -> Measured | None:
    """Return the newest results, or None."""
    if not FILE.exists():
        return None
    return msgspec.json.decode(FILE.read_bytes(), type=Measured)


def markdown(measured: Measured) -> str:
    """Return the table for the docs."""
    lines = [
        "### Many of everything",
        "",
        f"One broker over the `{measured.system}:` store, commit {measured.commit},"
        f" {measured.date[:10]}; connections send one request each, groups commit one offset each.",
        "The exponent is that of the curve `cost = a * size ** exponent` that fits best: 1 is"
        " linear, and costs that do not depend on the size pull it below 1.",
        "",
        "| Cost | At each size | Exponent |",
        "|---|---|---|",
    ]
    for key, by_size in measured.values.items():
        shown = "; ".join(f"{size:,}: {value:.3g}" for size, value in by_size.items())
        fitted = exponent(by_size)
        lines.append(f"| {key} | {shown} | {'' if fitted is None else f'{fitted:.2f}'} |")
    return "\n".join([*lines, "", f"![Cost by size]({CHART.name}){{ .diagram }}", ""])


def draw(values: Values) -> None:
    """Draw each cost relative to that of the smallest size, over the relative size."""
    with figure(7, 4.5) as axes:
        largest = 1.0
        for key, by_size in values.items():
            first = min(by_size)
            if by_size[first] <= 0:
                continue
            xs = [size / first for size in by_size]
            ys = [value / by_size[first] for value in by_size.values()]
            axes.plot(xs, ys, "o-", label=key, markersize=3, linewidth=1)
            largest = max(largest, *xs)
        axes.plot([1, largest], [1, largest], "--", color="#888888", label="linear", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("size, as a multiple of the smallest one")
        axes.set_ylabel("cost, as a multiple of that at the smallest size")
        axes.legend(fontsize=7)
        save(axes, CHART)

"""Measure one broker. Functions take a running system and return values by row key."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from benchmarks import clients, groups
from benchmarks.beside_kafka import raw
from benchmarks.beside_kafka.node import quiet_cpu_s
from benchmarks.beside_kafka.systems import System
from benchmarks.beside_kafka.warm import warm_up
from benchmarks.harness import quantile

CONSUMERS: Final = 20
CONNECTIONS: Final = 8
PARTITIONS: Final = 1_000
MEMBERS: Final = 50
_GROUP_PARTITIONS: Final = 100
_RATE_MB_PER_S: Final = 5.0
_LOAD_MB: Final = 500
_FIRST_RECORD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurements. warm_s: limit of each warm-up. cold_mb: data of the cold read.
    moved_mb: data of the partition that moves. kills: number of brokers that are killed one after
    another.
    """

    seconds: float = 4.0
    warm_s: float = 10.0
    rounds: int = 3
    java_mb: int = 2_000
    cold_mb: int = 2_000
    moved_mb: int = 1_000
    kills: int = 3

    @property
    def window_s(self) -> float:
        """Return the length of one warm-up window."""
        return self.seconds / 4


class Used:
    """CPU time of the nodes during a block, including the work that follows from it."""

    cpu_s: float = 0.0

    def ms_per(self, amount: float) -> float:
        return self.cpu_s * 1_000 / amount


@contextmanager
def used(system: System) -> Iterator[Used]:
    result, before = Used(), quiet_cpu_s(system.nodes)
    yield result
    result.cpu_s = quiet_cpu_s(system.nodes) - before


def _topic(system: System, partitions: int = 1) -> str:
    name = system.new_topic()
    clients.create_topic(system.bootstrap, partitions, name)
    raw.until_led(system.bootstrap, name)
    return name


def by_librdkafka(system: System, size: Size) -> Mapping[str, float]:
    """Produce and consume with confluent-kafka."""
    bootstrap, topic = system.bootstrap, _topic(system)

    def produce(seconds: float, record_bytes: int, topic: str) -> clients.Rate:
        return clients.produce_for(bootstrap, seconds, topic=topic, record_bytes=record_bytes)

    def consume(records: int, topic: str) -> clients.Rate:
        return clients.consume_all(bootstrap, records, topic=topic, record_bytes=1_000)

    warm = _topic(system)
    warm_up(lambda: produce(size.window_s, 1_000, warm).mb_per_s, size.warm_s)
    with used(system) as producing:
        produced = produce(size.seconds, 1_000, topic)
    warm_up(lambda: consume(produced.records // 4, topic).mb_per_s, size.warm_s)
    with used(system) as consuming:
        consumed = consume(produced.records, topic)
    warm, small = _topic(system), _topic(system)
    warm_up(lambda: produce(size.window_s, 100, warm).mb_per_s, size.warm_s)
    with used(system) as producing_small:
        rate = produce(size.seconds, 100, small)
    warm_up(lambda: _tail_mb_per_s(system, size.window_s), size.warm_s)
    return {
        "produce": produced.mb_per_s,
        "produce-cpu": producing.ms_per(produced.mb),
        "consume": consumed.mb_per_s,
        "consume-cpu": consuming.ms_per(consumed.mb),
        "tail": _tail_mb_per_s(system, size.seconds),
        "produce-100": rate.mb_per_s,
        "produce-100-cpu": producing_small.ms_per(rate.mb),
    }


def _tail_mb_per_s(system: System, seconds: float) -> float:
    """Consume while a producer runs, until everything has arrived."""
    topic, done = _topic(system), list[clients.Rate]()
    began = time.perf_counter()
    thread = threading.Thread(
        target=lambda: done.append(
            clients.produce_for(system.bootstrap, seconds, topic=topic, record_bytes=1_000)
        )
    )
    consumer = clients.consumer(system.bootstrap, topic)
    thread.start()
    seen = 0
    try:
        while not done or seen < done[0].records:
            messages = consumer.consume(10_000, 0.1)
            seen += len(messages)
            if time.perf_counter() - began > seconds + _FIRST_RECORD_S:
                raise TimeoutError(f"{seen} records arrived")
        return seen * 1_000 / (time.perf_counter() - began) / 1e6
    finally:
        thread.join()
        consumer.close()


def small_requests(system: System, size: Size) -> Mapping[str, float]:
    topic = _topic(system)

    def load(seconds: float) -> tuple[int, float]:
        return raw.small_requests(system.bootstrap, topic, CONNECTIONS, seconds)

    def requests_per_s() -> float:
        count, seconds = load(size.window_s)
        return count / seconds

    warm_up(requests_per_s, size.warm_s)
    with used(system) as using:
        count, seconds = load(size.seconds)
    return {"small": count / seconds, "small-cpu": using.cpu_s * 1e6 / count}


def latency(system: System, size: Size) -> Mapping[str, float]:
    bootstrap, topic = system.bootstrap, _topic(system)

    def slow_ms(seconds: float) -> list[float]:
        return clients.end_to_end_latencies_ms(bootstrap, 100, seconds, topic)

    def most_mb_per_s(seconds: float) -> float:
        # The same batches as at the constant rate, and the same bytes in flight as in fan_out.
        most = raw.fan_out(
            bootstrap, _topic(system), 1, seconds, records=raw.STEADY_RECORDS, in_flight=12
        )
        return most.produced_mb / most.seconds

    def half_ms(seconds: float) -> Sequence[float]:
        return raw.steady(bootstrap, _topic(system), rate / 2, seconds).latencies_ms

    warm_up(lambda: 1 / quantile(slow_ms(size.window_s), 0.5), size.warm_s)
    slow = slow_ms(2.5 * size.seconds)
    warm_up(lambda: most_mb_per_s(size.window_s), size.warm_s)
    rate = most_mb_per_s(size.seconds)
    warm_up(lambda: 1 / quantile(half_ms(size.window_s), 0.5), size.warm_s)
    half = half_ms(size.seconds)
    return {
        "latency-p50": quantile(slow, 0.5),
        "latency-p99": quantile(slow, 0.99),
        "latency-p999": quantile(slow, 0.999),
        "half-rate": rate,
        "half-p50": quantile(half, 0.5),
        "half-p99": quantile(half, 0.99),
        "half-p999": quantile(half, 0.999),
    }


def fan_out(system: System, size: Size) -> Mapping[str, float]:
    def load(seconds: float, topic: str) -> raw.Delivered:
        return raw.fan_out(system.bootstrap, topic, CONSUMERS, seconds)

    def mb_per_s() -> float:
        result = load(size.window_s, _topic(system))
        return result.consumed_mb / result.seconds

    warm_up(mb_per_s, size.warm_s)
    topic = _topic(system)
    with used(system) as using:
        result = load(size.seconds, topic)
    return {
        "fan-out": result.consumed_mb / result.seconds,
        "fan-out-cpu": using.ms_per(result.consumed_mb),
    }


def partitions(system: System, size: Size) -> Mapping[str, float]:
    topic = _topic(system, PARTITIONS)

    def load(mb_per_s: float, seconds: float) -> list[float]:
        return clients.produce_latencies_ms(
            system.bootstrap, mb_per_s * 1e6, seconds, topic=topic, partitions=PARTITIONS
        )

    load(0, 0)  # one record in each, so that no partition is opened and no log created under load
    warm_up(lambda: 1 / quantile(load(_RATE_MB_PER_S, size.window_s), 0.5), size.warm_s)
    before, began = sum(node.cpu_s() for node in system.nodes), time.perf_counter()
    latencies = load(_RATE_MB_PER_S, 2 * size.seconds)
    cpu_s = sum(node.cpu_s() for node in system.nodes) - before
    return {
        "partitions-p50": quantile(latencies, 0.5),
        "partitions-p99": quantile(latencies, 0.99),
        "partitions-cpu": 100 * cpu_s / (time.perf_counter() - began),
    }


def footprint(system: System, size: Size) -> Mapping[str, float]:
    """Measure memory: idle, with a record in each partition, and under load. Must run first on a
    new system.
    """
    idle = system.node.resident_mb()
    clients.produce_latencies_ms(
        system.bootstrap, 0, 0, topic=_topic(system, PARTITIONS), partitions=PARTITIONS
    )
    opened = system.node.resident_mb()
    topic, megabytes = _topic(system), 0.0
    while megabytes < _LOAD_MB:
        megabytes += clients.produce_for(system.bootstrap, size.seconds / 2, topic=topic).mb
    loaded = system.node.resident_mb()
    return {"rss-idle": idle, "rss-partitions": opened, "rss-loaded": loaded}


def group(system: System, size: Size) -> Mapping[str, float]:
    def settled_s() -> float:
        topic = _topic(system, _GROUP_PARTITIONS)
        took_s, _, _ = asyncio.run(groups.run(system.bootstrap, MEMBERS, _GROUP_PARTITIONS, topic))
        return took_s

    warm_up(lambda: 1 / settled_s(), size.warm_s)
    return {"group": settled_s()}


def first_record_s(bootstrap: str, began: float, topic: str, *, timeout_s: float) -> float:
    """Return the seconds since `began` until a record in a newly created topic is acknowledged.
    Raises TimeoutError.
    """
    acknowledged = list[float]()

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    client: Producer = clients.producer(
        bootstrap,
        **{
            "log_level": 0,
            "linger.ms": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 10,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "allow.auto.create.topics": True,
        },
    )
    while not acknowledged:
        if time.perf_counter() - began > timeout_s:
            raise TimeoutError(f"no record was acknowledged within {timeout_s:.0f} s")
        client.produce(topic, b"x" * 100, on_delivery=delivered)
        client.flush(timeout_s)
    return acknowledged[0] - began


def start(system: System, size: Size) -> Mapping[str, float]:
    """Start a stopped system."""
    del size
    began = time.perf_counter()
    for node in system.nodes:
        node.start()
    took = first_record_s(system.bootstrap, began, "first", timeout_s=_FIRST_RECORD_S)
    return {"start": took}


def cold_read(system: System, size: Size) -> Mapping[str, float]:
    """Read 1 KB records after a graceful restart, when they are not in the page cache."""
    if not system.survives:
        return {}
    topic, count = _topic(system), 0
    while count * 1_000 < size.cold_mb * 1e6:
        rate = clients.produce_for(system.bootstrap, 2, topic=topic, record_bytes=1_000)
        count += rate.records
    for node in system.brokers.values():
        node.terminate()
    system.forget_pages()
    system.start_brokers()
    system.until_served()
    consumed = clients.consume_all(system.bootstrap, count, topic=topic, record_bytes=1_000)
    return {"cold-read": consumed.mb_per_s}


Measurement = Callable[[System, Size], Mapping[str, float]]
SHARED: Final[Mapping[str, Measurement]] = {
    "footprint": footprint,
    "clients": by_librdkafka,
    "small": small_requests,
    "latency": latency,
    "fan-out": fan_out,
    "partitions": partitions,
    "group": group,
}
"""Measurements that may run one after another in one instance of a system, in this order."""

"""Measure several brokers: moves of a partition with data, and the effect of killed brokers on
clients.

In both systems, the measurement kills brokers with SIGKILL and restarts them: the leader after
other brokers have taken over, or all brokers at once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks import clients, moves
from benchmarks.beside_kafka.single import Size
from benchmarks.beside_kafka.systems import System
from benchmarks.harness import quantile
from penstock.deploy.admin.reassign.admin import (
    current_assignment,
    elect_preferred,
    ongoing,
    reassign,
)
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.wire import WireClient
from penstock.protocol.client.errors import KafkaFailed

_LIMIT_S: Final = 150.0
_LATE_S: Final = 0.25
"""Time after a kill during which in-flight acknowledgments may still arrive."""
_SETTLE_S: Final = 0.8


def _until(reached: Callable[[], bool], what: str, limit_s: float = _LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {limit_s:.0f} s: {what}")
        time.sleep(0.01)


def move(system: System, size: Size) -> Mapping[str, float]:
    """Move a partition from its only broker to the other one."""
    first, second = system.brokers
    topic, moved_mb = system.new_topic(), 0.0
    moves.create_topic(system.bootstrap, [[first]], topic)
    while moved_mb < size.moved_mb:
        moved_mb += clients.produce_for(
            system.bootstrap, 1, topic=topic, bytes_per_s=size.moved_mb * 1e6, record_bytes=1_000
        ).mb
    key = Key(topic, 0)
    with WireClient(system.bootstrap) as client:
        began = time.perf_counter()
        if problems := reassign(client, {key: (second,)}):
            raise RuntimeError(f"the move was refused: {problems}")

        def is_moved() -> bool:
            return not ongoing(client) and current_assignment(client, [topic])[0][key] == (second,)

        _until(is_moved, "the partition moves", _LIMIT_S)
        took = time.perf_counter() - began
    return {"move": took * size.moved_mb / moved_mb}


def _rows(ids: Sequence[int]) -> list[list[int]]:
    """Return the replicas of each partition: all brokers, each time with a different one first."""
    return [
        [ids[(index + nth) % len(ids)] for nth in range(len(ids))]
        for index in range(moves.PARTITIONS)
    ]


def _gaps_s(load: moves.Load, partitions: Sequence[int], moment: float) -> list[float]:
    """Return the seconds from the kill to the next acknowledgment, for each partition."""
    return [
        min(at for at in load.acked[index] if at > moment + _LATE_S) - moment
        for index in partitions
    ]


def _until_acknowledged(load: moves.Load, partitions: Sequence[int], moment: float) -> None:
    _until(
        lambda: all(load.acked[index][-1] > moment + _LATE_S for index in partitions),
        "the next leaders acknowledge records",
    )


def _until_led_as_planned(system: System, ids: Sequence[int]) -> None:
    """Wait until each partition is led by its preferred broker again."""

    def is_led() -> bool:
        try:
            with WireClient(system.bootstrap) as client:
                elect_preferred(client, None)
                return leaders(client) == [row[0] for row in _rows(ids)]
        except KafkaFailed:
            return False

    _until(is_led, "the preferred leaders are back")


def leaders(client: WireClient) -> list[int]:
    """Return the leaders of the load's partitions."""
    from penstock.protocol import apis
    from penstock.protocol.gen import metadata

    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=moves.TOPIC)])
    response = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
    found = {row.partition_index: row.leader_id for row in response.topics[0].partitions}
    return [found[index] for index in sorted(found)]


def kill(system: System, size: Size) -> Mapping[str, float]:
    """Kill brokers one after another under load; measure each partition that they led."""
    ids, gaps = list(system.brokers), list[float]()
    moves.create_topic(system.bootstrap, _rows(ids))
    _until_led_as_planned(system, ids)
    events: list[tuple[list[int], float]] = []
    with moves.Load(system.bootstrap) as load:
        for number in range(size.kills):
            victim = ids[number % len(ids)]
            led = [index for index, row in enumerate(_rows(ids)) if row[0] == victim]
            moment = time.perf_counter()
            system.brokers[victim].kill()
            _until_acknowledged(load, led, moment)
            events.append((led, moment))
            if number + 1 < size.kills:
                system.brokers[victim].start()
                _until_led_as_planned(system, ids)
                # The client waits up to 10 s between attempts to reach the restarted broker.
                # Without a connection to another broker, it could not look up the leader.
                _until_acknowledged(load, range(moves.PARTITIONS), time.perf_counter())
                time.sleep(_SETTLE_S)
    for led, moment in events:
        gaps += _gaps_s(load, led, moment)
    return {"kill-p50": quantile(gaps, 0.5), "kill-p99": quantile(gaps, 0.99)}


def kill_all(system: System, size: Size) -> Mapping[str, float]:
    """Kill all brokers under load and restart them immediately."""
    del size
    ids = list(system.brokers)
    moves.create_topic(system.bootstrap, _rows(ids))
    _until_led_as_planned(system, ids)
    with moves.Load(system.bootstrap) as load:
        moment = time.perf_counter()
        system.kill_brokers()
        system.start_brokers()
        _until_acknowledged(load, range(moves.PARTITIONS), moment)
    return {"kill-all": quantile(_gaps_s(load, range(moves.PARTITIONS), moment), 0.5)}


def planned(system: System, size: Size) -> Mapping[str, float]:
    """Move partitions under load. Kafka would have to copy them; see `move`."""
    if system.is_kafka:
        return {}
    ids = list(system.brokers)
    gaps = moves.planned_gaps_ms(system.bootstrap, ids, 10 * size.kills, _SETTLE_S)
    return {"planned-p50": quantile(gaps, 0.5), "planned-p99": quantile(gaps, 0.99)}

"""Measure 10,000 partitions on three brokers and three controllers as a client sees them: creation,
moves, failover.

A step ends when every partition has acknowledged a record; a failed record raises an error.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaError

from benchmarks import clients, moves
from penstock.deploy.admin.reassign.admin import current_assignment, ongoing, reassign
from penstock.deploy.clients.wire import WireClient

PARTITIONS: Final = 10_000
TOPIC: Final = "many"
_TIMEOUT_S: Final = 120.0
_LOOK_INTERVAL_S: Final = 0.1


def create_s(bootstrap: str, broker_ids: Sequence[int]) -> float:
    """Create one topic with one request."""
    began = time.perf_counter()
    moves.create_topic(
        bootstrap,
        [
            [broker_ids[(index + nth) % len(broker_ids)] for nth in range(len(broker_ids))]
            for index in range(PARTITIONS)
        ],
        TOPIC,
    )
    _produce_to_all(bootstrap)
    return time.perf_counter() - began


def move_s(bootstrap: str, broker_ids: Sequence[int]) -> float:
    """Move each partition to the next broker, as with one reassignment file."""
    began = time.perf_counter()
    with WireClient(bootstrap) as client:
        current, _ = current_assignment(client, [TOPIC])
        expected = {
            key: (broker_ids[(broker_ids.index(row[0]) + 1) % len(broker_ids)],)
            for key, row in current.items()
        }
        assert reassign(client, expected) == {}
        while ongoing(client):
            if time.perf_counter() - began > _TIMEOUT_S:
                raise TimeoutError(f"moves are still under way after {_TIMEOUT_S:.0f} s")
            time.sleep(_LOOK_INTERVAL_S)
        assert current_assignment(client, [TOPIC])[0] == expected
    _produce_to_all(bootstrap)
    return time.perf_counter() - began


def fail_over_s(bootstrap: str, broker_ids: Sequence[int], kill: Callable[[int], object]) -> float:
    """Kill a broker that leads a third of the partitions."""
    began = time.perf_counter()
    kill(broker_ids[-1])
    _produce_to_all(bootstrap)
    return time.perf_counter() - began


def _produce_to_all(bootstrap: str) -> None:
    failed: list[KafkaError] = []
    writer = clients.producer(bootstrap, **{"queue.buffering.max.messages": 2 * PARTITIONS})
    for index in range(PARTITIONS):
        writer.produce(
            TOPIC,
            b"x" * 100,
            partition=index,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    unsent = writer.flush(_TIMEOUT_S)
    if unsent or failed:
        raise RuntimeError(
            f"{unsent} records were not acknowledged within {_TIMEOUT_S:.0f} s, {len(failed)}"
            f" failed: {failed[:1]}"
        )

"""Measure gaps between acknowledgments during moves, under a steady load over 50 partitions.

The load is 2 MB/s of 1 KiB records with acks=all, so each partition gets a record every 25 ms. A
gap is the longest time between two acknowledgments of one partition around the event.
"""

import json
import os
import subprocess
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import clients
from penstock.deploy.admin.reassign.admin import current_assignment, elect_preferred, reassign
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.node.lifeline import PARENT_VARIABLE

PARTITIONS = 50
BYTES_PER_S = 2e6
TOPIC = "moves"
_AWAY_S = 8.0
"""Time between a kill and moving the leaders back."""
_ROUNDS = 10
"""Number of records in a partition before its leader is killed."""
_LOADED_S = 5.0
_JOIN_LIMIT_S = 120.0
_BEGIN_S = 0.5
"""Time after a kill within which its gap begins, because acknowledgments may still be in flight."""


def create_topic(bootstrap: str, candidates: Sequence[Sequence[int]], name: str = TOPIC) -> None:
    """Create one partition for each row, led by its first broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics(
        [
            NewTopic(
                name,
                num_partitions=len(candidates),
                replica_assignment=[list(row) for row in candidates],
            )
        ]
    )[name].result(30)


class Load:
    """Produces in the background until the context ends."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: dict[int, list[float]] = defaultdict(list)
        self._producer = clients.producer(bootstrap, **{"linger.ms": 5})
        self._failed: list[KafkaError] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        while len(self.acked) < PARTITIONS:
            time.sleep(0.05)
        time.sleep(2)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert not self._failed, self._failed[:3]

    def gap_after(self, partition: int, moment: float, seconds: float) -> tuple[float, float]:
        """Return the longest gap that ends after `moment` and began within this number of seconds
        of it, and its end. Call after the load has ended.
        """
        times = self.acked[partition]
        first, stop = bisect_left(times, moment), bisect_left(times, moment + seconds)
        return max(
            (times[at] - times[at - 1], times[at])
            for at in range(max(first, 1), min(stop + 1, len(times)))
        )

    def _run(self) -> None:
        value, began, count = bytes(clients.RECORD_BYTES), time.perf_counter(), 0
        while not self._stopping.is_set():
            due = int((time.perf_counter() - began) * BYTES_PER_S / clients.RECORD_BYTES)
            for number in range(count, due):
                self._producer.produce(
                    TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            count = due
            self._producer.poll(0.002)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
        else:
            self.acked[message.partition() or 0].append(time.perf_counter())


def planned_gaps_ms(
    bootstrap: str, broker_ids: Sequence[int], count: int, settle_s: float
) -> list[float]:
    """Move the partitions one by one to the next broker."""
    create_topic(bootstrap, [[broker_ids[index % len(broker_ids)]] for index in range(PARTITIONS)])
    events: list[tuple[int, float]] = []
    with Load(bootstrap) as load, WireClient(bootstrap) as client:
        for number in range(count):
            key = Key(TOPIC, number % PARTITIONS)
            leader = current_assignment(client, [TOPIC])[0][key][0]
            target = broker_ids[(broker_ids.index(leader) + 1) % len(broker_ids)]
            moment = time.perf_counter()
            assert reassign(client, {key: (target,)}) == {}
            time.sleep(settle_s)
            events.append((key.partition, moment))
    return [load.gap_after(partition, moment, settle_s)[0] * 1_000 for partition, moment in events]


def kill_to_produce_ms(
    bootstrap: str, broker_ids: Sequence[int], kills: int, kill: "Kill"
) -> list[float]:
    """Measure each partition of a killed broker from the kill to its next acknowledgment."""
    rows = [
        [broker_ids[(index + nth) % len(broker_ids)] for nth in range(len(broker_ids))]
        for index in range(PARTITIONS)
    ]
    create_topic(bootstrap, rows)
    events: list[tuple[int, float]] = []
    with Load(bootstrap) as load:
        for number in range(kills):
            victim = broker_ids[number % len(broker_ids)]
            led = [index for index, row in enumerate(rows) if row[0] == victim]
            moment = time.perf_counter()
            kill(victim)
            events += [(index, moment) for index in led]
            time.sleep(_AWAY_S)
            with WireClient(bootstrap) as client:
                elect_preferred(client, None)
            time.sleep(4)
    return [
        (load.gap_after(partition, moment, _BEGIN_S)[1] - moment) * 1_000
        for partition, moment in events
    ]


class Kill:
    """Sends a signal to a broker process, using the pid in the state file of `penstock dev`."""

    def __init__(self, state: Path, number: int) -> None:
        self._state = state
        self._number = number

    def __call__(self, node_id: int) -> int:
        pid = self.pid_of(node_id)
        os.kill(pid, self._number)
        return pid

    def pid_of(self, node_id: int) -> int:
        processes = json.loads(self._state.read_text())["processes"]
        pid: int = next(
            item["pid"]
            for item in processes
            if item["role"] == "broker" and item["node_id"] == node_id
        )
        return pid


def open_after_kill_s(
    bootstrap: str, broker_ids: Sequence[int], partitions: int, kill: Kill
) -> float:
    """Measure from SIGKILL of a broker that leads `partitions` partitions with records until the
    next leader has acknowledged a record in each.
    """
    create_topic(bootstrap, [broker_ids] * partitions, "inherited")
    writer, failed, acked = clients.producer(bootstrap), list[KafkaError](), list[float]()

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)
        acked.append(time.perf_counter())

    for _ in range(_ROUNDS):
        for index in range(partitions):
            writer.produce("inherited", bytes(100), partition=index, on_delivery=delivered)
        assert writer.flush(60) == 0
    began = time.perf_counter()
    kill(broker_ids[0])
    acked.clear()
    for index in range(partitions):
        writer.produce("inherited", b"y", partition=index, on_delivery=delivered)
    assert writer.flush(120) == 0
    assert not failed, failed[:3]
    return max(acked) - began


def drain_s(bootstrap: str, broker_ids: Sequence[int], partitions: int, terminate: Kill) -> float:
    """Measure from SIGTERM to a broker that leads `partitions` partitions with records until its
    process has exited.
    """
    create_topic(bootstrap, [broker_ids] * partitions, "drained")
    writer = clients.producer(bootstrap)
    for index in range(partitions):
        writer.produce("drained", b"x", partition=index)
    assert writer.flush(60) == 0
    began = time.perf_counter()
    process = Path(f"/proc/{terminate(broker_ids[0])}")
    while process.exists():
        time.sleep(0.01)
    took = time.perf_counter() - began
    failed: list[KafkaError] = []
    for index in range(partitions):
        writer.produce(
            "drained",
            b"y",
            partition=index,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert writer.flush(60) == 0
    assert not failed
    return took


def newcomer_s(bootstrap: str, kill: "Kill", leaves: int) -> float:
    """Measure from the exec of a new broker next to two loaded ones until it leads its share.

    leaves: a broker that is killed first. The new broker gets its settings but another id, because
    balancing would wait before moving leaders back to a returning broker.
    """
    process, joins = Path(f"/proc/{kill.pid_of(leaves)}"), leaves + 1
    command = _strings(process / "cmdline")
    command[command.index("--node-id") + 1] = str(joins)
    environment = dict(item.split("=", 1) for item in _strings(process / "environ")) | {
        PARENT_VARIABLE: str(os.getpid())
    }
    kill(leaves)
    while process.exists():
        time.sleep(0.01)
    others = [node for node in range(3) if node != leaves]
    create_topic(bootstrap, [[others[index % 2]] for index in range(PARTITIONS)])
    with Load(bootstrap), WireClient(bootstrap) as client:
        time.sleep(_LOADED_S)
        began = time.perf_counter()
        broker = subprocess.Popen(command, env=environment)
        try:
            while _led(client, joins) < PARTITIONS // 3 - 1:
                if time.perf_counter() - began > _JOIN_LIMIT_S:
                    raise TimeoutError(
                        f"broker {joins} leads {_led(client, joins)} of {PARTITIONS} partitions"
                        f" after {_JOIN_LIMIT_S:.0f} s"
                    )
                time.sleep(0.1)
            return time.perf_counter() - began
        finally:
            broker.terminate()
            broker.wait(30)


def _strings(file: Path) -> list[str]:
    return file.read_text().rstrip("\0").split("\0")


def _led(client: WireClient, broker_id: int) -> int:
    return sum(
        replicas[0] == broker_id for replicas in current_assignment(client, [TOPIC])[0].values()
    )

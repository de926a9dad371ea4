"""Brokers are stopped gracefully under load: every produce request succeeds, no record is lost or
duplicated, and readers only see other addresses.

An idempotent producer, a non-idempotent one and a reader run throughout. Their history is checked
as in the simulator.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.deploy.clients.state_file import ProcessState
from penstock.deploy.local.handle import LocalCluster
from tests.chaos.clients import Client, Reader, SteadyProducer, end_offsets, read_all
from tests.chaos.patience import Patience
from tests.chaos.record import Record
from tests.support.dev_cluster import on_files, penstock, requested
from tests.support.history import Part
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.system

PARTS: list[Part] = [("t", index) for index in range(6)]
END_TIMEOUT_S = PATIENCE_S
PATIENT_STOP = ("--set", "shutdown.timeout.ms=60s")
"""Otherwise a broker leaves after 5 s, although it still leads partitions."""
PAUSE_S = 0.06
"""Time between two records of a producer in a partition."""


class Load:
    """All clients and the history of their operations."""

    def __init__(self, cluster: LocalCluster, path: Path) -> None:
        self.record = Record(path)
        self.producers = [
            SteadyProducer(cluster.bootstrap, PARTS, self.record, name, PAUSE_S)
            for name in ("0", "-1")
        ]
        self.reader = Reader(cluster.bootstrap, PARTS, self.record, "all the time")
        self._bootstrap = cluster.bootstrap

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, self.reader]

    async def more(self) -> None:
        """Wait until all records that both producers have sent so far are acknowledged."""
        wanted = [
            (part, producer, producer.sent[part]) for producer in self.producers for part in PARTS
        ]
        async with asyncio.timeout(END_TIMEOUT_S):
            while any(
                self.record.acked_number(part, producer.label) < number
                for part, producer, number in wanted
            ):
                assert not self.record.violations
                await asyncio.sleep(0.02)

    def check(self) -> None:
        """Check that every record was acknowledged and can be read, exactly once if its producer is
        idempotent.
        """
        for producer in self.producers:
            assert producer.end(Patience(END_TIMEOUT_S)), (
                f"{producer.outstanding_count} records were neither acknowledged nor refused"
            )
        assert self.reader.end(Patience(END_TIMEOUT_S))
        ends = end_offsets(self._bootstrap, PARTS, END_TIMEOUT_S)
        read_all(self._bootstrap, ends, self.record, Patience(END_TIMEOUT_S))
        for part in PARTS:
            self.record.history.check_order(part, b"0")
        assert self.record.violations == []
        assert self.record.history.acked_count == sum(
            sum(producer.sent.values()) for producer in self.producers
        )


@contextmanager
def loaded(cluster: LocalCluster, directory: Path) -> Iterator[Load]:
    load = Load(cluster, directory / "history.txt")
    for client in load.clients:
        client.start()
    try:
        yield load
    finally:
        for client in load.clients:
            client.ending.set()
        load.record.close()


def leaders_of(cluster: LocalCluster) -> set[int]:
    return {part["leader"] for part in requested(cluster, "topics", "describe", "t")["partitions"]}


def create_topic(cluster: LocalCluster) -> None:
    created = penstock(
        cluster,
        "topics",
        "create",
        "t",
        "--partitions",
        str(len(PARTS)),
        "--replication-factor",
        "3",
    )
    assert created.returncode == 0, created.stderr


@pytest.mark.costly("all brokers start again under load")
async def test_rolling_restart_of_all_brokers_fails_no_request_and_loses_no_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with on_files(tmp_path, "--brokers", "3", "--controllers", "3", *PATIENT_STOP) as cluster:
        create_topic(cluster)
        with loaded(cluster, tmp_path) as load:
            for node_id in range(3):
                await load.more()
                broker = broker_of(cluster, node_id)
                cluster.kill([broker], signal.SIGTERM)
                await asyncio.to_thread(cluster.wait_for_new, [broker])
                reported = capfd.readouterr().err
                assert f"broker {node_id} (pid {broker.pid}) ended with exit code 0" in reported
                penstock(cluster, "elect", "--preferred")
            await load.more()
            await asyncio.to_thread(load.check)
        assert [broker.starts for broker in cluster.brokers()] == [2, 2, 2]


@pytest.mark.costly("a broker hands over under load")
async def test_broker_is_drained_permanently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with on_files(tmp_path, "--brokers", "3", "--no-restart", *PATIENT_STOP) as cluster:
        create_topic(cluster)
        with loaded(cluster, tmp_path) as load:
            await load.more()
            assert await asyncio.to_thread(leaders_of, cluster) == {0, 1, 2}
            leaving = broker_of(cluster, 1)
            cluster.kill([leaving], signal.SIGTERM)
            gone = await asyncio.to_thread(
                cluster.wait_until,
                lambda state: state.of_role("broker")[1].pid is None,
                PATIENCE_S,
                "the broker has left",
            )
            assert gone.of_role("broker")[1].phase == "stopped"
            ended, reported = f"broker 1 (pid {leaving.pid}) ended with exit code 0", list[str]()

            def is_reported() -> bool:  # after the state is written
                reported.append(capfd.readouterr().err)
                return ended in "".join(reported)

            await until(is_reported)
            assert await asyncio.to_thread(leaders_of, cluster) == {0, 2}, (
                "what it led moved before it left"
            )
            shown = await asyncio.to_thread(requested, cluster, "nodes")
            assert sorted(wal["node_id"] for wal in shown["wals"]) == [0, 2], (
                "nothing of it waits for recovery"
            )
            await load.more()
            await asyncio.to_thread(load.check)


def broker_of(cluster: LocalCluster, node_id: int) -> ProcessState:
    return next(broker for broker in cluster.brokers() if broker.node_id == node_id)

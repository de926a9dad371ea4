"""All controllers lose their disks and every process dies: the cluster is rebuilt from the store,
and no acknowledged record is lost.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.ack_recorder import ConfluentLoad, check, read_back
from tests.support.dev_cluster import PATIENT
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

PENSTOCK = (sys.executable, "-P", "-m", "penstock.deploy.cli")
CLUSTER_ID = "lost"
PARTITIONS = (0, 1, 2, 3)


class Processes:
    """Three controllers and two brokers on fixed ports, with one directory store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = f"file:{directory / 'store'}"
        controllers, brokers = free_ports(3), free_ports(2)
        peers = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers))
        common = ("--store", self.store, "--log-level", "warning")
        self._commands = [
            (
                "controller",
                *common,
                "--cluster-id",
                CLUSTER_ID,
                "--node-id",
                str(number),
                "--listeners",
                f"127.0.0.1:{port}",
                "--controller-quorum-voters",
                peers,
                "--metadata-log-dir",
                str(directory / f"controller-{number}"),
                "--controller-quorum-election-timeout-ms",
                "500",
                "--set",
                PATIENT,
            )
            for number, port in enumerate(controllers)
        ] + [
            (
                "broker",
                *common,
                "--node-id",
                str(number),
                "--listeners",
                f"127.0.0.1:{port}",
                "--controller-quorum-bootstrap-servers",
                ",".join(f"127.0.0.1:{port}" for port in controllers),
            )
            for number, port in enumerate(brokers)
        ]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in brokers)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._running = [
                subprocess.Popen((*PENSTOCK, *command), stdout=log, stderr=log)
                for command in self._commands
            ]

    def kill(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
        self._running = []

    def lose_disks(self) -> None:
        for directory in self.directory.glob("controller-*"):
            shutil.rmtree(directory)

    def touch_store(self) -> None:
        """Make the last write to the store look recent for as long as the test lasts."""
        written = next(it for it in (self.directory / "store").rglob("*") if it.is_file())
        later_s = time.time() + 3_600
        os.utime(written, (later_s, later_s))

    def recover(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = (*PENSTOCK, "controller", "recover", "--from", self.store, *arguments)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    running = Processes(tmp_path)
    running.start()
    yield running
    running.kill()


async def create(bootstrap: str, name: str) -> None:
    """Create the topic, retrying while the brokers are still starting."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            admin = AdminClient(
                {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
            )
            topic = NewTopic(name, num_partitions=len(PARTITIONS), replication_factor=2)
            future = admin.create_topics([topic], request_timeout=30, operation_timeout=30)[name]
            try:
                await asyncio.to_thread(future.result, 40)
            except Exception as error:  # noqa: BLE001 - whatever a cluster that starts says
                if "TOPIC_ALREADY_EXISTS" in str(error):
                    return
                # Use a new client each time: nothing signals when the first broker serves requests.
                await asyncio.sleep(0.2)
            else:
                return


def check_all(
    loads: Sequence[ConfluentLoad], logs: Sequence[dict[int, list[tuple[int, int]]]]
) -> None:
    for load, log in zip(loads, logs, strict=True):
        check(load, log)


async def test_cluster_without_any_disk_is_rebuilt_from_the_store_under_load(
    processes: Processes,
) -> None:
    """Producers keep running, and the second topic is created just before the disks are lost."""
    bootstrap = processes.bootstrap
    await create(bootstrap, "early")
    async with ConfluentLoad(bootstrap, "early", PARTITIONS) as early:
        await early.until_acknowledged(300)
        await create(bootstrap, "late")
        async with ConfluentLoad(bootstrap, "late", PARTITIONS) as late:
            await late.until_acknowledged(1)
            acknowledged = early.acknowledged_count
            await asyncio.to_thread(processes.kill)
            processes.lose_disks()
            processes.touch_store()
            refused = await asyncio.to_thread(processes.recover)
            assert refused.returncode == 1
            assert "may be alive" in refused.stderr
            looked = await asyncio.to_thread(processes.recover, "--dry-run", "--json")
            assert looked.returncode == 0, looked.stderr
            done = await asyncio.to_thread(
                processes.recover, "--cluster-id", CLUSTER_ID, "--force", "--json"
            )
            assert done.returncode == 0, done.stderr
            found, report = json.loads(looked.stdout), json.loads(done.stdout)
            assert report["gaps"] == []
            assert report["voters"] == [0, 1, 2]
            assert found["record_count"] == report["record_count"] > 0, "what lay in the WALs only"
            assert found["new_offset"] is None
            again = await asyncio.to_thread(processes.recover, "--json")
            assert json.loads(again.stdout)["already_recovered"], again.stderr
            processes.start()
            await early.until_acknowledged(50)
            await late.until_acknowledged(50)
            assert early.acknowledged_count > acknowledged
    logs = [await read_back(bootstrap, load, PARTITIONS) for load in ("early", "late")]
    check_all([early, late], logs)

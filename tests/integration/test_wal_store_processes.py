"""Brokers restart one after another under load: their records leave the WAL store, and no
acknowledged record is lost.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.directory import DirectoryStore
from penstock.stream.format.keys import WAL_STORE_ROOT
from tests.support.ack_recorder import ConfluentLoad, check, read_back
from tests.support.dev_cluster import PATIENT
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, until

PENSTOCK = (sys.executable, "-P", "-m", "penstock.deploy.cli")
TOPIC = "t"
PARTITIONS = (0, 1, 2, 3)
INTERVAL = "compaction.wal.store.interval.ms"


class Processes:
    """A controller and two brokers, with one directory as the store and another as the
    WAL store.
    """

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self.store, self.wal_store = directory / "store", directory / "wals"
        for path in (self.store, self.wal_store):
            path.mkdir()
        controller, *brokers = free_ports(3)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in brokers)
        common = (
            *("--store", f"file:{self.store}", "--wal-store", f"file:{self.wal_store}"),
            *("--log-level", "warning"),
        )
        self._commands = {
            "controller": (
                *("controller", *common, "--cluster-id", "c", "--node-id", "0"),
                *("--listeners", f"127.0.0.1:{controller}"),
                *("--controller-quorum-voters", f"0@127.0.0.1:{controller}"),
                *("--metadata-log-dir", str(directory / "controller"), "--set", PATIENT),
            )
        }
        for number, port in enumerate(brokers):
            self._commands[f"broker{number}"] = (
                *("broker", *common, "--node-id", str(number), "--set", f"{INTERVAL}=1h"),
                *("--listeners", f"127.0.0.1:{port}"),
                *("--controller-quorum-bootstrap-servers", f"127.0.0.1:{controller}"),
            )
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with self._log.open("ab") as log:
            self.running[name] = subprocess.Popen(
                (*PENSTOCK, *self._commands[name]), stdout=log, stderr=log
            )

    async def stop(self, name: str, number: int) -> None:
        """Send a signal and wait until the process has ended."""
        process = self.running.pop(name)
        process.send_signal(number)
        await asyncio.to_thread(process.wait, PATIENCE_S)


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    for name in ("controller", "broker0", "broker1"):
        made.start(name)
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


async def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, num_partitions=len(PARTITIONS), replication_factor=2)

    async def is_created() -> bool:
        future = admin.create_topics([topic], request_timeout=30, operation_timeout=30)[TOPIC]
        try:
            await asyncio.to_thread(future.result, 40)
        except Exception as error:  # noqa: BLE001 - whatever a cluster that starts says
            return "TOPIC_ALREADY_EXISTS" in str(error)
        return True

    await until(is_created)


async def rewrite_now(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry(INTERVAL, "100ms", incremental_operation=AlterConfigOpType.SET)
    for broker in ("0", "1"):
        resource = ConfigResource(ConfigResource.Type.BROKER, broker, incremental_configs=[entry])
        (changing,) = admin.incremental_alter_configs([resource]).values()
        await asyncio.to_thread(changing.result, PATIENCE_S)


@pytest.mark.costly("starts five processes and a producer")
async def test_restarted_brokers_leave_no_records_in_the_wal_store(
    processes: Processes,
) -> None:
    await create(processes.bootstrap)
    view = ClusterView(
        DirectoryStore(str(processes.store)), wal_store=DirectoryStore(str(processes.wal_store))
    )

    async def is_published() -> bool:
        """Return whether the manifest, which is published after the metadata, contains
        the topic.
        """
        await view.refresh()
        return bool(view.topics(TOPIC))

    async def in_place() -> set[str]:
        """Return the WAL store slots that logs refer to."""
        await view.refresh()
        return {
            key
            for log in await view.committed(TOPIC)
            for run in log.runs
            for key in run.keys
            if key.startswith(WAL_STORE_ROOT)
        }

    async with ConfluentLoad(processes.bootstrap, TOPIC, PARTITIONS) as load:
        await load.until_acknowledged(50)
        await until(is_published)
        for name, number in (("broker0", signal.SIGTERM), ("broker1", signal.SIGKILL)):
            await processes.stop(name, number)
            await until(in_place)
            processes.start(name)
            await load.until_acknowledged(50)
        await rewrite_now(processes.bootstrap)

        async def is_empty() -> bool:
            return not await in_place()

        await until(is_empty)  # while slots are written
    check(load, await read_back(processes.bootstrap, TOPIC, PARTITIONS))

"""WALs move out of their WAL store under load while brokers, the controller and the command are
killed.
"""

import asyncio
import json
import os
from typing import Any

import pytest

from penstock import scan
from penstock.deploy.local.handle import LocalCluster
from tests.support.ack_recorder import ConfluentLoad, check, read_back
from tests.support.clients import create_topic
from tests.support.dev_cluster import PENSTOCK, penstock

pytestmark = pytest.mark.system

PARTITIONS = [0, 1, 2, 3]
SETTINGS = (
    "broker.session.timeout.ms=10s",  # so that no session expires on a busy machine
    "compaction.interval.ms=300",
    "object.delete.grace.ms=300",
    "object.delete.interval.ms=300",
)
PATIENCE = {"request.timeout.ms": 4_000, "socket.timeout.ms": 5_000}


async def move(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    done = await asyncio.to_thread(penstock, cluster, "wal", "move", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def kill(cluster: LocalCluster, *numbers: int, controller: bool = False) -> None:
    """Kill these brokers, and optionally the controller, and wait until they serve again."""
    killed = [broker for broker in cluster.brokers() if broker.node_id in numbers]
    killed += cluster.state().of_role("controller") if controller else []
    cluster.kill(killed)
    await asyncio.to_thread(cluster.wait_for_new, killed)


async def interrupt_a_move(cluster: LocalCluster) -> None:
    """Kill the command after the controller has received its request."""
    environment = os.environ | {"PENSTOCK_STATE_FILE": str(cluster.state_path)}
    arguments = (*PENSTOCK, "wal", "move", "--to", "store")
    command = await asyncio.create_subprocess_exec(*arguments, env=environment)
    try:
        is_over = False
        while (await move(cluster, "--status"))["state"] == "used":
            assert not is_over, "the command has ended"
            is_over = command.returncode is not None
    finally:
        command.kill()
        await command.wait()


@pytest.mark.costly("processes start again under load")
async def test_interrupted_wal_move_loses_no_record() -> None:
    settings = [option for setting in SETTINGS for option in ("--set", setting)]
    arguments = ["--wal-store", "moto", "--no-console", "--log-level", "error", *settings]
    with LocalCluster(arguments) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", len(PARTITIONS))
        state = cluster.state()
        async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
            await load.until_acknowledged(100)
            await kill(cluster, 0)  # the recovery commits its slots in place
            await load.until_acknowledged(100)
            found = await move(cluster, "--status")
            assert (found["state"], found["brokers_outside"]) == ("used", []), found
            await interrupt_a_move(cluster)
            await kill(cluster, 1, controller=True)
            await load.until_acknowledged(100)
            found = await move(cluster, "--to", "store")
            assert found["state"] == "drained", found
            assert (found["brokers"], found["dead_brokers"], found["topics"]) == ([], [], [])
            await load.until_acknowledged(100)
            await kill(cluster, 0, 1)
            await load.until_acknowledged(100)
        check(load, await read_back(cluster.bootstrap, "t", PARTITIONS))
        count = sum(map(len, load.acks.values()))
        assert scan(state.store_url, "t").count() >= count, "the bucket alone lacks records"
        back = ("wal", "move", "--to", state.wal_store_url)
        done = await asyncio.to_thread(penstock, cluster, *back)
        assert (done.returncode, "was drained" in done.stderr) == (1, True), done.stderr

"""Faults that only real processes have: SIGKILL, SIGSTOP and a stalled store.

Every test checks that the log contains each acknowledged record once, at the acknowledged offset,
in the order of production.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.broker.main import RESTART_LIFE_S
from penstock.deploy.clients.state_file import ProcessState
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.local.handle import LocalCluster
from penstock.protocol.apis import METADATA
from penstock.protocol.gen import metadata
from tests.support.ack_recorder import AioLoad, ConfluentLoad, check, read_back
from tests.support.child_process import killed_at_end
from tests.support.clients import create_topic
from tests.support.dev_cluster import DevCluster, on_files, requested, started
from tests.support.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.system

PARTITIONS = [0, 1, 2, 3]
PATIENCE = {"request.timeout.ms": 4_000, "socket.timeout.ms": 5_000}
"""Otherwise librdkafka would wait 30 s for a hanging broker."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with on_files(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "t", len(PARTITIONS))
        yield cluster


@pytest.fixture
def fencing(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster that fences a paused broker, but none that a busy machine stalls for some
    seconds.
    """
    session = f"broker.session.timeout.ms={RESTART_LIFE_S}s"
    with on_files(tmp_path, "--set", session) as cluster:
        create_topic(cluster.bootstrap, "t", len(PARTITIONS))
        yield cluster


async def check_all(cluster: LocalCluster, *loads: ConfluentLoad | AioLoad) -> None:
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    for load in loads:
        check(load, log)


@pytest.mark.costly("processes start again under load")
async def test_acknowledged_records_survive_repeated_broker_kills(cluster: LocalCluster) -> None:
    async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
        for victims in ([0], [0, 1], [1]):
            await load.until_acknowledged(100)
            killed = [broker for broker in cluster.brokers() if broker.node_id in victims]
            cluster.kill(killed)
            await asyncio.to_thread(cluster.wait_for_new, killed)
        await load.until_acknowledged(100)
    await check_all(cluster, load)


@pytest.mark.costly("the pause outlasts the session, under load")
async def test_resumed_zombie_broker_acknowledges_no_lost_record(
    fencing: LocalCluster,
) -> None:
    """The pause is longer than the session timeout, so the other broker takes over. The resumed
    broker learns that it is fenced and restarts within its process.
    """
    cluster, aio = fencing, AioLoad(fencing.bootstrap, "t", [2, 3])
    async with ConfluentLoad(cluster.bootstrap, "t", [0, 1], **PATIENCE) as load, aio:
        await asyncio.gather(load.until_acknowledged(100), aio.until_acknowledged(20))
        zombie = cluster.brokers()[0]
        cluster.kill([zombie], signal.SIGSTOP)
        # The length of the fault, not a wait for a condition.
        await asyncio.sleep(RESTART_LIFE_S)
        # The other broker takes over.
        await asyncio.to_thread(wait_until, lambda: leaders_of(cluster) == {1})
        cluster.kill([zombie], signal.SIGCONT)
        await asyncio.to_thread(wait_until, lambda: is_alive(cluster, 0))
        assert cluster.brokers()[0].pid == zombie.pid
        await asyncio.gather(load.until_acknowledged(100), aio.until_acknowledged(20))
    await check_all(cluster, load, aio)


@pytest.mark.costly("two commands in processes of their own, and a broker that starts again")
def test_commands_report_a_hanging_leader_and_continue_with_the_next(fencing: LocalCluster) -> None:
    """Both commands are connected to the leader before it hangs."""
    cluster, hung = fencing, fencing.brokers()[1]
    parts = requested(cluster, "topics", "describe", "t")["partitions"]
    led = next(part["partition"] for part in parts if part["leader"] == hung.node_id)
    partition = ("-p", str(led))
    producing = started(cluster, "produce", "t", *partition, "--verbose")
    consuming = started(cluster, "consume", "t", *partition, "--from-beginning")
    with killed_at_end(producing), killed_at_end(consuming):
        typed, seen = producing.stdin, consuming.stdout
        assert typed
        assert seen
        typed.write("first\n")
        typed.flush()
        assert seen.readline() == "first\n"
        cluster.kill([hung], signal.SIGSTOP)
        try:
            stored, waited = producing.communicate("second\n", PATIENCE_S)
            assert seen.readline() == "second\n"
        finally:
            cluster.kill([hung], signal.SIGCONT)
        assert stored.splitlines() == [f"t partition {led} offset {at}" for at in (0, 1)]
        for said in (waited, interrupted(consuming)):
            assert f"waiting for broker 1 at 127.0.0.1:{hung.port}," in said


def interrupted(process: "subprocess.Popen[str]") -> str:
    """Press Ctrl-C until the process ends, and return its stderr. Python may lose a signal that it
    handles during garbage collection.
    """

    def has_ended() -> bool:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        return process.returncode is not None

    wait_until(has_ended)
    return process.communicate(timeout=PATIENCE_S)[1]


async def test_paused_single_process_cluster_keeps_its_records() -> None:
    """After the pause, either sessions are still valid or the brokers restart within the process,
    which keeps running.
    """
    options = ["--store", "memory", "--brokers", "2", "--log-level", "error"]
    with LocalCluster([*options, "--set", "broker.session.timeout.ms=1500"]) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", len(PARTITIONS))
        async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
            for _ in range(2):
                await load.until_acknowledged(100)
                os.kill(cluster.pid, signal.SIGSTOP)
                await asyncio.sleep(6)  # the length of the fault, not a wait for a condition
                os.kill(cluster.pid, signal.SIGCONT)
            await load.until_acknowledged(100)
        await check_all(cluster, load)


@pytest.mark.costly("processes start again under load")
async def test_controller_kills_under_load_cost_no_record_and_no_session(
    cluster: LocalCluster,
) -> None:
    async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
        for _ in range(3):
            await load.until_acknowledged(100)
            controller = cluster.state().of_role("controller")
            cluster.kill(controller)
            await asyncio.to_thread(cluster.wait_for_new, controller)
        await load.until_acknowledged(100)
        survivors = [broker.starts for broker in cluster.brokers()]
        assert survivors == [1, 1], "a controller that returns in time costs no broker its session"
    await check_all(cluster, load)


async def test_acknowledged_records_survive_a_kill_of_all_nodes(cluster: LocalCluster) -> None:
    async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
        await load.until_acknowledged(200)
        killed: list[ProcessState] = [*cluster.state().of_role("controller"), *cluster.brokers()]
        cluster.kill(killed)
        await asyncio.to_thread(cluster.wait_for_new, killed)
        await load.until_acknowledged(100)
    await check_all(cluster, load)


async def test_stalled_store_delays_records_and_loses_none() -> None:
    with DevCluster(["--log-level", "error", "--no-console"]) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", len(PARTITIONS))
        async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS) as load:
            await load.until_acknowledged(100)
            store = cluster.state().of_role("store")
            cluster.kill(store, signal.SIGSTOP)
            await asyncio.sleep(10)  # the length of the fault, not a wait for a condition
            cluster.kill(store, signal.SIGCONT)
            await load.until_acknowledged(100)
            assert [broker.starts for broker in cluster.brokers()] == [1, 1], "brokers stay up"
        await check_all(cluster, load)


async def test_metadata_lists_the_next_leader_before_the_dead_one_is_fenced(tmp_path: Path) -> None:
    patient = ("broker.session.timeout.ms=10min", "broker.session.grace.ms=10min")
    settings = [option for setting in patient for option in ("--set", setting)]
    with on_files(tmp_path, "--no-restart", *settings) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", 4)
        dead, living = cluster.brokers()

        def named() -> set[int]:
            """Return the leaders that the live broker reports. Not by librdkafka, which would retry
            at the dead broker.
            """
            request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="t")])
            with WireClient(f"127.0.0.1:{living.port}") as client:
                (topic,) = client.send_request(METADATA, request, metadata.MetadataResponse).topics
            return {partition.leader_id for partition in topic.partitions}

        await until(lambda: asyncio.to_thread(lambda: named() == {0, 1}))
        await until(lambda: is_connected(living.pid, dead.port))
        cluster.kill([dead])
        await until(lambda: asyncio.to_thread(lambda: dead.node_id not in named()))
        described = await asyncio.to_thread(requested, cluster, "nodes")
        brokers = {node["node_id"]: node for node in described["nodes"]}
        assert not brokers[dead.node_id]["fenced"]
        # it would otherwise wait for the dead broker to take back its partitions
        cluster.kill([living])


def is_connected(pid: int | None, port: int | None) -> bool:
    """Return whether the process has an established connection to this local port."""
    sockets: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            sockets.add(str(descriptor.readlink()))
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, *_, inode = row.split()[:10]
        is_there = int(remote.partition(":")[2], 16) == port
        if is_there and state == "01" and f"socket:[{inode}]" in sockets:
            return True
    return False


def is_alive(cluster: LocalCluster, node_id: int) -> bool:
    nodes = requested(cluster, "nodes")["nodes"]
    return any(node["node_id"] == node_id and not node["fenced"] for node in nodes)


def leaders_of(cluster: LocalCluster) -> set[int]:
    return {part["leader"] for part in requested(cluster, "topics", "describe", "t")["partitions"]}

"""Brokers and the controller crash repeatedly under load: the log contains every acknowledged
record once, in order.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.base.ids import NodeId
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.objectstore.faults import Fault, FaultConfig, FaultRule
from tests.support.ack_recorder import AioLoad, ConfluentLoad, check, read_back
from tests.support.cluster import SHORT_SESSION
from tests.support.fault_store import FaultCluster
from tests.support.waiting import until

PARTITIONS = (0, 1, 2)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FaultCluster]:
    async with started(tmp_path) as cluster:
        yield cluster


@asynccontextmanager
async def started(directory: Path, **controller: Any) -> AsyncGenerator[FaultCluster]:
    """Start a cluster in which broker n % 2 leads partition n."""
    async with FaultCluster(directory, brokers=2, controller_settings=controller) as cluster:
        topic = NewTopic(
            name="t",
            assignment=[[NodeId(index % 2), NodeId(1 - index % 2)] for index in PARTITIONS],
        )
        await cluster.broker.client.create_topics(CreateTopics(topics=[topic]))
        for partition in PARTITIONS:
            await cluster.until_served("t", partition)
        yield cluster


async def test_acknowledged_records_survive_repeated_leader_crashes(cluster: FaultCluster) -> None:
    """Each leader dies with PUTs in flight. They arrive after another broker has become leader, at
    slots that are taken or fenced.
    """
    async with (
        ConfluentLoad(cluster.bootstrap, "t", [0, 1]) as load,
        AioLoad(cluster.bootstrap, "t", [2]) as aio,
    ):
        for _ in range(3):
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            victim = (await cluster.until_served("t", 0)).node_id
            last_puts = cluster.faults[victim]
            last_puts.park_puts()
            await until(lambda faults=last_puts: faults.parked_count >= 2)
            await cluster.kill_broker(victim)
            await until(lambda dead=victim: cluster.leader_of("t", 0) != dead)
            await cluster.until_served("t", 0)
            await asyncio.gather(load.until_acknowledged(50), aio.until_acknowledged(10))
            last_puts.release()
            await last_puts.arrived()
            await cluster.start_broker(victim)
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    check(aio, log)


async def test_acknowledged_records_survive_a_simultaneous_crash_of_all_brokers(
    cluster: FaultCluster,
) -> None:
    bootstrap = cluster.bootstrap
    async with ConfluentLoad(bootstrap, "t", [0, 1]) as load, AioLoad(bootstrap, "t", [2]) as aio:
        for _ in range(2):
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            await asyncio.gather(cluster.kill_broker(0), cluster.kill_broker(1))
            for node_id in (0, 1):
                await cluster.start_broker(node_id)
                cluster.faults[node_id].config = FaultConfig(
                    rules=(FaultRule(Fault.RESET, 0.05), FaultRule(Fault.LOST_RESPONSE, 0.1))
                )
        await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
    await asyncio.gather(cluster.kill_broker(0), cluster.kill_broker(1))
    await asyncio.gather(cluster.start_broker(0), cluster.start_broker(1))
    for partition in PARTITIONS:
        await cluster.until_served("t", partition)
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    check(aio, log)


async def test_acknowledged_records_survive_controller_outages_under_load(tmp_path: Path) -> None:
    """In the second outage a broker dies together with the controller; the restarted controller
    detects this and moves its partitions to the other broker. Sessions are short only in that
    outage, because without a controller brokers acknowledge until their session expires.
    """
    async with started(tmp_path, session_timeout_ms=600_000) as cluster:
        bootstrap = cluster.bootstrap
        async with (
            ConfluentLoad(bootstrap, "t", [0, 1]) as load,
            AioLoad(bootstrap, "t", [2]) as aio,
        ):
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            await cluster.stop_controller()
            await asyncio.gather(load.until_acknowledged(100), aio.until_acknowledged(20))
            await cluster.start_controller()
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            await cluster.stop_controller()
            await cluster.kill_broker(1)
            await cluster.start_controller(**SHORT_SESSION)
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            assert cluster.leader_of("t", 1) == 0
        assert not cluster.brokers[0].ended.done()
        log = await read_back(cluster.bootstrap, "t", PARTITIONS)
        check(load, log)
        check(aio, log)

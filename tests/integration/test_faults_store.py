"""The store fails in various ways while clients write: latency grows, but no acknowledged record is
lost or duplicated.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.base.ids import NodeId
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.objectstore.faults import Fault, FaultConfig, FaultRule, Latency, Selection
from tests.support.ack_recorder import AioLoad, ConfluentLoad, check, read_back
from tests.support.fault_store import FaultCluster
from tests.support.waiting import until

DOWN_S = 3.0
PARTITIONS = (0, 1, 2)
LEADERS = (1, 0, 1)
WRITES = Selection(frozenset({"put", "put_if_absent", "put_if_match"}))
READS = Selection(frozenset({"get", "get_range", "get_tail"}))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FaultCluster]:
    async with FaultCluster(tmp_path, brokers=2) as cluster:
        topic = NewTopic(
            name="t", assignment=[[NodeId(leader), NodeId(1 - leader)] for leader in LEADERS]
        )
        await cluster.broker.client.create_topics(CreateTopics(topics=[topic]))
        for partition in PARTITIONS:
            await cluster.until_served("t", partition)
        yield cluster


def high_watermarks(cluster: FaultCluster) -> list[int]:
    found = [
        cluster.brokers[LEADERS[partition]].partitions.get("t", partition)
        for partition in PARTITIONS
    ]
    return [-1 if isinstance(partition, int) else partition.high_watermark for partition in found]


async def test_store_outage_delays_records_and_loses_none(
    cluster: FaultCluster,
) -> None:
    async with (
        ConfluentLoad(cluster.bootstrap, "t", [0, 1]) as load,
        AioLoad(cluster.bootstrap, "t", [2]) as aio,
    ):
        await asyncio.gather(load.until_acknowledged(200), aio.until_acknowledged(20))
        for faults in cluster.faults.values():
            faults.down = True
        await asyncio.sleep(DOWN_S / 10)  # until responses in flight have arrived
        before = high_watermarks(cluster)
        await asyncio.sleep(DOWN_S)  # the length of the fault, not a wait for a condition
        assert high_watermarks(cluster) == before, "something was acknowledged that is nowhere"
        for faults in cluster.faults.values():
            faults.down = False
        await asyncio.gather(load.until_acknowledged(200), aio.until_acknowledged(20))
    assert not any(broker.ended.done() for broker in cluster.brokers.values()), "brokers stay up"
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    check(aio, log)


TROUBLES = {
    "503-bursts": FaultConfig(rules=(FaultRule(Fault.THROTTLED, 0.03, burst_count=15),)),
    "lost-responses": FaultConfig(rules=(FaultRule(Fault.LOST_RESPONSE, 0.4, WRITES),)),
    "resets-and-409": FaultConfig(
        rules=(FaultRule(Fault.RESET, 0.1), FaultRule(Fault.CONFLICT, 0.2, WRITES))
    ),
    "slow-and-out-of-order": FaultConfig(
        latencies=(Latency(15, 400, WRITES), Latency(2, 20)),
        rules=(FaultRule(Fault.LOST_RESPONSE, 0.1, WRITES),),
    ),
}


@pytest.mark.parametrize("problem", TROUBLES)
async def test_store_faults_during_a_broker_crash_lose_no_record(
    cluster: FaultCluster, problem: str
) -> None:
    """Broker 1 dies during the fault, so the recovery of its WAL and the opening of its partitions
    see the same fault.
    """
    for faults in cluster.faults.values():
        faults.config = TROUBLES[problem]
    async with (
        ConfluentLoad(cluster.bootstrap, "t", [0, 1]) as load,
        AioLoad(cluster.bootstrap, "t", [2]) as aio,
    ):
        await asyncio.gather(load.until_acknowledged(400), aio.until_acknowledged(30))
        await cluster.kill_broker(1)
        await asyncio.gather(load.until_acknowledged(400), aio.until_acknowledged(30))
    for rule in TROUBLES[problem].rules:
        assert cluster.faults[0].injected[rule.fault] > 0, "it did happen"
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    check(aio, log)


@pytest.mark.parametrize("damage", [Fault.TRUNCATED, Fault.FLIPPED_BIT])
async def test_corrupt_responses_of_the_store_never_reach_consumers(
    cluster: FaultCluster, damage: Fault
) -> None:
    """Recovery, opening and cold reads retry, and consumers get the records as written.

    Five corrupt responses in a row for one object would count as damage to the object.
    """
    async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS) as load:
        await load.until_acknowledged(1_500)
    cluster.faults[0].script(damage, READS, count=3)
    await cluster.kill_broker(1)
    await until(lambda: cluster.leader_of("t", 0) == 0)
    await cluster.until_served("t", 0)
    await cluster.until_served("t", 2)
    assert cluster.faults[0].scripted_count == 0, "recovery met it"
    cluster.faults[0].script(damage, READS, count=3)
    cluster.faults[0].config = FaultConfig(rules=(FaultRule(damage, 0.1, READS),))
    with capture_logs() as logs:
        log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    assert cluster.faults[0].scripted_count == 0, "consumers met it"
    assert not [
        line for line in logs if line["log_level"] in {"error", "critical"} or "exc_info" in line
    ]

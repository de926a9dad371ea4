"""Leader balancing with real brokers and clients: a new broker receives its share, a slow broker
loses leaders and regains them once it recovers, and no record is lost.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from penstock.base.ids import NodeId
from penstock.controller.api.load_messages import BrokerLoad, MovesProposed, ProposeMoves
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.objectstore.faults import FaultConfig, Latency
from tests.support.ack_recorder import AioLoad, Load, check, read_back
from tests.support.cli import Cli
from tests.support.cluster import Cluster
from tests.support.fault_store import FaultCluster
from tests.support.waiting import PATIENCE_S, until

JOINED_S = PATIENCE_S
"""Limit for a new broker to receive its share."""
QUICK = {"balance_interval_ms": 300, "balance_bytes_min": 2_000, "balance_cooldown_ms": 2_000}
REPORTS_MS = 200


async def create(cluster: Cluster, leaders: list[int], brokers: int) -> None:
    """Create topic `t` with all brokers as replicas."""
    rows = [[NodeId((leader + nth) % brokers) for nth in range(brokers)] for leader in leaders]
    await cluster.broker.client.create_topics(
        CreateTopics(topics=[NewTopic(name="t", assignment=rows)])
    )
    for index in range(len(leaders)):
        await cluster.until_served("t", index)


async def proposal(cluster: Cluster) -> MovesProposed:
    return await cluster.broker.client.propose_moves(ProposeMoves())


async def until_loads(
    cluster: Cluster, requested: Any, timeout_s: float = JOINED_S
) -> MovesProposed:
    async with asyncio.timeout(timeout_s):
        while not requested(found := await proposal(cluster)):  # noqa: ASYNC110 - brokers report to another process, in principle
            await asyncio.sleep(0.1)
    return found


def led(cluster: Cluster, count: int) -> list[int]:
    return [cluster.leader_of("t", index) for index in range(count)]


def of(found: MovesProposed, node_id: int) -> BrokerLoad:
    return next(broker for broker in found.before if broker.node_id == node_id)


async def checked(cluster: Cluster, load: Load, count: int) -> None:
    assert load.failed == []
    check(load, await read_back(cluster.bootstrap, "t", range(count)))


async def test_new_broker_receives_its_share_of_leaders_under_load(tmp_path: Path) -> None:
    settings = QUICK | {"auto_balance": True}
    async with Cluster(
        tmp_path, brokers=2, controller_settings=settings, load_report_interval_ms=REPORTS_MS
    ) as cluster:
        await create(cluster, [0, 0, 0, 0, 0, 1], 2)
        async with AioLoad(cluster.bootstrap, "t", range(6)) as load:
            await load.until_acknowledged(20)
            await cluster.start_broker(2)

            def has_its_share(found: MovesProposed) -> bool:
                rates = [broker.load.bytes_in for broker in found.before]
                return len(rates) == 3 and of(found, 2).load.bytes_in >= 0.6 * sum(rates) / 3 > 0

            await until_loads(cluster, has_its_share)
            await until(lambda: led(cluster, 6).count(0) <= 3, JOINED_S)
            await load.until_acknowledged(20)
        await checked(cluster, load, 6)
        epochs = [
            partition.leader_epoch
            for partition in cluster.broker.image.topics.by_name("t").partitions
        ]
        assert sum(epochs) <= 6, "few moves were enough, none went to and fro"


async def test_slow_broker_loses_leaders_and_regains_them_after_recovery(tmp_path: Path) -> None:
    settings = QUICK | {"auto_balance": True}
    async with FaultCluster(
        tmp_path, brokers=3, controller_settings=settings, load_report_interval_ms=REPORTS_MS
    ) as cluster:
        await create(cluster, [0, 1, 2, 0, 1, 2], 3)
        async with AioLoad(cluster.bootstrap, "t", range(6)) as load:
            await load.until_acknowledged(10)
            cluster.faults[2].config = FaultConfig(latencies=(Latency(1_200, 1_200),))
            await until_loads(
                cluster, lambda found: "excluded" in of(found, 2).note and of(found, 2).leaders == 0
            )
            await until(lambda: set(led(cluster, 6)) == {0, 1})
            cli = Cli(cluster, tmp_path)

            async def is_noted() -> bool:
                nodes = json.loads(await cli.run("nodes", "--json"))["nodes"]
                return "x the" in nodes[2]["note"]

            await until(is_noted)
            await load.until_acknowledged(10)
            cluster.faults[2].config = FaultConfig()
            await until_loads(
                cluster, lambda found: not of(found, 2).note and of(found, 2).leaders > 0
            )
            await load.until_acknowledged(10)
        await checked(cluster, load, 6)


async def test_balance_command_explains_moves_and_executes_them_only_with_execute(
    tmp_path: Path,
) -> None:
    async with Cluster(
        tmp_path, brokers=2, controller_settings=QUICK, load_report_interval_ms=REPORTS_MS
    ) as cluster:
        await create(cluster, [0, 0, 0, 0], 2)
        cli = Cli(cluster, tmp_path)
        async with AioLoad(cluster.bootstrap, "t", range(4)) as load:
            await until_loads(
                cluster, lambda found: any("network in" in move.reason for move in found.moves)
            )
            out = await cli.run("balance")
            assert "Nothing was changed; --execute starts these moves." in out
            assert "x the mean of" in " ".join(out.split())
            assert "There is nothing" in out or "t-0" in out
            await until_loads(cluster, lambda found: len(found.moves) == 2)
            found = json.loads(await cli.run("balance", "--json", "--max-moves", "1"))
            assert len(found["proposal"]["moves"]) == 1
            assert not json.loads(await cli.run("balance", "--json", "--topics", "no,such"))[
                "proposal"
            ]["moves"]
            assert led(cluster, 4) == [0, 0, 0, 0]
            assert [
                p.leader_epoch for p in cluster.broker.image.topics.by_name("t").partitions
            ] == [0] * 4

            await until_loads(cluster, lambda found: len(found.moves) == 2)
            out = await cli.run("balance", "--execute")
            assert "Started 2 of 2 moves" in out
            await until(lambda: sorted(led(cluster, 4)) == [0, 0, 1, 1])
            moved = led(cluster, 4).index(1)
            assert cluster.broker.image.topics.by_name("t").partitions[moved].replicas == (1, 0)
            table = await cli.run("nodes")
            assert "append p50/p99 ms" in table
            assert len(re.findall(r"\d\.\d s ago", table)) == 2
            await load.until_acknowledged(10)
        await checked(cluster, load, 4)

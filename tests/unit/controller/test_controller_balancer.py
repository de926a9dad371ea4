"""The balancer in a real controller over real sockets, with made-up load reports."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch
from penstock.controller.api.load_messages import (
    Load,
    LoadReported,
    MovesProposed,
    PartitionLoad,
    ProposeMoves,
    ReportLoad,
)
from penstock.controller.api.messages import CreateTopics, NewTopic
from tests.support.controller_cluster import Broker, Cluster, new_registration
from tests.support.waiting import until

PARTITIONS = 6


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    running = Cluster(tmp_path, auto_balance=True, balance_interval_ms=20, balance_bytes_min=1)
    await running.start()
    for node_id in range(3):
        await running.broker(node_id)
    yield running
    await running.stop()


async def create(broker: Broker, name: str, *candidates: int) -> list[int]:
    """Create the topic and return its leaders. No broker opens partitions here, so moves complete
    at once.
    """
    assignment = [[NodeId(node_id) for node_id in candidates]] * PARTITIONS if candidates else None
    await broker.client.create_topics(
        CreateTopics(
            topics=[
                NewTopic(
                    name=name, partitions=-1 if assignment else PARTITIONS, assignment=assignment
                )
            ]
        )
    )
    return leaders(broker, name)


def leaders(broker: Broker, name: str) -> list[int]:
    topic = broker.image.topics.by_name(name)
    assert topic is not None
    return [partition.leader for partition in topic.partitions]


async def report(broker: Broker, **values: Any) -> LoadReported:
    """Report the same load for every partition that the broker leads."""
    led = [
        partition
        for topic in broker.image.topics
        for partition in topic.partitions
        if partition.leader == broker.node.node_id
    ]
    items = [
        PartitionLoad(
            topic_id=partition.topic_id,
            partition=partition.partition,
            leader_epoch=partition.leader_epoch,
            load=Load(1_000_000, 0, 10),
            observed_ms=60_000,
        )
        for partition in led
    ]
    fields: dict[str, Any] = {
        "node_id": broker.node.node_id,
        "node_epoch": broker.node.node_epoch,
        "items": items,
    } | values
    return await broker.client.report_load(ReportLoad(**fields))


async def proposal(broker: Broker) -> MovesProposed:
    return await broker.client.propose_moves(ProposeMoves())


async def test_nothing_moves_before_all_have_reported(cluster: Cluster) -> None:
    first, second, third = cluster.brokers
    assert await create(first, "t", 0) == [0] * PARTITIONS
    await report(first)
    await report(second)
    for _ in range(50):
        notes = [broker.note for broker in (await proposal(first)).before]
        assert notes == ["", "", "has not reported its load"]
    assert leaders(first, "t") == [0] * PARTITIONS
    await report(third)
    await until(lambda: sorted(leaders(first, "t")) == [0, 0, 1, 1, 2, 2])


async def test_a_restarted_broker_waits_for_its_share(cluster: Cluster) -> None:
    """A new broker does not wait. Clients may still use the address that a restarted broker had
    before.
    """
    first, second, third = cluster.brokers
    assert await create(first, "t", 0) == [0] * PARTITIONS
    await third.stop()
    await until(lambda: 2 not in {node.node_id for node in first.image.nodes if not node.fenced})
    back = await cluster.broker(2)
    for broker in (first, second, back):
        await report(broker)
    await until(lambda: sorted(leaders(first, "t")) == [0, 0, 0, 1, 1, 1])
    assert (await proposal(first)).moves, "an operator need not wait"
    await report(await cluster.broker(3))
    await until(lambda: 3 in leaders(first, "t"))
    assert 2 not in leaders(first, "t")


async def test_a_slow_broker_is_assigned_no_partitions_and_loses_its_own(
    cluster: Cluster,
) -> None:
    first, second, third = cluster.brokers
    await create(first, "t", 2, 0, 1)
    for _ in range(3):
        await report(first, append_p50_ms=5.0)
        await report(second, append_p50_ms=6.0)
        response = await report(third, append_p50_ms=900.0)
    assert response.excluded
    await until(lambda: 2 not in leaders(first, "t"))
    assert 2 not in await create(first, "u")
    assert "appends take 900 ms" in (await proposal(first)).before[2].note
    for _ in range(5):
        response = await report(third, append_p50_ms=20.0)
    assert not response.excluded
    assert 2 in await create(first, "v")


async def test_a_slow_broker_becomes_leader_if_the_others_are_dead(cluster: Cluster) -> None:
    first, second, third = cluster.brokers
    for _ in range(3):
        await report(first, append_p50_ms=5.0)
        await report(second, append_p50_ms=6.0)
        await report(third, append_p50_ms=900.0)
    assert await create(first, "t", 0, 2) == [0] * PARTITIONS
    await first.stop()
    await second.stop()
    cluster.brokers[:] = [third]

    async def leads_all() -> bool:
        return await _leaders_of(third, "t") == [2] * PARTITIONS

    await until(leads_all)


async def _leaders_of(broker: Broker, name: str) -> list[int]:
    """Return the leaders. Brokers without storage recover no WALs, so the live broker reports them
    as empty.
    """
    for wal in list(broker.image.nodes.running_wals()):
        if wal.recoverer == broker.node:
            await broker.metadata.commit_recovered(wal.writer, (), done=True, end=wal.committed)
    return leaders(broker, name)


async def test_a_report_of_an_earlier_start_is_rejected(cluster: Cluster) -> None:
    first, _, _ = cluster.brokers
    again = new_registration(first.node.node_id)
    client = cluster.client()
    await client.register_broker(again)
    item = PartitionLoad(
        topic_id=uuid4(),
        partition=0,
        leader_epoch=StreamEpoch(0),
        load=Load(1, 1, 1),
        observed_ms=1,
    )
    await client.report_load(
        ReportLoad(node_id=NodeId(0), node_epoch=NodeEpoch(first.node.node_epoch), items=[item])
    )
    assert (await client.propose_moves(ProposeMoves())).before[
        0
    ].note == "has not reported its load"

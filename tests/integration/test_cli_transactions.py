"""`penstock transactions` against real brokers."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.base.ids import NodeId
from penstock.controller.metadata.internal_topics import TRANSACTIONS_TOPIC
from penstock.controller.metadata.topics import PartitionMetadata
from penstock.deploy.admin.transactions.admin import CoordinatorsIncomplete
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from penstock.stream.ports import BrokerIncarnation
from tests.integration.test_transactions import committed_values, transactional
from tests.support.cli import Cli
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.fault_store import FaultCluster
from tests.support.hanging import HANGING_EPOCH, HANGING_ID, produce_hanging
from tests.support.waiting import until

TOPIC = "orders"

pytestmark = pytest.mark.cluster(brokers=2, transaction_partition_verification_enable=False)


@pytest.fixture
async def cli(cluster: Cluster, tmp_path: Path) -> Cli:
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, 2)
    for index in (0, 1):
        await cluster.until_served(TOPIC, index)
    return Cli(cluster, tmp_path)


def begin(bootstrap: str, transactional_id: str, partition: int) -> Producer:
    producer = transactional(bootstrap, transactional_id)
    producer.begin_transaction()
    producer.produce(TOPIC, transactional_id.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


async def test_transactions_are_listed_and_described(cluster: Cluster, cli: Cli) -> None:
    assert json.loads(await cli.run("transactions", "list", "--json")) == []
    one, two = [
        await asyncio.to_thread(begin, cluster.bootstrap, name, index)
        for index, name in enumerate(("one", "two"))
    ]
    await asyncio.to_thread(one.commit_transaction, TIMEOUT_S)
    listed = json.loads(await cli.run("transactions", "list", "--json"))
    assert [item["transactional_id"] for item in listed] == ["one", "two"]
    assert listed[0]["state"] in {"PrepareCommit", "CompleteCommit"}
    assert {item["coordinator"] for item in listed} <= {0, 1}
    ongoing = await cli.run("transactions", "list", "--state", "Ongoing", "--json")
    assert [item["transactional_id"] for item in json.loads(ongoing)] == ["two"]
    assert "two" in await cli.run("transactions", "list")
    matching = ("transactions", "list", "--transactional-id-pattern")
    found = json.loads(await cli.run(*matching, "o.e", "--json"))
    assert [item["transactional_id"] for item in found] == ["one"]
    assert json.loads(await cli.run(*matching, "on", "--json")) == []
    with pytest.raises(KafkaFailed, match="INVALID_REGULAR_EXPRESSION"):
        await cli.run(*matching, "(")

    view = json.loads(await cli.run("transactions", "describe", "two", "--json"))
    assert (view["state"], view["partitions"]) == ("Ongoing", [f"{TOPIC}-1"])
    assert view["producer_id"] == listed[1]["producer_id"]
    assert datetime.fromisoformat(view["started"]) < datetime.now(UTC)
    shown = await cli.run("transactions", "describe", "two")
    assert f"{TOPIC}-1" in shown
    with pytest.raises(KafkaFailed, match="TRANSACTIONAL_ID_NOT_FOUND"):
        await cli.run("transactions", "describe", "three")
    with pytest.raises(UsageError, match="unknown states open; use Empty, Ongoing"):
        await cli.run("transactions", "list", "--state", "open")
    await asyncio.to_thread(two.abort_transaction, TIMEOUT_S)


async def test_hanging_transaction_is_found_and_aborted(cluster: Cluster, cli: Cli) -> None:
    live = await asyncio.to_thread(begin, cluster.bootstrap, "live", 1)
    leader = cluster.brokers[cluster.leader_of(TOPIC)]
    await asyncio.to_thread(produce_hanging, f"127.0.0.1:{leader.port}", TOPIC)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"behind"])
    find = ("transactions", "find-hanging", "--json")
    for scope in ((), ("--topic", TOPIC), ("--topic", TOPIC, "--partition", "0")):
        (found,) = json.loads(await cli.run(*find, *scope))
        assert (found["producer_id"], found["producer_epoch"]) == (HANGING_ID, HANGING_EPOCH)
        assert (found["topic"], found["partition"], found["start_offset"]) == (TOPIC, 0, 0)
    everything = await cli.run(*find, "--max-transaction-timeout", "0")
    assert json.loads(everything) == [found], "the live one has a coordinator"
    shown = await cli.run("transactions", "find-hanging")
    assert str(HANGING_ID) in shown
    assert json.loads(await cli.run(*find, "--topic", TOPIC, "--partition", "1")) == []

    abort = ("transactions", "abort", "--topic", TOPIC)
    with pytest.raises(KafkaFailed, match="starts at offset 1; "):
        await cli.run(*abort, "--partition", "0", "--start-offset", "1")
    out = await cli.run(*abort, "--partition", "0", "--start-offset", "0", "--dry-run")
    assert out == f"would abort the transaction of producer {HANGING_ID} in {TOPIC}-0\n"
    assert len(json.loads(await cli.run(*find))) == 1
    out = await cli.run(*abort, "--partition", "0", "--start-offset", "0")
    assert out == f"aborted the transaction of producer {HANGING_ID} in {TOPIC}-0\n"
    assert json.loads(await cli.run(*find)) == []
    assert await asyncio.to_thread(committed_values, cluster.bootstrap, TOPIC, 1) == [b"behind"]
    await asyncio.to_thread(live.commit_transaction, TIMEOUT_S)


async def test_transactions_of_ids_without_a_coordinator_are_not_taken_for_hanging(
    tmp_path: Path,
) -> None:
    """The WAL of a dead broker is not recovered, so its ids have no coordinator."""
    async with FaultCluster(tmp_path, brokers=2) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, 2)
        await cluster.until_served(TOPIC, 1)
        index = next(i for i in (0, 1) if cluster.leader_of(TOPIC, i) == 1)
        first = await asyncio.to_thread(begin, cluster.bootstrap, "first", index)
        await asyncio.to_thread(first.commit_transaction, TIMEOUT_S)
        lost = led_by(cluster, 0)
        name = next(
            name
            for name in map("live-{}".format, itertools.count())
            if cluster.brokers[0].transactions.partition_of(name) in lost
        )
        live = await asyncio.to_thread(begin, cluster.bootstrap, name, index)
        cli = Cli(cluster, tmp_path)
        topic, part = ("--topic", TOPIC), ("--partition", str(index))
        find = ("transactions", "find-hanging", "--json", "--max-transaction-timeout", "0")
        assert json.loads(await cli.run(*find)) == []
        cluster.faults[1].park_puts()
        dead = NodeId(0), cluster.brokers[0].node_epoch
        await cluster.kill_broker(0)
        survivor = cluster.brokers[1]
        await until(lambda: not survivor.image.nodes.is_alive(BrokerIncarnation(*dead)))
        cli.bootstrap = f"127.0.0.1:{survivor.port}"
        assert json.loads(await cli.run(*find, *topic, *part, code=1)) == []
        assert json.loads(await cli.run(*find, code=1)) == []
        with pytest.raises(CoordinatorsIncomplete, match="__transaction_state"):
            await cli.run("transactions", "abort", *topic, *part, "--start-offset", "2")
        cluster.faults[1].release()
        await until(lambda: len(led_by(cluster, 1)) == len(transaction_partitions(cluster)))
        assert json.loads(await cli.run(*find)) == []
        await asyncio.to_thread(live.abort_transaction, TIMEOUT_S)


def transaction_partitions(cluster: Cluster) -> Sequence[PartitionMetadata]:
    topic = cluster.brokers[1].image.topics.by_name(TRANSACTIONS_TOPIC)
    assert topic is not None
    return topic.partitions


def led_by(cluster: Cluster, node_id: int) -> set[int]:
    return {
        index
        for index, partition in enumerate(transaction_partitions(cluster))
        if partition.leader == node_id
    }


async def test_aborting_a_transaction_that_does_not_hang_requires_force(
    cluster: Cluster, cli: Cli
) -> None:
    live = await asyncio.to_thread(begin, cluster.bootstrap, "live", 0)
    abort = ("transactions", "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")
    with pytest.raises(KafkaFailed, match="does not hang"):
        await cli.run(*abort)
    await cli.run(*abort, "--force")
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"behind"])
    await asyncio.to_thread(live.commit_transaction, TIMEOUT_S)
    assert await asyncio.to_thread(committed_values, cluster.bootstrap, TOPIC, 1) == [b"behind"]


async def test_errors_name_missing_topics_and_partitions(cli: Cli) -> None:
    find = ("transactions", "find-hanging")
    with pytest.raises(UsageError, match="--partition needs --topic"):
        await cli.run(*find, "--partition", "0")
    with pytest.raises(KafkaFailed, match="partition orders-7 does not exist"):
        await cli.run(*find, "--topic", TOPIC, "--partition", "7")
    with pytest.raises(KafkaFailed, match="topic 'none'"):
        await cli.run(*find, "--topic", "none")

"""`penstock groups` against real brokers, for all group types."""

import asyncio
import csv
import io
import json
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cli import Cli
from tests.support.clients import create_topic, produce, read_records
from tests.support.cluster import Cluster
from tests.support.share_client import ShareMember
from tests.support.streams_groups import counting, talk_to_coordinator

TOPIC = "orders"

pytestmark = pytest.mark.cluster(brokers=2, group_streams_initial_rebalance_delay_ms=0)


@pytest.fixture
async def cli(cluster: Cluster, tmp_path: Path) -> Cli:
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, 2)
    values = [str(index).encode() for index in range(10)]
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values, (0, 1))
    return Cli(cluster, tmp_path)


async def offsets(cli: Cli, group: str) -> dict[int, tuple[int, int, int]]:
    """Return current offset, log end offset and lag by partition."""
    (found,) = json.loads(await cli.run("groups", "describe", group, "-o", "json"))
    return {
        item["partition"]: (item["current_offset"], item["log_end_offset"], item["lag"])
        for item in found["offsets"]
    }


async def reset(cli: Cli, *options: str, topic: str = TOPIC) -> dict[int, int]:
    """Reset offsets; return the new ones by partition."""
    command = ("groups", "reset-offsets", "billing", "--yes", "--topic", topic)
    found = json.loads(await cli.run(*command, *options, "--json"))
    return {item["partition"]: item["new_offset"] for item in found}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_and_lag_are_shown_and_offsets_reset_and_deleted(
    cluster: Cluster, cli: Cli, protocol: str
) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "billing",
        "group.protocol": protocol,
        "client.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }

    def read_some() -> Consumer:
        consumer = Consumer(settings)
        consumer.subscribe([TOPIC])
        read_records(consumer, 10)
        return consumer

    consumer = await asyncio.to_thread(read_some)
    shown = " ".join((await cli.run("groups", "describe", "billing")).split())
    assert "lag - (not counted: 2 partitions without a committed offset)" in shown
    for command in ("list", "describe"):
        (view,) = json.loads(await cli.run("groups", command, "--json"))
        assert view["lag"] is None
    first = [TopicPartition(TOPIC, 0, 5)]
    await asyncio.to_thread(lambda: consumer.commit(offsets=first, asynchronous=False))
    shown = " ".join((await cli.run("groups", "describe", "billing")).split())
    assert "lag 0 (not counted: 1 partition without a committed offset)" in shown
    await asyncio.to_thread(lambda: consumer.commit(asynchronous=False))
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"late"], (1,))
    (view,) = json.loads(await cli.run("groups", "describe", "billing", "--json"))
    assert (view["type"], view["state"], view["lag"]) == (protocol, "Stable", 1)
    assert await offsets(cli, "billing") == {0: (5, 5, 0), 1: (5, 6, 1)}
    assert view["members"][0]["partitions"] == {TOPIC: [0, 1]}
    assert {item["client_id"] for item in view["offsets"]} == {"reader"}
    rows = csv.DictReader(io.StringIO(await cli.run("groups", "describe", "-o", "csv")))
    assert [row["lag"] for row in rows] == ["0", "1"]
    assert "reader" in await cli.run("groups", "describe", "billing")
    with pytest.raises(KafkaFailed, match="cannot be set: it is Stable; stop its members"):
        await reset(cli, "--to-earliest", "--execute")
    refused = await cli.run("groups", "delete", "billing", "--yes", "--json", code=1)
    assert "NON_EMPTY_GROUP" in json.loads(refused)[0]["error"]
    await asyncio.to_thread(consumer.close)

    assert await reset(cli, "--to-earliest") == {0: 0, 1: 0}
    # reset without --execute changes nothing
    assert await offsets(cli, "billing") == {0: (5, 5, 0), 1: (5, 6, 1)}
    assert await reset(cli, "--to-offset", "2", "--execute", topic=f"{TOPIC}:1") == {1: 2}
    assert await offsets(cli, "billing") == {0: (5, 5, 0), 1: (2, 6, 4)}
    deleted = ("groups", "delete-offsets", "billing", "--topic", f"{TOPIC}:0")
    await cli.run(*deleted, "--dry-run")
    assert 0 in await offsets(cli, "billing")
    await cli.run(*deleted, "--yes")
    assert list(await offsets(cli, "billing")) == [1]
    assert "would delete billing" in await cli.run("groups", "delete", "billing", "--dry-run")
    assert "deleted billing" in await cli.run("groups", "delete", "billing", "--yes")
    with pytest.raises(KafkaFailed, match="group 'billing' does not exist; `penstock groups list`"):
        await cli.run("groups", "describe", "billing")


async def test_every_offset_reset_option_is_supported(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    with pytest.raises(KafkaFailed, match="no committed offset in orders-0"):
        await reset(cli, "--shift-by", "1")
    assert await reset(cli, "--to-current", "--execute") == {0: 5, 1: 5}
    listed = msgspec.yaml.decode(await cli.run("groups", "list", "-o", "yaml"))
    assert [(item["group"], item["state"]) for item in listed] == [("billing", "Empty")]
    assert await reset(cli, "--shift-by", "-3", "--execute") == {0: 2, 1: 2}
    assert await reset(cli, "--shift-by", "-99") == {0: 0, 1: 0}
    assert await reset(cli, "--to-offset", "99") == {0: 5, 1: 5}
    assert await reset(cli, "--to-latest") == {0: 5, 1: 5}
    assert await reset(cli, "--to-datetime", "2020-01-01T00:00:00.000") == {0: 0, 1: 0}
    assert await reset(cli, "--to-datetime", "2199-01-01T00:00:00+01:00") == {0: 5, 1: 5}
    assert await reset(cli, "--by-duration", "PT1H") == {0: 0, 1: 0}
    command = ("groups", "reset-offsets", "billing")
    exported = await cli.run(*command, "--all-topics", "--to-current", "--output", "csv")
    path = cli.file("offsets.csv", exported)
    await reset(cli, "--to-latest", "--execute")
    await cli.run(*command, "--from-file", path, "--execute", "--yes")
    assert {at: found[0] for at, found in (await offsets(cli, "billing")).items()} == {0: 2, 1: 2}
    assert [item["lag"] for item in json.loads(await cli.run("groups", "list", "--json"))] == [6]
    with pytest.raises(UsageError, match="specify one of --to-earliest"):
        await reset(cli, "--to-earliest", "--to-latest")
    with pytest.raises(UsageError, match="has no partition 7"):
        await reset(cli, "--to-earliest", topic=f"{TOPIC}:7")
    with pytest.raises(KafkaFailed, match="'order' does not exist; did you mean orders"):
        await reset(cli, "--to-earliest", topic="order")
    with pytest.raises(UsageError, match="--topic TOPIC, --topic TOPIC:0,1 or --all-topics"):
        await cli.run(*command, "--to-earliest")


async def test_share_group_is_described_reset_and_deleted(cluster: Cluster, cli: Cli) -> None:
    def share() -> ShareMember:
        members = [ShareMember(address, "queue") for address in cluster.bootstrap.split(",")]
        (here,) = (member for member in members if member.coordinates_here())
        for other in members:
            if other is not here:
                other.close()
        return here.join(TOPIC)

    member = await asyncio.to_thread(share)
    (view,) = json.loads(await cli.run("groups", "describe", "queue", "--json"))
    assert (view["type"], view["state"]) == ("share", "Stable")
    assert view["members"][0]["partitions"] == {TOPIC: [0, 1]}
    await asyncio.to_thread(member.leave)
    member.close()
    command = ("groups", "reset-offsets", "queue", "--topic", TOPIC)
    with pytest.raises(UsageError, match="share groups support only --to-earliest"):
        await cli.run(*command, "--to-offset", "1")
    await cli.run(*command, "--to-earliest", "--execute", "--yes")
    (listed,) = json.loads(await cli.run("groups", "list", "--type", "share", "--json"))
    (view,) = json.loads(await cli.run("groups", "describe", "queue", "--json"))
    assert listed["lag"] == view["lag"]
    assert {at: found[0] for at, found in (await offsets(cli, "queue")).items()} == {0: 0, 1: 0}
    await cli.run("groups", "delete-offsets", "queue", "--yes", "--topic", TOPIC)
    assert await offsets(cli, "queue") == {}
    await cli.run("groups", "delete", "queue", "--yes")
    assert json.loads(await cli.run("groups", "list", "--type", "share", "--json")) == []


async def test_streams_group_is_described(cluster: Cluster, cli: Cli) -> None:
    group = "counter"
    standbys = ("--set", "streams.num.standby.replicas=1")
    await cli.run("configs", "alter", "--group", group, *standbys)
    talk = await asyncio.to_thread(talk_to_coordinator, cluster.bootstrap, group)

    def count() -> None:
        assert talk.commit(group, "", -1, 1, TOPIC) == 0
        for name in ("a", "b"):
            talk.join(group, name, counting(group, TOPIC))
        talk.settle(group, "a", "b")

    await asyncio.to_thread(count)
    (listed,) = json.loads(await cli.run("groups", "list", "--type", "streams", "--json"))
    assert (listed["group"], listed["type"], listed["state"]) == (group, "streams", "Stable")
    (view,) = json.loads(await cli.run("groups", "describe", group, "--json"))
    assert (view["type"], view["topology_epoch"]) == ("streams", 0)
    assert [member["process_id"] for member in view["members"]] == ["process-a", "process-b"]
    tasks = [member["tasks"] for member in view["members"]]
    for role in ("active", "standby"):
        # The first subtopology is stateless.
        for subtopology in ("1",) if role == "standby" else ("0", "1"):
            assert sorted(task for found in tasks for task in found[role][subtopology]) == [0, 1]
    readers = {(item["topic"], item["partition"]): item["member_id"] for item in view["offsets"]}
    assert readers == {
        (topic, index): member["member_id"]
        for member in view["members"]
        for topic, subtopology in ((TOPIC, "0"), (f"{group}-words-repartition", "1"))
        for index in member["tasks"]["active"][subtopology]
    }
    shown = await cli.run("groups", "describe", group)
    assert "topology epoch 0" in shown
    assert "process-b" in shown
    command = ("groups", "reset-offsets", group, "--topic", TOPIC, "--to-earliest", "--execute")
    with pytest.raises(KafkaFailed, match="cannot be set: it is Stable; stop its members"):
        await cli.run(*command, "--yes")
    for name in ("a", "b"):
        await asyncio.to_thread(talk.beat, group, name, -1)
    talk.close()
    await cli.run(*command, "--yes")
    assert {at: found[0] for at, found in (await offsets(cli, group)).items()} == {0: 0, 1: 0}
    await cli.run("groups", "delete-offsets", group, "--yes", "--topic", f"{TOPIC}:0")
    assert list(await offsets(cli, group)) == [1]
    assert f"deleted {group}" in await cli.run("groups", "delete", group, "--yes")

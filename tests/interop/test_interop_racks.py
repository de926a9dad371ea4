"""The Java consumer with `client.rack` reads from a broker in its rack (KIP-392)."""

import asyncio

import pytest

from penstock.broker.handlers.fetch.racks import COMMITTED_BYTES_MIN
from tests.integration.test_rack_reads import RACKS, TOPIC, World, fill, world
from tests.integration.test_rack_tails import UNREADABLE
from tests.integration.test_rack_tails import World as Tails
from tests.integration.test_rack_tails import world as tails
from tests.support.clients import TIMEOUT_S
from tests.support.java import JavaHome

__all__ = ["tails", "world"]

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.mark.long
async def test_java_consumer_reads_from_its_rack(world: World, java: JavaHome) -> None:
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    await world.cool()
    done = await asyncio.to_thread(
        java.tool,
        CONSUMER,
        *("--bootstrap-server", world.cluster.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", str(len(written))),
        *("--timeout-ms", str(TIMEOUT_S * 1_000)),
        *("--command-property", f"client.rack={RACKS[world.near]}"),
        *("--command-property", f"max.partition.fetch.bytes={1 << 18}"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode().splitlines() == written
    assert world.reads(world.near).size_bytes > COMMITTED_BYTES_MIN


async def test_java_consumer_reads_new_records_from_its_rack(tails: Tails, java: JavaHome) -> None:
    """The whole topic is in WAL slots of the leader."""
    sent = [b"order-%d" % number for number in range(500)]
    await tails.produce(*sent)
    done = await asyncio.to_thread(
        java.tool,
        CONSUMER,
        *("--bootstrap-server", tails.cluster.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", str(len(sent))),
        *("--timeout-ms", str(TIMEOUT_S * 1_000)),
        *("--command-property", f"client.rack={tails.near.config.rack}"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode().splitlines() == sent
    assert tails.led.records_out == 0, "the leader sent none"
    assert tails.near.partitions.committed_reads.records >= len(sent)


async def test_java_consumer_reads_from_the_leader_if_the_broker_in_its_rack_cannot_read(
    tails: Tails, java: JavaHome
) -> None:
    """The consumer does not wait longer and longer between its attempts."""
    tails.stores[tails.near.node_id].config = UNREADABLE["denied"]
    sent = [b"order-%d" % number for number in range(500)]
    await tails.produce(*sent)
    done = await asyncio.to_thread(
        java.tool,
        CONSUMER,
        *("--bootstrap-server", tails.cluster.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--max-messages", str(len(sent)), "--timeout-ms", str(TIMEOUT_S * 1_000)),
        *("--command-property", f"client.rack={tails.near.config.rack}"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode().splitlines() == sent
    assert tails.led.records_out == len(sent)
    assert tails.near.partitions.committed_reads.records == 0

"""Brokers that are declared dead but are still running: cut off, hanging, or with a stopped clock.
They acknowledge only records that are in the log.
"""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.base.ids import NodeId
from penstock.broker.partition.partition import Partition
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from tests.support.ack_recorder import AioLoad, ConfluentLoad, check, read_back
from tests.support.fault_store import FaultCluster
from tests.support.waiting import PATIENCE_S, until

SHORT_PATIENCE = {"request.timeout.ms": 1_500, "socket.timeout.ms": 2_000}
"""Otherwise a client would wait 30 s for a hanging broker."""


async def create_topic(cluster: FaultCluster) -> None:
    """Create a topic with two partitions, led by broker 1, with broker 0 as the other replica."""
    topic = NewTopic(name="t", assignment=[[NodeId(1), NodeId(0)]] * 2)
    await cluster.broker.client.create_topics(CreateTopics(topics=[topic]))
    for partition in (0, 1):
        await cluster.until_served("t", partition)


async def test_broker_cut_off_from_the_controller_stops_before_another_takes_over(
    tmp_path: Path,
) -> None:
    """Clients and the store still reach the broker. Once the link is restored, it learns that it is
    fenced, and it serves again after a restart.
    """
    async with FaultCluster(tmp_path, linked=True) as cluster:
        await create_topic(cluster)
        cut, other = cluster.brokers[1], cluster.brokers[0]
        wrote_when_replaced: list[bool] = []

        def watch(delta: MetadataDelta, image: MetadataImage) -> None:
            if not wrote_when_replaced and cluster.leader_of("t") == 0:
                wrote_when_replaced.append(cut.can_write())

        other.follower.subscribe(watch)
        async with (
            ConfluentLoad(cluster.bootstrap, "t", [0], **SHORT_PATIENCE) as load,
            AioLoad(cluster.bootstrap, "t", [1]) as aio,
        ):
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            cluster.links[1].cut()
            await until(lambda: bool(wrote_when_replaced))
            assert wrote_when_replaced == [False], "two brokers took writes at the same time"
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            cluster.links[1].heal()
            async with asyncio.timeout(PATIENCE_S):
                assert "fenced" in await cut.ended
            await cluster.kill_broker(1)  # stands for the end of its process
            await cluster.start_broker(1)
            await cluster.kill_broker(0)
            await until(lambda: cluster.leader_of("t") == 1)
            await asyncio.gather(load.until_acknowledged(50), aio.until_acknowledged(10))
        log = await read_back(cluster.bootstrap, "t", [0, 1])
        check(load, log)
        check(aio, log)


async def test_consumer_of_a_broker_cut_off_from_the_controller_continues_at_the_new_leader(
    tmp_path: Path,
) -> None:
    """The consumer is configured with this broker's address only. It reads to the end of the new
    leader's log without resetting its position.
    """
    async with FaultCluster(tmp_path, linked=True) as cluster:
        await create_topic(cluster)
        config = {
            "bootstrap.servers": f"127.0.0.1:{cluster.brokers[1].port}",
            "group.id": "g",
            "auto.offset.reset": "error",
        }
        consumer = Consumer({**config, "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        offset = 0

        async def read_to(end_offset: int) -> None:
            nonlocal offset
            async with asyncio.timeout(PATIENCE_S):
                while offset < end_offset:
                    for message in await asyncio.to_thread(consumer.consume, 500, 0.2):
                        assert message.error() is None, message.error()
                        assert message.offset() == offset
                        offset += 1

        try:
            async with ConfluentLoad(cluster.bootstrap, "t", [0], **SHORT_PATIENCE) as load:
                await load.until_acknowledged(50)
                await read_to(50)
                cluster.links[1].cut()
                await until(lambda: cluster.leader_of("t") == 0)
                await load.until_acknowledged(150)
            led = await cluster.brokers[0].partitions.wait_open(
                "t", 0, asyncio.get_running_loop().time() + PATIENCE_S
            )
            assert isinstance(led, Partition)
            await read_to(led.high_watermark)
        finally:
            consumer.close()


@pytest.mark.parametrize("clock_stands", [False, True], ids=["clock-goes", "clock-stands"])
@pytest.mark.parametrize("after", [False, True], ids=["puts-hang-before", "puts-hang-after"])
async def test_zombie_broker_acknowledges_only_records_in_the_log(
    tmp_path: Path, *, clock_stands: bool, after: bool
) -> None:
    """The PUTs of the zombie hang, it gets no messages, and it is fenced and recovered. Then
    everything gets through at once.

    With a stopped clock its session never expires, so only WAL fencing keeps it from a false
    acknowledgment. It may acknowledge PUTs that were durable while their responses hung, because
    the recovery has included them.
    """
    async with FaultCluster(tmp_path, linked=True) as cluster:
        await create_topic(cluster)
        zombie = cluster.brokers[1]
        async with (
            ConfluentLoad(cluster.bootstrap, "t", [0], **SHORT_PATIENCE) as load,
            AioLoad(cluster.bootstrap, "t", [1]) as aio,
        ):
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            if clock_stands:
                stopped_at = asyncio.get_running_loop().time()
                zombie.follower._now = lambda: stopped_at
            cluster.faults[1].park_puts(after=after)
            await until(lambda: cluster.faults[1].parked_count >= 2)
            cluster.links[1].cut()
            await until(lambda: cluster.leader_of("t") == 0)
            await cluster.until_served("t")
            assert zombie.can_write() is clock_stands
            cluster.faults[1].release()
            await cluster.faults[1].arrived()
            await asyncio.gather(load.until_acknowledged(150), aio.until_acknowledged(20))
            cluster.links[1].heal()
            async with asyncio.timeout(PATIENCE_S):
                await zombie.ended
            assert not zombie.can_write()
            await cluster.kill_broker(1)  # stands for the end of its process
        log = await read_back(cluster.bootstrap, "t", [0, 1])
        check(load, log)
        check(aio, log)

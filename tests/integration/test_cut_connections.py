"""Group members whose connections are cut repeatedly, as in a bad network, reconnect and continue
without errors or rebalances. `tests/interop` does the same with other clients.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.support.clients import checked
from tests.support.cut_connections import (
    CUTS,
    GROUP,
    TOPIC,
    CutCluster,
    Members,
    cut_cluster,
    go_through_cuts,
)


@pytest.fixture
async def cut(tmp_path: Path) -> AsyncIterator[CutCluster]:
    async with cut_cluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_librdkafka_member_survives_cut_connections(cut: CutCluster, protocol: str) -> None:
    members, stop = Members(), threading.Event()

    def on_assign(_consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        members.assignments_count += 1

    def run(number: int) -> None:
        settings = {
            "bootstrap.servers": cut.bootstrap,
            "group.id": GROUP,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        consumer = Consumer(settings)
        consumer.subscribe([TOPIC], on_assign=on_assign)
        try:
            while not stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                checked(message)
                _commit(consumer, message)
                members.committed[number] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails
            members.errors.append(repr(error))
        finally:
            consumer.close()

    threads = [asyncio.create_task(asyncio.to_thread(run, number)) for number in range(2)]
    try:
        await go_through_cuts(cut, members)
    finally:
        stop.set()
        await asyncio.gather(*threads)
    assert not members.errors


def _commit(consumer: Consumer, message: Message) -> None:
    """Commit, and retry if the connection breaks: librdkafka leaves retries to the application."""
    for _ in range(CUTS):
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TRANSPORT:
                raise
        else:
            return


async def test_aiokafka_member_survives_cut_connections(cut: CutCluster) -> None:
    members = Members()

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            members.assignments_count += 1

    async def run(number: int) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cut.bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
        )
        consumer.subscribe([TOPIC], listener=Listener())
        await consumer.start()
        try:
            async for _ in consumer:
                await consumer.commit()
                members.committed[number] += 1
        finally:
            await consumer.stop()

    tasks = [asyncio.create_task(run(number)) for number in range(2)]
    try:
        await go_through_cuts(cut, members)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

"""Classic consumer groups with kafka-python and aiokafka, and one group with three client
libraries.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from kafka import KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from tests.support.clients import (
    KAFKA_PYTHON_LEAK,
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    Polled,
    confluent_consumer,
    produce,
)
from tests.support.cluster import Cluster
from tests.support.coordinator_client import end_coordinator
from tests.support.waiting import until

TOPIC = "payments"
SETTINGS: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "session_timeout_ms": SESSION_TIMEOUT_MS,
    "heartbeat_interval_ms": 200,
    "metadata_max_age_ms": 500,
    "fetch_max_wait_ms": 100,
    "retry_backoff_ms": 50,
}

pytestmark = [
    pytest.mark.cluster(brokers=2, group_min_session_timeout_ms=500, topics={TOPIC: 4}),
    KAFKA_PYTHON_LEAK,
]


def values(first: int, count: int) -> list[bytes]:
    return [b"payment-%d" % index for index in range(first, first + count)]


# --- kafka-python ---------------------------------------------------------------------------------


POLL_MS = 4_000
"""Longer than a join takes, because kafka-python 3.0.12 drops an assignment that arrives after its
poll has timed out.
"""


class PythonMember:
    """A kafka-python consumer that polls in its own thread."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self.values: list[bytes] = []
        self.assigned: set[TopicPartition] = set()
        """The assignment at the last poll. `assignment()` would wait for a poll in progress and
        block the event loop of the cluster.
        """
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            for records in self.consumer.poll(timeout_ms=POLL_MS).values():
                self.values += [record.value for record in records]
            self.assigned = self.consumer.assignment()


@contextlib.asynccontextmanager
async def python_member(cluster: Cluster, **settings: Any) -> AsyncIterator[PythonMember]:
    servers = cluster.bootstrap.split(",")
    consumer = await asyncio.to_thread(
        lambda: KafkaConsumer(TOPIC, bootstrap_servers=servers, **(SETTINGS | settings))
    )
    # Otherwise the consumer may lead the group before its metadata contains the topic, and then it
    # joins twice.
    await asyncio.to_thread(consumer.partitions_for_topic, TOPIC)
    member = PythonMember(consumer)
    polling = asyncio.create_task(asyncio.to_thread(member.run))
    try:
        yield member
    finally:
        member.stopping = True
        await polling
        await asyncio.to_thread(consumer.close)


async def until_read(expected: list[bytes], *members: PythonMember) -> None:
    """Wait until the members together have read each record exactly once."""
    await until(lambda: sum(len(member.values) for member in members) >= len(expected))
    assert sorted(value for member in members for value in member.values) == sorted(expected)
    for member in members:
        member.values = []


async def test_kafka_python_commits_and_resumes(cluster: Cluster) -> None:
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 8), range(4))
    async with python_member(cluster, enable_auto_commit=False) as member:
        await until_read(values(0, 8), member)
        await asyncio.to_thread(member.consumer.commit)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(8, 2))
    async with python_member(cluster) as member:  # commits on close
        await until_read(values(8, 2), member)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(10, 2))
    async with python_member(cluster) as member:
        await until_read(values(10, 2), member)


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
async def test_kafka_python_members_share_partitions_and_take_over(
    cluster: Cluster, cooperative: bool
) -> None:
    assignor = {"partition_assignment_strategy": [CooperativeStickyAssignor]} if cooperative else {}
    async with python_member(cluster, **assignor) as staying:
        async with python_member(cluster, **assignor) as leaving:
            await until(
                lambda: (
                    len(staying.assigned) == len(leaving.assigned) == 2
                    and not staying.assigned & leaving.assigned
                )
            )
            await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 20), range(4))
            await until_read(values(0, 20), staying, leaving)
        await until(lambda: len(staying.assigned) == 4)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(20, 20), range(4))
        await until_read(values(20, 20), staying)


async def test_kafka_python_static_member_rejoins_with_its_assignment(cluster: Cluster) -> None:
    static = {"enable_auto_commit": False}
    async with python_member(cluster, group_instance_id="b", **static) as staying:
        async with python_member(cluster, group_instance_id="a", **static) as first:
            await until(lambda: len(staying.assigned) == len(first.assigned) == 2)
            places = first.assigned, staying.assigned
        async with python_member(cluster, group_instance_id="a", **static) as again:
            await until(lambda: len(again.assigned) == 2)
            assert (again.assigned, staying.assigned) == places
            await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 8), range(4))
            await until_read(values(0, 8), staying, again)


_MEMBER_PROCESS = """
import sys
from kafka import KafkaConsumer, TopicPartition
topic, *servers = sys.argv[1:]
consumer = KafkaConsumer(
    topic,
    bootstrap_servers=servers,
    group_id="g",
    session_timeout_ms=6000,
    heartbeat_interval_ms=200,
)
while len(consumer.assignment()) != 2:
    consumer.poll(timeout_ms=4000)
print("shared", flush=True)
while True:
    consumer.poll(timeout_ms=4000)
"""


async def test_killed_member_is_removed_after_its_session_timeout(cluster: Cluster) -> None:
    """The killed client does not leave the group: the coordinator must detect its death, and
    another member learns of the rebalance from its next heartbeat.
    """
    arguments = (sys.executable, "-c", _MEMBER_PROCESS, TOPIC, *cluster.bootstrap.split(","))
    async with python_member(cluster) as staying:
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(TIMEOUT_S):
                assert await process.stdout.readline() == b"shared\n"
            await until(lambda: len(staying.assigned) == 2)
        finally:
            process.kill()
            await process.communicate()
        await until(lambda: len(staying.assigned) == 4)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 8), range(4))
        await until_read(values(0, 8), staying)


# --- aiokafka -------------------------------------------------------------------------------------


def aio_consumer(cluster: Cluster, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(TOPIC, bootstrap_servers=cluster.bootstrap, **(SETTINGS | settings))


async def collect(count: int, *consumers: AIOKafkaConsumer) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            for consumer in consumers:
                batches = await consumer.getmany(timeout_ms=50)
                found += [record.value for records in batches.values() for record in records]
    return found


async def test_aiokafka_commits_and_resumes(cluster: Cluster) -> None:
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 8), range(4))
    async with aio_consumer(cluster, enable_auto_commit=False) as consumer:
        assert sorted(await collect(8, consumer)) == values(0, 8)
        await consumer.commit()
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(8, 2))
    async with aio_consumer(cluster) as consumer:
        assert await collect(2, consumer) == values(8, 2)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(10, 2))
    async with aio_consumer(cluster) as consumer:
        assert await collect(2, consumer) == values(10, 2)


async def test_aiokafka_members_share_partitions_and_take_over(cluster: Cluster) -> None:
    async with aio_consumer(cluster) as staying:
        async with aio_consumer(cluster) as leaving:
            await until(lambda: len(staying.assignment()) == len(leaving.assignment()) == 2)
            assert not staying.assignment() & leaving.assignment()
            await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 20), range(4))
            assert sorted(await collect(20, staying, leaving)) == sorted(values(0, 20))
        await until(lambda: len(staying.assignment()) == 4)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(20, 20), range(4))
        assert sorted(await collect(20, staying)) == sorted(values(20, 20))


async def test_aiokafka_continues_when_the_coordinator_dies(cluster: Cluster) -> None:
    async with aio_consumer(cluster, auto_commit_interval_ms=100) as consumer:
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 20), range(4))
        assert sorted(await collect(20, consumer)) == sorted(values(0, 20))
        await consumer.commit()
        await end_coordinator(cluster, "g", "killed")
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(20, 20), range(4))
        assert sorted(await collect(20, consumer)) == sorted(values(20, 20))
        # aiokafka hangs if it is closed before it has found the new coordinator.
        await consumer.commit()
    async with aio_consumer(cluster) as late:
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(40, 4), range(4))
        assert sorted(await collect(4, late)) == values(40, 4)


# --- mixed ----------------------------------------------------------------------------------------


async def test_three_client_libraries_share_one_group(cluster: Cluster) -> None:
    """The members alone interpret "roundrobin"; the coordinator only forwards it."""

    confluent = confluent_consumer(
        cluster.bootstrap, "g", partition_assignment_strategy="roundrobin"
    )
    confluent.subscribe([TOPIC])
    polled, ended, assigned = Polled(confluent), threading.Event(), list[tuple[str, int]]()

    def is_ended() -> bool:
        assigned[:] = polled.assigned()[0]
        return ended.is_set()

    polling = asyncio.create_task(asyncio.to_thread(polled.until, is_ended))
    try:
        async with (
            python_member(
                cluster, partition_assignment_strategy=[RoundRobinPartitionAssignor]
            ) as python,
            aio_consumer(cluster, partition_assignment_strategy=[AioRoundRobin]) as aio,
        ):
            await until(
                lambda: sorted(map(len, (python.assigned, assigned, aio.assignment()))) == [1, 1, 2]
            )
            await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 40), range(4))
            found: list[bytes | None] = []
            async with asyncio.timeout(TIMEOUT_S):
                while len(found) + len(python.values) + len(polled.everything()) < 40:
                    found += [
                        record.value
                        for records in (await aio.getmany(timeout_ms=50)).values()
                        for record in records
                    ]
            assert sorted(found + python.values + polled.everything()) == sorted(values(0, 40))
            assert sorted(map(len, (found, python.values, polled.everything()))) == [10, 10, 20]
    finally:
        ended.set()
        await polling
        await asyncio.to_thread(confluent.close)

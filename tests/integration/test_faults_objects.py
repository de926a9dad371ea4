"""A damaged object in a running cluster: the errors of clients, the findings of the doctor, and the
repair, which restores the object.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import CorruptRecordError
from typer.testing import CliRunner

from penstock.deploy.cli.app import app
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

COUNT = 100

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")


def findings(cluster: ThreadedCluster) -> dict[str, str]:
    """Return the findings of the doctor's partition check, by code."""
    command = [
        "doctor",
        "--json",
        "--settle",
        "0.3",
        "--no-objects",
        "--controller",
        cluster.controller,
        "--store",
        cluster.store_url,
    ]
    response: dict[str, Any] = json.loads(CliRunner().invoke(app, command).stdout)
    check = next(check for check in response["checks"] if check["name"] == "partitions")
    return {finding["code"]: finding["sentence"] for finding in check["findings"]}


def leader_of(cluster: ThreadedCluster, topic: str) -> int:
    def look(image: Any) -> int:
        return int(image.topics.by_name(topic).partitions[0].leader)

    return cluster.image(look)


def polled(consumer: Consumer, count: int) -> tuple[list[bytes], int]:
    """Poll until `count` values or an error. Return the values and the error code, which is 0
    without an error.
    """
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the client hangs"
        error = message.error()
        if error is not None:
            return values, int(error.code())
        values.append(message.value() or b"")
    return values, 0


def test_damaged_object_is_reported_until_it_is_restored(tmp_path: Path) -> None:
    with ThreadedCluster(tmp_path, brokers=2) as cluster:
        for topic in ("t", "beside"):
            cluster.create(topic, 1)
            cluster.produce(
                {"topic": topic, "value": b"%s-%d" % (topic.encode(), number)}
                for number in range(COUNT)
            )
        key = cluster.until_uploaded("t", set())
        whole = cluster.run(cluster.store.get(key))
        expected = [b"t-%d" % number for number in range(COUNT)]

        # The leader dies, and the next leader has to read the damaged object: that partition does
        # not open, but the others do.
        cluster.damage(key, b"t-50")
        died = leader_of(cluster, "t")
        cluster.kill_broker(died)
        wait_until(lambda: "partition-cannot-open" in findings(cluster))
        said = findings(cluster)["partition-cannot-open"]
        assert said.startswith(
            f"t-0 does not open on broker {leader_of(cluster, 't')}, which leads it: "
        )
        assert f"ObjectCorrupt: object {key} is corrupt" in said
        assert len(cluster.consume("beside", 1, COUNT)) == COUNT
        cluster.run(cluster.store.put(key, whole))
        assert [row[1] for row in cluster.consume("t", 1, COUNT)] == expected
        wait_until(lambda: findings(cluster) == {})

        # After a planned move the partition opens, and only its readers get errors.
        cluster.start_broker(died)
        cluster.damage(key, b"t-50")
        cluster.stop_broker(leader_of(cluster, "t"))
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            assert polled(consumer, COUNT) == ([], KafkaError.INVALID_MSG)
            wait_until(lambda: "object-unreadable" in findings(cluster))
            assert findings(cluster)["object-unreadable"].startswith(f"{key} is corrupt (")
            assert f"t-0 [0, {COUNT})" in findings(cluster)["object-unreadable"]
            others_hear_of_it(cluster)
            cluster.run(cluster.store.put(key, whole))
            values: list[bytes] = []
            while len(values) < COUNT:
                values += polled(consumer, COUNT - len(values))[0]
            assert values == expected
        finally:
            consumer.close()


def others_hear_of_it(cluster: ThreadedCluster) -> None:
    """Check the errors in other clients, which docs/how-to/alerts.md lists."""
    python = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=None, enable_auto_commit=False
    )
    try:
        python.assign([PythonPartition("t", 0)])
        python.seek(PythonPartition("t", 0), 0)
        with pytest.raises(CorruptRecordError):
            python.poll(timeout_ms=PATIENCE_S * 1_000)
    finally:
        python.close()

    async def waits() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([AioPartition("t", 0)])
            consumer.seek(AioPartition("t", 0), 0)
            return len(await consumer.getmany(timeout_ms=1_000))
        finally:
            await consumer.stop()

    assert asyncio.run(waits()) == 0

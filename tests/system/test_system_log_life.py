"""SIGKILL of broker processes during log compaction, during a fork, and right after DeleteRecords
was acknowledged.

No acknowledged record is lost, log start offsets do not go back, and a fork is complete or absent.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from random import Random
from typing import Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock.deploy.local.handle import LocalCluster
from tests.support.clients import (
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    produce,
    read_records,
)
from tests.support.dev_cluster import on_files
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

PARTITIONS: Final = 3
COUNT: Final = 60
"""Number of records in each partition that is forked or trimmed."""

RATE: Final = "log.cleaner.io.max.bytes.per.second"
KEYS: Final = 20
ROUNDS: Final = 24
VALUE_BYTES: Final = 50_000
"""The log has 24 MB, of which one pass rewrites 8 MiB at a time."""

State = dict[bytes | None, tuple[int | None, bytes | None]]
"""The offset and value of each key."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (
        "log.cleaner.backoff.ms=100",
        f"{RATE}=16000000",
        "upload.block.max.age.ms=300",
        # Consumers read from objects, because the leader's caches are too small for the log.
        "upload.block.max.bytes=1000000",
        "log.cache.max.bytes=2000000",
    )
    flags = [flag for setting in settings for flag in ("--set", setting)]
    with on_files(tmp_path_factory.mktemp("cluster"), "--brokers", "2", *flags) as cluster:
        yield cluster


def kill_brokers(cluster: LocalCluster) -> None:
    """Kill all brokers at once and wait until their successors serve."""
    victims = cluster.brokers()
    cluster.kill(victims)
    cluster.wait_for_new(victims)


def read_from(cluster: LocalCluster, topic: str, partition: int, offset: int) -> list[Message]:
    """Read from an offset to the end of the partition."""
    consumer = confluent_consumer(cluster.bootstrap, "reader", enable_auto_commit=False)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        consumer.assign([TopicPartition(topic, partition, max(low, offset))])
        found: list[Message] = []
        while not found or (found[-1].offset() or 0) < high - 1:
            found += read_records(consumer, 1)
        return found
    finally:
        consumer.close()


def first_from(cluster: LocalCluster, topic: str, offset: int) -> int:
    """Return the offset of the first record at or after `offset`."""
    consumer = confluent_consumer(cluster.bootstrap, "reader", enable_auto_commit=False)
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        return read_records(consumer, 1)[0].offset() or 0
    finally:
        consumer.close()


def values_of(messages: list[Message]) -> list[tuple[int | None, bytes | None]]:
    return [(message.offset(), message.value()) for message in messages]


def test_log_compaction_interrupted_by_broker_kills_loses_no_key(cluster: LocalCluster) -> None:
    topic, last = "compacted", KEYS * ROUNDS
    create_topic(cluster.bootstrap, topic, min_cleanable_dirty_ratio="0")
    newest = produce_keyed(cluster, topic)
    alter(cluster, ResourceType.TOPIC, topic, "cleanup.policy", "compact")
    # The first objects are rewritten by now; others are in progress, or the next pass has started.
    wait_until(lambda: first_from(cluster, topic, 0) > 0)
    kill_brokers(cluster)
    assert newest_of(cluster, topic) == newest
    for broker in cluster.brokers():
        alter(cluster, ResourceType.BROKER, str(broker.node_id), RATE, "0")
    wait_until(lambda: first_from(cluster, topic, 0) >= last - KEYS)
    assert len(read_from(cluster, topic, 0, 0)) == KEYS
    assert newest_of(cluster, topic) == newest


def produce_keyed(cluster: LocalCluster, topic: str) -> State:
    """Write each key in each round. Return the newest record of each key."""
    newest: State = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        newest[message.key()] = message.offset(), message.value()

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(ROUNDS):
        for key in range(KEYS):
            value = b"%d " % number + bytes(VALUE_BYTES)
            producer.produce(topic, value, b"%d" % key, partition=0, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    return newest


def newest_of(cluster: LocalCluster, topic: str) -> State:
    return {
        message.key(): (message.offset(), message.value())
        for message in read_from(cluster, topic, 0, 0)
    }


def alter(cluster: LocalCluster, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_fork_interrupted_by_broker_kills_is_complete_or_absent(cluster: LocalCluster) -> None:
    """The first kill comes almost immediately, the second a little later."""
    source, dice = "source", Random(5)
    create_topic(cluster.bootstrap, source, PARTITIONS)
    written = 0
    for number, latest_s in enumerate((0.02, 0.08)):
        produce(
            cluster.bootstrap,
            source,
            [b"%d" % at for at in range(written, written + PARTITIONS * COUNT)],
            range(PARTITIONS),
        )
        written += PARTITIONS * COUNT
        name = f"fork-{number}"
        requested = NewTopic(name, -1, -1, config={"penstock.fork.source": source})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        response = admin.create_topics([requested], request_timeout=TIMEOUT_S)[name]
        is_acknowledged = _is_done_within(response, latest_s * dice.random())
        kill_brokers(cluster)
        check_fork(cluster, name, source, requested, was_acknowledged=is_acknowledged)


def _is_done_within(response: Future[None], limit_s: float) -> bool:
    """Return whether the fork completes within this time, after which the brokers are killed."""
    try:
        response.result(limit_s)
    except TimeoutError:
        return False
    return True


def check_fork(
    cluster: LocalCluster, name: str, source: str, requested: NewTopic, *, was_acknowledged: bool
) -> None:
    """Check that the fork is complete or absent, and that it is complete after another request."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    is_there = name in admin.list_topics(timeout=TIMEOUT_S).topics
    assert is_there or not was_acknowledged, "the fork was acknowledged and is absent"
    if not is_there:
        create_again(admin, requested)
    assert len(admin.list_topics(name, TIMEOUT_S).topics[name].partitions) == PARTITIONS
    for partition in range(PARTITIONS):
        whole = values_of(read_from(cluster, source, partition, 0))
        assert len(whole) % COUNT == 0
        assert values_of(read_from(cluster, name, partition, 0)) == whole


def create_again(admin: AdminClient, requested: NewTopic) -> None:
    try:
        admin.create_topics([requested])[requested.topic].result(TIMEOUT_S)
    except KafkaException as error:
        # The first request may still be executed late.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def test_records_deleted_before_broker_kills_stay_deleted(cluster: LocalCluster) -> None:
    topic = "trimmed"
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    produce(
        cluster.bootstrap,
        topic,
        [b"%d" % at for at in range(PARTITIONS * COUNT)],
        range(PARTITIONS),
    )
    before = [values_of(read_from(cluster, topic, partition, 0)) for partition in range(PARTITIONS)]
    starts = [7, COUNT - 1, 33]
    requested = [TopicPartition(topic, partition, start) for partition, start in enumerate(starts)]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    responses = admin.delete_records(requested)
    assert [responses[item].result(TIMEOUT_S).low_watermark for item in requested] == starts
    kill_brokers(cluster)
    consumer = confluent_consumer(cluster.bootstrap, "reader")
    bounds = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    assert bounds == [(start, COUNT) for start in starts]
    for partition, start in enumerate(starts):
        found = values_of(read_from(cluster, topic, partition, 0))
        assert found == before[partition][start:]

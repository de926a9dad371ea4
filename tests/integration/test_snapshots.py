"""Snapshots, named points in time of topics that retain their records, as clients and store readers
see them.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from penstock import scan, topics
from penstock.base.errors import ExpectedError
from penstock.deploy.cli.app import app
from penstock.deploy.clients.frozen_topics import frozen_topics
from penstock.deploy.errors import UsageError
from penstock.lake.manifest.errors import OffsetsLost, UnknownPartition
from penstock.protocol.client.errors import KafkaFailed
from tests.integration.test_forks import read
from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    produce,
)
from tests.support.cluster import Cluster, deleting_cluster
from tests.support.streams_groups import reading, talk_to_coordinator
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import until, wait_until

TOPIC = "orders"
SNAPSHOT = "nightly"
FROZEN = "orders@nightly"
PARTITIONS = 3


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with deleting_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def threaded(tmp_path: Path) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path) as cluster:
        yield cluster


def freeze(bootstrap: str, *names: str) -> None:
    """Create snapshots with one CreateTopics request, as any Kafka client can."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    requested = [
        NewTopic(name, -1, -1, config={"penstock.fork.source": name.partition("@")[0]})
        for name in names
    ]
    for future in admin.create_topics(requested, request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)


def delete(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics(list(names)).values():
        future.result(TIMEOUT_S)


def scanned(
    cluster: ThreadedCluster, topic: str = TOPIC, snapshot: str = SNAPSHOT, partitions: int = 1
) -> dict[int, list[bytes]]:
    """Return the values of each partition as a store reader sees them."""
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}

    def shows() -> bool:
        try:
            table = scan(cluster.store_url, topic, snapshot=snapshot).to_table()
        except UnknownPartition:  # the manifest does not contain the topic yet
            return False
        assert set(table["topic"].to_pylist()) <= {topic}
        table = table.sort_by("offset")
        for partition, value in zip(
            table["partition"].to_pylist(), table["value"].to_pylist(), strict=True
        ):
            found[partition].append(value)
        return True

    wait_until(shows)
    return found


def _is_empty(cluster: ThreadedCluster, topic: str) -> bool:
    try:
        return scan(cluster.store_url, topic).to_table().num_rows == 0
    except OffsetsLost:  # deleted after the scan had determined its range
        return False


class _Writer(threading.Thread):
    """Produces numbered records to all partitions, and remembers the acknowledged numbers."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._halt = threading.Event()
        self.acknowledged: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}

    def run(self) -> None:
        number = 0
        while not self._halt.is_set():
            partition, value = number % PARTITIONS, b"%d" % number

            def done(error: object, _: object, at: int = partition, what: bytes = value) -> None:
                assert error is None
                self.acknowledged[at].append(what)

            self._producer.produce(TOPIC, value, partition=partition, on_delivery=done)
            self._producer.flush(TIMEOUT_S)
            number += 1

    def stop(self) -> None:
        self._halt.set()
        self.join()


def test_snapshot_keeps_acknowledged_records_through_deletion_and_retention(
    threaded: ThreadedCluster,
) -> None:
    bootstrap = threaded.bootstrap
    create_topic(bootstrap, TOPIC, PARTITIONS, retention_ms="777777777")
    writer = _Writer(bootstrap)
    writer.start()
    wait_until(lambda: min(map(len, writer.acknowledged.values())) > 20)
    before = {number: list(values) for number, values in writer.acknowledged.items()}
    freeze(bootstrap, FROZEN)
    writer.stop()
    found = scanned(threaded, partitions=PARTITIONS)
    for number, values in before.items():
        assert found[number][: len(values)] == values
        assert found[number] == writer.acknowledged[number][: len(found[number])]
    (info,) = frozen_topics(bootstrap)
    assert (info.name, info.snapshot, info.keep_ms) == (TOPIC, SNAPSHOT, -1)
    assert info.configs == {"retention.ms": "777777777"}
    assert [part.record_count for part in info.partitions] == [
        len(found[number]) for number in range(PARTITIONS)
    ]
    assert all(part.size_bytes for part in info.partitions)
    # Deletions in the topic do not affect the snapshot.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = [TopicPartition(TOPIC, number, -1) for number in range(PARTITIONS)]
    for future in admin.delete_records(ends).values():
        future.result(TIMEOUT_S)
    wait_until(lambda: _is_empty(threaded, TOPIC))
    assert scanned(threaded, partitions=PARTITIONS) == found
    delete(bootstrap, TOPIC)
    assert scanned(threaded, partitions=PARTITIONS) == found
    # A fork of the snapshot is a regular topic under the old name.
    create_topic(bootstrap, TOPIC, -1, penstock_fork_source=FROZEN)
    assert read(bootstrap, TOPIC) == found
    produce(bootstrap, TOPIC, [b"new"])
    assert read(bootstrap, TOPIC) == {**found, 0: [*found[0], b"new"]}
    assert scanned(threaded, partitions=PARTITIONS) == found
    delete(bootstrap, FROZEN)
    assert frozen_topics(bootstrap) == []
    with pytest.raises(KafkaFailed, match="'orders@nightly' is not a frozen topic"):
        frozen_topics(bootstrap, [FROZEN])
    assert read(bootstrap, TOPIC) == {**found, 0: [*found[0], b"new"]}


def test_compaction_of_a_topic_does_not_change_its_snapshot(threaded: ThreadedCluster) -> None:
    bootstrap = threaded.bootstrap
    compact = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    create_topic(bootstrap, TOPIC, 1, **compact)
    writer = Producer({"bootstrap.servers": bootstrap})
    values = [b"%d" % number for number in range(50)]
    for value in values:
        writer.produce(TOPIC, value, key=b"k", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    freeze(bootstrap, FROZEN)
    threaded.compact(TOPIC)
    wait_until(lambda: scan(threaded.store_url, TOPIC).to_table().num_rows == 1)
    assert scanned(threaded) == {0: values}


def test_topic_lists_omit_snapshots(threaded: ThreadedCluster) -> None:
    bootstrap = threaded.bootstrap
    create_topic(bootstrap, TOPIC, 1)
    freeze(bootstrap, FROZEN)
    scanned(threaded)
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
    assert set(listed.topics) == {TOPIC}
    assert [topic.name for topic in topics(threaded.store_url)] == [TOPIC]
    found = topics(threaded.store_url, snapshots=True)
    assert [(topic.name, topic.snapshot) for topic in found] == [(TOPIC, ""), (TOPIC, SNAPSHOT)]


def test_transaction_open_at_a_snapshot_is_not_committed_in_it_and_aborted_in_its_fork(
    threaded: ThreadedCluster,
) -> None:
    bootstrap = threaded.bootstrap
    create_topic(bootstrap, TOPIC, 1)
    writer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "w"} | PATIENT_TRANSACTION
    )
    writer.init_transactions(TIMEOUT_S)
    for value, is_committed in ((b"committed", True), (b"aborted", False)):
        writer.begin_transaction()
        writer.produce(TOPIC, value, partition=0)
        assert writer.flush(TIMEOUT_S) == 0
        (writer.commit_transaction if is_committed else writer.abort_transaction)(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(TOPIC, b"open", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    produce(bootstrap, TOPIC, [b"plain"])
    freeze(bootstrap, FROZEN)
    writer.commit_transaction(TIMEOUT_S)

    def committed() -> list[bytes]:
        found = scan(threaded.store_url, TOPIC, snapshot=SNAPSHOT, isolation_level="read_committed")
        return found.to_table().sort_by("offset")["value"].to_pylist()

    assert scanned(threaded) == {0: [b"committed", b"aborted", b"open", b"plain"]}
    assert committed() == [b"committed"]
    create_topic(bootstrap, "fork", -1, penstock_fork_source=FROZEN)
    assert read(bootstrap, "fork", 1) == {0: [b"committed", b"plain"]}
    assert read(bootstrap, TOPIC, 1) == {0: [b"committed", b"open", b"plain"]}
    assert committed() == [b"committed"]


def test_snapshot_contains_the_committed_offsets_of_groups(threaded: ThreadedCluster) -> None:
    bootstrap = threaded.bootstrap
    create_topic(bootstrap, TOPIC, 2)
    create_topic(bootstrap, "other", 1)
    produce(bootstrap, TOPIC, [b"x"] * 10, partitions=range(2))

    def commit(group: str, *offsets: TopicPartition) -> None:
        consumer: Consumer = confluent_consumer(bootstrap, group)
        consumer.commit(offsets=list(offsets), asynchronous=False)
        consumer.close()

    groups = [f"group-{number}" for number in range(25)]  # more than fit into one request
    for number, group in enumerate(groups):
        commit(group, TopicPartition(TOPIC, number % 2, 1 + number % 5))
    commit("both", TopicPartition(TOPIC, 0, 2), TopicPartition(TOPIC, 1, 4))
    commit("stranger", TopicPartition("other", 0, 0))
    with closing(talk_to_coordinator(bootstrap, "streams")) as talk:
        assert talk.commit("streams", "", -1, 0, TOPIC) == 0
        talk.join("streams", "a", reading(TOPIC))
    freeze(bootstrap, FROZEN)
    commit("both", TopicPartition(TOPIC, 0, 5))
    (info,) = frozen_topics(bootstrap)
    expected = {group: {at % 2: 1 + at % 5} for at, group in enumerate(groups)}
    assert info.group_offsets == {**expected, "both": {0: 2, 1: 4}, "streams": {0: 5}}


async def test_objects_are_kept_while_a_snapshot_references_them(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap

    def prepare() -> None:
        create_topic(bootstrap, TOPIC, 1)
        create_topic(bootstrap, "clicks", 1)
        for topic in (TOPIC, "clicks"):
            produce(bootstrap, topic, [b"x" * 100] * 50)
        freeze(bootstrap, FROZEN, "clicks@nightly")
        delete(bootstrap, TOPIC, "clicks")

    await asyncio.to_thread(prepare)
    image = cluster.broker.image
    frozen = list(image.frozen_topics)
    assert [topic.name for topic in frozen] == [TOPIC, "clicks"]
    held = {
        state.key
        for state in image.objects
        for topic in frozen
        for entry in image.streams.known(topic.partitions[0].data_stream_id).entries
        if state.object_id == entry.object_id
    }
    assert held

    await cluster.until_janitor_done()
    for node_id in list(cluster.brokers):
        await cluster.stop_broker(node_id)
        await cluster.start_broker(node_id)
    await cluster.until_janitor_done()
    assert {key for key in held if key.startswith("data/")} <= await cluster.data_keys()
    bootstrap = cluster.bootstrap

    def restore() -> None:
        create_topic(bootstrap, TOPIC, -1, penstock_fork_source=FROZEN)
        assert read(bootstrap, TOPIC, 1) == {0: [b"x" * 100] * 50}
        delete(bootstrap, TOPIC, FROZEN, "clicks@nightly")

    await asyncio.to_thread(restore)
    await until(
        lambda: not any(state.refs for state in cluster.broker.image.objects if state.key in held)
    )
    await cluster.until_janitor_done()
    assert not held & await cluster.data_keys()


def test_invalid_snapshots_are_refused_with_the_reason(threaded: ThreadedCluster) -> None:
    bootstrap = threaded.bootstrap
    create_topic(bootstrap, TOPIC, 1)
    produce(bootstrap, TOPIC, [b"x"])
    freeze(bootstrap, FROZEN)

    def refusal(name: str, **config: str) -> str:
        with pytest.raises(KafkaException) as caught:
            create_topic(bootstrap, name, -1, **config)
        return f"{caught.value.args[0].name()} {caught.value.args[0].str()}"

    source = {"penstock_fork_source": TOPIC}
    for name, config, text in (
        ("a@b", {}, "TOPIC_EXCEPTION topic name 'a@b' is that of a topic of a snapshot"),
        (FROZEN, source, "TOPIC_ALREADY_EXISTS topic 'orders@nightly' exists"),
        ("none@s", {"penstock_fork_source": "none"}, "there is no topic 'none' to fork"),
        ("a@s", source, "INVALID_CONFIG"),
        ("orders@a@b", source, "TOPIC_EXCEPTION"),
        ("orders@s", {**source, "penstock_fork_offsets": "0:1"}, "a snapshot is of now"),
        ("fork", {"penstock_fork_source": FROZEN, "penstock_fork_offsets": "0:1"}, "at its end"),
        ("fork", {"penstock_fork_source": "orders@none"}, "there is no topic 'orders@none'"),
        ("@s", {"penstock_fork_source": ""}, "TOPIC_EXCEPTION"),
    ):
        assert text in refusal(name, **config)
    with pytest.raises(KafkaException, match=r"not created, because 'none@s' is not"):
        freeze(bootstrap, "orders@s", "none@s")
    assert [info.snapshot for info in frozen_topics(bootstrap)] == [SNAPSHOT]


def cli(threaded: ThreadedCluster, *arguments: str, code: int = 0) -> str:
    environment = {
        "PENSTOCK_BOOTSTRAP": threaded.bootstrap,
        "PENSTOCK_STORE": threaded.store_url,
        "COLUMNS": "160",
    }
    result = CliRunner().invoke(app, list(arguments), env=environment)
    if isinstance(result.exception, ExpectedError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_offsets_of_a_streams_group_are_restored(threaded: ThreadedCluster) -> None:
    bootstrap, group = threaded.bootstrap, "streams"
    create_topic(bootstrap, TOPIC, 1)
    produce(bootstrap, TOPIC, [b"x"] * 9)
    with closing(talk_to_coordinator(bootstrap, group)) as talk:
        assert talk.commit(group, "", -1, 0, TOPIC) == 0
        talk.join(group, "a", reading(TOPIC))
        cli(threaded, "snapshots", "create", SNAPSHOT)
        restore = ("snapshots", "restore", SNAPSHOT, "--as", "copy", "--with-groups", "--json")
        (refused,) = json.loads(cli(threaded, *restore, code=1))
        assert "stop its members" in refused["problems"][0]
        talk.beat(group, "a", -1)
        assert [found["group_type"] for found in talk.listed(group)] == ["streams"]
    restore = ("snapshots", "restore", SNAPSHOT, "--replace", "--yes", "--with-groups", "--json")
    (restored,) = json.loads(cli(threaded, *restore))
    assert (restored["groups"], restored["problems"]) == (1, [])
    assert committed_by(bootstrap, group, TOPIC) == 5


def committed_by(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_consumer(bootstrap, group)
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    consumer.close()
    return found.offset


def test_snapshots_are_created_and_restored_from_the_command_line(
    threaded: ThreadedCluster,
) -> None:
    bootstrap = threaded.bootstrap
    for topic in (TOPIC, "clicks"):
        create_topic(bootstrap, topic, 1, retention_ms="777777777")
        produce(bootstrap, topic, [b"a", b"b"])
    consumer = confluent_consumer(bootstrap, "g")
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    consumer.close()
    assert cli(threaded, "snapshots", "create", SNAPSHOT).startswith("created nightly: 2 topics")
    one = json.loads(cli(threaded, "snapshots", "create", "one", "--topics", TOPIC, "--json"))
    assert (one["snapshot"]["topics"], one["snapshot"]["records"]) == (1, 2)
    listed = json.loads(cli(threaded, "snapshots", "list", "--json"))
    assert [(view["name"], view["topics"], view["groups"]) for view in listed] == [
        (SNAPSHOT, 2, 1),
        ("one", 1, 1),
    ]
    assert "nightly" in cli(threaded, "snapshots", "list")
    described = json.loads(
        cli(threaded, "snapshots", "describe", SNAPSHOT, "--topics", TOPIC, "--json")
    )
    assert [(topic["topic"], topic["groups"]) for topic in described] == [(TOPIC, {"g": {"0": 1}})]
    assert "777777777" in cli(threaded, "snapshots", "describe", SNAPSHOT)
    produce(bootstrap, TOPIC, [b"later"])
    scanned(threaded)
    assert cli(threaded, "consume", TOPIC, "--snapshot", SNAPSHOT) == "a\nb\n"
    line = json.loads(
        cli(threaded, "consume", TOPIC, "--snapshot", SNAPSHOT, "--json", "--max-messages", "1")
    )
    assert (line["topic"], line["offset"], line["value"]) == (TOPIC, 0, "a")

    with pytest.raises(UsageError, match="topic 'clicks' exists"):
        cli(threaded, "snapshots", "restore", SNAPSHOT)
    with pytest.raises(UsageError, match="is one name"):
        cli(threaded, "snapshots", "restore", SNAPSHOT, "--as", "x")
    cli(
        threaded,
        "snapshots",
        "restore",
        SNAPSHOT,
        "--topics",
        TOPIC,
        "--as",
        "copy",
        "--with-groups",
    )
    assert read(bootstrap, "copy", 1) == {0: [b"a", b"b"]}
    assert committed_by(bootstrap, "g", "copy") == 1
    consumer = confluent_consumer(bootstrap, "g")
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
    consumer.close()
    restored = json.loads(
        cli(
            threaded,
            "snapshots",
            "restore",
            SNAPSHOT,
            "--replace",
            "--yes",
            "--with-groups",
            "--json",
        )
    )
    assert [(view["topic"], view["groups"], view["problems"]) for view in restored] == [
        ("clicks", 0, []),
        (TOPIC, 1, []),
    ]
    assert read(bootstrap, TOPIC, 1) == {0: [b"a", b"b"]}
    assert committed_by(bootstrap, "g", TOPIC) == 1
    assert cli(threaded, "snapshots", "delete", SNAPSHOT, "--yes").startswith("deleted nightly")
    for arguments, error in {
        ("describe", SNAPSHOT): "snapshot 'nightly' does not exist",
        ("describe", "on"): "did you mean one",
        ("create", "one"): "was not created: .*exists",
        ("create", "bad name"): "'bad name'|TOPIC_EXCEPTION",
        ("create", "s", "--topics", "none"): "topic 'none' does not exist",
        ("describe", "one", "--topics", "clicks"): "'clicks' is not in snapshot 'one'",
    }.items():
        with pytest.raises(ExpectedError, match=error):
            cli(threaded, "snapshots", *arguments)

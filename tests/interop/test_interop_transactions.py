"""Transactions of both versions (before and after KIP-890) and feature levels compared with Apache
Kafka 4.2: both get the same request sequences, and Kafka's tools run against both.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.broker.transactions.model import EPOCH_LAST_GIVEN, PREPARED
from penstock.broker.transactions.records import decode_key, decode_value, encode_key, encode_value
from penstock.protocol import apis
from penstock.protocol.gen import (
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    update_features,
)
from penstock.protocol.gen.describe_transactions import DescribeTransactionsRequest
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.transaction_client import TOPIC, TransactionClient, create_ledger
from tests.support.waiting import wait_until

FEATURES = "org.apache.kafka.tools.FeatureCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
VERIFICATION = "transaction.partition.verification.enable"
UP, SAFE, UNSAFE = 1, 2, 3
Step = tuple[str, Any]


@pytest.fixture
def verifying(peer: str) -> Iterator[str]:
    """Run Kafka with partition verification, which other tests disable."""
    admin = AdminClient({"bootstrap.servers": peer})

    def verify(value: str) -> None:
        entry = ConfigEntry(VERIFICATION, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(TIMEOUT_S)

    verify("true")
    yield peer
    verify("false")


# --- version 2 ------------------------------------------------------------------------------------


def own_epochs(talk: TransactionClient) -> Iterator[Step]:
    name = "own-epochs"
    talk.begin(name)
    first = talk.epoch
    yield "first batch", talk.produce(name, 0)
    yield "second batch", talk.produce(name, 0, 1)
    yield "open", talk.describe(name)
    yield "commit", talk.end(name)
    yield "repeated", talk.end(name, epoch=first)
    yield "the other outcome", talk.end(name, commit=False, epoch=first)
    yield "committed", talk.describe(name)
    yield "late batch", talk.produce(name, 0, 2, epoch=first)
    yield "late batch elsewhere", talk.produce(name, 1, 0, epoch=first)
    yield "nothing to commit", talk.end(name)
    yield "nothing to abort", talk.end(name, commit=False)
    yield "repeated", talk.end(name, commit=False, epoch=talk.epoch - 1)
    yield "the other outcome", talk.end(name, epoch=talk.epoch - 1)
    yield "nothing to abort again", talk.end(name, commit=False)
    yield "aborted", talk.describe(name)
    yield "an old epoch", talk.end(name, epoch=first)
    yield "an epoch to come", talk.end(name, epoch=talk.epoch + 3)
    yield "another producer", talk.end(name, producer_id=talk.producer_id + 10_000)
    yield "another id", talk.end("own-epochs-none")
    yield "no id", talk.end("")
    yield "next transaction", talk.produce(name, 1)
    yield "abort", talk.end(name, commit=False)
    yield "aborted", talk.describe(name)
    yield "batch of the epoch to come", talk.produce(name, 0, epoch=talk.epoch + 1)
    yield "batch of another producer", talk.produce(name, 0, producer_id=talk.producer_id + 10_000)


def new_instances(talk: TransactionClient) -> Iterator[Step]:
    name = "new-instances"
    talk.begin(name)
    old = talk.epoch
    yield "first batch", talk.produce(name, 0)
    yield "another instance", talk.init(name)
    yield "batch of the old one", talk.produce(name, 0, 1, epoch=old)
    yield "commit of the old one", talk.end(name, epoch=old)
    yield "abort of the old one", talk.end(name, commit=False, epoch=old)
    yield "first batch", talk.produce(name, 0)
    yield "commit", talk.end(name)
    ended = talk.producer_id, talk.epoch
    yield "continue", talk.init(name, expected=ended)
    yield "continue again", talk.init(name, expected=ended)
    yield "with an older epoch", talk.init(name, expected=(ended[0], old))
    yield "abort what has not begun", talk.end(name, commit=False)
    yield "continue with the epoch before", talk.init(name, expected=(ended[0], talk.epoch - 1))


def sequences(talk: TransactionClient) -> Iterator[Step]:
    name = "sequences"
    talk.begin(name)
    yield "does not begin at 0", talk.produce(name, 0, 5)
    yield "the partition is in", talk.describe(name)
    yield "begins at 0", talk.produce(name, 0, 0)
    yield "repeated", talk.produce(name, 0, 0)
    yield "a gap", talk.produce(name, 0, 4)
    yield "without a transaction", talk.produce(name, 0, 1, transactional=False)
    yield "without an id", talk.produce(None, 0, 1)
    yield "without an id elsewhere", talk.produce(None, 1, 0)
    yield "plain", talk.produce(name, 0, -1, producer_id=-1, epoch=-1, transactional=False)
    yield "commit", talk.end(name)
    yield "begins at 0 again", talk.produce(name, 0, 0)
    yield "abort", talk.end(name, commit=False)


def offsets(talk: TransactionClient) -> Iterator[Step]:
    name, group = "offsets", "offsets-group"
    talk.begin(name)
    talk.coordinate_group(group)
    first = talk.epoch
    yield "offset", talk.commit_offset(name, group, 7)
    yield "another", talk.commit_offset(name, group, 8)
    yield "in the transaction", talk.describe(name)
    yield "commit", talk.end(name)
    yield "committed", talk.committed(group)
    yield "late offset", talk.commit_offset(name, group, 9, epoch=first)
    yield "offset to abort", talk.commit_offset(name, group, 10)
    yield "abort", talk.end(name, commit=False)
    yield "kept", talk.committed(group)
    yield "not added, version 4", talk.commit_offset(name, group, 11, version=4)
    yield "not added, version 3", talk.commit_offset(name, group, 11, version=3)
    yield "added", talk.add_offsets(name, group, 4)
    yield "added, version 3", talk.commit_offset(name, group, 12, version=3)
    yield "commit", talk.end(name)
    yield "committed", talk.committed(group)
    yield "an old epoch", talk.commit_offset(name, group, 13, epoch=first)
    yield "an epoch to come", talk.commit_offset(name, group, 13, epoch=talk.epoch + 4)


def offsets_without_group(talk: TransactionClient) -> Iterator[Step]:
    """Commit offsets of a group that is not part of the transaction."""
    name = "without-group"
    talk.begin(name)
    for version in range(5):
        group = f"{name}-{version}"
        other = f"{group}-other"
        talk.coordinate_group(group)
        commit = partial(talk.commit_offset, version=version)
        yield f"nothing begun, version {version}", commit(name, group, 5)
        yield "state", talk.describe(name)[1:]
        yield "add a partition", talk.add(name, 0)
        yield "only a partition", commit(name, group, 6)
        yield "another group", (talk.add_offsets(name, other), commit(name, group, 6))
        yield "an unknown id", commit(f"{name}-none", group, 6)
        yield "an unknown producer", commit(name, group, 6, producer_id=1 << 40)
        yield "an epoch to come", commit(name, group, 6, epoch=talk.epoch + 1)
        yield "no epoch", commit(name, group, 6, epoch=-1)
        yield "added", (talk.add_offsets(name, group), commit(name, group, 7))
        yield "commit", talk.end(name, version=4)
        yield "committed", talk.committed(group)
        yield "after the end", commit(name, group, 8)


def unverified_offsets(talk: TransactionClient) -> Iterator[Step]:
    """Do the same without verification, where the coordinator of the transaction is not asked."""
    name = "unverified"
    talk.begin(name)
    for version in range(5):
        group = f"{name}-{version}"
        talk.coordinate_group(group)
        commit = partial(talk.commit_offset, version=version)
        yield f"nothing begun, version {version}", commit(name, group, 5)
        yield "state", talk.describe(name)[1:]
        yield "an unknown id", commit(f"{name}-none", group, 6)
        yield "added", (talk.add_offsets(name, group), commit(name, group, 7))
        yield "commit", talk.end(name, version=4)
        yield "committed", talk.committed(group)


def used_up_epochs(talk: TransactionClient) -> Iterator[Step]:
    name = "used-up-epochs"
    talk.begin(name)
    while talk.epoch < EPOCH_LAST_GIVEN:
        talk.init(name)
    old = talk.producer_id, talk.epoch
    yield "last epoch", talk.epoch
    yield "first batch", talk.produce(name, 0)
    yield "commit", talk.end(name)
    yield "repeated", talk.end(name, producer_id=old[0], epoch=old[1], takes=False)
    yield "state", talk.describe(name)
    yield "batch of the next producer", talk.produce(name, 0)
    yield "late batch", talk.produce(name, 0, 1, producer_id=old[0], epoch=old[1])
    yield "late batch elsewhere", talk.produce(name, 1, 0, producer_id=old[0], epoch=old[1])
    yield "late end", talk.end(name, producer_id=old[0], epoch=old[1], takes=False)
    yield "commit", talk.end(name)
    yield "state", talk.describe(name)


# --- version 1 ------------------------------------------------------------------------------------


def kept_epochs(talk: TransactionClient) -> Iterator[Step]:
    name = "kept-epochs"
    talk.begin(name)
    yield "not added", [talk.produce(name, 0, version=version) for version in (11, 10, 9, 3)]
    yield "not begun", talk.end(name, version=4)
    yield "nothing to abort", talk.end(name, commit=False, version=4)
    yield "add", talk.add(name, 0)
    yield "first batch", talk.produce(name, 0, version=11)
    yield "not added", talk.produce(name, 1, version=11)
    yield "second batch", talk.produce(name, 0, 1, version=9)
    yield "commit", talk.end(name, version=4)
    yield "state", talk.describe(name)
    yield "repeated", talk.end(name, version=3)
    yield "the other outcome", talk.end(name, commit=False, version=3)
    yield "late batch", [talk.produce(name, 0, 2, version=version) for version in (11, 10)]
    yield "late batch elsewhere", talk.produce(name, 1, 0, version=10)
    yield "add", talk.add(name, 0, 1, version=0)
    yield (
        "next batches",
        [talk.produce(name, index, 2 * (1 - index), version=11) for index in (0, 1)],
    )
    yield "abort", talk.end(name, commit=False, version=0)
    old = talk.epoch
    yield "add", talk.add(name, 0)
    yield "another instance", talk.init(name, version=4)
    yield "fenced", [talk.add(name, 0, epoch=old, version=version) for version in (1, 2, 3)]
    yield "fenced", [talk.end(name, epoch=old, version=version) for version in (1, 2, 4)]
    yield "fenced", [talk.produce(name, 0, 3, epoch=old, version=version) for version in (10, 11)]
    yield "unknown partition", talk.add(name, 0, 9)
    yield "no id", talk.add("", 0)
    yield "another id", talk.add("kept-epochs-none", 0)


def both_versions(talk: TransactionClient) -> Iterator[Step]:
    """Between two transactions or within one, the client is updated or the feature
    level changes.
    """
    name = "both-versions"
    talk.begin(name)
    yield "begins with version 2", talk.produce(name, 0)
    yield "ends with version 1", talk.end(name, version=4)
    yield "state", talk.describe(name)
    yield "begins with version 1", talk.add(name, 0)
    yield "batch", talk.produce(name, 0, 1, version=11)
    yield "batch of version 2", talk.produce(name, 1)
    yield "ends with version 2", talk.end(name)
    yield "state", talk.describe(name)
    yield "add", talk.add(name, 1)
    yield "batch", talk.produce(name, 1, version=11)
    yield "abort", talk.end(name, commit=False, version=4)
    yield "state", talk.describe(name)
    yield "version 2", talk.produce(name, 1, 1)
    yield "commit", talk.end(name)


# --- partition leaders ----------------------------------------------------------------------------


def leaders(talk: TransactionClient) -> Iterator[Step]:
    name = "leaders"
    talk.begin(name)
    me, old = (talk.producer_id, talk.epoch), (talk.producer_id, talk.epoch - 1)
    other = talk.producer_id + 10_000, 0
    yield "nothing begun", talk.ask_as_leader((name, me, True, [0, 1]))
    yield "add", talk.ask_as_leader((name, me, False, [0]))
    yield "again", talk.ask_as_leader((name, me, False, [0]), version=4)
    yield "verify", talk.ask_as_leader((name, me, True, [0, 1]))
    yield "verify", talk.ask_as_leader((name, me, True, [0, 1]), version=4)
    yield "old epoch", [talk.ask_as_leader((name, old, flag, [0])) for flag in (True, False)]
    yield "other producer", [talk.ask_as_leader((name, other, flag, [0])) for flag in (True, False)]
    yield "other id", [talk.ask_as_leader(("none", me, flag, [0])) for flag in (True, False)]
    yield "no id", [talk.ask_as_leader(("", me, flag, [0])) for flag in (True, False)]
    yield (
        "unknown partition",
        [talk.ask_as_leader((name, me, flag, [0, 9])) for flag in (True, False)],
    )
    yield "several", talk.ask_as_leader((name, me, True, [0]), ("none", me, True, [0, 1]))
    yield "state", talk.describe(name)
    yield "commit", talk.end(name)


CONVERSATIONS: list[Callable[[TransactionClient], Iterator[Step]]] = [
    own_epochs,
    new_instances,
    sequences,
    offsets,
    offsets_without_group,
    kept_epochs,
    both_versions,
    leaders,
]


def _compare(
    told: Callable[[TransactionClient], Iterator[Step]], kafka_address: str, address: str
) -> None:
    responses: list[list[Step]] = []
    for where in (kafka_address, address):
        create_ledger(where)
        talk = TransactionClient(where)
        try:
            responses.append(list(told(talk)))
        finally:
            talk.close()
    for expected, response in zip(*responses, strict=True):
        assert response == expected, expected[0]


@pytest.mark.parametrize("told", CONVERSATIONS, ids=lambda told: told.__name__)
async def test_request_sequences_get_the_responses_of_kafka(
    told: Callable[[TransactionClient], Iterator[Step]], verifying: str, cluster: Cluster
) -> None:
    await asyncio.to_thread(_compare, told, verifying, cluster.bootstrap)


async def test_unverified_offsets_are_committed_as_by_kafka(peer: str, tmp_path: Path) -> None:
    async with Cluster(
        tmp_path, brokers=1, transaction_partition_verification_enable=False
    ) as cluster:
        await asyncio.to_thread(_compare, unverified_offsets, peer, cluster.bootstrap)


@pytest.mark.long
async def test_producer_id_changes_after_the_last_epoch_as_in_kafka(
    verifying: str, cluster: Cluster
) -> None:
    """The last epoch is 32,767."""
    await asyncio.to_thread(_compare, used_up_epochs, verifying, cluster.bootstrap)


# --- records --------------------------------------------------------------------------------------


def _transact_for_records(address: str) -> None:
    create_ledger(address)
    talk = TransactionClient(address)
    try:
        talk.begin("records")
        talk.produce("records", 0)
        talk.end("records")
        talk.describe("records")
        talk.add("records", 1)
        talk.end("records", commit=False, version=4)
        talk.describe("records")
    finally:
        talk.close()


def _state_records(address: str) -> list[tuple[bytes, bytes]]:
    """Return the records of the transactional id `records`. Other ids are used only while waiting
    for the coordinator.
    """
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "records", "enable.partition.eof": True}
    )
    topic = consumer.list_topics(TRANSACTIONS_TOPIC, TIMEOUT_S).topics[TRANSACTIONS_TOPIC]
    waiting = set(topic.partitions)
    consumer.assign([TopicPartition(TRANSACTIONS_TOPIC, index, 0) for index in waiting])
    found: list[tuple[bytes, bytes]] = []
    while waiting:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error():
            waiting.discard(message.partition() or 0)
            continue
        key, value = message.key(), message.value()
        if key == encode_key("records") and value is not None:
            found.append((key, value))
    consumer.close()
    return found


async def test_transaction_records_are_those_of_kafka(verifying: str, cluster: Cluster) -> None:
    """Penstock decodes each side's records and encodes them into the same bytes."""
    histories: list[list[Any]] = []
    for address in (verifying, cluster.bootstrap):
        await asyncio.to_thread(_transact_for_records, address)
        records = await asyncio.to_thread(_state_records, address)
        history: list[Any] = []
        for key, value in records:
            assert decode_key(key) == "records"
            decoded = decode_value("records", value)
            assert encode_value(decoded, 1) == value
            # A broker that leads all partitions ends a transaction in one step
            # (docs/design/transactions.md).
            if decoded.state not in PREPARED:
                history.append(
                    (decoded.state.label, decoded.client_version, sorted(decoded.partitions))
                )
        histories.append(history[-4:])
    assert histories[1] == histories[0]


# --- features -------------------------------------------------------------------------------------


def _update(
    address: str, *updates: tuple[str, int, int], version: int = 2, dry: bool = False
) -> Any:
    request = update_features.UpdateFeaturesRequest(
        feature_updates=[update_features.FeatureUpdateKey(*update) for update in updates],
        validate_only=dry,
    )
    talk = TransactionClient(address)
    try:
        response = talk.send_request(apis.UPDATE_FEATURES, request, version)
    finally:
        talk.close()
    results = sorted(
        (item["feature"], item["error_code"], item["error_message"]) for item in response["results"]
    )
    return response["error_code"], response["error_message"], results


def _finalized(address: str) -> dict[str, tuple[int, int]]:
    talk = TransactionClient(address)
    try:
        response = talk.send_request(
            apis.API_VERSIONS, api_versions.ApiVersionsRequest("probe", "1"), 3
        )
    finally:
        talk.close()
    return {
        item["name"]: (item["min_version_level"], item["max_version_level"])
        for item in response["finalized_features"]
        if item["name"] in {"transaction.version", "group.version"}
    }


def _finalized_alike(peer: str, address: str) -> None:
    """Wait until both sides have the same finalized levels. Kafka's broker learns of a level after
    the response.
    """
    expected = _finalized(address)
    wait_until(lambda: _finalized(peer) == expected)


def _levels() -> Iterator[tuple[list[tuple[str, int, int]], dict[str, Any]]]:
    """Yield updates that end with the initial levels."""
    transactions, groups = "transaction.version", "group.version"
    changes = [
        [(transactions, 3, UP)],
        [(transactions, 1, UP)],
        [(transactions, 1, SAFE)],
        [(transactions, 2, SAFE)],
        [(transactions, 2, UNSAFE)],
        [(transactions, 2, UP)],
        [(transactions, 0, UNSAFE)],
        [(transactions, 2, UP), (groups, 2, UP)],
        [(transactions, 2, UP), (transactions, 1, SAFE)],
        [(groups, 0, UP)],
        [(groups, 0, SAFE)],
        [(groups, 1, SAFE)],
        [(groups, 1, UP), (transactions, 2, UP)],
        [(transactions, -1, UP)],
        [(transactions, 2, 9)],
        [("nope", 1, UP)],
        [("nope", 0, SAFE)],
        [],
    ]
    for updates in changes:
        yield updates, {"dry": True}
        yield updates, {}
    yield [(transactions, 3, UP), (groups, 1, UP)], {"version": 1}
    yield [(transactions, 2, UP), (groups, 1, UP)], {"version": 1}
    yield [(transactions, 2, UP)], {"version": 0}


async def test_feature_levels_change_as_in_kafka(peer: str, cluster: Cluster) -> None:
    for updates, options in _levels():
        expected, response = [
            await asyncio.to_thread(_update, address, *updates, **options)
            for address in (peer, cluster.bootstrap)
        ]
        # The controller ids differ.
        assert str(response) == str(expected).replace("Local controller 1", "Local controller 0"), (
            updates,
            options,
        )
        await asyncio.to_thread(_finalized_alike, peer, cluster.bootstrap)


async def test_consumer_groups_require_their_feature_level_as_in_kafka(
    peer: str, cluster: Cluster
) -> None:
    responses: list[Any] = []
    for address in (peer, cluster.bootstrap):
        await asyncio.to_thread(_update, address, ("group.version", 0, SAFE))
        responses.append(await asyncio.to_thread(_beat_and_describe, address))
        await asyncio.to_thread(_update, address, ("group.version", 1, UP))
    assert responses[1] == responses[0]


def _beat_and_describe(address: str) -> Any:
    beat = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest("g", "m")
    describe = consumer_group_describe.ConsumerGroupDescribeRequest(["g", "h"])
    wait_until(lambda: "group.version" not in _finalized(address))
    talk = TransactionClient(address)
    try:
        return talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, beat), talk.send_request(
            apis.CONSUMER_GROUP_DESCRIBE, describe
        )
    finally:
        talk.close()


@pytest.mark.long
async def test_kafka_features_prints_the_same_as_with_kafka(
    java: JavaHome, peer: str, cluster: Cluster
) -> None:
    def shown(address: str, *arguments: str) -> tuple[int, list[str]]:
        done = java.tool(FEATURES, "--bootstrap-server", address, *arguments)
        lines = [line.partition("\tEpoch")[0] for line in (done.stdout + done.stderr).splitlines()]
        ours = ("transaction.version", "group.version")
        described = [line for line in lines if any(name in line for name in ours)]
        return done.returncode, described if arguments == ("describe",) else lines

    for arguments in (
        ("describe",),
        ("downgrade", "--feature", "transaction.version=1", "--dry-run"),
        ("downgrade", "--feature", "transaction.version=1"),
        ("describe",),
        ("upgrade", "--feature", "transaction.version=3"),
        ("upgrade", "--feature", "transaction.version=2", "--feature", "group.version=1"),
        ("disable", "--feature", "group.version"),
        ("upgrade", "--feature", "group.version=1"),
        ("downgrade", "--feature", "transaction.version=3", "--unsafe"),
        ("describe",),
    ):
        expected, response = [
            await asyncio.to_thread(shown, address, *arguments)
            for address in (peer, cluster.bootstrap)
        ]
        same_id = [line.replace("controller 1", "controller 0") for line in expected[1]]
        assert response == (expected[0], same_id), arguments


# --- the Java producer ----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("level", [0, 2])
async def test_java_producer_commits_many_transactions(
    java: JavaHome, cluster: Cluster, level: int
) -> None:
    """The producer takes the transaction version from the feature level of the cluster."""
    if level != 2:
        await asyncio.to_thread(_update, cluster.bootstrap, ("transaction.version", level, SAFE))
    await asyncio.to_thread(create_ledger, cluster.bootstrap)
    done = await asyncio.to_thread(
        java.tool,
        PERFORMANCE,
        "--topic", TOPIC,
        "--num-records", "300",
        "--record-size", "20",
        "--throughput", "200",
        "--bootstrap-server", cluster.bootstrap,
        "--transactional-id", "performance",
        "--transaction-duration-ms", "100",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = await asyncio.to_thread(_described, cluster.bootstrap, "performance")
    assert found["transaction_state"] in {"CompleteCommit", "PrepareCommit"}
    assert (found["producer_epoch"] > 5) == (level == 2), "each transaction has its epoch"
    listed = await asyncio.to_thread(
        java.tool, TRANSACTIONS, "--bootstrap-server", cluster.bootstrap, "list"
    )
    assert "performance" in listed.stdout
    values = await asyncio.to_thread(_committed_count, cluster.bootstrap)
    assert values == 300


def _described(address: str, name: str) -> Any:
    talk = TransactionClient(address)
    try:
        response = talk.send_request(
            apis.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest([name])
        )
    finally:
        talk.close()
    return response["transaction_states"][0]


def _committed_count(address: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    waiting, count = {0, 1}, 0
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in waiting])
    while waiting:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error():
            waiting.discard(message.partition() or 0)
        else:
            count += 1
    consumer.close()
    return count

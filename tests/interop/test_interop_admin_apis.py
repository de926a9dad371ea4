"""Admin APIs compared with Apache Kafka 4.2: both get the same requests and tools."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition

from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_configs,
    alter_replica_log_dirs,
    describe_client_quotas,
    describe_log_dirs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    list_config_resources,
    list_transactions,
    offset_delete,
)
from tests.interop.both import Both
from tests.support.clients import TIMEOUT_S, confluent_consumer
from tests.support.conversation import send_request
from tests.support.hanging import HANGING_ID, produce_hanging
from tests.support.waiting import wait_until

CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
NODE_ID = 1
"""The id of the only broker on both sides."""

pytestmark = pytest.mark.cluster(transaction_partition_verification_enable=False)


# --- DescribeTopicPartitions ----------------------------------------------------------------------


def _topics(response: Any) -> Any:
    """Return the response without topic ids and leader epochs, which differ."""
    for topic in response["topics"]:
        topic["topic_id"] = topic["topic_id"] is not None
        for part in topic["partitions"]:
            part["leader_epoch"] = part["leader_epoch"] >= 0
    return response


@pytest.mark.long
async def test_topics_are_described_as_by_kafka(both: Both) -> None:
    names = {"pages-a": 3, "pages-b": 2, "pages-c": 5}
    for name, partitions in names.items():
        await both.create(name, partitions, retention_ms="1000000")
    requested: list[tuple[list[str], int, tuple[str, int] | None]] = [
        ([*names, "pages-a", "none", "bad name", "__consumer_offsets"], 2_000, None),
        *(([*names], limit, None) for limit in (-1, 0, 3, 4)),
        *(([*names], 4, ("pages-a", index)) for index in (-1, 3, 9)),
        ([*names], 4, ("pages-b", 1)),
        ([*names], 4, ("pages-bb", 1)),
        (["none", "pages-a"], 1, ("none", 0)),
        ([], 4, ("pages-bb", 1)),
        ([], 4, ("pages-b", -1)),
    ]
    for topics, limit, cursor in requested:
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(topic) for topic in topics],
            limit,
            cursor and describe_topic_partitions.Cursor(*cursor),
        )
        expected, response = await both.send_request(apis.DESCRIBE_TOPIC_PARTITIONS, request)
        assert _topics(response) == _topics(expected), (topics, limit, cursor)

    expected, shown = await both.tool(TOPICS, "--describe", "--topic", "pages-.*")
    assert len(shown.splitlines()) == len(names) + sum(names.values())
    # Kafka stores this config for the whole cluster.
    expected = expected.replace("min.insync.replicas=1,", "")
    assert _without_topic_ids(shown) == _without_topic_ids(expected)


def _without_topic_ids(shown: str) -> list[list[str]]:
    return [
        [cell for cell in line.split("\t") if not cell.startswith("TopicId: ")]
        for line in sorted(shown.splitlines())
    ]


# --- transactions ---------------------------------------------------------------------------------


def _columns(shown: str, *omitted: str) -> list[list[str]]:
    """Return the table of kafka-transactions, sorted, without the columns that differ."""
    head, *rows = [
        [cell.strip() for cell in line.rstrip().split("\t")] for line in shown.splitlines()
    ]
    kept = [index for index, name in enumerate(head) if name not in omitted]
    return [[row[index] for index in kept if index < len(row)] for row in [head, *sorted(rows)]]


def _refusal(shown: str) -> str:
    """Return the error message of a tool. Log lines, which start with a time, are omitted."""
    return next(line for line in shown.splitlines() if not line[:1].isdigit())


@pytest.mark.long
async def test_hanging_transaction_is_found_and_aborted(both: Both) -> None:
    topic = "hanging"
    await both.create(topic)
    for address in both.addresses:
        await asyncio.to_thread(produce_hanging, address, topic)
    at = ("--topic", topic, "--partition", "0")
    for command in (
        ("describe-producers", *at),
        ("find-hanging", "--topic", topic),
        ("find-hanging", "--broker-id", str(NODE_ID)),
    ):
        expected, shown = await both.tool(TRANSACTIONS, *command)
        assert len(shown.splitlines()) == 2, shown
        omitted = ("LastTimestamp", "Duration(min)")
        assert _columns(shown, *omitted) == _columns(expected, *omitted), command
    stale = ("--producer-id", str(HANGING_ID), "--producer-epoch", "1", "--coordinator-epoch", "0")
    for refused in (("--start-offset", "7"), stale):
        expected, shown = await both.tool(TRANSACTIONS, "abort", *at, *refused)
        assert _refusal(shown) == _refusal(expected), refused
    expected, shown = await both.tool(TRANSACTIONS, "abort", *at, "--start-offset", "0")
    assert (expected, shown) == ("", "")
    expected, shown = await both.tool(TRANSACTIONS, "describe-producers", *at)
    assert _columns(shown, "LastTimestamp") == _columns(expected, "LastTimestamp")
    expected, shown = await both.tool(TRANSACTIONS, "find-hanging", "--topic", topic)
    assert shown == expected
    assert len(shown.splitlines()) == 1


@pytest.mark.long
async def test_transactions_are_listed_and_described_as_by_kafka(both: Both) -> None:
    await both.create("transfers", 2)
    producers = [
        await asyncio.to_thread(_begin_transaction, address, "transfers")
        for address in both.addresses
    ]
    expected, shown = await both.tool(TRANSACTIONS, "list")
    assert [row for row in _columns(shown, "ProducerId") if row[0] == "teller"] == [
        row for row in _columns(expected, "ProducerId") if row[0] == "teller"
    ]
    described = ("describe", "--transactional-id", "teller")
    expected, shown = await both.tool(TRANSACTIONS, *described)
    omitted = ("ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs")
    assert _columns(shown, *omitted) == _columns(expected, *omitted)
    at = ("--topic", "transfers", "--partition", "1")
    expected, shown = await both.tool(TRANSACTIONS, "describe-producers", *at)
    omitted = ("ProducerId", "LastTimestamp")
    assert _columns(shown, *omitted) == _columns(expected, *omitted)
    expected, shown = await both.tool(TRANSACTIONS, "describe", "--transactional-id", "none")
    assert _refusal(shown) == _refusal(expected)
    for producer in producers:
        await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)


async def test_transactional_ids_are_listed_by_pattern_as_by_kafka(both: Both) -> None:
    await both.create("pattern", 2)
    producers = [
        await asyncio.to_thread(_begin_transaction, address, "pattern")
        for address in both.addresses
    ]
    # A whole id, a part of an id, no pattern, and patterns that RE2 rejects.
    for pattern in ("tel.*", "tell", "", None, "(", "(?=a)", "tell\\w+$"):
        request = list_transactions.ListTransactionsRequest(transactional_id_pattern=pattern)
        expected, found = await both.send_request(apis.LIST_TRANSACTIONS, request)
        assert found["error_code"] == expected["error_code"], pattern
        listed = [
            {state["transactional_id"] for state in response["transaction_states"]}
            for response in (expected, found)
        ]
        assert ("teller" in listed[1]) == ("teller" in listed[0]), pattern
    for producer in producers:
        await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)


def _begin_transaction(address: str, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "teller"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.long
async def test_configs_are_replaced_as_by_kafka(both: Both) -> None:
    topic = "replaced"
    await both.create(topic, retention_ms="1000", segment_bytes="2000000")
    resource = (2, topic)
    requests: list[list[tuple[tuple[int, str], dict[str, str | None]]]] = [
        [(resource, {"retention.ms": "5000"})],
        [(resource, {"cleanup.policy": "compact", "retention.mss": "9"})],
        [(resource, {"retention.ms": "soon"})],
        [(resource, {"retention.ms": ""})],
        [(resource, {"retention.ms": None})],
        [(resource, {"segment.ms": "9"}), ((2, "none"), {}), ((2, "bad name"), {}), ((2, ""), {})],
        [((8, "1"), {}), ((0, ""), {}), ((77, "x"), {})],
        [(resource, {})],
    ]
    for request in requests:
        requested = alter_configs.AlterConfigsRequest(
            [
                alter_configs.AlterConfigsResource(
                    *named, [alter_configs.AlterableConfig(*config) for config in configs.items()]
                )
                for named, configs in request
            ]
        )
        expected, response = await both.send_request(apis.ALTER_CONFIGS, requested)
        assert _codes(response["responses"]) == _codes(expected["responses"]), request
        describe = ("--describe", "--entity-type", "topics", "--entity-name", topic)
        expected, shown = await both.tool(CONFIGS, *describe)
        assert _set_configs(shown) == _set_configs(expected), request


def _codes(items: Any) -> list[int]:
    return [item["error_code"] for item in items]


def _set_configs(shown: str) -> list[str]:
    """Return the configs that kafka-configs shows, except the one stored for the whole cluster."""
    found = sorted(line.split()[0] for line in shown.splitlines()[1:])
    return [pair for pair in found if pair != "min.insync.replicas=1"]


# --- OffsetDelete ---------------------------------------------------------------------------------


@pytest.mark.long
async def test_offsets_are_deleted_as_by_kafka(both: Both) -> None:
    read, other = "offsets-read", "offsets-other"
    await both.create(read, 2)
    await both.create(other)
    consumers = [
        await asyncio.to_thread(_consume, address, read, other) for address in both.addresses
    ]
    requested: list[tuple[str, list[tuple[str, list[int]]]]] = [
        ("absent", [(read, [0])]),
        ("absent", []),
        ("", [(read, [0])]),
        ("readers", [(read, [0, 1, 7]), (other, [0, 0]), ("none", [0])]),
        ("readers", []),
    ]
    requests = [
        offset_delete.OffsetDeleteRequest(
            group,
            [
                offset_delete.OffsetDeleteRequestTopic(
                    topic,
                    [offset_delete.OffsetDeleteRequestPartition(index) for index in indexes],
                )
                for topic, indexes in topics
            ],
        )
        for group, topics in requested
    ]
    for request in requests:
        expected, response = await both.send_request(apis.OFFSET_DELETE, request)
        assert _deleted(response) == _deleted(expected), request
    command = ("--delete-offsets", "--group", "readers", "--topic", read, "--topic", other)
    expected, shown = await both.tool(GROUPS, *command)
    assert sorted(shown.split()) == sorted(expected.split())
    for consumer in consumers:
        await asyncio.to_thread(consumer.close)
    expected, shown = await both.tool(GROUPS, *command)
    assert sorted(shown.split()) == sorted(expected.split())
    for address in both.addresses:
        assert await asyncio.to_thread(_committed, address, read, other) == {OFFSET_INVALID}


def _deleted(response: Any) -> tuple[int, list[tuple[str, int, int]]]:
    """Return the error code, and (topic, partition, error code) of each partition, sorted because
    Kafka's order is undefined.
    """
    return response["error_code"], sorted(
        (topic["name"], part["partition_index"], part["error_code"])
        for topic in response["topics"]
        for part in topic["partitions"]
    )


def _consume(address: str, read: str, other: str) -> Consumer:
    """Return a group member that has committed an offset for each topic."""
    consumer = confluent_consumer(
        address, "readers", enable_auto_commit=False, session_timeout_ms=10_000
    )
    consumer.subscribe([read])
    wait_until(lambda: consumer.poll(0.05) is None and consumer.assignment())
    offsets = [TopicPartition(topic, 0, 0) for topic in (read, other)]
    consumer.commit(offsets=offsets, asynchronous=False)
    return consumer


def _committed(address: str, *topics: str) -> set[int]:
    consumer = confluent_consumer(address, "readers")
    try:
        found = consumer.committed([TopicPartition(topic, 0) for topic in topics], TIMEOUT_S)
        return {partition.offset for partition in found}
    finally:
        consumer.close()


# --- missing resources ----------------------------------------------------------------------------


@pytest.mark.long
async def test_config_resources_are_listed_as_by_kafka(both: Both) -> None:
    await both.create("configured")
    interval = ("--alter", "--name", "configured", "--interval", "1000")
    expected, shown = await both.tool(CLIENT_METRICS, *interval)
    assert shown == expected
    for types in ([2], [4], [8], [16], [32], [16, 32], [1], [2, 77], [0]):
        request = list_config_resources.ListConfigResourcesRequest(types)
        expected, response = await both.send_request(apis.LIST_CONFIG_RESOURCES, request)
        assert response["error_code"] == expected["error_code"], types
        ours = ("configured", str(NODE_ID))
        assert _named(response, ours) == _named(expected, ours), types
    expected, shown = await both.tool(CLIENT_METRICS, "--list")
    # Other tests may leave subscriptions in Kafka.
    assert set(shown.splitlines()) <= set(expected.splitlines())
    assert "configured" in shown


def _named(response: Any, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return only resources with these names, because other tests also create topics in Kafka."""
    found = response["config_resources"]
    pairs = [(item["resource_name"], item["resource_type"]) for item in found]
    return sorted(pair for pair in pairs if pair[0] in names)


@pytest.mark.long
async def test_missing_quotas_and_credentials_are_reported_as_by_kafka(both: Both) -> None:
    filters: list[list[tuple[str, int, str | None]]] = [
        [],
        [("user", 0, "x"), ("client-id", 2, None)],
        [("ip", 2, None), ("nope", 2, None)],
        [("nope", 9, None)],
        [("user", 9, None)],
        [("user", 2, None), ("user", 2, None)],
        [("ip", 2, None), ("user", 2, None)],
        [("user", 0, None)],
        [("user", 1, "x")],
        [("", 2, None)],
    ]
    quotas, users = describe_client_quotas, describe_user_scram_credentials
    for components in filters:
        expected, response = await both.send_request(
            apis.DESCRIBE_CLIENT_QUOTAS,
            quotas.DescribeClientQuotasRequest(
                [quotas.ComponentData(*component) for component in components]
            ),
        )
        expected["error_message"] = response["error_message"]
        assert response == expected, components
    for names in (None, [], ["x", "y", "x"]):
        expected, response = await both.send_request(
            apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
            users.DescribeUserScramCredentialsRequest(
                None if names is None else [users.UserName(name) for name in names]
            ),
        )
        found, wanted = [
            sorted((item["user"], item["error_code"]) for item in one["results"])
            for one in (response, expected)
        ]
        assert found == wanted, names
    for kind in ("users", "clients", "ips"):
        expected, shown = await both.tool(CONFIGS, "--describe", "--entity-type", kind)
        assert shown == expected, kind


@pytest.mark.long
async def test_nonexistent_log_dir_is_refused_as_by_kafka(both: Both) -> None:
    await both.create("placed")
    wire, dirs = alter_replica_log_dirs, describe_log_dirs
    _, here = await both.send_request(apis.DESCRIBE_LOG_DIRS, dirs.DescribeLogDirsRequest(None))
    there, _ = await both.send_request(apis.DESCRIBE_LOG_DIRS, dirs.DescribeLogDirsRequest(None))
    for paths in (["/elsewhere"], None, ["", "/elsewhere"]):
        responses: list[Any] = []
        for address, own in zip(both.addresses, (there, here), strict=True):
            requested = [own["results"][0]["log_dir"]] if paths is None else paths
            topics = [
                wire.AlterReplicaLogDirTopic("placed", [0, 9]),
                wire.AlterReplicaLogDirTopic("none", [0]),
            ]
            request = wire.AlterReplicaLogDirsRequest(
                [wire.AlterReplicaLogDir(path, topics) for path in requested]
            )
            found = await asyncio.to_thread(
                send_request, address, apis.ALTER_REPLICA_LOG_DIRS, request
            )
            responses.append(
                sorted(
                    (topic["topic_name"], part["partition_index"], part["error_code"])
                    for topic in found["results"]
                    for part in topic["partitions"]
                )
            )
        assert responses[1] == responses[0], paths

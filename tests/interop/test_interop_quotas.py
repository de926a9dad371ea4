"""Quotas: the answers and the tools of Kafka."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.wire import apis
from broker.wire.gen import alter_client_quotas as altering
from broker.wire.gen import create_partitions, create_topics, delete_topics
from broker.wire.gen import describe_client_quotas as describing
from tests.interop.both import Both
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.waiting import until

CONFIGS = "kafka.admin.ConfigCommand"
PRODUCE, CONSUME, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
THROTTLED = 89

Entity = Sequence[tuple[str, str | None]]
Alteration = tuple[Entity, Sequence[tuple[str, float | None]]]

ALICE: Entity = [("user", "alice")]
BOTH: Entity = [("client-id", "c"), ("user", "alice")]
HOST: Entity = [("ip", "10.0.0.1")]
"""No address of this test: a connection over the rate is closed without an answer."""
REQUESTS: list[list[Alteration]] = [
    [(ALICE, [(PRODUCE, 1_000.0), (CONSUME, 5.0)])],
    [(BOTH, [(PRODUCE, 7.0)]), ([("user", None)], [(TIME, 150.5)])],
    [([("client-id", None)], [(MUTATIONS, 1.5)]), ([("client-id", "c")], [(CONSUME, 9.0)])],
    [([("client-id", None), ("user", None)], [(PRODUCE, 1e15)])],
    [([("client-id", None), ("user", "alice")], [(PRODUCE, 3.0)])],
    [(HOST, [(CONNECTIONS, 10.0)]), ([("ip", None)], [(CONNECTIONS, 7e6)])],
    [([("ip", "localhost")], [(CONNECTIONS, 1e6)]), ([("ip", "::2")], [(CONNECTIONS, 3.0)])],
    [(ALICE, [(PRODUCE, None)])],
    [(ALICE, [(PRODUCE, None), ("nope", None)]), ([("user", "ghost")], [])],
    [(ALICE, [(PRODUCE, 1.0), (PRODUCE, 5.0)])],
    [(BOTH, [(PRODUCE, 1.0), (PRODUCE, 5.0)])],
    [([("client-id", None), ("user", None)], [(PRODUCE, 1.0), (PRODUCE, 5.0)])],
    [(ALICE, [(PRODUCE, 8.0)]), (ALICE, [(CONSUME, 8.0)])],
    [([], [(PRODUCE, 1.0)])],
    [([("nope", "c")], [(PRODUCE, 1.0)]), ([("user", "")], [(PRODUCE, 1.0)])],
    [([("ip", "127.0.0.1"), ("user", "x")], [(PRODUCE, 1.0)])],
    [([("ip", "127.0.0.1"), ("client-id", None)], [(CONNECTIONS, 1.0)])],
    [([("ip", "")], [(CONNECTIONS, 1.0)]), ([("client-id", "")], [(PRODUCE, 1.0)])],
    [([("ip", "no.such.host.invalid")], [(CONNECTIONS, 1.0)])],
    [([("ip", "no.such.host.invalid")], [(PRODUCE, 1.0)])],
    [(HOST, [(CONNECTIONS, 10.5)]), ([("ip", "10.0.0.2")], [(CONNECTIONS, -1.0)])],
    [(HOST, [(CONNECTIONS, 1e12)]), ([("ip", "10.0.0.2")], [(PRODUCE, 1.0)])],
    [(ALICE, [("nope", 1.0)]), ([("user", "bob")], [(CONNECTIONS, 1.0)])],
    [(ALICE, [("nope", 1.0), (CONSUME, 77.0)]), ([("user", "bob")], [("SCRAM-SHA-256", 1.0)])],
    [(ALICE, [(PRODUCE, 10.5)]), ([("user", "bob")], [(PRODUCE, 10.0000001)])],
    [(ALICE, [(PRODUCE, 0.0)]), ([("user", "bob")], [(TIME, -2.0)])],
    [(ALICE, [(PRODUCE, 1e300)]), ([("user", "bob")], [(CONSUME, float("inf"))])],
    [([("user", "first"), ("user", "last")], [(PRODUCE, 5.0)])],
    [([("user", "ünï cöde/%")], [(PRODUCE, 5.0)])],
    [],
]
FILTERS: list[list[tuple[str, int, str | None]]] = [
    [],
    [("user", 0, "alice")],
    [("user", 1, None)],
    [("user", 2, None)],
    [("user", 0, "alice"), ("client-id", 0, "c")],
    [("user", 0, "alice"), ("client-id", 1, None)],
    [("user", 2, None), ("client-id", 2, None)],
    [("user", 1, None), ("client-id", 1, None)],
    [("client-id", 2, None)],
    [("client-id", 0, "c")],
    [("ip", 0, "10.0.0.1")],
    [("ip", 1, None)],
    [("ip", 2, None)],
    [("user", 0, "ghost")],
    [("user", 0, "")],
    [("nope", 9, None)],
    [("user", 9, None)],
    [("user", -1, None)],
    [("user", 2, None), ("user", 0, "x")],
    [("ip", 2, None), ("user", 2, None)],
    [("ip", 2, None), ("client-id", 2, None)],
    [("ip", 2, None), ("nope", 2, None)],
    [("user", 0, None)],
    [("user", 1, "x")],
    [("user", 2, "x")],
    [("", 2, None)],
]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def both(java: JavaHome, peer: str, cluster: Cluster) -> AsyncIterator[Both]:
    both = Both(java, peer, cluster)
    yield both
    await remove_all(both)


def request(*items: Alteration, validate_only: bool = False) -> Any:
    entries = [
        altering.EntryData(
            [altering.EntityData(kind, name) for kind, name in entity],
            [altering.OpData(key, value or 0.0, value is None) for key, value in values],
        )
        for entity, values in items
    ]
    return altering.AlterClientQuotasRequest(entries, validate_only)


def entity_of(item: Any) -> list[tuple[str, str]]:
    return sorted((part["entity_type"], part["entity_name"] or "<null>") for part in item["entity"])


def results(answer: Any) -> list[Any]:
    return sorted(
        (entity_of(item), item["error_code"], item["error_message"]) for item in answer["entries"]
    )


def quotas(answer: Any) -> Any:
    if answer["entries"] is None:
        return answer["error_code"], answer["error_message"]
    values = [
        (entity_of(item), sorted((value["key"], value["value"]) for value in item["values"]))
        for item in answer["entries"]
    ]
    return answer["error_code"], answer["error_message"], sorted(values)


async def described(
    both: Both, components: Sequence[tuple[str, int, str | None]] = (), *, strict: bool = False
) -> tuple[Any, Any]:
    wanted = [describing.ComponentData(*component) for component in components]
    return await both.ask(
        apis.DESCRIBE_CLIENT_QUOTAS, describing.DescribeClientQuotasRequest(wanted, strict)
    )


async def until_equal(both: Both) -> None:
    """Wait until both have the same quotas: Kafka's broker learns of a change after its answer."""
    found: list[Any] = []

    async def are_equal() -> bool:
        found[:] = [quotas(answer) for answer in await described(both)]
        return bool(found[0] == found[1])

    try:
        await until(are_equal, 10)
    except TimeoutError:
        assert found[1] == found[0]


async def remove_all(both: Both) -> None:
    for answer in await described(both):
        items: list[Alteration] = [
            (
                [(part["entity_type"], part["entity_name"]) for part in entry["entity"]],
                [(value["key"], None) for value in entry["values"]],
            )
            for entry in answer["entries"]
        ]
        await both.ask(apis.ALTER_CLIENT_QUOTAS, request(*items))


@pytest.mark.long
async def test_quotas_are_altered_and_described_as_by_kafka(both: Both) -> None:
    for items in REQUESTS:
        for validate_only in (True, False):
            asked = request(*items, validate_only=validate_only)
            kafka, answer = await both.ask(apis.ALTER_CLIENT_QUOTAS, asked)
            assert results(answer) == results(kafka), items
        await until_equal(both)
    for components in FILTERS:
        for strict in (False, True):
            kafka, answer = await described(both, components, strict=strict)
            assert quotas(answer) == quotas(kafka), (components, strict)


@pytest.mark.long
async def test_kafka_configs_alters_and_describes_quotas(both: Both) -> None:
    named = "--entity-name"
    alice, client = ("--entity-type", "users", named, "alice"), ("--entity-type", "clients")
    for entity, config in (
        (alice, "producer_byte_rate=1024,consumer_byte_rate=2048"),
        ((*client, named, "app"), "request_percentage=50.5"),
        ((*alice, *client, named, "app"), "producer_byte_rate=7"),
        (("--entity-type", "users", "--entity-default"), "controller_mutation_rate=2"),
        ((*client, "--entity-default"), "consumer_byte_rate=99"),
        ((*alice, *client, "--entity-default"), "consumer_byte_rate=98"),
        (("--entity-type", "ips", named, "10.0.0.1"), "connection_creation_rate=10"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate=20000"),
        (alice, "nope=1"),
        (alice, "connection_creation_rate=1"),
        (alice, "producer_byte_rate=-1"),
        (("--entity-type", "ips", named, "no.such.host.invalid"), "connection_creation_rate=10"),
    ):
        kafka, text = await both.tool(CONFIGS, "--alter", *entity, "--add-config", config)
        assert lines(text) == lines(kafka), (entity, config)
    for entity in (
        alice,
        (*client,),
        (*client, named, "app"),
        (*client, "--entity-default"),
        ("--entity-type", "users"),
        ("--entity-type", "users", *client),
        ("--entity-type", "users", "--entity-default"),
        ("--entity-type", "ips"),
        ("--entity-type", "ips", named, "10.0.0.1"),
        ("--entity-type", "ips", "--entity-default"),
    ):
        kafka, text = await both.tool(CONFIGS, "--describe", *entity)
        assert lines(text) == lines(kafka), entity
        assert "rate" in text or "percentage" in text
    for config in ("producer_byte_rate", "producer_byte_rate", "consumer_byte_rate"):
        kafka, text = await both.tool(CONFIGS, "--alter", *alice, "--delete-config", config)
        assert lines(text) == lines(kafka), config
    kafka, text = await both.tool(CONFIGS, "--describe", *alice)
    assert lines(text) == lines(kafka)
    assert "1024" not in text


def lines(text: str) -> list[str]:
    """Return the lines without frames of exceptions and addresses; entities have no order."""
    left_out = "\tat ", "Error while executing config command with args"
    return sorted(line for line in text.splitlines() if not line.startswith(left_out))


@pytest.mark.long
async def test_changes_over_the_quota_are_refused_as_by_kafka(both: Both) -> None:
    """Twenty partitions of eleven that the quota allows at once."""

    def creation(*names: str, count: int = 10, validate_only: bool = False) -> Any:
        topics = [create_topics.CreatableTopic(name, count, 1, [], []) for name in names]
        return create_topics.CreateTopicsRequest(topics, 10_000, validate_only)

    await both.ask(apis.ALTER_CLIENT_QUOTAS, request(([("client-id", None)], [(MUTATIONS, 1.0)])))
    await until_equal(both)
    kafka, answer = await both.ask(apis.CREATE_TOPICS, creation("quota-a", "quota-b"))
    assert codes(answer, "topics") == codes(kafka, "topics") == [0, 0]
    for api, asked, items in (
        (apis.CREATE_TOPICS, creation("quota-c"), "topics"),
        (apis.CREATE_TOPICS, creation("quota-c", validate_only=True), "topics"),
        (apis.CREATE_TOPICS, creation("quota-a"), "topics"),
        (
            apis.CREATE_PARTITIONS,
            create_partitions.CreatePartitionsRequest(
                [create_partitions.CreatePartitionsTopic("quota-a", 12, None)], 10_000, False
            ),
            "results",
        ),
        (
            apis.DELETE_TOPICS,
            delete_topics.DeleteTopicsRequest(
                [delete_topics.DeleteTopicState("quota-a", None)], [], 10_000
            ),
            "responses",
        ),
    ):
        kafka, answer = await both.ask(api, asked)
        assert codes(answer, items) == codes(kafka, items)
        throttles = answer["throttle_time_ms"], kafka["throttle_time_ms"]
        if THROTTLED in codes(answer, items):
            assert answer[items][0]["error_message"] == kafka[items][0]["error_message"]
            assert all(1_000 < throttle_ms <= 9_000 for throttle_ms in throttles)
        else:
            assert throttles == (0, 0)
    await remove_all(both)
    names = [delete_topics.DeleteTopicState(name, None) for name in ("quota-a", "quota-b")]
    gone = delete_topics.DeleteTopicsRequest(names, [], 10_000)

    async def are_gone() -> bool:
        answers = await both.ask(apis.DELETE_TOPICS, gone)
        return all(THROTTLED not in codes(answer, "responses") for answer in answers)

    await until(are_gone)


def codes(answer: Any, items: str) -> list[int]:
    return [item["error_code"] for item in answer[items]]

"""Quotas compared with Apache Kafka 4.2 and managed with its tools."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.gen import alter_client_quotas as altering
from penstock.protocol.gen import create_partitions, create_topics, delete_topics, metadata
from penstock.protocol.gen import describe_client_quotas as describing
from tests.interop.both import Both
from tests.support.host_client import HostClient
from tests.support.waiting import until

CONFIGS = "kafka.admin.ConfigCommand"
PRODUCE, CONSUME, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
THROTTLED = 89

Entity = Sequence[tuple[str, str | None]]
Alteration = tuple[Entity, Sequence[tuple[str, float | None]]]

Question = tuple[ApiSpec, Any]

ITEMS = {
    apis.CREATE_TOPICS: "topics",
    apis.CREATE_PARTITIONS: "results",
    apis.DELETE_TOPICS: "responses",
}
STRICT_FROM = {apis.CREATE_TOPICS: 6, apis.CREATE_PARTITIONS: 3, apis.DELETE_TOPICS: 5}
AUTO_CREATED = [f"quota-auto-{number:02}" for number in range(20)]

ALICE: Entity = [("user", "alice")]
BOTH: Entity = [("client-id", "c"), ("user", "alice")]
HOST: Entity = [("ip", "10.0.0.1")]
"""An address that no client of this test uses, because connections above the rate are closed
without a response.
"""
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
async def both(both: Both) -> AsyncIterator[Both]:
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


def results(response: Any) -> list[Any]:
    return sorted(
        (entity_of(item), item["error_code"], item["error_message"]) for item in response["entries"]
    )


def quotas(response: Any) -> Any:
    if response["entries"] is None:
        return response["error_code"], response["error_message"]
    values = [
        (entity_of(item), sorted((value["key"], value["value"]) for value in item["values"]))
        for item in response["entries"]
    ]
    return response["error_code"], response["error_message"], sorted(values)


async def described(
    both: Both, components: Sequence[tuple[str, int, str | None]] = (), *, strict: bool = False
) -> tuple[Any, Any]:
    requested = [describing.ComponentData(*component) for component in components]
    return await both.send_request(
        apis.DESCRIBE_CLIENT_QUOTAS, describing.DescribeClientQuotasRequest(requested, strict)
    )


async def until_equal(both: Both) -> None:
    """Wait until both sides have the same quotas. Kafka applies a change after its response."""
    found: list[Any] = []

    async def are_equal() -> bool:
        found[:] = [quotas(response) for response in await described(both)]
        return bool(found[0] == found[1])

    try:
        await until(are_equal)
    except TimeoutError:
        assert found[1] == found[0]


async def remove_all(both: Both) -> None:
    for response in await described(both):
        items: list[Alteration] = [
            (
                [(part["entity_type"], part["entity_name"]) for part in entry["entity"]],
                [(value["key"], None) for value in entry["values"]],
            )
            for entry in response["entries"]
        ]
        await both.send_request(apis.ALTER_CLIENT_QUOTAS, request(*items))


@pytest.mark.long
async def test_quotas_are_altered_and_described_as_by_kafka(both: Both) -> None:
    for items in REQUESTS:
        for validate_only in (True, False):
            requested = request(*items, validate_only=validate_only)
            kafka, response = await both.send_request(apis.ALTER_CLIENT_QUOTAS, requested)
            assert results(response) == results(kafka), items
        await until_equal(both)
    for components in FILTERS:
        for strict in (False, True):
            kafka, response = await described(both, components, strict=strict)
            assert quotas(response) == quotas(kafka), (components, strict)


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
    """Return the lines without stack frames and addresses, with sorted entities."""
    left_out = "\tat ", "Error while executing config command with args"
    return sorted(line for line in text.splitlines() if not line.startswith(left_out))


def creation(
    *names: str, count: int = 10, validate_only: bool = False, config: str = "retention.ms"
) -> Question:
    configs = [create_topics.CreatableTopicConfig(config, "1000000")]
    topics = [create_topics.CreatableTopic(name, count, 1, [], configs) for name in names]
    return apis.CREATE_TOPICS, create_topics.CreateTopicsRequest(topics, 10_000, validate_only)


def growth(name: str, total: int, *, validate_only: bool = False) -> Question:
    topic = create_partitions.CreatePartitionsTopic(name, total, None)
    request = create_partitions.CreatePartitionsRequest([topic], 10_000, validate_only)
    return apis.CREATE_PARTITIONS, request


def deletion(*names: str) -> Question:
    states = [delete_topics.DeleteTopicState(name, None) for name in names]
    return apis.DELETE_TOPICS, delete_topics.DeleteTopicsRequest(states, list(names), 10_000)


CHANGES: list[tuple[str, Question, int | None, list[int]]] = [
    ("partly", creation("quota-a", "quota-b"), None, [0, THROTTLED]),
    ("partly", creation("quota-b"), None, [THROTTLED]),
    ("partly", creation("quota-b", validate_only=True), None, [THROTTLED]),
    ("partly", creation("quota-a"), None, [36]),
    ("partly", growth("quota-a", 12), None, [THROTTLED]),
    ("partly", growth("quota-a", 2), None, [37]),
    ("partly", deletion("quota-a"), None, [THROTTLED]),
    ("partly", deletion("quota-none"), None, [3]),
    ("validates", creation("quota-d", count=30, validate_only=True), None, [0]),
    ("validates", creation("quota-d", count=1), None, [THROTTLED]),
    ("validates-more", growth("quota-a", 40, validate_only=True), None, [0]),
    ("validates-more", growth("quota-a", 11), None, [THROTTLED]),
    ("fails", creation("quota-e", count=30, config="no.such"), None, [40]),
    ("fails", creation("quota e", count=30), None, [17]),
    ("fails", creation("quota-e", count=1), None, [0]),
    ("older", creation("quota-f", "quota-g", "quota-h"), 5, [0, 0, 0]),
    ("older", growth("quota-f", 11), 2, [0]),
    ("older", deletion("quota-g"), 4, [0]),
    ("older", deletion("quota-h"), 5, [THROTTLED]),
    ("deletes", deletion("quota-f", "quota-h"), None, [0, THROTTLED]),
]
"""Client id, API, version, and the error codes in order. A client that has exhausted its quota must
wait for more than a minute.
"""


@pytest.mark.long
async def test_mutations_over_the_quota_are_refused_as_by_kafka(both: Both) -> None:
    await both.send_request(
        apis.ALTER_CLIENT_QUOTAS, request(([("client-id", None)], [(MUTATIONS, 0.1)]))
    )
    await until_equal(both)
    for client_id, (api, requested), version, expected in CHANGES:
        kafka, response = await ask_as(both, client_id, api, requested, version)
        case = client_id, api.name, requested
        assert (
            sorted(codes(response, ITEMS[api])) == sorted(codes(kafka, ITEMS[api])) == expected
        ), case
        throttles = response["throttle_time_ms"], kafka["throttle_time_ms"]
        is_old = version is not None and version < STRICT_FROM[api]
        if THROTTLED in expected or is_old:
            assert min(throttles) > 10_000, (case, throttles)
            assert abs(throttles[0] - throttles[1]) < 20_000, (case, throttles)
        else:
            assert throttles == (0, 0), case
        for item, of_kafka in zip(by_name(response, api), by_name(kafka, api), strict=True):
            if of_kafka["error_code"] == item["error_code"] == THROTTLED and version != 4:
                assert item["error_message"] == of_kafka["error_message"], case
    await auto_create(both)
    await remove_all(both)
    api, gone = deletion(*(f"quota-{letter}" for letter in "aeh"), *AUTO_CREATED)

    async def are_gone() -> bool:
        responses = await both.send_request(api, gone)
        return all(THROTTLED not in codes(response, "responses") for response in responses)

    await until(are_gone)


def codes(response: Any, items: str) -> list[int]:
    return [item["error_code"] for item in response[items]]


async def auto_create(both: Both) -> None:
    """Request metadata of twenty missing topics, of which the quota allows the creation of two."""
    topics = [metadata.MetadataRequestTopic(None, name) for name in AUTO_CREATED]
    requested = metadata.MetadataRequest(topics, True)
    for response in await ask_as(both, "auto", apis.METADATA, requested):
        assert response["throttle_time_ms"] == 0

    async def created() -> list[int]:
        listed = metadata.MetadataRequest(topics, False)
        responses = await ask_as(both, "looks", apis.METADATA, listed)
        return [sum(code != 3 for code in codes(response, "topics")) for response in responses]

    async def have_two() -> bool:
        return min(await created()) >= 2

    await until(have_two)
    assert await created() == [2, 2]


async def ask_as(
    both: Both, client_id: str, api: ApiSpec, requested: Any, version: int | None = None
) -> tuple[Any, Any]:
    def ask_one(address: str) -> Any:
        with HostClient(address, client_id=client_id) as client:
            return client.send_request(api, requested, version)

    kafka, response = [await asyncio.to_thread(ask_one, address) for address in both.addresses]
    return kafka, response


def by_name(response: Any, api: ApiSpec) -> list[Any]:
    return sorted(response[ITEMS[api]], key=lambda item: str(item["name"]))

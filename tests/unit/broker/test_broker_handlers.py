"""The dispatcher, ApiVersions, Metadata and topic administration."""

import asyncio
import struct
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.base.ids import (
    Millis,
    Offset,
)
from penstock.broker.errors import ErrorCode
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import Response
from penstock.broker.requests.dispatch import error_response
from penstock.broker.requests.node import Node
from penstock.broker.requests.recent_brokers import LISTED_S
from penstock.controller.api import messages
from penstock.controller.metadata.features import newest_levels
from penstock.controller.metadata.records import (
    ConfigRecord,
    FeatureRecord,
    FrozenTopicRecord,
    GroupOffsets,
    MetadataOffset,
    TopicDeleted,
)
from penstock.protocol import apis, framing
from penstock.protocol.errors import UnsupportedApi, WireError
from penstock.protocol.frozen_topics import FrozenPartition, FrozenTopicInfo, decode_frozen_topic
from penstock.protocol.gen import (
    api_versions,
    metadata,
)
from penstock.stream.config import StreamConfig
from penstock.stream.wal.wal_defaults import CHEAP_WAL_STORE
from tests.support.handlers import Fixture, broker_record, topic_records


@pytest.fixture
async def fixture() -> Fixture:
    return Fixture()


# --- ApiVersions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_served_apis(fixture: Fixture, version: int) -> None:
    response = await fixture.send_request(
        apis.API_VERSIONS, version, client_software_name="probe", client_software_version="1.0"
    )
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    with_receiver = {apis.GET_TELEMETRY_SUBSCRIPTIONS.key, apis.PUSH_TELEMETRY.key}
    assert set(ranges) == set(apis.APIS) - with_receiver
    assert ranges[0][0] == 0, "librdkafka needs Produce announced from 0"
    finalized = {item.name: item.max_version_level for item in response.finalized_features}
    before = {"metadata.version": 29, "group.version": 1}
    assert finalized == (before if version >= 3 else {}), "as before the features"
    supported = {item.name: item.max_version for item in response.supported_features}
    # Old clients reject a range that starts at 0.
    newest = {
        "transaction.version": 2,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "offsets.version": 1,
    }
    metadata = {"metadata.version": 29} if version >= 3 else {}
    assert supported == metadata | (newest if version >= 4 else {})


async def test_api_versions_contains_the_finalized_feature_levels(fixture: Fixture) -> None:
    probe = {"client_software_name": "probe", "client_software_version": "1.0"}
    before = await fixture.send_request(apis.API_VERSIONS, 3, **probe)
    fixture.node.image.apply_all(newest_levels())
    after = await fixture.send_request(apis.API_VERSIONS, 3, **probe)
    assert {
        item.name: (item.min_version_level, item.max_version_level)
        for item in after.finalized_features
    } == {
        "metadata.version": (29, 29),
        "transaction.version": (2, 2),
        "group.version": (1, 1),
        "share.version": (1, 1),
        "streams.version": (1, 1),
        "offsets.version": (1, 1),
    }
    assert after.finalized_features_epoch > before.finalized_features_epoch


@pytest.mark.parametrize(
    ("feature", "heartbeat", "describe"),
    [
        ("group.version", apis.CONSUMER_GROUP_HEARTBEAT, apis.CONSUMER_GROUP_DESCRIBE),
        ("streams.version", apis.STREAMS_GROUP_HEARTBEAT, apis.STREAMS_GROUP_DESCRIBE),
        ("share.version", apis.SHARE_GROUP_HEARTBEAT, apis.SHARE_GROUP_DESCRIBE),
    ],
)
async def test_groups_require_their_feature_level(
    fixture: Fixture, feature: str, heartbeat: apis.ApiSpec, describe: apis.ApiSpec
) -> None:
    fixture.node.image.apply_all([FeatureRecord(feature, 0)])
    beat = await fixture.send_request(heartbeat, heartbeat.max, group_id="g", member_id="m")
    described = await fixture.send_request(describe, describe.max, group_ids=["g"])
    assert beat.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_unknown_api_versions_versions_get_a_v0_response(
    fixture: Fixture,
) -> None:
    reply = await fixture.raw(struct.pack(">hhih", 18, 99, 5, -1) + b"\xff" * 30)
    correlation_id, error = struct.unpack_from(">ih", reply)
    assert (correlation_id, error) == (5, ErrorCode.UNSUPPORTED_VERSION)
    response = framing.decode_body(api_versions.decode_response, reply, 4, 0)
    assert {18, 3, 0} <= {entry.api_key for entry in response.api_keys}


@pytest.mark.parametrize("name", ["", "-x", "a b", "x-"])
async def test_an_invalid_client_software_name_is_an_invalid_request(
    fixture: Fixture, name: str
) -> None:
    response = await fixture.send_request(
        apis.API_VERSIONS, 3, client_software_name=name, client_software_version="1"
    )
    assert response.error_code == ErrorCode.INVALID_REQUEST


# --- dispatch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [(999, 0), (3, 99), (3, -1), (-1, 0), (0, 14), (0, 0)], ids=str)
async def test_an_unknown_api_or_version_closes_the_connection(
    fixture: Fixture, header: tuple[int, int]
) -> None:
    with pytest.raises(UnsupportedApi):
        await fixture.raw(struct.pack(">hhih", *header, 1, -1))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3",
        struct.pack(">hhih", 3, 1, 1, 500),
        struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1),
    ],
    ids=len,
)
async def test_a_malformed_request_closes_the_connection(fixture: Fixture, frame: bytes) -> None:
    with pytest.raises(WireError):
        await fixture.raw(frame)


async def test_a_malformed_produce_request_closes_the_connection(fixture: Fixture) -> None:
    with pytest.raises(WireError):
        await fixture.raw(
            struct.pack(">hhihb", 0, 9, 1, -1, 0) + bytes.fromhex("00ffff00007530ffffffff0f")
        )


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_failed_handler_responds_if_the_response_has_an_error_field(
    fixture: Fixture, *, is_coroutine: bool
) -> None:
    def fails(node: Node, ctx: object) -> Response | Awaitable[Response]:
        async def later() -> Response:
            raise RuntimeError("defect")

        if is_coroutine:
            return later()
        raise RuntimeError("defect")

    fixture.use({apis.LIST_GROUPS.key: fails, apis.METADATA.key: fails})
    response = await fixture.send_request(apis.LIST_GROUPS, 4)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(CannotRespond):
        await fixture.metadata()


async def test_produce_requests_wait_for_space_but_not_on_fenced_storage(fixture: Fixture) -> None:
    produce, fetch = bytearray(b"\x00\x00\x00\x09"), bytearray(b"\x00\x01\x00\x09")
    fixture.node.storage.is_full = True
    assert [fixture.dispatcher.is_blocked(frame) for frame in (produce, fetch)] == [True, False]
    fixture.node.storage.fenced = True
    assert not fixture.dispatcher.is_blocked(produce)


# --- Metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_all_topics_and_of_no_topics(fixture: Fixture, version: int) -> None:
    fixture.topic("a", partitions=2)
    everything = await fixture.send_request(apis.METADATA, version, topics=None)
    assert [topic.name for topic in everything.topics] == ["a"]
    assert [partition.leader_id for partition in everything.topics[0].partitions] == [1, 1]
    nothing = await fixture.send_request(apis.METADATA, version, topics=[])
    assert len(nothing.topics) == (1 if version == 0 else 0)
    assert [broker.node_id for broker in nothing.brokers] == [1, 2]
    if version >= 1:
        assert nothing.controller_id == 1


async def test_metadata_contains_addresses_that_this_client_can_reach(fixture: Fixture) -> None:
    fixture.image.apply_all(
        [broker_record(3, host="kafka.example", machine="m1"), broker_record(4, machine="m1")]
    )
    fixture.image.apply_all([broker_record(5, fenced=True)])
    response = await fixture.metadata()
    assert {broker.node_id: (broker.host, broker.port) for broker in response.brokers} == {
        1: ("10.9.9.9", 9001),
        2: ("m2", 9002),
        3: ("kafka.example", 9003),
        4: ("10.9.9.9", 9004),
    }


async def test_the_next_leader_is_reported_in_place_of_a_dead_one(fixture: Fixture) -> None:
    fixture.topic("a", leader=2)
    fixture.image.apply_all([broker_record(2, fenced=True)])
    (topic,) = (await fixture.metadata("a")).topics
    (partition,) = topic.partitions
    assert topic.error_code == ErrorCode.NONE
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (
        ErrorCode.NONE,
        1,
        4,
    )
    assert (
        list(partition.replica_nodes),
        list(partition.isr_nodes),
        list(partition.offline_replicas),
    ) == ([1, 2], [1], [2])
    fixture.image.apply_all([broker_record(1, fenced=True)])
    (partition,) = (await fixture.metadata("a")).topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        3,
    )


async def test_a_stopped_broker_is_listed_for_a_while_except_in_metadata_of_all_topics(
    fixture: Fixture,
) -> None:
    fixture.topic("a", leader=2)
    fixture.departed.update(fixture.image, 0)
    fixture.image.apply_all([broker_record(2, fenced=True)])
    fixture.departed.update(fixture.image, 1)
    assert [broker.node_id for broker in (await fixture.metadata("a")).brokers] == [1, 2]
    assert [broker.node_id for broker in (await fixture.metadata()).brokers] == [1, 2]
    every = await fixture.send_request(apis.METADATA, 12, topics=None)
    assert [broker.node_id for broker in every.brokers] == [1]
    assert fixture.departed.listed(1 + LISTED_S) == []


async def test_brokers_that_are_dead_at_startup_count_as_just_stopped(fixture: Fixture) -> None:
    """After a restart of all brokers, the first one must not appear to be the only one."""
    fixture.image.apply_all([broker_record(2, fenced=True)])
    fixture.departed.update(fixture.image, 0)
    assert [state.node_id for state in fixture.departed.listed(1)] == [2]
    fixture.departed.update(fixture.image, LISTED_S)
    assert fixture.departed.listed(LISTED_S) == []


async def test_a_restarted_broker_is_listed_once(fixture: Fixture) -> None:
    fixture.departed.update(fixture.image, 0)
    fixture.image.apply_all([broker_record(2, fenced=True)])
    fixture.departed.update(fixture.image, 1)
    fixture.image.apply_all([broker_record(2, epoch=2)])
    fixture.departed.update(fixture.image, 2)
    fixture.topic("a")
    assert [broker.node_id for broker in (await fixture.metadata("a")).brokers] == [1, 2]


async def test_a_leader_with_an_old_broker_epoch_is_not_reported(fixture: Fixture) -> None:
    fixture.topic("a", leader=2)
    fixture.image.apply_all([broker_record(2, epoch=2)])
    (topic,) = (await fixture.metadata("a")).topics
    assert (topic.partitions[0].leader_id, topic.partitions[0].leader_epoch) == (1, 4), (
        "the first candidate will be elected"
    )
    fixture.topic("b", leader=-1)
    (topic,) = (await fixture.metadata("b")).topics
    assert topic.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_metadata_of_a_topic_by_id(fixture: Fixture) -> None:
    topic_id = fixture.topic("a")
    requested = [
        metadata.MetadataRequestTopic(topic_id, None),
        metadata.MetadataRequestTopic(UUID(int=9), None),
    ]
    known, unknown = (await fixture.send_request(apis.METADATA, 12, topics=requested)).topics
    assert (known.name, known.topic_id, known.error_code) == ("a", topic_id, 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (
        None,
        UUID(int=9),
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


async def test_a_missing_topic_is_created_only_if_allowed(fixture: Fixture) -> None:
    (topic,) = (await fixture.metadata("new", auto=False)).topics
    assert (topic.error_code, fixture.client.requested) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        [],
    )
    (topic,) = (await fixture.metadata("new", auto=True)).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    forbidding = Fixture(auto_create_topics_enable=False)
    (topic,) = (await forbidding.metadata("new", auto=True)).topics
    assert (topic.error_code, forbidding.client.requested) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        [],
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "ü"])
async def test_invalid_topic_names_are_not_sent_to_the_controller(
    fixture: Fixture, name: str
) -> None:
    (topic,) = (await fixture.metadata(name, auto=True)).topics
    assert (topic.error_code, fixture.client.requested) == (ErrorCode.INVALID_TOPIC_EXCEPTION, [])


async def test_internal_topics_are_not_created_by_metadata_requests(fixture: Fixture) -> None:
    (topic,) = (await fixture.metadata("__consumer_offsets", auto=True)).topics
    assert (topic.error_code, topic.is_internal, fixture.client.requested) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        True,
        [],
    )


async def test_a_retriable_creation_failure_is_reported_as_leader_not_available(
    fixture: Fixture,
) -> None:
    fixture.client.fail_with = TimeoutError()
    (topic,) = (await fixture.metadata("new", auto=True)).topics
    assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    fixture.client.fail_with = None
    fixture.client.status = messages.Status.INVALID_REPLICATION_FACTOR
    (topic,) = (await fixture.metadata("new", auto=True)).topics
    assert topic.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_without_a_session_no_leader_is_reported(fixture: Fixture) -> None:
    """The image is outdated. A client whose connection is closed connects to another broker; a
    client that has no other addresses has to learn them.
    """
    fixture.topic("a")
    fixture.topic("b", leader=2)
    assert [
        topic.partitions[0].leader_id for topic in (await fixture.metadata("a", "b")).topics
    ] == [1, 2]
    fixture.node.can_write = lambda: False
    response = await fixture.metadata("a", "b")
    assert [broker.node_id for broker in response.brokers] == [1, 2]
    led = [topic.partitions[0] for topic in response.topics]
    assert [(partition.error_code, partition.leader_id) for partition in led] == [
        (ErrorCode.LEADER_NOT_AVAILABLE, -1),
        (0, 2),
    ]
    await asyncio.sleep(0)
    assert fixture.connection.closed
    with pytest.raises(CannotRespond, match="FindCoordinator"):
        await fixture.send_request(apis.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
    with pytest.raises(CannotRespond, match="DescribeCluster"):
        await fixture.send_request(apis.DESCRIBE_CLUSTER, 1)
    assert (
        await fixture.send_request(
            apis.API_VERSIONS, 3, client_software_name="probe", client_software_version="1.0"
        )
    ).error_code == 0


async def test_a_single_broker_keeps_its_clients_without_a_session(fixture: Fixture) -> None:
    fixture.topic("a")
    fixture.image.apply_all([broker_record(2, fenced=True)])
    fixture.node.can_write = lambda: False
    (topic,) = (await fixture.metadata("a")).topics
    assert topic.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    await asyncio.sleep(0)
    assert not fixture.connection.closed
    fixture.node.can_write = lambda: True
    (topic,) = (await fixture.metadata("a")).topics
    assert topic.partitions[0].leader_id == 1


# --- failed handlers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "version", "has_error"),
    [
        (apis.CREATE_DELEGATION_TOKEN, 3, True),
        (apis.FIND_COORDINATOR, 3, True),
        (apis.FIND_COORDINATOR, 4, False),
        (apis.OFFSET_FETCH, 7, True),
        (apis.OFFSET_FETCH, 8, False),
        (apis.ADD_PARTITIONS_TO_TXN, 3, False),
        (apis.ADD_PARTITIONS_TO_TXN, 4, True),
        (apis.CREATE_TOPICS, 7, False),
        (apis.DESCRIBE_LOG_DIRS, 1, True),
        (apis.METADATA, 13, False),
        (apis.SASL_AUTHENTICATE, 2, False),
    ],
)
def test_a_failure_is_reported_only_in_versions_with_an_error_field(
    api: apis.ApiSpec, version: int, has_error: bool
) -> None:
    response: Any = error_response(api, version, ErrorCode.REQUEST_TIMED_OUT)
    assert (response is not None) == has_error
    assert response is None or response.error_code == ErrorCode.REQUEST_TIMED_OUT


# --- topics ---------------------------------------------------------------------------------------


def topic(name: str, partitions: int, factor: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        **fields,
    }


async def create(fixture: Fixture, *topics: dict[str, Any], version: int = 7) -> dict[str, Any]:
    response = await fixture.send_request(
        apis.CREATE_TOPICS, version, topics=list(topics), timeout_ms=5_000
    )
    return {topic.name: topic for topic in response.topics}


async def test_create_topics_returns_a_result_for_each_topic(fixture: Fixture) -> None:
    first = {"partition_index": 1, "broker_ids": [1]}
    assigned = [first, {"partition_index": 0, "broker_ids": [2, 1]}]
    created = await create(
        fixture,
        topic("plain", 3, 1, configs=[{"name": "retention.ms", "value": "5"}]),
        topic("twice", 1, 1),
        topic("twice", 1, 1),
        topic("assigned", -1, -1, assignments=assigned),
        topic("holes", -1, -1, assignments=[first]),
        topic("both", 2, 1, assignments=assigned),
    )
    assert {name: ErrorCode(topic.error_code) for name, topic in created.items()} == {
        "plain": ErrorCode.NONE,
        "twice": ErrorCode.INVALID_REQUEST,
        "assigned": ErrorCode.NONE,
        "holes": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "both": ErrorCode.INVALID_REQUEST,
    }
    sources = {entry.name: (entry.value, entry.config_source) for entry in created["plain"].configs}
    assert sources["retention.ms"] == ("5", 1)
    assert sources["cleanup.policy"] == ("delete", 5)
    (request,) = fixture.client.requested
    assert [topic.assignment for topic in request.topics] == [None, [[2, 1], [1]]]


async def test_create_topics_maps_controller_errors_and_timeouts(fixture: Fixture) -> None:
    fixture.client.status = messages.Status.TOPIC_EXISTS
    created = await create(fixture, topic("a", 1, 1))
    assert (created["a"].error_code, created["a"].error_message) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "because",
    )
    fixture.client.fail_with = TimeoutError("late")
    created = await create(fixture, topic("a", 1, 1), version=2)
    assert created["a"].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_delete_topics_by_name_and_by_id(fixture: Fixture, version: int) -> None:
    topic_id = fixture.topic("a")
    if version >= 6:
        fields = {"topics": [{"topic_id": topic_id}, {"name": "gone"}]}
    else:
        fields = {"topic_names": ["a", "gone"]}
    response = await fixture.send_request(apis.DELETE_TOPICS, version, **fields, timeout_ms=1_000)
    assert [(item.name, item.error_code) for item in response.responses] == [
        ("a", 0),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    requester = messages.Requester(principal="User:ANONYMOUS", host="10.1.1.1", broker_id=1)
    requested = [messages.DeleteTopics(topic_ids=[topic_id], forwarded_for=requester)]
    assert fixture.client.requested == requested


async def test_create_partitions_returns_the_error_of_the_controller(fixture: Fixture) -> None:
    fixture.client.status = messages.Status.INVALID_PARTITIONS
    topics = [{"name": "a", "count": 1, "assignments": None}]
    response = await fixture.send_request(
        apis.CREATE_PARTITIONS, 3, topics=topics, timeout_ms=1_000
    )
    (result,) = response.results
    assert (result.name, result.error_code, result.error_message) == (
        "a",
        ErrorCode.INVALID_PARTITIONS,
        "why",
    )


# --- the rest -------------------------------------------------------------------------------------


async def test_describe_configs_of_topics_and_brokers(fixture: Fixture) -> None:
    fixture.topic("a")
    fixture.topic("b")
    fixture.image.apply_all([ConfigRecord(2, "b", "retention.ms", "7")])
    resources = [(2, "a"), (2, "b"), (2, "gone"), (4, "1"), (4, "2"), (99, "1")]
    response = await fixture.send_request(
        apis.DESCRIBE_CONFIGS,
        4,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configuration_keys": ["retention.ms"] if name == "b" else None,
            }
            for kind, name in resources
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    assert [ErrorCode(result.error_code) for result in response.results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    (retention,) = response.results[1].configs
    assert (retention.value, retention.config_source, retention.config_type) == ("7", 1, 5)
    assert [(found.name, found.value, found.source) for found in retention.synonyms] == [
        ("retention.ms", "7", 1)
    ]
    policy = next(item for item in response.results[0].configs if item.name == "cleanup.policy")
    assert [(found.name, found.value, found.source) for found in policy.synonyms] == [
        ("log.cleanup.policy", "delete", 5)
    ]
    assert "broker.rack" in {entry.name for entry in response.results[3].configs}


@pytest.mark.parametrize(("given", "value", "source"), [(0, "0", 5), (9, "9", 4), (250, "250", 4)])
async def test_defaults_for_the_wal_store_are_described_as_defaults(
    fixture: Fixture, given: int, value: str, source: int
) -> None:
    stream = StreamConfig(wal_linger_ms=given, defaults=CHEAP_WAL_STORE.values)
    fixture.node.static_settings = replace(fixture.node.static_settings, stream=stream)
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["wal.linger.ms"]}
    response = await fixture.send_request(
        apis.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True
    )
    (linger,) = response.results[0].configs
    assert (linger.value, linger.config_source) == (value, source)
    assert [found.value for found in linger.synonyms] == [value, "0"][-2 if given else -1 :]


async def test_describe_cluster_lists_brokers_and_the_controller(fixture: Fixture) -> None:
    response = await fixture.send_request(apis.DESCRIBE_CLUSTER, 1)
    assert (response.cluster_id, response.controller_id, len(response.brokers)) == ("c-1", 1, 2)
    response = await fixture.send_request(apis.DESCRIBE_CLUSTER, 1, endpoint_type=2)
    assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


async def test_describe_cluster_shows_fenced_brokers_on_request(fixture: Fixture) -> None:
    fixture.image.apply_all([broker_record(2, fenced=True)])
    shown = [
        await fixture.send_request(apis.DESCRIBE_CLUSTER, 2, include_fenced_brokers=requested)
        for requested in (False, True)
    ]
    assert [
        [(broker.broker_id, broker.is_fenced) for broker in response.brokers] for response in shown
    ] == [[(1, False)], [(1, False), (2, True)]]


async def test_producer_ids_are_unique_and_blocks_are_used_up(fixture: Fixture) -> None:
    request = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    given = [
        (await fixture.send_request(apis.INIT_PRODUCER_ID, 4, **request)).producer_id
        for _ in range(5)
    ]
    assert given == [2, 3, 4, 5, 6]
    assert len(fixture.client.requested) == 3
    response = await fixture.send_request(
        apis.INIT_PRODUCER_ID,
        4,
        transactional_id="tx",
        transaction_timeout_ms=60_000,
        producer_id=5,
        producer_epoch=-1,
    )
    assert response.error_code == ErrorCode.INVALID_REQUEST, "an epoch belongs to the producer id"
    fixture.client.fail_with = TimeoutError()
    await fixture.send_request(apis.INIT_PRODUCER_ID, 4, **request)
    response = await fixture.send_request(apis.INIT_PRODUCER_ID, 4, **request)
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


# --- frozen topics --------------------------------------------------------------------------------


async def ask_frozen(fixture: Fixture, *requested: dict[str, Any]) -> Any:
    response = await fixture.send_request(
        apis.METADATA, apis.METADATA.max, topics=list(requested), frozen_topics=True
    )
    return response.topics


async def test_frozen_topics_are_returned_only_on_request(fixture: Fixture) -> None:
    kept, gone, snapshot_id = fixture.topic("kept"), fixture.topic("gone"), UUID(int=5)
    groups = (GroupOffsets("g", ((0, Offset(2)),)),)
    partition = topic_records(snapshot_id, "kept", fixture.image, leader=-1, epoch=-1)
    fixture.image.apply_all(
        [
            TopicDeleted(gone, Millis(7), 1_000, MetadataOffset(0)),
            FrozenTopicRecord(
                snapshot_id, "kept", "s", (("a", "b"),), Millis(9), -1, MetadataOffset(0), groups
            ),
            *partition[1:],
        ]
    )
    for request in ({"topics": None}, {"frozen_topics": False}):
        response = await fixture.send_request(apis.METADATA, 12, **request)
        assert {topic.topic_id for topic in response.topics} <= {kept}
    listed = await ask_frozen(fixture)
    assert [topic.name for topic in listed] == [f"gone@{gone}", "kept@s"]
    deleted, snapshot = [decode_frozen_topic(topic.frozen_topic) for topic in listed]
    assert (deleted.name, deleted.snapshot, deleted.topic_id) == ("gone", "", gone)
    assert (deleted.since_ms, deleted.keep_ms) == (7, 1_000)
    assert snapshot == FrozenTopicInfo(
        "kept",
        "s",
        snapshot_id,
        9,
        -1,
        {"a": "b"},
        [FrozenPartition(0, 0, 0, 0)],
        {"g": {0: 2}},
    )
    requested = [
        {"name": "kept@s"},
        {"topic_id": gone, "name": None},
        {"name": "kept"},
        {"topic_id": kept, "name": None},
    ]
    assert [topic.error_code for topic in await ask_frozen(fixture, *requested)] == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]

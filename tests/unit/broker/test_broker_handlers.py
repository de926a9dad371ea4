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
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    find_coordinator,
    init_producer_id,
    list_groups,
    metadata,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
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
        apis.API_VERSIONS, version, api_versions.ApiVersionsRequest("probe", "1.0")
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
    request = api_versions.ApiVersionsRequest("probe", "1.0")
    before = await fixture.send_request(apis.API_VERSIONS, 3, request)
    fixture.node.image.apply_all(newest_levels())
    after = await fixture.send_request(apis.API_VERSIONS, 3, request)
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


async def test_consumer_groups_require_their_feature_level(fixture: Fixture) -> None:
    fixture.node.image.apply_all([FeatureRecord("group.version", 0)])
    beat = await fixture.send_request(
        apis.CONSUMER_GROUP_HEARTBEAT,
        1,
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest("g", "m"),
    )
    described = await fixture.send_request(
        apis.CONSUMER_GROUP_DESCRIBE,
        1,
        consumer_group_describe.ConsumerGroupDescribeRequest(["g"]),
    )
    assert beat.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_streams_groups_require_their_feature_level(fixture: Fixture) -> None:
    fixture.node.image.apply_all([FeatureRecord("streams.version", 0)])
    beat = await fixture.send_request(
        apis.STREAMS_GROUP_HEARTBEAT,
        0,
        streams_group_heartbeat.StreamsGroupHeartbeatRequest("g", "m"),
    )
    described = await fixture.send_request(
        apis.STREAMS_GROUP_DESCRIBE, 0, streams_group_describe.StreamsGroupDescribeRequest(["g"])
    )
    assert beat.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_share_groups_require_their_feature_level(fixture: Fixture) -> None:
    fixture.node.image.apply_all([FeatureRecord("share.version", 0)])
    beat = await fixture.send_request(
        apis.SHARE_GROUP_HEARTBEAT, 1, share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m")
    )
    described = await fixture.send_request(
        apis.SHARE_GROUP_DESCRIBE, 1, share_group_describe.ShareGroupDescribeRequest(["g"])
    )
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
        apis.API_VERSIONS, 3, api_versions.ApiVersionsRequest(name, "1")
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
    response = await fixture.send_request(apis.LIST_GROUPS, 4, list_groups.ListGroupsRequest())
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
    everything = await fixture.send_request(apis.METADATA, version, metadata.MetadataRequest(None))
    assert [topic.name for topic in everything.topics] == ["a"]
    assert [partition.leader_id for partition in everything.topics[0].partitions] == [1, 1]
    nothing = await fixture.send_request(apis.METADATA, version, metadata.MetadataRequest([]))
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
    every = await fixture.send_request(apis.METADATA, 12, metadata.MetadataRequest(None))
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
    known, unknown = (
        await fixture.send_request(apis.METADATA, 12, metadata.MetadataRequest(requested))
    ).topics
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
        await fixture.send_request(
            apis.FIND_COORDINATOR,
            4,
            find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
        )
    with pytest.raises(CannotRespond, match="DescribeCluster"):
        await fixture.send_request(
            apis.DESCRIBE_CLUSTER, 1, describe_cluster.DescribeClusterRequest()
        )
    assert (
        await fixture.send_request(
            apis.API_VERSIONS, 3, api_versions.ApiVersionsRequest("probe", "1.0")
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


async def create(
    fixture: Fixture, *topics: create_topics.CreatableTopic, version: int = 7
) -> dict[str, Any]:
    response = await fixture.send_request(
        apis.CREATE_TOPICS, version, create_topics.CreateTopicsRequest(topics, timeout_ms=5_000)
    )
    return {topic.name: topic for topic in response.topics}


async def test_create_topics_returns_a_result_for_each_topic(fixture: Fixture) -> None:
    config = create_topics.CreatableTopicConfig("retention.ms", "5")
    assigned = [
        create_topics.CreatableReplicaAssignment(1, [1]),
        create_topics.CreatableReplicaAssignment(0, [2, 1]),
    ]
    holes = [create_topics.CreatableReplicaAssignment(1, [1])]
    created = await create(
        fixture,
        create_topics.CreatableTopic("plain", 3, 1, configs=[config]),
        create_topics.CreatableTopic("twice", 1, 1),
        create_topics.CreatableTopic("twice", 1, 1),
        create_topics.CreatableTopic("assigned", -1, -1, assigned),
        create_topics.CreatableTopic("holes", -1, -1, holes),
        create_topics.CreatableTopic("both", 2, 1, assigned),
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
    created = await create(fixture, create_topics.CreatableTopic("a", 1, 1))
    assert (created["a"].error_code, created["a"].error_message) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "because",
    )
    fixture.client.fail_with = TimeoutError("late")
    created = await create(fixture, create_topics.CreatableTopic("a", 1, 1), version=2)
    assert created["a"].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_delete_topics_by_name_and_by_id(fixture: Fixture, version: int) -> None:
    topic_id = fixture.topic("a")
    if version >= 6:
        states = [
            delete_topics.DeleteTopicState(None, topic_id),
            delete_topics.DeleteTopicState("gone", None),
        ]
        request = delete_topics.DeleteTopicsRequest(topics=states, timeout_ms=1_000)
    else:
        request = delete_topics.DeleteTopicsRequest(topic_names=["a", "gone"], timeout_ms=1_000)
    response = await fixture.send_request(apis.DELETE_TOPICS, version, request)
    assert [(item.name, item.error_code) for item in response.responses] == [
        ("a", 0),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    requester = messages.Requester(principal="User:ANONYMOUS", host="10.1.1.1", broker_id=1)
    requested = [messages.DeleteTopics(topic_ids=[topic_id], forwarded_for=requester)]
    assert fixture.client.requested == requested


async def test_create_partitions_returns_the_error_of_the_controller(fixture: Fixture) -> None:
    fixture.client.status = messages.Status.INVALID_PARTITIONS
    request = create_partitions.CreatePartitionsRequest(
        [create_partitions.CreatePartitionsTopic("a", 1, None)], 1_000
    )
    response = await fixture.send_request(apis.CREATE_PARTITIONS, 3, request)
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
    resources = [
        describe_configs.DescribeConfigsResource(2, "a", None),
        describe_configs.DescribeConfigsResource(2, "b", ["retention.ms"]),
        describe_configs.DescribeConfigsResource(2, "gone", None),
        describe_configs.DescribeConfigsResource(4, "1", None),
        describe_configs.DescribeConfigsResource(4, "2", None),
        describe_configs.DescribeConfigsResource(99, "1", None),
    ]
    request = describe_configs.DescribeConfigsRequest(
        resources, include_synonyms=True, include_documentation=True
    )
    response = await fixture.send_request(apis.DESCRIBE_CONFIGS, 4, request)
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
    resource = describe_configs.DescribeConfigsResource(4, "1", ["wal.linger.ms"])
    request = describe_configs.DescribeConfigsRequest([resource], include_synonyms=True)
    response = await fixture.send_request(apis.DESCRIBE_CONFIGS, 4, request)
    (linger,) = response.results[0].configs
    assert (linger.value, linger.config_source) == (value, source)
    assert [found.value for found in linger.synonyms] == [value, "0"][-2 if given else -1 :]


async def test_describe_cluster_lists_brokers_and_the_controller(fixture: Fixture) -> None:
    response = await fixture.send_request(
        apis.DESCRIBE_CLUSTER, 1, describe_cluster.DescribeClusterRequest()
    )
    assert (response.cluster_id, response.controller_id, len(response.brokers)) == ("c-1", 1, 2)
    response = await fixture.send_request(
        apis.DESCRIBE_CLUSTER, 1, describe_cluster.DescribeClusterRequest(endpoint_type=2)
    )
    assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


async def test_describe_cluster_shows_fenced_brokers_on_request(fixture: Fixture) -> None:
    fixture.image.apply_all([broker_record(2, fenced=True)])
    shown = [
        await fixture.send_request(
            apis.DESCRIBE_CLUSTER,
            2,
            describe_cluster.DescribeClusterRequest(include_fenced_brokers=requested),
        )
        for requested in (False, True)
    ]
    assert [
        [(broker.broker_id, broker.is_fenced) for broker in response.brokers] for response in shown
    ] == [[(1, False)], [(1, False), (2, True)]]


async def test_producer_ids_are_unique_and_blocks_are_used_up(fixture: Fixture) -> None:
    request = init_producer_id.InitProducerIdRequest(None, 60_000)
    given = [
        (await fixture.send_request(apis.INIT_PRODUCER_ID, 4, request)).producer_id
        for _ in range(5)
    ]
    assert given == [2, 3, 4, 5, 6]
    assert len(fixture.client.requested) == 3
    response = await fixture.send_request(
        apis.INIT_PRODUCER_ID, 4, init_producer_id.InitProducerIdRequest("tx", 60_000, 5, -1)
    )
    assert response.error_code == ErrorCode.INVALID_REQUEST, "an epoch belongs to the producer id"
    fixture.client.fail_with = TimeoutError()
    await fixture.send_request(apis.INIT_PRODUCER_ID, 4, request)
    response = await fixture.send_request(apis.INIT_PRODUCER_ID, 4, request)
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


# --- frozen topics --------------------------------------------------------------------------------


async def ask_frozen(fixture: Fixture, *requested: metadata.MetadataRequestTopic) -> Any:
    request = metadata.MetadataRequest(list(requested), frozen_topics=True)
    return (await fixture.send_request(apis.METADATA, apis.METADATA.max, request)).topics


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
    for request in (metadata.MetadataRequest(None), metadata.MetadataRequest(frozen_topics=False)):
        response = await fixture.send_request(apis.METADATA, 12, request)
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
        metadata.MetadataRequestTopic(name="kept@s"),
        metadata.MetadataRequestTopic(topic_id=gone, name=None),
        metadata.MetadataRequestTopic(name="kept"),
        metadata.MetadataRequestTopic(topic_id=kept, name=None),
    ]
    assert [topic.error_code for topic in await ask_frozen(fixture, *requested)] == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]

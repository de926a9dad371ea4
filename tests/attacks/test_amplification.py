"""Requests of one megabyte that would produce far larger responses: the response describes each
resource once, its size is limited, and other clients are served meanwhile.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.configs.describe_configs import CONFIGS_MAX
from penstock.broker.requests.topic_change_queue import CHUNK_PARTITIONS, FEW_PARTITIONS
from penstock.broker.requests.yielding import SLICE_COUNT
from penstock.controller.api.messages import PARTITIONS_PER_REQUEST_MAX, CreateTopics, NewTopic
from penstock.controller.metadata.configs import GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.controller.metadata.records import PartitionRecord, TopicRecord, TopicRemoved
from penstock.protocol import apis
from penstock.protocol.gen import (
    consumer_group_describe,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_transactions,
    heartbeat,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_fetch,
)
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

REPEATED = 2 * ELEMENTS_AT_ONCE_MAX
"""How often a request repeats one name; all APIs accept this many elements."""

PATIENT = {"session_timeout_ms": 60_000, "session_grace_ms": 60_000}
"""On a busy machine these requests take longer than the session timeouts of other tests."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, controller_settings=PATIENT) as cluster:
        topics = [NewTopic(name="orders")]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        await cluster.until_served("orders")
        yield cluster


@pytest.fixture
async def attacker(cluster: Cluster) -> AsyncIterator[Attacker]:
    async with Attacker.connected(cluster.broker.port) as attacker:
        yield attacker


async def test_repeated_resources_are_described_once(attacker: Attacker) -> None:
    named = describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, "orders", ["segment.bytes"])
    more = describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, "orders", ["segment.ms"])
    request = describe_configs.DescribeConfigsRequest([*[named] * REPEATED, more])
    (result,) = (await attacker.send_request(apis.DESCRIBE_CONFIGS, 4, request)).results
    assert {config.name for config in result.configs} == {"segment.bytes", "segment.ms"}
    every = describe_configs.DescribeConfigsResource(TOPIC_RESOURCE, "orders", None)
    request = describe_configs.DescribeConfigsRequest([named, every, more])
    (result,) = (await attacker.send_request(apis.DESCRIBE_CONFIGS, 4, request)).results
    assert len({config.name for config in result.configs}) == len(result.configs) > 30


async def test_described_configs_of_nonexistent_groups_are_limited(attacker: Attacker) -> None:
    names = [f"g{number}" for number in range(CONFIGS_MAX // 5)]
    request = describe_configs.DescribeConfigsRequest(
        [describe_configs.DescribeConfigsResource(GROUP_RESOURCE, name, None) for name in names],
        include_synonyms=True,
        include_documentation=True,
    )
    results = (await attacker.send_request(apis.DESCRIBE_CONFIGS, 4, request)).results
    assert [result.resource_name for result in results] == names
    described = [result for result in results if not result.error_code]
    count = sum(len(result.configs) for result in described)
    assert CONFIGS_MAX <= count < CONFIGS_MAX + 100
    refused = results[len(described) :]
    assert {result.error_code for result in refused} == {ErrorCode.INVALID_REQUEST}
    assert "at most 50000 configs" in str(refused[0].error_message)


async def test_altering_a_resource_twice_in_one_request_is_rejected(attacker: Attacker) -> None:
    change = incremental_alter_configs.AlterableConfig("retention.ms", 0, "1000")
    resource = incremental_alter_configs.AlterConfigsResource(TOPIC_RESOURCE, "orders", [change])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource] * 1_000)
    responses = (await attacker.send_request(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    assert {response.error_code for response in responses} == {ErrorCode.INVALID_REQUEST}


async def test_responses_contain_repeated_names_once(attacker: Attacker) -> None:
    response = await attacker.send_request(
        apis.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(["g"] * REPEATED)
    )
    assert len(response.groups) == 1
    response = await attacker.send_request(
        apis.CONSUMER_GROUP_DESCRIBE,
        1,
        consumer_group_describe.ConsumerGroupDescribeRequest(["g"] * REPEATED),
    )
    assert len(response.groups) == 1
    response = await attacker.send_request(
        apis.DESCRIBE_TRANSACTIONS,
        0,
        describe_transactions.DescribeTransactionsRequest(["t"] * REPEATED),
    )
    assert len(response.transaction_states) == 1
    group = offset_fetch.OffsetFetchRequestGroup("g", topics=None)
    response = await attacker.send_request(
        apis.OFFSET_FETCH, 8, offset_fetch.OffsetFetchRequest(groups=[group] * REPEATED)
    )
    assert len(response.groups) == 1
    topic = metadata.MetadataRequestTopic(name="orders")
    response = await attacker.send_request(
        apis.METADATA, 12, metadata.MetadataRequest([topic] * REPEATED, False)
    )
    assert len(response.topics) == 1


async def test_heartbeats_are_served_during_a_long_describe_groups(
    cluster: Cluster, attacker: Attacker
) -> None:
    """Heartbeats that arrive after a request for thousands of groups are answered before it."""
    names = [f"g{number}" for number in range(10 * SLICE_COUNT)]
    async with Attacker.connected(cluster.broker.port) as other:
        beat = heartbeat.HeartbeatRequest("g", 1, "m")
        await other.send_request(apis.HEARTBEAT, 4, beat)
        done = list[str]()

        async def describe() -> None:
            await attacker.send_request(
                apis.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(names)
            )
            done.append("described")

        async def beats() -> None:
            for _ in range(5):
                await other.send_request(apis.HEARTBEAT, 4, beat)
            done.append("heartbeats")

        async with asyncio.TaskGroup() as group:
            group.create_task(describe())
            group.create_task(beats())
    assert done == ["heartbeats", "described"]


async def test_other_clients_are_served_during_a_long_list_offsets(
    cluster: Cluster, attacker: Attacker
) -> None:
    """ListOffsets for thousands of partitions yields to the event loop after each lookup."""
    requested = [list_offsets.ListOffsetsPartition(index, -1, -1) for index in range(REPEATED)]
    request = list_offsets.ListOffsetsRequest(
        -1, 0, [list_offsets.ListOffsetsTopic("orders", requested)], timeout_ms=0
    )
    turns = asyncio.Event()
    count = 0

    async def count_turns() -> None:
        nonlocal count
        while not turns.is_set():
            count += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(count_turns())
        await attacker.send_request(apis.LIST_OFFSETS, 7, request)  # whichever comes first
        count = 0
        response = await attacker.send_request(apis.LIST_OFFSETS, 7, request)
        turns.set()
    (topic,) = response.topics
    assert [item.partition_index for item in topic.partitions] == list(range(REPEATED))
    assert topic.partitions[0].error_code == ErrorCode.NONE
    assert {item.error_code for item in topic.partitions[1:]} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert count >= REPEATED // SLICE_COUNT


async def test_long_requests_reach_the_controller_in_chunks(
    cluster: Cluster, attacker: Attacker
) -> None:
    """CreateTopics and CreatePartitions with thousands of elements: the controller handles a few
    hundred at a time and serves brokers in between. A request above the limit creates nothing.
    """
    assert cluster.controller is not None
    runtime = cluster.controller.runtime
    assert runtime is not None
    most = list[int]()
    runtime.observe(
        lambda records: most.append(sum(isinstance(item, PartitionRecord) for item in records))
    )
    names = [f"t{number}" for number in range(3 * CHUNK_PARTITIONS)]
    large = create_topics.CreatableTopic("large", PARTITIONS_PER_REQUEST_MAX, 1)
    request = create_topics.CreateTopicsRequest(
        [*(create_topics.CreatableTopic(name, 1, 1) for name in names), large],
        timeout_ms=PATIENCE_S * 1_000,
    )
    results = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
    assert [result.name for result in results] == [*names, "large"]
    assert {result.error_code for result in results[:-1]} == {ErrorCode.NONE}
    assert results[-1].error_code == ErrorCode.POLICY_VIOLATION
    assert "make several requests" in results[-1].error_message
    assert sum(most) == len(names)
    assert max(most) <= CHUNK_PARTITIONS
    most.clear()
    grown = [create_partitions.CreatePartitionsTopic(name, 2, None) for name in names]
    grown.insert(1, create_partitions.CreatePartitionsTopic("unknown", 2, None))
    large_total = PARTITIONS_PER_REQUEST_MAX
    grown.append(create_partitions.CreatePartitionsTopic("orders", large_total, None))
    added = create_partitions.CreatePartitionsRequest(grown, timeout_ms=PATIENCE_S * 1_000)
    responses = (await attacker.send_request(apis.CREATE_PARTITIONS, 3, added)).results
    codes = {response.name: response.error_code for response in responses}
    assert codes.pop("unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes.pop("orders") == ErrorCode.POLICY_VIOLATION
    assert "make several requests" in responses[-1].error_message
    assert set(codes.values()) == {ErrorCode.NONE}
    assert sum(most) == len(names)
    assert max(most) <= CHUNK_PARTITIONS


async def test_requests_for_many_partitions_are_interleaved(cluster: Cluster) -> None:
    """A chunk starts only after the broker has applied all earlier ones. Small requests do not
    wait.
    """
    assert cluster.controller is not None
    runtime = cluster.controller.runtime
    assert runtime is not None
    image = cluster.broker.image
    chunks: list[list[str]] = []
    unheard: list[str] = []

    def observe(records: Sequence[object]) -> None:
        created = [item.name for item in records if isinstance(item, TopicRecord)]
        if len(created) > FEW_PARTITIONS:
            unheard.extend(chunk[-1] for chunk in chunks if image.topics.by_name(chunk[-1]) is None)
            chunks.append(created)

    async def create(names: Sequence[str]) -> None:
        topics = [create_topics.CreatableTopic(name, 1, 1) for name in names]
        async with Attacker.connected(cluster.broker.port) as attacker:
            request = create_topics.CreateTopicsRequest(topics, timeout_ms=PATIENCE_S * 1_000)
            results = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
        assert {result.error_code for result in results} == {ErrorCode.NONE}

    runtime.observe(observe)
    many = [
        [f"{client}-{number}" for number in range(2 * CHUNK_PARTITIONS)] for client in ("a", "b")
    ]
    async with cluster.broker.partition_turns.turn(CHUNK_PARTITIONS, math.inf):
        waiting = [asyncio.create_task(create(names)) for names in many]
        await create(["few"])
        assert not chunks
    await asyncio.gather(*waiting)
    assert sorted(name for chunk in chunks for name in chunk) == sorted(many[0] + many[1])
    # The order of later chunks depends on which response the broker applies first.
    assert sorted(chunk[0].partition("-")[0] for chunk in chunks[:2]) == ["a", "b"]
    assert not unheard

    deleted: list[int] = []
    runtime.observe(
        lambda records: deleted.append(sum(isinstance(item, TopicRemoved) for item in records))
    )
    async with Attacker.connected(cluster.broker.port) as attacker:
        states = [delete_topics.DeleteTopicState(name=name) for name in many[0]]
        request = delete_topics.DeleteTopicsRequest(states, timeout_ms=PATIENCE_S * 1_000)
        results = (await attacker.send_request(apis.DELETE_TOPICS, 6, request)).responses
    assert {result.error_code for result in results} == {ErrorCode.NONE}
    assert sum(deleted) == len(many[0])
    assert max(deleted) <= CHUNK_PARTITIONS


async def test_a_change_whose_turn_comes_too_late_reports_the_timeout(
    cluster: Cluster, attacker: Attacker
) -> None:
    topics = [create_topics.CreatableTopic(f"t{i}", 1, 1) for i in range(FEW_PARTITIONS + 1)]
    request = create_topics.CreateTopicsRequest(topics, timeout_ms=1_000)
    async with cluster.broker.partition_turns.turn(CHUNK_PARTITIONS, math.inf):
        results = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
    assert {result.error_code for result in results} == {ErrorCode.REQUEST_TIMED_OUT}
    assert "retry the request" in results[0].error_message
    request.timeout_ms = PATIENCE_S * 1_000
    results = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
    assert {result.error_code for result in results} == {ErrorCode.NONE}


async def test_invalid_topic_names_never_reach_the_controller(
    cluster: Cluster, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.broker.client, "create_topics", None)
    names = [f"a/{number}" for number in range(REPEATED)]
    request = create_topics.CreateTopicsRequest(
        [create_topics.CreatableTopic(name, 1, 1) for name in names]
    )
    results = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
    assert [result.name for result in results] == names
    assert {result.error_code for result in results} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert "topic name 'a/0' is not allowed" in results[0].error_message

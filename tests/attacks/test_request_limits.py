"""Each API rejects requests with more elements than its limit and accepts the largest requests that
clients send.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from penstock.broker.errors import ErrorCode
from penstock.broker.groups.share.state.client import CALLS_MAX
from penstock.broker.transactions.markers import MARKERS_PER_REQUEST_MAX
from penstock.broker.transactions.verifier import QUESTIONS_PER_REQUEST_MAX
from penstock.protocol import apis, framing
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import (
    add_partitions_to_txn,
    consumer_group_heartbeat,
    delete_records,
    describe_groups,
    describe_share_group_offsets,
    list_offsets,
    offset_commit,
    offset_fetch,
    share_fetch,
    streams_group_heartbeat,
    txn_offset_commit,
    write_share_group_state,
)
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT, Reader
from penstock.protocol.request_limits import elements_max, things_max
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.long_request import LongRequest, ids, names
from tests.support.long_requests import LONG_REQUESTS

PATIENT: Final = {"session_timeout_ms": 60_000, "session_grace_ms": 60_000}
"""On a busy machine these requests take longer than the session timeouts of other tests."""

UNKNOWN_TAG: Final = b"\x63\x00"
"""A tagged field that no version defines."""

LIMITED: Final = (
    "CreateTopics",
    "CreatePartitions",
    "AlterPartitionReassignments",
    "OffsetFetch of many groups",
    "DescribeShareGroupOffsets",
    "AddPartitionsToTxn of brokers",
    "ShareFetch",
    "WriteShareGroupState",
)
"""Long requests whose expensive elements have a limit of their own."""

WITH_ERROR_RESPONSE: Final = {"AddPartitionsToTxn", "AlterPartitionReassignments", "ShareFetch"}

MANY: Final = 10_000
"""The partitions of a cluster, in one topic or in one topic each."""

GROUPS: Final = 5_000
"""The Java Admin client describes all groups of a coordinator in one request."""

SENT: Final[Mapping[str, int]] = {
    "Produce": MANY,
    "Fetch": MANY,
    "Fetch of many topics": MANY,
    "ListOffsets": MANY,
    "ListOffsets of many topics": MANY,
    "Metadata": MANY,
    "Metadata by id": MANY,
    "OffsetCommit": MANY,
    "OffsetFetch": MANY,
    "OffsetDelete": MANY,
    "OffsetForLeaderEpoch": MANY,
    "TxnOffsetCommit": MANY,
    "AddPartitionsToTxn": MANY,
    "CreateTopics": MANY,
    "CreateTopics with replicas": MANY,
    "CreatePartitions with replicas": MANY,
    "DeleteTopics": MANY,
    "DeleteRecords": MANY,
    "DescribeConfigs": MANY,
    "DescribeLogDirs": MANY,
    "DescribeProducers": MANY,
    "DescribeTopicPartitions": MANY,
    "ElectLeaders": MANY,
    "AlterPartitionReassignments": MANY,
    "AlterPartitionReassignments with replicas": MANY,
    "ListPartitionReassignments": MANY,
    "ShareFetch": MANY,
    "ShareAcknowledge": MANY,
    "AlterShareGroupOffsets": MANY,
    "DeleteShareGroupOffsets": MANY,
    "FindCoordinator": GROUPS,
    "DescribeGroups": GROUPS,
    "ConsumerGroupDescribe": GROUPS,
    "ShareGroupDescribe": GROUPS,
    "StreamsGroupDescribe": GROUPS,
    "DescribeShareGroupOffsets": GROUPS,
    "OffsetFetch of many groups": GROUPS,
    "DeleteGroups": GROUPS,
    "DescribeTransactions": GROUPS,
    "WriteTxnMarkers of many": MARKERS_PER_REQUEST_MAX,
    "AddPartitionsToTxn of brokers": QUESTIONS_PER_REQUEST_MAX,
    "InitializeShareGroupState": CALLS_MAX,
    "ReadShareGroupState": CALLS_MAX,
    "WriteShareGroupState": CALLS_MAX,
    "DeleteShareGroupState": CALLS_MAX,
    "ReadShareGroupStateSummary": CALLS_MAX,
}
"""The element counts of the largest requests that clients and brokers send."""

OF_MANY_TOPICS: Final[tuple[tuple[ApiSpec, int, Callable[[], Any]], ...]] = (
    (
        apis.OFFSET_COMMIT,
        9,
        lambda: offset_commit.OffsetCommitRequest(
            "g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name, partitions=[offset_commit.OffsetCommitRequestPartition(0, 1)]
                )
                for name in names(MANY)
            ],
        ),
    ),
    (
        apis.OFFSET_FETCH,
        9,
        lambda: offset_fetch.OffsetFetchRequest(
            [
                offset_fetch.OffsetFetchRequestGroup(
                    "g",
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=[0])
                        for name in names(MANY)
                    ],
                )
            ]
        ),
    ),
    (
        apis.TXN_OFFSET_COMMIT,
        5,
        lambda: txn_offset_commit.TxnOffsetCommitRequest(
            "t",
            "g",
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
                )
                for name in names(MANY)
            ],
        ),
    ),
    (
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        lambda: add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(name, [0]) for name in names(MANY)
            ],
        ),
    ),
    (
        apis.DELETE_RECORDS,
        2,
        lambda: delete_records.DeleteRecordsRequest(
            [
                delete_records.DeleteRecordsTopic(name, [delete_records.DeleteRecordsPartition(0)])
                for name in names(MANY)
            ]
        ),
    ),
    (
        apis.LIST_OFFSETS,  # a request by which brokers find the fork points of a snapshot
        11,
        lambda: list_offsets.ListOffsetsRequest(
            -1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name, [list_offsets.ListOffsetsPartition(0, -1, -1, fork_offset=7)]
                )
                for name in names(MANY)
            ],
        ),
    ),
    (
        apis.STREAMS_GROUP_HEARTBEAT,  # for one instance
        0,
        lambda: streams_group_heartbeat.StreamsGroupHeartbeatRequest(
            "g",
            "m",
            member_epoch=2,
            active_tasks=[streams_group_heartbeat.TaskIds("0", list(range(MANY)))],
            standby_tasks=[],
            warmup_tasks=[],
            task_offsets=None,
            task_end_offsets=None,
        ),
    ),
    (
        apis.CONSUMER_GROUP_HEARTBEAT,
        1,
        lambda: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "g",
            "m",
            subscribed_topic_names=names(MANY),
            topic_partitions=[
                consumer_group_heartbeat.TopicPartitions(topic_id, [0]) for topic_id in ids(MANY)
            ],
        ),
    ),
    (
        apis.SHARE_FETCH,
        2,
        lambda: share_fetch.ShareFetchRequest(
            "g",
            "m",
            topics=[
                share_fetch.FetchTopic(
                    topic_id,
                    [share_fetch.FetchPartition(0, [share_fetch.AcknowledgementBatch(0, 9, [1])])]
                    if number < MANY // 10
                    else [share_fetch.FetchPartition(0)],
                )
                for number, topic_id in enumerate(ids(MANY))
            ],
        ),
    ),
    (
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda: describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
                    "g",
                    [
                        describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
                            name, [0]
                        )
                        for name in names(MANY)
                    ],
                )
            ]
        ),
    ),
    (
        apis.WRITE_SHARE_GROUP_STATE,  # as many calls as fit, and one with all locks
        1,
        lambda: write_share_group_state.WriteShareGroupStateRequest(
            "g",
            [
                write_share_group_state.WriteStateData(
                    topic_id,
                    [
                        write_share_group_state.PartitionData(
                            state_batches=[write_share_group_state.StateBatch()] * batches
                        )
                    ],
                )
                for topic_id, batches in zip(
                    ids(CALLS_MAX), [*[0] * (CALLS_MAX - 1), MANY], strict=True
                )
            ],
        ),
    ),
)
"""The same with each partition in its own topic."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, controller_settings=PATIENT) as cluster:
        yield cluster


def elements_of(api: ApiSpec, version: int, request: Any) -> int:
    """Return the number of array elements and tagged fields of a request."""
    frame = frame_of(api, version, request)
    reader = Reader(frame, framing.parse_header(frame).body_offset, MAX_ELEMENTS_COUNT)
    CODECS[api.key].decode_request(reader, version)
    return MAX_ELEMENTS_COUNT - reader._elements_left_count


def frame_of(api: ApiSpec, version: int, request: Any) -> bytes:
    """Return a frame without its size prefix."""
    encode = CODECS[api.key].encode_request
    return bytes(framing.encode_request_frame(api, version, 1, encode, request)[4:])


def filled(long: LongRequest, elements: int) -> bytes:
    """Return the request for one resource, filled up to this many elements: with unknown tagged
    fields, or with more resources where the version has no tagged fields.
    """
    api, version = long.api, long.version
    have = elements_of(api, version, long.make(1))
    if not api.is_flexible(version):
        body = frame_of(api, version, long.make(1 + elements - have))
    else:
        tags = elements - have
        varint = bytes([tags & 0x7F | 0x80, tags >> 7 & 0x7F | 0x80, tags >> 14])
        body = frame_of(api, version, long.make(1))[:-1] + varint + UNKNOWN_TAG * tags
    return len(body).to_bytes(4, "big") + body


async def test_one_element_above_the_limit_is_rejected(cluster: Cluster) -> None:
    """The broker closes the connection before any lookup; requests at the limit are served."""
    wrong: list[str] = []
    for name, long in LONG_REQUESTS.items():
        limit = elements_max(long.api.key)
        for elements, has_response in ((limit, True), (limit + 1, False)):
            async with Attacker.connected(cluster.broker.port) as attacker:
                attacker.send(filled(long, elements))
                if (await attacker.frame() is not None) is not has_response:
                    wrong.append(f"{name} of {elements} elements")
    assert not wrong, "\n".join(wrong)


async def test_the_log_contains_the_api_the_count_and_the_limit(cluster: Cluster) -> None:
    limit = elements_max(apis.DESCRIBE_GROUPS.key)
    request = describe_groups.DescribeGroupsRequest(["g"] * (limit + 1))
    with capture_logs() as logs:
        async with Attacker.connected(cluster.broker.port) as attacker:
            assert await attacker.exchange(apis.DESCRIBE_GROUPS, 6, request) is None
    (reason,) = (line["reason"] for line in logs if line["event"] == "connection_refused")
    assert f"DescribeGroups has {limit + 1} elements" in reason
    assert f"allowed are {limit}" in reason


async def test_expensive_elements_have_a_lower_limit(cluster: Cluster) -> None:
    """In requests with many cheap elements, the expensive ones have a limit of their own. The
    response has an error if the API has a top-level one; otherwise the broker closes the
    connection.
    """
    limited = [LONG_REQUESTS[name] for name in LIMITED]
    assert {long.api.key for long in limited} == {key for key in CODECS if things_max(key)}
    for long in limited:
        limit = things_max(long.api.key)
        assert limit is not None
        async with Attacker.connected(cluster.broker.port) as attacker:
            assert await attacker.exchange(long.api, long.version, long.make(limit.max)) is not None
            with capture_logs() as logs:
                response = await attacker.exchange(long.api, long.version, long.make(limit.max + 1))
        if long.api.name in WITH_ERROR_RESPONSE:
            assert response is not None
            _, at = framing.parse_response_header(long.api, long.version, response)
            found = CODECS[long.api.key].decode_response(Reader(response, at), long.version)
            assert found.error_code == ErrorCode.POLICY_VIOLATION, long.api.name
        else:
            assert response is None
            (reason,) = (line["reason"] for line in logs if long.api.name in line.get("reason", ""))
            assert f"{long.api.name} failed: POLICY_VIOLATION" in reason
            assert f"{limit.max + 1} {limit.name}" in reason
            assert f"allowed are {limit.max}" in reason


@pytest.mark.parametrize(("name", "count"), SENT.items())
def test_the_largest_requests_of_clients_and_brokers_are_accepted(name: str, count: int) -> None:
    long = LONG_REQUESTS[name]
    assert_fits(long.api, long.version, long.make(count))


@pytest.mark.parametrize("request_", OF_MANY_TOPICS, ids=lambda item: item[0].name)
def test_requests_with_every_partition_in_its_own_topic_are_accepted(
    request_: tuple[ApiSpec, int, Callable[[], Any]],
) -> None:
    api, version, make = request_
    assert_fits(api, version, make())


def assert_fits(api: ApiSpec, version: int, request: Any) -> None:
    frame = frame_of(api, version, request)
    at = framing.parse_header(frame).body_offset
    decode = CODECS[api.key].decode_request
    decoded = framing.decode_body(decode, frame, at, version, elements_max(api.key))
    limit = things_max(api.key)
    assert limit is None or limit.count(decoded) <= limit.max

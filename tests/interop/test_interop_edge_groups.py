"""Groups without an id, long offset metadata, and the deletion of groups during a transaction
compared with Apache Kafka 4.2.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_share_group_offsets,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_share_group_offsets,
    describe_groups,
    describe_share_group_offsets,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
)
from tests.support.cluster import Cluster
from tests.support.edge_client import EdgeClient
from tests.support.kafka_comparison import Step, compare
from tests.support.transaction_client import TOPIC as LEDGER
from tests.support.transaction_client import TransactionClient, create_ledger

TOPIC = "edge-groups"
STANDALONE = ("", -1)
"""Member id and generation of a standalone consumer."""


def _commit(
    talk: EdgeClient,
    group: str,
    member: tuple[str, int] = STANDALONE,
    *,
    topic: str = TOPIC,
    offset: int = 5,
    text: str = "",
    version: int = 9,
) -> Any:
    member_id, generation = member
    part = offset_commit.OffsetCommitRequestPartition(0, offset, committed_metadata=text)
    request = offset_commit.OffsetCommitRequest(
        group,
        generation,
        member_id,
        topics=[offset_commit.OffsetCommitRequestTopic(talk.ids.get(topic), topic, [part])],
    )
    return talk.send_request(apis.OFFSET_COMMIT, request, version)["topics"][0]["partitions"]


def _fetch(
    talk: EdgeClient,
    group: str,
    topic: str | None = TOPIC,
    member: tuple[str | None, int] = (None, -1),
    *,
    stable: bool = False,
    version: int = 9,
) -> Any:
    """Return the offset of a topic, or all offsets of the group."""
    topics = None if topic is None else [_fetched(talk, topic)]
    member_id, epoch = member
    requested = offset_fetch.OffsetFetchRequestGroup(
        group, topics=topics, member_id=member_id, member_epoch=epoch
    )
    request = offset_fetch.OffsetFetchRequest(groups=[requested], require_stable=stable)
    (found,) = talk.send_request(apis.OFFSET_FETCH, request, version)["groups"]
    return found["error_code"], [found["partitions"] for found in found["topics"]]


def _fetched(talk: EdgeClient, topic: str) -> offset_fetch.OffsetFetchRequestTopics:
    return offset_fetch.OffsetFetchRequestTopics(talk.ids.get(topic), topic, [0])


def offsets_without_a_group(talk: EdgeClient) -> Iterator[Step]:
    """Standalone consumers may commit under the empty group id."""
    talk.topic(TOPIC)
    talk.coordinate("edge-groups", "")
    find = find_coordinator.FindCoordinatorRequest(key="", coordinator_keys=[""])
    for version in (0, 3, 4, 6):
        found = talk.send_request(apis.FIND_COORDINATOR, find, version)
        (found,) = found["coordinators"] or [found]
        yield f"find {version}", found["error_code"]
    for version in range(2, 11):
        for member in (STANDALONE, ("m", -1), ("", 3), ("m", 0), ("m", 3)):
            yield f"commit {version} {member}", _commit(talk, "", member, version=version)
    for version in (1, 2, 5, 7):
        request = offset_fetch.OffsetFetchRequest(
            group_id="", topics=[offset_fetch.OffsetFetchRequestTopic(TOPIC, [0])]
        )
        yield f"fetch {version}", talk.send_request(apis.OFFSET_FETCH, request, version)
    for version in (8, 9, 10):
        for asking in ((None, -1), ("m", 1), ("", -1), ("", 0)):
            label = f"fetch {version} {asking}"
            yield label, _fetch(talk, "", member=asking, version=version)
        yield f"fetch all {version}", _fetch(talk, "", None, version=version)
    for version in (0, 5, 6):
        request = describe_groups.DescribeGroupsRequest([""])
        yield f"describe {version}", talk.send_request(apis.DESCRIBE_GROUPS, request, version)
    yield "listed", _listed(talk, "")
    part = offset_delete.OffsetDeleteRequestPartition(0)
    topic = offset_delete.OffsetDeleteRequestTopic(TOPIC, [part])
    for topics in ([], [topic]):
        request = offset_delete.OffsetDeleteRequest("", topics)
        yield f"delete offsets {topics}", talk.send_request(apis.OFFSET_DELETE, request)
    for version in (0, 2):
        for attempt in (1, 2):
            yield f"delete {version} {attempt}", _delete(talk, "", version)


def _listed(talk: EdgeClient, group: str) -> Any:
    groups = talk.send_request(apis.LIST_GROUPS, list_groups.ListGroupsRequest())["groups"]
    return [found for found in groups if found["group_id"] == group]


def _delete(talk: EdgeClient, group: str, version: int = 2) -> Any:
    return talk.send_request(
        apis.DELETE_GROUPS, delete_groups.DeleteGroupsRequest([group]), version
    )


def members_without_a_group(talk: EdgeClient) -> Iterator[Step]:
    protocol = join_group.JoinGroupRequestProtocol("range", bytes(10))
    join = join_group.JoinGroupRequest(
        group_id="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    sync = sync_group.SyncGroupRequest("", 1, "m", protocol_type="consumer", protocol_name="range")
    leave = leave_group.LeaveGroupRequest(
        group_id="", member_id="m", members=[leave_group.MemberIdentity("m")]
    )
    consumer = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        "", "m", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=[TOPIC], topic_partitions=[]
    )
    share = share_group_heartbeat.ShareGroupHeartbeatRequest(
        "", "m", 0, subscribed_topic_names=[TOPIC]
    )
    streams = streams_group_heartbeat.StreamsGroupHeartbeatRequest("", "m", 0, 0)
    alter = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
        "",
        [
            alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                TOPIC, [alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(0, 0)]
            )
        ],
    )
    delete = delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
        "", [delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(TOPIC)]
    )
    requests: list[tuple[apis.ApiSpec, Any, tuple[int, ...]]] = [
        (apis.JOIN_GROUP, join, (0, 4, 5, 9)),
        (apis.SYNC_GROUP, sync, (0, 3, 5)),
        (apis.HEARTBEAT, heartbeat.HeartbeatRequest("", 1, "m"), (0, 4)),
        (apis.LEAVE_GROUP, leave, (0, 2, 3, 5)),
        (apis.CONSUMER_GROUP_HEARTBEAT, consumer, (1,)),
        (apis.SHARE_GROUP_HEARTBEAT, share, (1,)),
        (apis.STREAMS_GROUP_HEARTBEAT, streams, (0,)),
        (
            apis.CONSUMER_GROUP_DESCRIBE,
            consumer_group_describe.ConsumerGroupDescribeRequest([""]),
            (1,),
        ),
        (apis.SHARE_GROUP_DESCRIBE, share_group_describe.ShareGroupDescribeRequest([""]), (1,)),
        (
            apis.STREAMS_GROUP_DESCRIBE,
            streams_group_describe.StreamsGroupDescribeRequest([""]),
            (0,),
        ),
        (apis.ALTER_SHARE_GROUP_OFFSETS, alter, (0,)),
        (apis.DELETE_SHARE_GROUP_OFFSETS, delete, (0,)),
    ]
    for api, request, versions in requests:
        for version in versions:
            yield f"{api.name} {version}", talk.send_request(api, request, version)


def long_metadata(talk: EdgeClient) -> Iterator[Step]:
    """The limit counts characters as Java does, in UTF-16."""
    talk.topic("edge-metadata")
    talk.coordinate("edge-metadata")
    for letter in ("a", "\u00e9", "\u20ac", "\U0001f600"):
        for count in (2_047, 2_048, 2_049, 4_095, 4_096, 4_097):
            for version in (2, 10):
                code = _commit(
                    talk,
                    "edge-metadata",
                    topic="edge-metadata",
                    text=letter * count,
                    version=version,
                )
                yield f"{letter!a} {count} {version}", code
    for offset in (-1, -2, -(2**63), 2**63 - 1):
        yield f"{offset}", _commit(talk, "edge-metadata", topic="edge-metadata", offset=offset)
        yield f"fetched {offset}", _fetch(talk, "edge-metadata", "edge-metadata")


def deleted_in_a_transaction(talk: EdgeClient) -> Iterator[Step]:
    create_ledger(talk.address)
    for ends in (True, False):
        for before, after, times in (
            *((False, False, 1), (True, False, 1), (False, True, 1), (False, False, 2)),
            *((False, False, 0), (True, True, 0)),
        ):
            group = f"edge-deleted-{ends}-{before}-{after}-{times}"
            with closing(TransactionClient(talk.address)) as producer:
                producer.begin(group)
                talk.coordinate(group)
                yield from _deleted(talk, producer, group, ends, before, after, times)


def _deleted(
    talk: EdgeClient,
    producer: TransactionClient,
    group: str,
    ends: bool,
    before: bool,
    after: bool,
    times: int,
) -> Iterator[Step]:
    """Commit an offset in a transaction, and optionally others before and after. Delete the group
    `times` times, or the offset if 0, and end the transaction.
    """

    def state(when: str) -> Iterator[Step]:
        for stable in (False, True):
            yield f"{group} {when} {stable}", _fetch(talk, group, LEDGER, stable=stable)
            yield f"{group} {when} all {stable}", _fetch(talk, group, None, stable=stable)
        yield f"{group} {when} listed", _listed(talk, group)

    if before:
        yield f"{group} before", _commit(talk, group, topic=LEDGER, offset=3)
    yield f"{group} staged", producer.commit_offset(group, group, 7)
    if after:
        yield f"{group} after", _commit(talk, group, topic=LEDGER, offset=4)
    for _ in range(times):
        yield f"{group} deleted", _delete(talk, group)
    if not times:
        part = offset_delete.OffsetDeleteRequestPartition(0)
        topic = offset_delete.OffsetDeleteRequestTopic(LEDGER, [part])
        request = offset_delete.OffsetDeleteRequest(group, [topic])
        yield f"{group} offsets deleted", talk.send_request(apis.OFFSET_DELETE, request)
    yield from state("open")
    yield f"{group} ended", producer.end(group, commit=ends)
    producer.describe(group)
    producer.committed(group)
    yield from state("ended")
    yield f"{group} deleted at last", _delete(talk, group)


SCENARIOS: list[Callable[[EdgeClient], Iterator[Step]]] = [
    offsets_without_a_group,
    members_without_a_group,
    long_metadata,
    deleted_in_a_transaction,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_unusual_group_requests_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[EdgeClient], Iterator[Step]]
) -> None:
    await compare(EdgeClient, scenario, (peer, cluster.bootstrap))


async def test_share_group_without_an_id_has_no_offsets(peer: str, cluster: Cluster) -> None:
    """For some topics, Kafka responds with UNKNOWN_SERVER_ERROR; for all topics, with nothing."""
    request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
        [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("", None)]
    )

    def reported(address: str) -> int:
        with closing(EdgeClient(address)) as talk:
            (group,) = talk.send_request(apis.DESCRIBE_SHARE_GROUP_OFFSETS, request)["groups"]
            return int(group["error_code"])

    found = [await asyncio.to_thread(reported, address) for address in (peer, cluster.bootstrap)]
    assert found == [0, 24]

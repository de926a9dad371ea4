"""Share groups, streams groups and administration compared with Apache Kafka 4.2, with numbers and
members that no client should send.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_share_group_offsets,
    consumer_group_heartbeat,
    describe_producers,
    describe_topic_partitions,
    join_group,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
    streams_group_heartbeat,
)
from tests.support.cluster import Cluster
from tests.support.edge_client import EdgeClient
from tests.support.kafka_comparison import Step, compare

NOW = 1_700_000_000_000
NUMBERS = (-1, -2, -(2**31), 0, 2**31 - 1)
TOPIC = "edge-offsets-of-kinds"


def _code(response: Any) -> Any:
    return response if isinstance(response, str) else response["error_code"]


def _commit(talk: EdgeClient, group: str, member: str, epoch: int, version: int = 9) -> Any:
    part = offset_commit.OffsetCommitRequestPartition(0, 5)
    topic = offset_commit.OffsetCommitRequestTopic(talk.ids[TOPIC], TOPIC, [part])
    request = offset_commit.OffsetCommitRequest(group, epoch, member, topics=[topic])
    found = talk.send_request(apis.OFFSET_COMMIT, request, version)
    return [part["error_code"] for topic in found["topics"] for part in topic["partitions"]]


def _offsets(talk: EdgeClient, group: str, member: str | None, epoch: int) -> Any:
    topic = offset_fetch.OffsetFetchRequestTopics(talk.ids[TOPIC], TOPIC, [0])
    requested = offset_fetch.OffsetFetchRequestGroup(group, member, epoch, [topic])
    response = talk.send_request(
        apis.OFFSET_FETCH, offset_fetch.OffsetFetchRequest(groups=[requested]), 9
    )
    (found,) = response["groups"]
    return found["error_code"], [
        (part["committed_offset"], part["error_code"])
        for topic in found["topics"]
        for part in topic["partitions"]
    ]


def _deleted(talk: EdgeClient, group: str) -> Any:
    part = offset_delete.OffsetDeleteRequestPartition(0)
    request = offset_delete.OffsetDeleteRequest(
        group, [offset_delete.OffsetDeleteRequestTopic(TOPIC, [part])]
    )
    response = talk.send_request(apis.OFFSET_DELETE, request)
    return response["error_code"], [
        part["error_code"] for topic in response["topics"] for part in topic["partitions"]
    ]


def _join_share(talk: EdgeClient, group: str, member: str, epoch: int) -> Any:
    request = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group, member, epoch, subscribed_topic_names=[TOPIC] if epoch == 0 else None
    )
    return _code(talk.send_request(apis.SHARE_GROUP_HEARTBEAT, request))


def _join_streams(
    talk: EdgeClient, group: str, member: str, epoch: int, timeout_ms: int = 1_000
) -> Any:
    part = streams_group_heartbeat.Subtopology("0", [TOPIC])
    is_first = epoch == 0
    request = streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        group,
        member,
        epoch,
        0,
        rebalance_timeout_ms=timeout_ms if is_first else -1,
        topology=streams_group_heartbeat.Topology(1, [part]) if is_first else None,
        active_tasks=[] if is_first else None,
        standby_tasks=[] if is_first else None,
        warmup_tasks=[] if is_first else None,
        process_id="p" if is_first else None,
    )
    return _code(talk.send_request(apis.STREAMS_GROUP_HEARTBEAT, request))


def _join_consumer(
    talk: EdgeClient, group: str, member: str, epoch: int, timeout_ms: int = 1_000
) -> Any:
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group,
        member,
        epoch,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    return _code(talk.send_request(apis.CONSUMER_GROUP_HEARTBEAT, request))


_JOINS = {"share": _join_share, "streams": _join_streams, "consumer": _join_consumer}
_ASKING = (("", -1), ("m", -1), ("m", 0), ("m", 1), ("m", 9), ("m", -2), ("x", -1), ("x", 1))


def standalone_offsets(talk: EdgeClient) -> Iterator[Step]:
    """Standalone commits and fetches in groups of each type, with a member and after it
    has left.
    """
    talk.topic(TOPIC)
    for kind, join in _JOINS.items():
        group = f"edge-{kind}"
        talk.coordinate(group)
        for state, epoch in (("joined", 0), ("empty", -1)):
            yield f"{kind} {state}", join(talk, group, "m", epoch)
            for member, requested in _ASKING:
                label = f"{kind} {state} {member!r} {requested}"
                yield f"commit {label}", _commit(talk, group, member, requested)
                yield f"fetch {label}", _offsets(talk, group, member or None, requested)
            yield f"delete {kind} {state}", _deleted(talk, group)


def heartbeats(talk: EdgeClient) -> Iterator[Step]:
    """Heartbeats with unusual epochs and timeouts."""
    for kind, join in _JOINS.items():
        for epoch in (-1, -2, -3, -(2**31), 1, 2**31 - 1):
            group = f"edge-beat-{kind}-{epoch}"
            talk.coordinate(group)
            yield f"{kind} {epoch}", join(talk, group, "m", epoch)
        yield f"{kind} no member", join(talk, f"edge-beat-{kind}", "", 0)
    for timeout_ms in NUMBERS:
        for name, beat in (("streams", _join_streams), ("consumer", _join_consumer)):
            group = f"edge-timeout-{name}-{timeout_ms}"
            talk.coordinate(group)
            yield f"{name} {timeout_ms}", beat(talk, group, "m", 0, timeout_ms)
        group = f"edge-timeout-classic-{timeout_ms}"
        talk.coordinate(group)
        protocol = join_group.JoinGroupRequestProtocol("range", bytes(10))
        join_classic = join_group.JoinGroupRequest(
            group, timeout_ms, 10_000, protocol_type="consumer", protocols=[protocol]
        )
        yield f"session {timeout_ms}", _code(talk.send_request(apis.JOIN_GROUP, join_classic, 5))


MEMBER = "8fW2yMeIRkSdCKbEb8rgXA"


def share_limits(talk: EdgeClient) -> Iterator[Step]:
    topic, group = "edge-shared", "edge-share-limits"
    talk.topic(topic)
    talk.coordinate(group)
    for _ in range(3):
        talk.produce(topic, [NOW])
    request = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group, MEMBER, 0, subscribed_topic_names=[topic]
    )
    yield "joined", _code(talk.send_request(apis.SHARE_GROUP_HEARTBEAT, request))

    def fetched(**fields: Any) -> Any:
        requested = share_fetch.FetchTopic(talk.ids[topic], [share_fetch.FetchPartition(0)])
        given: dict[str, Any] = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "max_records": 10,
        }
        request = share_fetch.ShareFetchRequest(
            group, MEMBER, 0, batch_size=10, topics=[requested], **(given | fields)
        )
        return _code(talk.send_request(apis.SHARE_FETCH, request))

    def closed() -> Any:
        request = share_acknowledge.ShareAcknowledgeRequest(group, MEMBER, -1)
        return _code(talk.send_request(apis.SHARE_ACKNOWLEDGE, request))

    for name in ("max_wait_ms", "min_bytes", "max_bytes", "max_records"):
        for number in (-1, -(2**31), 0):
            yield f"{name} {number}", fetched(**{name: number})
            yield f"closed {name} {number}", closed()
    # The state of the group is loaded in the meantime.
    yield "opened", fetched(max_wait_ms=5_000, min_bytes=1)
    epoch = 1
    acks: list[tuple[int, int, list[int]]] = [
        *((-1, 0, [1]), (0, -1, [1]), (1, 0, [1]), (0, 2, [1, 1]), (0, 0, []), (0, 0, [9])),
        *((0, 0, [-1]), (2**62, 2**62 + 1, [1]), (0, 0, [1])),
    ]
    for ack in acks:
        batch = share_acknowledge.AcknowledgementBatch(*ack)
        part = share_acknowledge.AcknowledgePartition(0, [batch])
        acked = share_acknowledge.ShareAcknowledgeRequest(
            group,
            MEMBER,
            epoch,
            topics=[share_acknowledge.AcknowledgeTopic(talk.ids[topic], [part])],
        )
        response = talk.send_request(apis.SHARE_ACKNOWLEDGE, acked)
        yield (
            f"acknowledge {ack}",
            (
                response["error_code"],
                [p["error_code"] for t in response["responses"] for p in t["partitions"]],
            ),
        )
        epoch += 1
    yield "closed at last", closed()
    left = share_group_heartbeat.ShareGroupHeartbeatRequest(group, MEMBER, -1)
    yield "left", _code(talk.send_request(apis.SHARE_GROUP_HEARTBEAT, left))
    for offset in (0, 3, 4, 2**63 - 1):  # Kafka accepts negative ones, which Penstock refuses
        part = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(0, offset)
        alter = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
            group, [alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(topic, [part])]
        )
        response = talk.send_request(apis.ALTER_SHARE_GROUP_OFFSETS, alter)
        codes = [p["error_code"] for t in response["responses"] for p in t["partitions"]]
        yield f"alter to {offset}", (response["error_code"], codes)


def administration(talk: EdgeClient) -> Iterator[Step]:
    topic = "edge-administration"
    talk.topic(topic)
    for limit in NUMBERS:
        for cursor in (None, -1, 0, 1):  # 2^31 - 1 overflows in Kafka
            request = describe_topic_partitions.DescribeTopicPartitionsRequest(
                [describe_topic_partitions.TopicRequest(topic)],
                limit,
                None if cursor is None else describe_topic_partitions.Cursor(topic, cursor),
            )
            response = talk.send_request(apis.DESCRIBE_TOPIC_PARTITIONS, request)
            shown = response
            if not isinstance(response, str):
                parts = [(t["error_code"], len(t["partitions"])) for t in response["topics"]]
                shown = parts, response["next_cursor"]
            yield f"partitions {limit} {cursor}", shown
    for number in (-1, -2, -(2**63), 0, 2**63 - 1):
        requested: list[dict[str, Any]] = [
            {"duration_filter": number},
            {"producer_id_filters": [number]},
        ]
        for filters in requested:
            request = list_transactions.ListTransactionsRequest(**filters)
            yield (
                f"transactions {filters}",
                _code(talk.send_request(apis.LIST_TRANSACTIONS, request)),
            )
    for index in (*NUMBERS, 1):
        request = describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(topic, [index])]
        )
        response = talk.send_request(apis.DESCRIBE_PRODUCERS, request)
        codes = [p["error_code"] for t in response["topics"] for p in t["partitions"]]
        yield f"producers of {index}", codes


SCENARIOS: list[Callable[[EdgeClient], Iterator[Step]]] = [
    standalone_offsets,
    heartbeats,
    share_limits,
    administration,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_unusual_members_and_numbers_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[EdgeClient], Iterator[Step]]
) -> None:
    await compare(EdgeClient, scenario, (peer, cluster.bootstrap))

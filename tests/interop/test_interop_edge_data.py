"""Negative and extreme numbers in requests, negative timestamps and unusual producers compared with
Apache Kafka 4.2.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.protocol import apis
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    elect_leaders,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from tests.support.cluster import Cluster
from tests.support.edge_client import CLOSED, EdgeClient
from tests.support.kafka_comparison import Step, compare, hold
from tests.support.waiting import wait_until

NOW = 1_700_000_000_000
INT32 = (-1, -(2**31), 0, 1, 2**31 - 1)
INT64 = (-1, -2, -(2**63), 4, 2**63 - 1)
NODE_ID = 1


# --- Fetch ----------------------------------------------------------------------------------------


def _fetch(talk: EdgeClient, topic: str, version: int, part: dict[str, int], **limits: int) -> Any:
    requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20} | part
    request = fetch.FetchRequest(
        topics=[fetch.FetchTopic(talk.ids[topic], topic, [fetch.FetchPartition(**requested)])],
        **{"max_bytes": 1 << 20, "min_bytes": 1, "max_wait_ms": 10, **limits},
    )
    response = talk.send_request(apis.FETCH, request, version)
    if response == CLOSED:
        return response
    names = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset")
    return response["error_code"], [
        ([found[name] for name in names], len(found["records"] or b""))
        for topic in response["responses"]
        for found in topic["partitions"]
    ]


def limits_of_fetch(talk: EdgeClient) -> Iterator[Step]:
    """A negative limit is an error if there are records to read, but not at the end of the log."""
    topic = "edge-fetch"
    talk.topic(topic)
    for _ in range(3):
        talk.produce(topic, [NOW])
    for version in (4, 11, 12, 18):
        for number in INT32:
            for offset in (0, 3):
                at: dict[str, int] = {"fetch_offset": offset}
                label = f"{version} {number} {offset}"
                yield f"bytes {label}", _fetch(talk, topic, version, at, max_bytes=number)
                least = _fetch(talk, topic, version, at, min_bytes=number)
                yield f"least bytes {label}", least
                if number <= 1:
                    waiting = _fetch(talk, topic, version, at, max_wait_ms=number)
                    yield f"wait {label}", waiting
                limited = at | {"partition_max_bytes": number}
                yield f"partition bytes {label}", _fetch(talk, topic, version, limited)
            for name in ("partition", "current_leader_epoch"):
                label = f"{name} {version} {number}"
                yield label, _fetch(talk, topic, version, {name: number})
        for offset in INT64:
            requested = {"fetch_offset": offset, "log_start_offset": offset}
            yield f"offset {version} {offset}", _fetch(talk, topic, version, requested)
        for level in (-1, 2, 127, -128):
            found = _fetch(talk, topic, version, {}, isolation_level=level)
            yield f"isolation level {version} {level}", found


# --- ListOffsets, OffsetForLeaderEpoch, DeleteRecords ---------------------------------------------


def offsets(talk: EdgeClient) -> Iterator[Step]:
    topic = "edge-offsets"
    talk.topic(topic)
    for at in range(3):
        talk.produce(topic, [NOW + at * 1_000])

    def listed(version: int, level: int = 0, replica: int = -1, **requested: int) -> Any:
        part = list_offsets.ListOffsetsPartition(
            **{"partition_index": 0, "timestamp": -1} | requested
        )
        topics = [list_offsets.ListOffsetsTopic(topic, [part])]
        response = talk.send_request(
            apis.LIST_OFFSETS, list_offsets.ListOffsetsRequest(replica, level, topics), version
        )
        names = ("error_code", "timestamp", "offset", "leader_epoch")
        return [response["topics"][0]["partitions"][0][name] for name in names]

    for version in (1, 2, 5, 7, 8, 9, 10, 11):
        for when in (*range(-7, 2), -100, -(2**63), NOW, NOW + 1, 2**63 - 1):
            yield f"time {when} {version}", listed(version, timestamp=when)
        for level in (-1, 2, 127, -128):
            yield f"isolation level {level} {version}", listed(version, level)
        for epoch in (*INT32, -2):
            yield f"epoch {epoch} {version}", listed(version, current_leader_epoch=epoch)
    for number in INT32:
        yield f"index {number}", listed(11, partition_index=number)
        yield f"replica {number}", listed(11, replica=number)
    for epoch in (*INT32, -2):
        for current in (-1, -2, -(2**31), 0):
            requested = offset_for_leader_epoch.OffsetForLeaderPartition(0, current, epoch)
            topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic, [requested])]
            request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=topics)
            found = talk.send_request(apis.OFFSET_FOR_LEADER_EPOCH, request)
            yield f"end of epoch {epoch} {current}", found
    for offset in INT64:
        part = delete_records.DeleteRecordsPartition(0, offset)
        requested = delete_records.DeleteRecordsTopic(topic, [part])
        request = delete_records.DeleteRecordsRequest([requested], 180_000)
        yield f"delete to {offset}", talk.send_request(apis.DELETE_RECORDS, request)


# --- Produce --------------------------------------------------------------------------------------


def timestamps(talk: EdgeClient) -> Iterator[Step]:
    """Timestamps before 1970 are valid."""
    plain, stamped = "edge-times", "edge-stamped"
    talk.topic(plain)
    talk.topic(stamped, **{"message.timestamp.type": "LogAppendTime"})
    for topic in (plain, stamped):
        for times in (
            [-1],
            [-2],
            [-5],
            [-(2**40)],
            [-(2**63)],
            [0],
            [1],
            [-5, 1],
            [1, -5],
            [-5, -7],
        ):
            for version in (3, 13):
                found = talk.produce(topic, times, version)
                yield (
                    f"{topic} {times} {version}",
                    (
                        ErrorCode(found["error_code"]).name,
                        found["base_offset"],
                        found["log_append_time_ms"] > 0,
                    ),
                )


def producers(talk: EdgeClient) -> Iterator[Step]:
    """An unknown producer may start with any epoch from -1."""
    topic, number = "edge-producers", 0
    talk.topic(topic)
    for known in (-1, -2, -(2**63), 990_000):
        for epoch in (-1, -2, -(2**15), 0, 2**15 - 1):
            for sequence in (-1, -2, -(2**31), 0, 5, 2**31 - 1):
                number += 1
                yield (
                    f"{known} {epoch} {sequence}",
                    _code(
                        talk.produce(
                            topic,
                            [NOW],
                            producer_id=known + number if known > 0 else known,
                            producer_epoch=epoch,
                            base_sequence=sequence,
                        )
                    ),
                )
    for steps in (
        *([(5, 0), (5, 1)], [(5, 0), (4, 1)], [(5, 0), (4, 0)], [(5, 0), (6, 1)], [(5, 7), (5, 8)]),
        *([(5, 0), (6, 0), (5, 1)], [(5, 0), (5, 3)], [(5, 0), (5, 0)], [(5, 0), (-1, 1)]),
        *([(5, 0), (5, -1)], [(5, 0), (-1, -1)], [(5, 0), (-2, 0)], [(-1, 0), (0, 0), (-1, 1)]),
        *([(-1, 0), (-1, 1), (-1, 1)], [(5, 2**31 - 1), (5, 0)]),
    ):
        number += 1
        for epoch, sequence in steps:
            yield (
                f"{steps} {epoch} {sequence}",
                _code(
                    talk.produce(
                        topic,
                        [NOW],
                        producer_id=880_000 + number,
                        producer_epoch=epoch,
                        base_sequence=sequence,
                    )
                ),
            )
    request = init_producer_id.InitProducerIdRequest(None, 60_000)
    wait_until(lambda: _code(talk.send_request(apis.INIT_PRODUCER_ID, request)) == "NONE")
    for timeout_ms in (-1, 0, 2**31 - 1):
        for identity in ((-1, -1), (-1, 0), (5, -1), (5, 0), (-2, -2), (5, -2), (-2, 5)):
            request = init_producer_id.InitProducerIdRequest(None, timeout_ms, *identity)
            yield (
                f"id {timeout_ms} {identity}",
                _code(talk.send_request(apis.INIT_PRODUCER_ID, request)),
            )


def repetitions(talk: EdgeClient) -> Iterator[Step]:
    """A repeated batch gets the append time of the first copy."""
    topic = "edge-repeated"
    talk.topic(topic, **{"message.timestamp.type": "LogAppendTime"})
    producer = {"producer_id": 860_000, "producer_epoch": 0}
    for sequence in range(3):
        first, *others = [
            talk.produce(topic, [NOW], base_sequence=sequence, **producer) for _ in range(3)
        ]
        yield f"offset {sequence}", (first["error_code"], first["base_offset"])
        yield f"repeated {sequence}", [other == first for other in others]


def _code(response: Any) -> str:
    return response if response == CLOSED else ErrorCode(response["error_code"]).name


# --- requests with a timeout --------------------------------------------------------------------


def timeouts(talk: EdgeClient) -> Iterator[Step]:
    """A request without time has no effect. Unknown election types are refused."""
    for timeout_ms in (0, -1, -(2**31)):
        name = f"edge-timeout-{timeout_ms}"
        talk.topic(name)
        create = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(f"{name}-new", 1, 1)], timeout_ms, False
        )
        yield (
            f"create {timeout_ms}",
            talk.send_request(apis.CREATE_TOPICS, create)["topics"][0]["error_code"],
        )
        grow = create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(name, 3, None)], timeout_ms, False
        )
        yield f"grow {timeout_ms}", talk.send_request(apis.CREATE_PARTITIONS, grow)
        states = [delete_topics.DeleteTopicState(topic, None) for topic in (name, "edge-none")]
        delete = delete_topics.DeleteTopicsRequest(states, timeout_ms=timeout_ms)
        yield f"delete {timeout_ms}", talk.send_request(apis.DELETE_TOPICS, delete)
        topics = [metadata.MetadataRequestTopic(name=each) for each in (name, f"{name}-new")]
        request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        yield (
            f"after {timeout_ms}",
            sorted(
                (found["name"], found["error_code"], len(found["partitions"]))
                for found in talk.send_request(apis.METADATA, request)["topics"]
            ),
        )
        part = alter_partition_reassignments.ReassignablePartition(0, [NODE_ID])
        move = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            timeout_ms, True, [alter_partition_reassignments.ReassignableTopic(name, [part])]
        )
        moved = talk.send_request(apis.ALTER_PARTITION_REASSIGNMENTS, move)
        yield (
            f"move {timeout_ms}",
            [topic["partitions"][0]["error_code"] for topic in moved["responses"]],
        )
    talk.topic("edge-elected")
    for kind, timeout_ms in ((0, 0), (1, -1), (2, 5_000), (-1, 5_000), (127, 5_000), (0, 5_000)):
        requested = [elect_leaders.TopicPartitions("edge-elected", [0])]
        request = elect_leaders.ElectLeadersRequest(kind, requested, timeout_ms)
        response = talk.send_request(apis.ELECT_LEADERS, request)
        yield (
            f"elect {kind} {timeout_ms}",
            (
                response["error_code"],
                [
                    (topic["topic"], part["partition_id"], part["error_code"])
                    for topic in response["replica_election_results"]
                    for part in topic["partition_result"]
                ],
            ),
        )


SCENARIOS: list[Callable[[EdgeClient], Iterator[Step]]] = [
    limits_of_fetch,
    offsets,
    timestamps,
    producers,
    repetitions,
    timeouts,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_unusual_requests_get_the_responses_of_kafka(
    peer: str, cluster: Cluster, scenario: Callable[[EdgeClient], Iterator[Step]]
) -> None:
    await compare(EdgeClient, scenario, (peer, cluster.bootstrap))


def deliberate(talk: EdgeClient) -> Iterator[Step]:
    topic = "edge-deliberate"
    talk.topic(topic)
    talk.produce(topic, [NOW])
    yield "a last epoch that never was", _fetch(talk, topic, 18, {"last_fetched_epoch": 9})
    yield "a session id out of range", _fetch(talk, topic, 18, {}, session_id=2**31 - 1)
    codes = [
        _code(
            talk.produce(
                topic, [NOW], producer_id=870_000, producer_epoch=-1, base_sequence=sequence
            )
        )
        for sequence in (0, 3)
    ]
    yield "a gap in epoch -1", codes
    yield (
        "a transaction of nobody",
        _code(talk.produce(topic, [NOW], 11, "edge-transaction", attributes=TRANSACTIONAL_MASK)),
    )


async def test_some_responses_deliberately_differ_from_those_of_kafka(
    peer: str, cluster: Cluster
) -> None:
    """Penstock ignores the last fetched epoch: its logs are never truncated, and after mirroring, a
    client may have a higher epoch of another cluster. The other differences are bugs of Kafka: it
    fails, or does not check sequence numbers in epoch -1.
    """
    whole = (0, [([0, 1, 1, 0], 228)])
    expected, found = [
        await asyncio.to_thread(hold, EdgeClient, address, deliberate)
        for address in (peer, cluster.bootstrap)
    ]
    out_of_range = (0, [([ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1], 0)])
    assert [response for _, response in expected] == [out_of_range, (-1, []), ["NONE"] * 2, "NONE"]
    assert [response for _, response in found] == [
        *(whole, whole, ["NONE", "OUT_OF_ORDER_SEQUENCE_NUMBER"], "INVALID_RECORD")
    ]

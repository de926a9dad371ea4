"""Unusual requests get the responses of Kafka 4.2. `tests/interop/test_interop_edge_data.py`
compares many more of them with Kafka.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import scan
from penstock.lake.manifest.errors import UnknownPartition
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
)
from penstock.stream.config import StreamConfig
from tests.support.cluster import Cluster
from tests.support.edge_client import EdgeClient
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

TOPIC = "odd"
NOW = 1_700_000_000_000
Check = tuple[str, object, object]
"""A label for the request, Penstock's response, and the expected response of Kafka."""


def _fetch(talk: EdgeClient, **options: int) -> Any:
    fields = {"partition_max_bytes": 1 << 20, "fetch_offset": 0, "current_leader_epoch": -1}
    part = fetch.FetchPartition(
        partition=0, **{name: options.pop(name, value) for name, value in fields.items()}
    )
    request = fetch.FetchRequest(
        topics=[fetch.FetchTopic(talk.ids[TOPIC], TOPIC, [part])],
        **{"max_bytes": 1 << 20, "min_bytes": 1, "max_wait_ms": 1, **options},
    )
    response = talk.send_request(apis.FETCH, request, 12)
    (found,) = response["responses"][0]["partitions"]
    return found["error_code"], found["high_watermark"], bool(found["records"])


def limits_of_fetch(talk: EdgeClient) -> Iterator[Check]:
    talk.produce(TOPIC, [NOW])
    failed, whole, none = (-1, -1, False), (0, 1, True), (0, 1, False)
    for name in ("max_bytes", "partition_max_bytes"):
        for number in (-1, -(2**31)):
            yield f"{name} {number}", _fetch(talk, **{name: number}), failed
            yield (
                f"{name} {number} at the end",
                _fetch(talk, **{name: number}, fetch_offset=1),
                none,
            )
        yield f"{name} 0", _fetch(talk, **{name: 0}), whole
    for number in (-1, -(2**31)):
        yield f"min_bytes {number}", _fetch(talk, min_bytes=number), whole
        yield f"max_wait_ms {number}", _fetch(talk, max_wait_ms=number), whole
        yield f"epoch {number}", _fetch(talk, current_leader_epoch=number), whole
    for level in (-1, 2, 127):
        yield f"isolation level {level}", _fetch(talk, isolation_level=level), failed


def offsets(talk: EdgeClient) -> Iterator[Check]:
    talk.produce(TOPIC, [NOW])
    for level, expected in ((0, (0, 1)), (1, (0, 1)), (2, (-1, -1)), (-1, (-1, -1))):
        part = list_offsets.ListOffsetsPartition(0, timestamp=-1)
        request = list_offsets.ListOffsetsRequest(
            -1, level, [list_offsets.ListOffsetsTopic(TOPIC, [part])]
        )
        (found,) = talk.send_request(apis.LIST_OFFSETS, request)["topics"][0]["partitions"]
        yield f"isolation level {level}", (found["error_code"], found["offset"]), expected
    for epoch, expected in ((-1, (-1, -1)), (-2, (-2, 0)), (-(2**31), (-(2**31), 0)), (0, (0, 1))):
        requested = offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, epoch)
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[offset_for_leader_epoch.OffsetForLeaderTopic(TOPIC, [requested])]
        )
        (found,) = talk.send_request(apis.OFFSET_FOR_LEADER_EPOCH, request)["topics"][0][
            "partitions"
        ]
        yield f"end of epoch {epoch}", (found["leader_epoch"], found["end_offset"]), expected


def producers(talk: EdgeClient) -> Iterator[Check]:
    cases: list[tuple[int, list[tuple[int, int, ErrorCode, str]]]] = [
        (1, [(-1, 0, ErrorCode.NONE, ""), (0, 0, ErrorCode.NONE, "")]),
        (2, [(-2, 0, ErrorCode.INVALID_PRODUCER_EPOCH, "cannot have epoch -2")]),
        (3, [(-1, -1, ErrorCode.INVALID_RECORD, "needs a base sequence")]),
        (
            4,
            [
                (5, 0, ErrorCode.NONE, ""),
                (-1, 1, ErrorCode.INVALID_PRODUCER_EPOCH, "has a newer epoch"),
                (4, 1, ErrorCode.INVALID_PRODUCER_EPOCH, "has a newer epoch"),
                (5, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order, 1 is next"),
                (5, -1, ErrorCode.INVALID_RECORD, "needs a base sequence"),
                (6, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order, 0 is next"),
                *((5, sequence, ErrorCode.NONE, "") for sequence in range(1, 8)),
                (5, 1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "was appended before"),
            ],
        ),
    ]
    for producer_id, batches in cases:
        for epoch, sequence, code, reason in batches:
            found = talk.produce(
                TOPIC,
                [NOW],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            is_logged = reason in (found["error_message"] or "")
            label = f"{producer_id} {epoch} {sequence} {found['error_message']}"
            yield label, (ErrorCode(found["error_code"]), is_logged), (code, True)
    for identity, code in (((-1, -1), 0), ((5, 0), 0), ((-1, 0), 42), ((5, -1), 42)):
        request = init_producer_id.InitProducerIdRequest(None, 60_000, *identity)
        response = talk.send_request(apis.INIT_PRODUCER_ID, request)
        yield f"id {identity}", response["error_code"], code


def timeouts(talk: EdgeClient) -> Iterator[Check]:
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    for timeout_ms in (0, -1):
        create = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic("new", 1, 1)], timeout_ms, False
        )
        (found,) = talk.send_request(apis.CREATE_TOPICS, create)["topics"]
        yield "create", found["error_code"], timed_out
        grow = create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(TOPIC, 3, None)], timeout_ms, False
        )
        (found,) = talk.send_request(apis.CREATE_PARTITIONS, grow)["results"]
        yield "grow", found["error_code"], timed_out
        delete = delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(TOPIC, None)], timeout_ms=timeout_ms
        )
        (found,) = talk.send_request(apis.DELETE_TOPICS, delete)["responses"]
        yield "delete", found["error_code"], timed_out
    elections = (
        (0, 0, 7),
        (1, -1, 7),
        (2, 5_000, 42),
        (-1, 5_000, 42),
        (0, 5_000, 84),
        (1, 5_000, 84),
    )
    for kind, timeout_ms, code in elections:
        requested = [elect_leaders.TopicPartitions(TOPIC, [0])]
        request = elect_leaders.ElectLeadersRequest(kind, requested, timeout_ms)
        (found,) = talk.send_request(apis.ELECT_LEADERS, request)["replica_election_results"]
        label = f"elect {kind} {timeout_ms}"
        yield label, found["partition_result"][0]["error_code"], code


@pytest.mark.parametrize(
    "checks", [limits_of_fetch, offsets, producers, timeouts], ids=lambda checks: checks.__name__
)
async def test_unusual_requests_get_the_responses_of_kafka(
    tmp_path: Path, checks: Callable[[EdgeClient], Iterator[Check]]
) -> None:
    def run(address: str) -> None:
        with closing(EdgeClient(address)) as talk:
            talk.topic(TOPIC)
            for label, response, expected in checks(talk):
                assert response == expected, label

    async with Cluster(tmp_path) as cluster:
        await asyncio.to_thread(run, cluster.bootstrap)


def test_timestamps_before_1970_are_stored_and_read(tmp_path: Path) -> None:
    """The records are also read from uploaded objects, and by store readers."""
    times = [-5, -(2**40), -1, 7, -6]
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=50)
    with (
        ThreadedCluster(tmp_path, brokers=1, stream_config=stream) as cluster,
        closing(EdgeClient(cluster.bootstrap)) as talk,
    ):
        talk.topic(TOPIC)
        for when in times:
            found = talk.produce(TOPIC, [when])
            assert (found["error_code"], found["log_append_time_ms"]) == (0, -1)
        assert talk.produce(TOPIC, [-(2**63)])["error_code"] == ErrorCode.INVALID_TIMESTAMP

        def scanned() -> list[int]:
            try:
                column = scan(cluster.store_url, TOPIC).to_table()["timestamp"]
            except UnknownPartition:  # the manifest does not contain the topic yet
                return []
            return column.cast(pa.int64()).to_pylist()

        wait_until(lambda: len(scanned()) == len(times))
        assert scanned() == [when * 1_000 for when in times]
        for when, expected in ((0, 3), (7, 3), (8, -1)):
            part = list_offsets.ListOffsetsPartition(0, timestamp=when)
            topics = [list_offsets.ListOffsetsTopic(TOPIC, [part])]
            request = list_offsets.ListOffsetsRequest(-1, 0, topics)
            (response,) = talk.send_request(apis.LIST_OFFSETS, request)["topics"][0]["partitions"]
            assert response["offset"] == expected

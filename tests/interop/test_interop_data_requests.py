"""Single Produce, Fetch, ListOffsets and AlterPartitionReassignments requests get the responses of
Kafka 4.2, in the newest versions and with every kind of replica id.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    alter_partition_reassignments,
    fetch,
    list_offsets,
    metadata,
    produce,
)
from tests.interop.both import Both
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.clients import produce as produce_records
from tests.support.conversation import send_request
from tests.support.waiting import wait_until

NODE_ID = 1
"""The id of the only broker on both sides."""
STRANGER = 5
UNKNOWN_ID = UUID(int=STRANGER)
CONSUMER, DEBUGGING, OTHER = -1, -2, -3
LATEST, NEWEST = -1, -3


def _topic_id(address: str, topic: str) -> UUID:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    return UUID(send_request(address, apis.METADATA, request)["topics"][0]["topic_id"])


def _until_led(address: str, topic: str) -> None:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])

    def is_led() -> bool:
        found = send_request(address, apis.METADATA, request)["topics"][0]
        return not found["error_code"] and found["partitions"][0]["leader_id"] == NODE_ID

    wait_until(is_led)


# --- Produce --------------------------------------------------------------------------------------


def _produce(
    address: str, topic_id: UUID | None, *, index: int = 0, acks: int = -1, records: bool = True
) -> Any:
    """Return the response for the partition, or "closed" if the connection is closed."""
    batch = encode_batch([Record(0, time.time_ns() // 1_000_000, None, b"value")])
    part = produce.PartitionProduceData(index, memoryview(bytes(batch)) if records else None)
    topic = produce.TopicProduceData(topic_id, partition_data=[part])
    request = produce.ProduceRequest(acks=acks, timeout_ms=180_000, topic_data=[topic])
    try:
        (response,) = send_request(address, apis.PRODUCE, request)["responses"]
    except KafkaFailed:
        return "closed"
    assert response["topic_id"] == (None if topic_id is None else str(topic_id))
    (found,) = response["partition_responses"]
    return found


def _produce_responses(address: str, topic: str) -> list[Any]:
    topic_id = _topic_id(address, topic)
    return [
        _produce(address, topic_id),
        _produce(address, topic_id, acks=1),
        _produce(address, UNKNOWN_ID),
        _produce(address, None),
        _produce(address, topic_id, index=9),
        _produce(address, topic_id, acks=7),
        _produce(address, UNKNOWN_ID, acks=7),
        _produce(address, UNKNOWN_ID, acks=0),
    ]


async def test_produce_by_topic_id_gets_the_responses_of_kafka(both: Both) -> None:
    await both.create("by-id")
    for address in both.addresses:
        await asyncio.to_thread(_until_led, address, "by-id")
    responses = [
        await asyncio.to_thread(_produce_responses, address, "by-id") for address in both.addresses
    ]
    assert responses[1] == responses[0]
    assert [
        response if response == "closed" else response["error_code"] for response in responses[1]
    ] == [
        *(ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID),
        *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUIRED_ACKS),
        *(ErrorCode.UNKNOWN_TOPIC_ID, "closed"),
    ]


def _produce_twice(address: str, topic: str) -> tuple[list[int], int]:
    """Send two batches for one partition in one request. Return the error codes and the log end
    offset.
    """
    now_ms = time.time_ns() // 1_000_000
    parts = [
        produce.PartitionProduceData(0, memoryview(bytes(encode_batch(records))))
        for records in (
            [Record(0, now_ms, None, b"first")],
            [Record(at, now_ms, None, b"second") for at in range(2)],
        )
    ]
    data = produce.TopicProduceData(_topic_id(address, topic), partition_data=parts)
    request = produce.ProduceRequest(acks=-1, timeout_ms=180_000, topic_data=[data])
    (response,) = send_request(address, apis.PRODUCE, request)["responses"]
    codes = [found["error_code"] for found in response["partition_responses"]]
    partition = list_offsets.ListOffsetsPartition(0, timestamp=LATEST)
    requested = list_offsets.ListOffsetsRequest(
        CONSUMER, topics=[list_offsets.ListOffsetsTopic(topic, [partition])]
    )
    (found,) = send_request(address, apis.LIST_OFFSETS, requested)["topics"][0]["partitions"]
    return codes, found["offset"]


async def test_produce_request_with_a_partition_twice_refuses_the_second_batch(both: Both) -> None:
    """Kafka sends one response, appends the last batch and silently drops the first. Penstock
    appends the first and refuses the others.
    """
    await both.create("twice")
    for address in both.addresses:
        await asyncio.to_thread(_until_led, address, "twice")
    responses = [
        await asyncio.to_thread(_produce_twice, address, "twice") for address in both.addresses
    ]
    assert responses == [
        ([ErrorCode.NONE], 2),
        ([ErrorCode.NONE, ErrorCode.INVALID_REQUEST], 1),
    ]


def _recreate(address: str, topic: str) -> list[Any]:
    """Delete and recreate a topic. Return the responses to produce requests with the old id and
    with the new one.
    """
    old = _topic_id(address, topic)
    found = [_produce(address, old)["error_code"]]
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)
    create_topic(address, topic, 1)
    _until_led(address, topic)
    new = _topic_id(address, topic)
    for topic_id in (old, new):
        response = _produce(address, topic_id)
        found.append((response["error_code"], response["base_offset"]))
    return found


async def test_produce_with_the_id_of_a_deleted_topic_is_refused(both: Both) -> None:
    """A record for the deleted topic must not be written to the new topic of the same name."""
    await both.create("again")
    for address in both.addresses:
        await asyncio.to_thread(_until_led, address, "again")
        found = await asyncio.to_thread(_recreate, address, "again")
        assert found == [ErrorCode.NONE, (ErrorCode.UNKNOWN_TOPIC_ID, -1), (ErrorCode.NONE, 0)]


# --- replica ids ----------------------------------------------------------------------------------


def _fetch(
    address: str,
    topic: str,
    topic_id: UUID,
    version: int,
    replica_id: int,
    *,
    committed: bool = False,
    offset: int = 0,
    index: int = 0,
    leader_epoch: int = -1,
) -> Any:
    part = fetch.FetchPartition(
        partition=index,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=leader_epoch,
        replica_directory_id=UNKNOWN_ID,
        high_watermark=-1,
    )
    request = fetch.FetchRequest(
        topics=[fetch.FetchTopic(topic_id, topic, [part])], isolation_level=int(committed)
    )
    if version < 15:
        request.replica_id = replica_id
    else:
        request.replica_state = fetch.ReplicaState(replica_id, -1)
    response = send_request(address, replace(apis.FETCH, max=version), request)
    (found,) = response["responses"][0]["partitions"]
    found["records"] = bool(found["records"])
    del found["current_leader"]  # Kafka returns itself in refusals
    if found["error_code"]:
        del found["aborted_transactions"]  # null or empty
    return response["error_code"], found


def _fetch_responses(address: str, topic: str) -> dict[str, Any]:
    topic_id = _topic_id(address, topic)
    found: dict[str, Any] = {}

    def note(version: int, replica_id: int, **options: Any) -> None:
        key = f"v{version} replica {replica_id} {options}"
        found[key] = _fetch(address, topic, topic_id, version, replica_id, **options)

    for version in (11, 12, 14, 15, 16, 17, 18):
        for replica_id in (CONSUMER, DEBUGGING, OTHER, 0, NODE_ID, STRANGER):
            note(version, replica_id)
            note(version, replica_id, committed=True)
            note(version, replica_id, offset=99)
    note(18, STRANGER, leader_epoch=2**30)
    note(18, STRANGER, index=9)
    found["no such id"] = _fetch(address, topic, UNKNOWN_ID, 18, STRANGER)
    return found


def _list_responses(address: str, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for replica_id in (CONSUMER, DEBUGGING, OTHER, NODE_ID, STRANGER):
        for committed in (False, True):
            for timestamp in (LATEST, NEWEST):
                part = list_offsets.ListOffsetsPartition(0, -1, timestamp)
                request = list_offsets.ListOffsetsRequest(
                    replica_id, int(committed), [list_offsets.ListOffsetsTopic(topic, [part])]
                )
                response = send_request(address, apis.LIST_OFFSETS, request)
                (result,) = response["topics"][0]["partitions"]
                key = f"replica {replica_id} committed {committed} timestamp {timestamp}"
                found[key] = result["error_code"], result["offset"]
    return found


def _fill(address: str, topic: str) -> Producer:
    """Write three records, and one more in a transaction that stays open."""
    create_topic(address, topic, 1)
    produce_records(address, topic, [b"value"] * 3, (0,))
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


async def test_replica_ids_are_interpreted_as_by_kafka(both: Both) -> None:
    topic = "replica-ids"
    producers = [await asyncio.to_thread(_fill, address, topic) for address in both.addresses]
    for responses_of in (_fetch_responses, _list_responses):
        expected, found = [
            await asyncio.to_thread(responses_of, address, topic) for address in both.addresses
        ]
        # In read_committed mode, Kafka finds no max timestamp while its record belongs to an open
        # transaction.
        expected.pop(f"replica {CONSUMER} committed True timestamp {NEWEST}", None)
        differing = {
            key: (response, found[key])
            for key, response in expected.items()
            if found[key] != response
        }
        assert not differing
    for producer in producers:
        await asyncio.to_thread(producer.abort_transaction, TIMEOUT_S)


# --- AlterPartitionReassignments ------------------------------------------------------------------


async def test_reassignments_can_forbid_a_change_of_the_replication_factor(both: Both) -> None:
    """The field was added in version 1 (KIP-860)."""
    topic = "resized"
    await both.create(topic)
    requested: list[tuple[list[int] | None, bool]] = [
        *(([NODE_ID], False), ([], False), ([NODE_ID, NODE_ID], False)),
        *((None, False), ([STRANGER], False), ([STRANGER, NODE_ID], True)),
    ]
    for replicas, may_resize in requested:
        part = alter_partition_reassignments.ReassignablePartition(0, replicas)
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            5_000,
            may_resize,
            [alter_partition_reassignments.ReassignableTopic(topic, [part])],
        )
        expected, found = await both.send_request(apis.ALTER_PARTITION_REASSIGNMENTS, request)
        for response in (expected, found):
            response["responses"][0]["partitions"][0].pop("error_message")
        assert found == expected, (replicas, may_resize)

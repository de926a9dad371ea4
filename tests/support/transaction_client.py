"""A client that sends single transaction requests, in any version. It retries transient errors: a
coordinator that is not available yet, and a previous transaction that is still ending.
"""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.client.brokers import MOVED
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_fetch,
    produce,
    txn_offset_commit,
)
from penstock.protocol.gen.describe_transactions import DescribeTransactionsRequest
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.waiting import wait_until
from tests.support.wire import wire_client

TOPIC = "ledger"


def create_ledger(address: str, partitions: int = 2) -> None:
    """Create the topic unless it exists."""
    with wire_client(address) as client:
        request = metadata.MetadataRequest(topics=None)
        found = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
    if all(topic.name != TOPIC for topic in found.topics):
        create_topic(address, TOPIC, partitions)
        _wait_for_leaders(address, partitions)


def _wait_for_leaders(address: str, partitions: int) -> None:
    """Wait for leaders: Kafka responds to CreateTopics before its brokers lead the partitions."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "leaders"})

    def are_led() -> bool:
        with suppress(KafkaException):
            for index in range(partitions):
                consumer.get_watermark_offsets(TopicPartition(TOPIC, index), TIMEOUT_S)
            return True
        return False

    try:
        wait_until(are_led)
    finally:
        consumer.close()


class TransactionClient:
    """A connection. Producer ids are numbered in order of appearance, and epochs relative to the
    first one.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = wire_client(address)
        self._ids: dict[int, str] = {-1: "none"}
        self.producer_id = -1
        self.epoch = -1
        self._first_epoch = 0

    def close(self) -> None:
        self._client.close()

    def send_request(self, api: ApiSpec, request: object, version: int | None = None) -> Any:
        requested = api if version is None else replace(api, max=version)
        response = self._client.send_request(requested, request, object)
        return msgspec.to_builtins(response)

    def _who(self, response: Any) -> tuple[str, str, int]:
        """Return the error, the producer and the epoch in a response."""
        code = ErrorCode(response["error_code"])
        name = self._ids.setdefault(response["producer_id"], f"p{len(self._ids)}")
        epoch = response["producer_epoch"]
        return code.name, name, epoch - self._first_epoch if name == "p1" else epoch

    # --- requests ---------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Acquire the first epoch, once there is a coordinator."""
        find = find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        wait_until(
            lambda: (
                not self.send_request(apis.FIND_COORDINATOR, find)["coordinators"][0]["error_code"]
            )
        )
        request = init_producer_id.InitProducerIdRequest(name, 60_000)
        response: Any = {}

        def initialized() -> bool:
            nonlocal response
            response = self.send_request(apis.INIT_PRODUCER_ID, request)
            return response["error_code"] == 0

        wait_until(initialized)
        self._first_epoch = response["producer_epoch"]
        self.producer_id, self.epoch = response["producer_id"], response["producer_epoch"]
        assert self._who(response) == ("NONE", "p1", 0)

    def init(
        self, name: str, *, expected: tuple[int, int] = (-1, -1), version: int = 5
    ) -> tuple[str, str, int]:
        """Acquire the next epoch; return CONCURRENT_TRANSACTIONS while a transaction ends."""
        request = init_producer_id.InitProducerIdRequest(name, 60_000, *expected)
        while True:
            response = self.send_request(apis.INIT_PRODUCER_ID, request, version)
            if response["error_code"] != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        if response["error_code"] == 0:
            self.producer_id, self.epoch = response["producer_id"], response["producer_epoch"]
        return self._who(response)

    def add(
        self,
        name: str,
        *indexes: int,
        epoch: int | None = None,
        topic: str = TOPIC,
        version: int = 3,
    ) -> list[tuple[int, str]]:
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(topic, list(indexes))
            ],
        )
        while True:
            response = self.send_request(apis.ADD_PARTITIONS_TO_TXN, request, version)
            codes = _partition_codes(response["results_by_topic_v3_and_below"])
            if all(code != "CONCURRENT_TRANSACTIONS" for _, code in codes):
                return codes

    def ask_as_leader(
        self, *requested: tuple[str, tuple[int, int], bool, list[int]], version: int = 5
    ) -> Any:
        """Send requests as partition leaders do: (transactional id, producer, verifies,
        indexes).
        """
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            [
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    name,
                    *producer,
                    verifies,
                    [add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, indexes)],
                )
                for name, producer, verifies, indexes in requested
            ]
        )
        response = self.send_request(apis.ADD_PARTITIONS_TO_TXN, request, version)
        return response["error_code"], sorted(
            (item["transactional_id"], _partition_codes(item["topic_results"]))
            for item in response["results_by_transaction"]
        )

    def produce(
        self,
        name: str | None,
        index: int,
        sequence: int = 0,
        *,
        epoch: int | None = None,
        producer_id: int | None = None,
        transactional: bool = True,
        version: int = 12,
    ) -> Any:
        """Produce, and return the error with its message, if there is one, as Kafka words it."""
        batch = encode_batch(
            [Record(0, time.time_ns() // 1_000_000, None, b"value")],
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK if transactional else 0,
        )
        part = produce.PartitionProduceData(index, memoryview(bytes(batch)))
        request = produce.ProduceRequest(
            name, -1, 30_000, [produce.TopicProduceData(name=TOPIC, partition_data=[part])]
        )
        while True:
            response = self.send_request(apis.PRODUCE, request, version)
            result = response["responses"][0]["partition_responses"][0]
            if result["error_code"] not in {
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.NOT_ENOUGH_REPLICAS,
            }:
                return ErrorCode(result["error_code"]).name

    def end(
        self,
        name: str,
        *,
        commit: bool = True,
        epoch: int | None = None,
        producer_id: int | None = None,
        version: int = 5,
        takes: bool = True,
    ) -> tuple[str, str, int]:
        """End the transaction. takes: continue with the producer id and epoch from the response."""
        request = end_txn.EndTxnRequest(
            name,
            self.producer_id if producer_id is None else producer_id,
            self.epoch if epoch is None else epoch,
            commit,
        )
        while True:
            response = self.send_request(apis.END_TXN, request, version)
            if response["error_code"] != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        if response["error_code"] == 0 and response["producer_id"] >= 0 and takes:
            self.producer_id, self.epoch = response["producer_id"], response["producer_epoch"]
        return self._who(response)

    def describe(self, name: str) -> Any:
        """Return the state of the transaction, once all markers have been written."""
        request = DescribeTransactionsRequest([name])
        while True:
            (found,) = self.send_request(apis.DESCRIBE_TRANSACTIONS, request)["transaction_states"]
            if not found["transaction_state"].startswith("Prepare"):
                break
        partitions = [
            (topic["topic"], sorted(topic["partitions"]) if topic["topic"] == TOPIC else [])
            for topic in found["topics"]
        ]
        began = found["transaction_start_time_ms"] >= 0
        return self._who(found), found["transaction_state"], sorted(partitions), began

    def add_offsets(self, name: str, group: str, version: int = 3) -> str:
        request = add_offsets_to_txn.AddOffsetsToTxnRequest(
            name, self.producer_id, self.epoch, group
        )
        while True:
            response = self.send_request(apis.ADD_OFFSETS_TO_TXN, request, version)
            code = ErrorCode(response["error_code"])
            if code not in {ErrorCode.CONCURRENT_TRANSACTIONS, *MOVED}:
                return code.name

    def commit_offset(
        self,
        name: str,
        group: str,
        offset: int,
        *,
        epoch: int | None = None,
        producer_id: int | None = None,
        version: int = 5,
    ) -> str:
        item = txn_offset_commit.TxnOffsetCommitRequestPartition(0, offset, committed_metadata=None)
        request = txn_offset_commit.TxnOffsetCommitRequest(
            name,
            group,
            self.producer_id if producer_id is None else producer_id,
            self.epoch if epoch is None else epoch,
            topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(TOPIC, [item])],
        )
        while True:
            response = self.send_request(apis.TXN_OFFSET_COMMIT, request, version)
            code = ErrorCode(response["topics"][0]["partitions"][0]["error_code"])
            if code not in {ErrorCode.CONCURRENT_TRANSACTIONS, *MOVED}:
                return code.name

    def committed(self, group: str) -> int:
        requested = offset_fetch.OffsetFetchRequestGroup(
            group, topics=[offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        )
        request = offset_fetch.OffsetFetchRequest(groups=[requested], require_stable=True)
        while True:
            (found,) = self.send_request(apis.OFFSET_FETCH, request, 9)["groups"]
            part = found["topics"][0]["partitions"][0] if found["topics"] else None
            if part is not None and not found["error_code"] and not part["error_code"]:
                return int(part["committed_offset"])

    def coordinate_group(self, group: str) -> None:
        find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        wait_until(
            lambda: (
                not self.send_request(apis.FIND_COORDINATOR, find)["coordinators"][0]["error_code"]
            )
        )


def _partition_codes(topics: Any) -> list[tuple[int, str]]:
    return sorted(
        (part["partition_index"], ErrorCode(part["partition_error_code"]).name)
        for topic in topics
        for part in topic["results_by_partition"]
    )

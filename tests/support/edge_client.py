"""A client that sends single requests in any version, for comparisons with Kafka in which responses
are identified by labels.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.client.brokers import MOVED
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.gen import find_coordinator, list_offsets, metadata, offset_fetch, produce
from tests.support.clients import create_topic
from tests.support.waiting import wait_until
from tests.support.wire import wire_client

CLOSED = "closed"
"""Represents a connection that the broker closed instead of responding."""


class EdgeClient:
    """A connection that is reopened after the broker closes it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = wire_client(address)
        self.ids: dict[str, UUID] = {}

    def close(self) -> None:
        self._client.close()

    def send_request(self, api: ApiSpec, request: Any, version: int | None = None) -> Any:
        """Return the response as dictionaries and lists without its throttle time."""
        try:
            response = self._client.send_request(api, request, object, version=version)
        except KafkaFailed:
            self._client.close()
            self._client = wire_client(self.address)
            return CLOSED
        found = msgspec.to_builtins(response, builtin_types=(UUID, bytes))
        found.pop("throttle_time_ms", None)
        return found

    def topic(self, name: str, **configs: str) -> None:
        """Create a topic with one partition and wait until its leader responds."""
        create_topic(self.address, name, 1, **configs)
        request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)])
        partition = list_offsets.ListOffsetsPartition(0, timestamp=-1)
        offsets = list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name, [partition])]
        )

        def is_led() -> bool:
            (found,) = self.send_request(apis.METADATA, request)["topics"]
            self.ids[name] = found["topic_id"]
            # Kafka lists a new leader before it creates the log, and rejects requests until then
            (listed,) = self.send_request(apis.LIST_OFFSETS, offsets)["topics"]
            return not found["error_code"] and not listed["partitions"][0]["error_code"]

        wait_until(is_led)

    def coordinate(self, *groups: str) -> None:
        """Wait until the groups have a coordinator."""
        for group in groups:
            find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
            fetch = offset_fetch.OffsetFetchRequest(
                groups=[offset_fetch.OffsetFetchRequestGroup(group, topics=[])]
            )
            wait_until(
                lambda find=find, fetch=fetch: (
                    not self.send_request(apis.FIND_COORDINATOR, find)["coordinators"][0][
                        "error_code"
                    ]
                    and self.send_request(apis.OFFSET_FETCH, fetch)["groups"][0]["error_code"]
                    not in MOVED
                )
            )

    def produce(
        self,
        topic: str,
        timestamps: Sequence[int],
        version: int = 13,
        transactional_id: str | None = None,
        **header: int,
    ) -> Any:
        """Send one batch with a record for each timestamp. Return the response for the
        partition.

        header: arguments of `encode_batch`.
        """
        records = [Record(at, when, None, b"v" * 100) for at, when in enumerate(timestamps)]
        batch = memoryview(bytes(encode_batch(records, **header)))
        data = produce.TopicProduceData(
            self.ids[topic], topic, [produce.PartitionProduceData(0, batch)]
        )
        response = self.send_request(
            apis.PRODUCE, produce.ProduceRequest(transactional_id, -1, 180_000, [data]), version
        )
        return (
            response if response == CLOSED else response["responses"][0]["partition_responses"][0]
        )

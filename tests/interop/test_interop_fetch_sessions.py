"""Fetch sessions (KIP-227) get the responses of Kafka 4.2 to the same requests."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.protocol import apis
from penstock.protocol.gen import fetch as wire
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.waiting import wait_until
from tests.support.wire import wire_client

TOPIC = "sessions"
PARTITIONS = 3
Response = tuple[int, bool, list[tuple[int, int, int, int, bool]]]
"""The error code, whether there is a session, and for each partition: index, error code, high
watermark, log start offset, and whether it has records.
"""


class Consumer:
    """Sends the requests of a consumer with a fetch session, and unusual ones."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = wire_client(bootstrap)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        create_topic(bootstrap, TOPIC, PARTITIONS)
        topics = self._admin.describe_topics(TopicCollection([TOPIC]))
        self._topic_id = UUID(_hex(str(topics[TOPIC].result(TIMEOUT_S).topic_id)))
        self.session = 0
        self.responses: list[Response] = []

    def close(self) -> None:
        self._client.close()

    def wait_for_leaders(self) -> None:
        def are_there() -> bool:
            self.responses.clear()
            self.fetch(-1, dict.fromkeys(range(PARTITIONS), 0))
            return not any(part[1] for part in self.responses.pop()[2])

        wait_until(are_there)

    def produce(self, partition: int) -> None:
        self._producer.produce(TOPIC, b"value", partition=partition)
        assert self._producer.flush(TIMEOUT_S) == 0

    def delete_records(self, partition: int, offset: int) -> None:
        part = TopicPartition(TOPIC, partition, offset)
        self._admin.delete_records([part])[part].result(TIMEOUT_S)

    def fetch(
        self,
        epoch: int,
        requested: Mapping[int, int] | None = None,
        forgotten: tuple[int, ...] = (),
        session: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> None:
        """Fetch from these offsets and record the response."""
        partitions = [
            wire.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in (requested or {}).items()
        ]
        topic = wire.FetchTopic(topic_id=self._topic_id, partitions=partitions)
        forget = wire.ForgottenTopic(topic_id=self._topic_id, partitions=list(forgotten))
        request = wire.FetchRequest(
            max_bytes=max_bytes,
            session_id=self.session if session is None else session,
            session_epoch=epoch,
            topics=[topic] if partitions else [],
            forgotten_topics_data=[forget] if forgotten else [],
        )
        found = self._client.send_request(apis.FETCH, request, wire.FetchResponse)
        if epoch == 0:
            self.session = found.session_id
        parts = [part for topic in found.responses for part in topic.partitions]
        self.responses.append(
            (
                found.error_code,
                found.session_id > 0,
                [
                    (
                        part.partition_index,
                        part.error_code,
                        part.high_watermark,
                        part.log_start_offset,
                        bool(part.records),
                    )
                    for part in parts
                ],
            )
        )


def _hex(topic_id: str) -> str:
    """Return the id in hexadecimal for UUID; some clients show it in base64."""
    return base64.urlsafe_b64decode(topic_id + "==").hex() if len(topic_id) < 32 else topic_id


def run(bootstrap: str) -> list[Response]:
    consumer = Consumer(bootstrap)
    consumer.wait_for_leaders()
    consumer.fetch(0, {0: 0, 1: 0, 2: 0})
    consumer.fetch(1)
    consumer.produce(1)
    consumer.fetch(2)
    consumer.fetch(3, {1: 1})
    consumer.fetch(3)  # repeated, with an old epoch
    consumer.fetch(9)
    for partition in range(PARTITIONS):
        consumer.produce(partition)
    for epoch in (4, 5, 6):  # each partition in turn gets its record first
        consumer.fetch(epoch, max_bytes=1)
    consumer.delete_records(1, 1)
    consumer.fetch(7, {0: 1, 1: 2, 2: 1})
    consumer.fetch(8)
    consumer.fetch(9, {0: 99})
    consumer.fetch(10, {0: 1})
    consumer.fetch(11)
    consumer.fetch(12, forgotten=(0, 1))
    consumer.produce(0)
    consumer.fetch(13)
    consumer.fetch(14, forgotten=(2,))
    consumer.fetch(15)
    consumer.fetch(1, session=12_345)
    consumer.fetch(0, {0: 0})
    consumer.fetch(-1, {0: 0})
    consumer.fetch(1)
    consumer.close()
    return consumer.responses


async def test_fetch_sessions_get_the_responses_of_kafka(peer: str, tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=1) as cluster:
        ours = await asyncio.to_thread(run, cluster.bootstrap)
    theirs = await asyncio.to_thread(run, peer)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, f"request {number}"

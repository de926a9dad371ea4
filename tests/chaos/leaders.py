"""Request the log ends from each broker for the partitions that it believes it leads, as a client
with outdated metadata does (ListOffsets and Fetch).

Invariants: each client queries only its own broker, whatever the metadata says. Each response is
recorded with the start time of its request. Refusals are only counted.
"""

from typing import Final
from uuid import UUID

from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch, list_offsets, metadata
from penstock.protocol.offset_specs import LATEST
from tests.chaos.clients import Client
from tests.chaos.record import LEASE_S, Record
from tests.support.anomalies import Latest
from tests.support.history import Part

_ASK_S: Final = 20.0
"""Longer than any fault, because late responses are the most likely to be wrong."""
_PAUSE_S: Final = 0.3
_FETCH_BYTES_MAX: Final = 1


class LeaderAsker(Client):
    """Queries one broker. `response_count` counts the log ends in its responses, `refused_count`
    the partitions that it refused, for example because another broker leads them.
    """

    def __init__(self, address: str, parts: list[Part], record: Record, name: str) -> None:
        super().__init__(f"ends by {name}", record)
        self._address = address
        self._parts = parts
        self._topic_ids: dict[str, UUID] = {}
        self.response_count = 0
        self.refused_count = 0

    def work(self) -> None:
        while not self.ending.wait(_PAUSE_S):
            try:
                with WireClient(self._address) as client:
                    self._send_request(client)
            except KafkaFailed:
                continue  # the broker is down, or clients are cut off from it

    def _send_request(self, client: WireClient) -> None:
        """Send requests until the connection breaks or this client ends."""
        if not self._topic_ids:
            topics = [
                metadata.MetadataRequestTopic(name=topic)
                for topic in sorted({topic for topic, _ in self._parts})
            ]
            request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            response = client.send_request(
                apis.METADATA, request, metadata.MetadataResponse, _ASK_S
            )
            self._topic_ids = {
                topic.name or "": topic.topic_id
                for topic in response.topics
                if topic.topic_id and not topic.error_code
            }
        while not self.ending.wait(_PAUSE_S):
            self._list_offsets(client)
            self._fetch(client)

    def _list_offsets(self, client: WireClient) -> None:
        topics = [
            list_offsets.ListOffsetsTopic(
                topic, [list_offsets.ListOffsetsPartition(index, -1, LATEST) for index in indexes]
            )
            for topic, indexes in self._by_topic().items()
        ]
        began_s = self.record.now()
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
        response = client.send_request(
            apis.LIST_OFFSETS, request, list_offsets.ListOffsetsResponse, _ASK_S
        )
        for topic in response.topics:
            for found in topic.partitions:
                self._record_response(
                    (topic.name, found.partition_index),
                    began_s,
                    found.error_code,
                    found.offset,
                    "ListOffsets",
                )

    def _fetch(self, client: WireClient) -> None:
        """Fetch at the end offset that was acknowledged one lease ago, where a consumer would
        continue.
        """
        began_s = self.record.now()
        requested = {part: self.record.acked_end(part, began_s - LEASE_S) for part in self._parts}
        topics = [
            fetch.FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    fetch.FetchPartition(
                        partition=part[1], fetch_offset=offset, partition_max_bytes=_FETCH_BYTES_MAX
                    )
                    for part, offset in requested.items()
                    if part[0] == topic
                ],
            )
            for topic, topic_id in self._topic_ids.items()
        ]
        names = {topic_id: topic for topic, topic_id in self._topic_ids.items()}
        request = fetch.FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES_MAX, topics=topics, session_epoch=-1
        )
        response = client.send_request(apis.FETCH, request, fetch.FetchResponse, _ASK_S)
        for topic in response.responses:
            for found in topic.partitions:
                part = (topic.topic or names.get(topic.topic_id, ""), found.partition_index)
                code, end = found.error_code, found.high_watermark
                # The log ends at a lower offset. A consumer that gets this error resets its
                # position.
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    code, end = ErrorCode.NONE, requested[part] - 1
                self._record_response(part, began_s, code, end, "Fetch")

    def _record_response(self, part: Part, began_s: float, code: int, end: int, how: str) -> None:
        if code == ErrorCode.NONE:
            self.response_count += 1
            self.record.operate(
                Latest(f"{self.name} ({how})", part, began_s, self.record.now(), end)
            )
        else:
            self.refused_count += 1

    def _by_topic(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, index in self._parts:
            found.setdefault(topic, []).append(index)
        return found

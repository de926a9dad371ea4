"""A share group member that sends single requests.

It tracks the epochs of its group and its session, so that tests specify only relevant fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.gen import (
    find_coordinator,
    metadata,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from tests.support.waiting import wait_until
from tests.support.wire import wire_client

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GAP = 0
JOIN_S = 180.0
"""For the first group, Kafka creates the 50 partitions of `__share_group_state`, which took more
than 60 s on two cores, next to a compiler and three other parts of the tests.
"""
_FETCH: dict[str, Any] = {
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "max_records": 500,
    "batch_size": 500,
}
Acks = Mapping[tuple[str, int], Sequence[tuple[int, int, Sequence[int]]]]
"""(first offset, last offset, types) by topic and partition."""


class ShareMember:
    def __init__(self, address: str, group: str, member_id: str | None = None) -> None:
        self.address = address
        self.group = group
        self.member_id = member_id or str(uuid4())
        self.epoch = 0
        """The epoch of the session's next request."""
        self.assigned: dict[str, list[int]] = {}
        self._member_epoch = 0
        self._client = wire_client(address)
        self._ids: dict[str, UUID] = {}

    def close(self) -> None:
        self._client.close()

    def send_request(self, api: ApiSpec, request: object) -> Any:
        response = self._client.send_request(api, request, object)
        return msgspec.to_builtins(response, builtin_types=(UUID, bytes, memoryview))

    def topic_id(self, topic: str) -> UUID:
        if topic not in self._ids:
            response = self.send_request(apis.METADATA, metadata.MetadataRequest(topics=None))
            self._ids = {item["name"]: item["topic_id"] for item in response["topics"]}
        return self._ids.get(topic) or UUID(int=77)

    # --- the group --------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        return self._member_epoch > 0

    def beat(self, *topics: str) -> Any:
        response = self.send_request(
            apis.SHARE_GROUP_HEARTBEAT,
            share_group_heartbeat.ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self._member_epoch,
                rack_id=None,
                subscribed_topic_names=list(topics) or None,
            ),
        )
        if not response["error_code"]:
            self._member_epoch = response["member_epoch"]
        if response["assignment"] is not None:
            names = {id_: name for name, id_ in self._ids.items()}
            self.assigned = {
                names.get(item["topic_id"], ""): sorted(item["partitions"])
                for item in response["assignment"]["topic_partitions"]
            }
        return response

    def _find_coordinator(self) -> Any:
        find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group])
        return self.send_request(apis.FIND_COORDINATOR, find)["coordinators"][0]

    def coordinates_here(self) -> bool:
        """Wait until the group has a coordinator, and return whether it is the broker of this
        connection.
        """
        wait_until(lambda: not self._find_coordinator()["error_code"])
        found = self._find_coordinator()
        return self.address == f"{found['host']}:{found['port']}"

    def join(self, *topics: str, timeout_s: float = JOIN_S) -> "ShareMember":
        """Become a member, and wait for all partitions of the topics. Raises TimeoutError and
        closes the connection if they are not assigned.
        """

        def is_assigned() -> bool:
            self.beat(*(() if self.is_member else topics))
            return set(self.assigned) == set(topics)

        try:
            for topic in topics:
                self.topic_id(topic)
            wait_until(lambda: not self._find_coordinator()["error_code"], timeout_s)
            wait_until(is_assigned, timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def leave(self) -> Any:
        self._member_epoch = -1
        return self.beat()

    # --- records ----------------------------------------------------------------------------------

    def fetch(
        self,
        *partitions: tuple[str, int],
        acks: Acks | None = None,
        forget: Sequence[tuple[str, int]] = (),
        epoch: int | None = None,
        **fields: Any,
    ) -> Any:
        """Send ShareFetch. `partitions` are added to the session."""
        acks = acks or {}
        by_topic: dict[UUID, list[share_fetch.FetchPartition]] = {}
        for topic, index in dict.fromkeys([*partitions, *acks]):
            batches = [
                share_fetch.AcknowledgementBatch(*item) for item in acks.get((topic, index), ())
            ]
            by_topic.setdefault(self.topic_id(topic), []).append(
                share_fetch.FetchPartition(index, batches)
            )
        request = share_fetch.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[share_fetch.FetchTopic(*item) for item in by_topic.items()],
            forgotten_topics_data=[
                share_fetch.ForgottenTopic(self.topic_id(topic), [index]) for topic, index in forget
            ],
            **(_FETCH | fields),
        )
        response = self.send_request(apis.SHARE_FETCH, request)
        self._count(response, request.share_session_epoch)
        return response

    def acknowledge(self, acks: Acks, *, epoch: int | None = None, **fields: Any) -> Any:
        """Send ShareAcknowledge."""
        by_topic: dict[UUID, list[share_acknowledge.AcknowledgePartition]] = {}
        for (topic, index), items in acks.items():
            by_topic.setdefault(self.topic_id(topic), []).append(
                share_acknowledge.AcknowledgePartition(
                    index, [share_acknowledge.AcknowledgementBatch(*item) for item in items]
                )
            )
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[share_acknowledge.AcknowledgeTopic(*item) for item in by_topic.items()],
            **fields,
        )
        response = self.send_request(apis.SHARE_ACKNOWLEDGE, request)
        self._count(response, request.share_session_epoch)
        return response

    def _count(self, response: Any, epoch: int) -> None:
        if not response["error_code"] and epoch == self.epoch:
            self.epoch = epoch + 1 if epoch >= 0 else 0

    def acquired(self, *partitions: tuple[str, int], **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch, and return (first offset, last offset, delivery count) of acquired records."""
        return acquired(self.fetch(*partitions, **fields))


def acquired(response: Any) -> list[tuple[int, int, int]]:
    """Return (first offset, last offset, delivery count) of all partitions.

    Adjacent ranges with the same count are merged, because Kafka may return each record of a batch
    separately.
    """
    found: list[tuple[int, int, int]] = []
    for topic in response["responses"]:
        for partition in topic["partitions"]:
            for item in partition["acquired_records"]:
                first, last, count = (
                    item["first_offset"],
                    item["last_offset"],
                    item["delivery_count"],
                )
                if found and found[-1][1] + 1 == first and found[-1][2] == count:
                    first = found.pop()[0]
                found.append((first, last, count))
    return found


def batches(response: Any) -> list[tuple[int, int]]:
    """Return (first offset, last offset) of the batches in all partitions."""
    return [
        (header.base_offset, header.last_offset)
        for topic in response["responses"]
        for partition in topic["partitions"]
        for _, header in iter_headers(partition["records"] or b"")
    ]

"""Ask each broker what only it knows: the partitions that it leads, the groups that it coordinates.

Invariant: one connection to each broker; a failure is a KafkaFailed that says what could not be
asked. A leader or coordinator that just changed is asked again, for RETRY_S at most.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar

from penstock.deploy.clients.wire import WireClient, patience_s
from penstock.deploy.errors import KafkaFailed, near_hint
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, explain, known_code
from penstock.protocol.gen import find_coordinator, list_offsets, metadata
from penstock.protocol.offset_specs import LATEST

RETRY_S: Final = 10.0
_PAUSE_S: Final = 0.2
_GROUP: Final = 0
_TRANSACTION: Final = 1
"""Key types of FindCoordinator."""
MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
Partition = tuple[str, int]
_T = TypeVar("_T")


class Moved(KafkaFailed):
    """The answer comes from another broker now, or will soon: ask again."""


class Brokers:
    """Connects to the brokers that it needs. Use as a context manager."""

    def __init__(self, bootstrap: str, skipped: Collection[int] = ()) -> None:
        """skipped: ids of brokers that `all` leaves out, because they do not respond."""
        self._any = WireClient(bootstrap)
        self._skipped = skipped
        self._clients: dict[int, WireClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in (self._any, *self._clients.values()):
            client.close()

    def metadata(self, topics: Sequence[str] | None) -> metadata.MetadataResponse:
        """Return the brokers and these topics; all topics for None."""
        asked = (
            None
            if topics is None
            else [metadata.MetadataRequestTopic(name=name) for name in topics]
        )
        return self._any.ask(
            apis.METADATA,
            metadata.MetadataRequest(asked, allow_auto_topic_creation=False),
            metadata.encode_request,
            metadata.decode_response,
        )

    def all(self) -> Iterable[tuple[int, WireClient]]:
        """Yield each broker's id and client."""
        for broker in self.metadata([]).brokers:
            if broker.node_id in self._skipped:
                continue
            yield broker.node_id, self.client(broker.node_id, broker.host, broker.port)

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return the partitions of topics. Raises KafkaFailed, naming topics with similar names."""
        found = {
            topic.name or "": sorted(part.partition_index for part in topic.partitions)
            for topic in self.metadata(topics).topics
            if not topic.error_code
        }
        for name in topics:
            if name not in found:
                known = [topic.name or "" for topic in self.metadata(None).topics]
                hint = near_hint(name, known, "`penstock topics list` lists the topics")
                raise KafkaFailed(f"topic {name!r} does not exist; {hint}")
        return found

    def existing(self, wanted: Iterable[Partition]) -> list[Partition]:
        """Return the partitions that exist."""
        keys = list(wanted)
        topics = self.metadata(list(by_topic(keys))).topics if keys else ()
        there = {
            (topic.name or "", part.partition_index)
            for topic in topics
            for part in topic.partitions
        }
        return [key for key in keys if key in there]

    def offsets(
        self, wanted: Iterable[Partition], timestamp: int | Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Return an offset of each partition, -1 if it has none at that time.

        timestamp: EARLIEST, LATEST or milliseconds, for all or by partition.
        """
        keys = list(wanted)
        times = timestamp if isinstance(timestamp, Mapping) else dict.fromkeys(keys, timestamp)
        return self.retried(lambda: self._offsets(keys, times))

    def known_ends(self, wanted: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end offsets of partitions whose leaders respond."""
        keys = list(wanted)
        described = self.metadata(list(dict.fromkeys(topic for topic, _ in keys)))
        leaders = {
            (topic.name or "", part.partition_index): part.leader_id
            for topic in described.topics
            for part in topic.partitions
        }
        found: dict[Partition, int] = {}
        for broker in described.brokers:
            led = [key for key in keys if leaders.get(key) == broker.node_id]
            if led and broker.node_id not in self._skipped:
                with suppress(KafkaFailed):
                    client = self.client(broker.node_id, broker.host, broker.port)
                    found |= _asked_offsets(client, led, dict.fromkeys(led, LATEST))
        return found

    def coordinator(self, group: str) -> WireClient:
        """Return the client of the broker that coordinates a group."""
        return self.group_coordinator(group)[1]

    def group_coordinator(self, group: str) -> tuple[int, WireClient]:
        """Return the broker that coordinates a group, and its client."""
        return self._coordinator(_GROUP, group, f"group {group!r}")

    def transaction_coordinator(self, transactional_id: str) -> tuple[int, WireClient]:
        """Return the broker that coordinates the transactions of the id, and its client."""
        what = f"transactional id {transactional_id!r}"
        return self._coordinator(_TRANSACTION, transactional_id, what)

    def _coordinator(self, key_type: int, key: str, what: str) -> tuple[int, WireClient]:
        answer = self._any.ask(
            apis.FIND_COORDINATOR,
            find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]),
            find_coordinator.encode_request,
            find_coordinator.decode_response,
        )
        (found,) = answer.coordinators
        check(found.error_code, found.error_message, f"{what} has no coordinator")
        return found.node_id, self.client(found.node_id, found.host, found.port)

    def retried(self, ask: Callable[[], _T]) -> _T:
        """Return the answer, asked again while a leader or coordinator changes."""
        ends_at = time.monotonic() + min(RETRY_S, patience_s())
        while True:
            try:
                return ask()
            except Moved:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(_PAUSE_S)

    def _offsets(
        self, wanted: Sequence[Partition], times: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        described = self.metadata(list(dict.fromkeys(topic for topic, _ in wanted)))
        addresses = {broker.node_id: broker for broker in described.brokers}
        leaders = {
            (topic.name or "", part.partition_index): part.leader_id
            for topic in described.topics
            for part in topic.partitions
        }
        found: dict[Partition, int] = {}
        for leader in sorted({leaders.get(key, -1) for key in wanted}):
            led = [key for key in wanted if leaders.get(key, -1) == leader]
            if leader not in addresses:
                raise Moved(f"partition {led[0][0]}-{led[0][1]} has no leader now")
            broker = addresses[leader]
            client = self.client(leader, broker.host, broker.port)
            found |= _asked_offsets(client, led, times)
        return found

    def client(self, node_id: int, host: str, port: int) -> WireClient:
        """Return the client of this broker."""
        if node_id not in self._clients:
            literal = f"[{host}]" if ":" in host else host
            self._clients[node_id] = WireClient(f"{literal}:{port}")
        return self._clients[node_id]


def check(error_code: int, message: str | None, failed: str) -> None:
    """Raises KafkaFailed for a code that is not 0; Moved where another broker has the answer."""
    if not error_code:
        return
    kind = Moved if known_code(error_code) in MOVED else KafkaFailed
    raise kind(f"{failed}: {explain(error_code, message)}")


def by_topic(wanted: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the partitions of each topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in wanted:
        found.setdefault(topic, []).append(partition)
    return found


def _asked_offsets(
    client: WireClient, wanted: Sequence[Partition], times: Mapping[Partition, int]
) -> dict[Partition, int]:
    request = list_offsets.ListOffsetsRequest(
        -1,
        topics=[
            list_offsets.ListOffsetsTopic(
                topic,
                [
                    list_offsets.ListOffsetsPartition(index, timestamp=times[topic, index])
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(wanted).items()
        ],
        timeout_ms=int(min(RETRY_S, patience_s()) * 1_000),
    )
    answer = client.ask(
        apis.LIST_OFFSETS, request, list_offsets.encode_request, list_offsets.decode_response
    )
    found: dict[Partition, int] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            name = f"the offsets of {topic.name}-{part.partition_index} cannot be read"
            check(part.error_code, part.error_message, name)
            found[topic.name, part.partition_index] = part.offset
    return found

"""Talk to one cluster of any Kafka from 2.1 on, or of Penstock: the version of each request is the
newest that both sides know.

Invariant: one request at a time on each connection, so each thread has a `Cluster` of its own. A
failure is a KafkaFailed; after one, `reset` forgets connections and leaders.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from penstock.deploy.clients.brokers import MOVED, Partition, by_topic
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import TIMEOUT_S, WireClient
from penstock.deploy.errors import KafkaFailed
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.error_codes import ErrorCode, explain
from penstock.protocol.gen import api_versions, find_coordinator, list_offsets, metadata
from penstock.protocol.primitives import Reader, Writer

RETRY_S: Final = 10.0
_PAUSE_S: Final = 0.2
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator."""
_NAMED: Final = {
    apis.PRODUCE.key: 11,
    apis.FETCH.key: 12,
    apis.METADATA.key: 12,
    apis.OFFSET_COMMIT.key: 9,
    apis.OFFSET_FETCH.key: 7,
    apis.FIND_COORDINATOR.key: 3,
    apis.ADD_PARTITIONS_TO_TXN.key: 3,
    apis.END_TXN.key: 4,
}
"""Versions above which requests name topics by ids, groups in lists, or partitions of transactions
in another way.
"""
_OUTDATED: Final = MOVED | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
}
_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class Outdated(KafkaFailed):
    """A leader or coordinator has moved, or a broker does not answer. What was known of the brokers
    is forgotten: ask again.
    """


class Refused(KafkaFailed):
    """A broker answered with an error."""

    def __init__(self, failed: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{failed}: {explain(code, message)}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is, and how to log in there."""

    bootstrap: str
    security: ClientSecurity
    is_source: bool = False


@dataclass(slots=True)
class TopicInfo:
    """A topic with its number of partitions. topic_id: empty where the cluster has none."""

    name: str
    topic_id: str
    partition_count: int
    is_internal: bool


@dataclass(slots=True)
class _Known:
    """What a `Cluster` knows of the brokers, until `reset`."""

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    leaders: dict[Partition, int] = field(default_factory=dict[Partition, int])
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])


class _Connection:
    """A connection and what its broker serves."""

    def __init__(self, bootstrap: str, security: ClientSecurity) -> None:
        self.client = WireClient(bootstrap, security)
        try:
            answer = self.client.ask(
                apis.API_VERSIONS,
                api_versions.ApiVersionsRequest(),
                api_versions.encode_request,
                api_versions.decode_response,
                version=0,
            )
        except BaseException:
            self.client.close()
            raise
        self._served = {
            item.api_key: (item.min_version, item.max_version) for item in answer.api_keys
        }

    def version(self, api: ApiSpec, newest: int | None = None) -> int:
        low, high = self._served.get(api.key, (0, -1))
        version = min(api.max, high, _NAMED.get(api.key, api.max) if newest is None else newest)
        if version < max(low, api.served_min):
            raise KafkaFailed(
                f"the broker serves {api.name} up to version {high}, {api.served_min} is needed:"
                " `penstock mirror` needs Kafka 2.1 or newer"
            )
        return version


class Cluster:
    """Connects to the brokers that it needs. Use as a context manager."""

    def __init__(self, where: ClusterAddress) -> None:
        self.where = where
        self._known = _Known()
        self._any: _Connection | None = None
        self._connections: dict[int, _Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def reset(self) -> None:
        """Close all connections, and forget leaders and coordinators."""
        for connection in (self._any, *self._connections.values()):
            if connection is not None:
                connection.client.close()
        self._any, self._connections, self._known = None, {}, _Known()

    # --- requests ---------------------------------------------------------------------------------

    def ask(
        self,
        api: ApiSpec,
        request: _RequestT,
        encode: Callable[[Writer, _RequestT, int], None],
        decode: Callable[[Reader, int], _ResponseT],
        *,
        node: int | None = None,
        timeout_s: float = TIMEOUT_S,
        version: int | None = None,
    ) -> _ResponseT:
        """Ask a broker, any one for None. Raises Outdated if it does not answer: its connection is
        closed then, and the next request may go to another one. version: as of `version_of`.
        """
        connection = self._connection(node)
        if version is None:
            version = connection.version(api)
        try:
            return connection.client.ask(api, request, encode, decode, timeout_s, version=version)
        except KafkaFailed as error:
            connection.client.close()
            if node is None:
                self._any = None
            else:
                del self._connections[node]
            self.forget()
            raise Outdated(str(error)) from None

    def version_of(self, api: ApiSpec, node: int, newest: int) -> int:
        """Return the newest version that a broker serves, at most `newest`."""
        return self._connection(node).version(api, newest)

    def metadata(self, topics: Sequence[str] | None = None) -> metadata.MetadataResponse:
        """Return the brokers and these topics; all topics for None."""
        asked = None if topics is None else [metadata.MetadataRequestTopic(name=t) for t in topics]
        answer = self.ask(
            apis.METADATA,
            metadata.MetadataRequest(asked, allow_auto_topic_creation=False),
            metadata.encode_request,
            metadata.decode_response,
        )
        known = self._known
        known.addresses |= {item.node_id: (item.host, item.port) for item in answer.brokers}
        for topic in answer.topics:
            for part in topic.partitions:
                known.leaders[topic.name or "", part.partition_index] = part.leader_id
        return answer

    def topics(self) -> tuple[str, dict[str, TopicInfo]]:
        """Return the id of the cluster, and its topics by name."""
        answer = self.metadata()
        found = {
            topic.name or "": TopicInfo(
                topic.name or "",
                "" if topic.topic_id is None else str(topic.topic_id),
                len(topic.partitions),
                topic.is_internal,
            )
            for topic in answer.topics
            if not topic.error_code
        }
        return answer.cluster_id or "", found

    def nodes(self) -> list[int]:
        return [broker.node_id for broker in self.metadata([]).brokers]

    def by_leader(self, wanted: Iterable[Partition]) -> dict[int, list[Partition]]:
        """Return the partitions by the broker that leads them. Raises Outdated."""
        keys = list(wanted)
        missing = sorted(
            {topic for topic, index in keys if (topic, index) not in self._known.leaders}
        )
        if missing:
            self.metadata(missing)
        found: dict[int, list[Partition]] = {}
        for key in keys:
            leader = self._known.leaders.get(key, -1)
            if leader not in self._known.addresses:
                self.forget()
                raise Outdated(f"partition {key[0]}-{key[1]} has no leader now")
            found.setdefault(leader, []).append(key)
        return found

    def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id. Raises Outdated."""
        known = self._known
        if (kind, key) not in known.coordinators:
            answer = self.ask(
                apis.FIND_COORDINATOR,
                find_coordinator.FindCoordinatorRequest(key=key, key_type=kind),
                find_coordinator.encode_request,
                find_coordinator.decode_response,
            )
            self.check(answer.error_code, answer.error_message, f"{key!r} has no coordinator")
            known = self._known
            known.addresses[answer.node_id] = answer.host, answer.port
            known.coordinators[kind, key] = answer.node_id
        return known.coordinators[kind, key]

    def retried(self, ask: Callable[[], _ResponseT]) -> _ResponseT:
        """Return the answer, asked again while a leader or coordinator changes, for RETRY_S at
        most.
        """
        ends_at = time.monotonic() + RETRY_S
        while True:
            try:
                return ask()
            except Outdated:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(_PAUSE_S)

    def offsets(
        self, wanted: Iterable[Partition], timestamp: int, *, committed: bool = False
    ) -> dict[Partition, int]:
        """Return the earliest or latest offset of each partition. committed: the latest one is the
        last stable offset.
        """
        keys = list(wanted)
        return self.retried(lambda: self._offsets(keys, timestamp, committed=committed))

    def _offsets(
        self, wanted: Sequence[Partition], timestamp: int, *, committed: bool
    ) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for leader, led in self.by_leader(wanted).items():
            topics = [
                list_offsets.ListOffsetsTopic(
                    topic,
                    [list_offsets.ListOffsetsPartition(at, timestamp=timestamp) for at in indexes],
                )
                for topic, indexes in by_topic(led).items()
            ]
            answer = self.ask(
                apis.LIST_OFFSETS,
                list_offsets.ListOffsetsRequest(-1, int(committed), topics, 10_000),
                list_offsets.encode_request,
                list_offsets.decode_response,
                node=leader,
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    what = f"the offsets of {topic.name}-{part.partition_index} cannot be read"
                    self.check(part.error_code, None, what)
                    found[topic.name, part.partition_index] = part.offset
        return found

    def check(self, code: int, message: str | None, failed: str) -> None:
        """Raise Refused for a code that is not 0; Outdated where another broker has the answer."""
        if not code:
            return
        if code in _OUTDATED:
            self.forget()
            raise Outdated(f"{failed}: {explain(code, message)}")
        raise Refused(failed, code, message)

    def forget(self) -> None:
        """Forget leaders and coordinators. Connections stay."""
        self._known = _Known()

    def _connection(self, node: int | None) -> _Connection:
        if node is None:
            if self._any is None:
                self._any = self._connected()
            return self._any
        if node not in self._connections:
            if node not in self._known.addresses:
                self.metadata([])
            if node not in self._known.addresses:
                raise Outdated(f"there is no broker {node} now")
            host, port = self._known.addresses[node]
            try:
                self._connections[node] = _Connection(f"{host}:{port}", self.where.security)
            except KafkaFailed:
                self.forget()
                raise Outdated(f"broker {node} does not answer at {host}:{port}") from None
        return self._connections[node]

    def _connected(self) -> _Connection:
        where = self.where
        try:
            return _Connection(where.bootstrap, where.security)
        except KafkaFailed as error:
            if not where.is_source:
                raise
            reason = str(error).partition("; ")[0]
            raise KafkaFailed(
                f"the source cannot be reached: {reason}; check --from and --from-config"
            ) from None


def grouped(values: Mapping[Partition, _ResponseT]) -> dict[str, list[tuple[int, _ResponseT]]]:
    """Return (partition, value) by topic."""
    found: dict[str, list[tuple[int, _ResponseT]]] = {}
    for (topic, index), value in values.items():
        found.setdefault(topic, []).append((index, value))
    return found

"""The blocking client of a cluster: a connection to each broker that a request needs.

Invariants: one request at a time, so each thread has its own `Brokers`. A failure is a KafkaFailed.
If a broker does not respond or is no longer responsible, cached leaders and coordinators are
dropped and Moved is raised; `retried` then retries for at most RETRY_S.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.connection import TIMEOUT_S, Access, Connection, patience_s
from penstock.protocol.client.errors import (
    AuthenticationRefused,
    BrokerGone,
    KafkaFailed,
    Moved,
    NoBroker,
    NoResponse,
    check,
)
from penstock.protocol.error_codes import ErrorCode, explain
from penstock.protocol.gen import find_coordinator, list_offsets, metadata
from penstock.protocol.offset_specs import LATEST

RETRY_S: Final = 10.0
SILENT_S: Final = 10.0
"""How long a broker is skipped after it has accepted a connection but not responded."""
PAUSE_S: Final = 0.2
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator: GROUP and TRANSACTION."""
MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
BY_NAME: Final = {
    apis.PRODUCE: 11,
    apis.FETCH: 12,
    apis.METADATA: 12,
    apis.OFFSET_COMMIT: 9,
    apis.OFFSET_FETCH: 7,
    apis.FIND_COORDINATOR: 3,
    apis.ADD_PARTITIONS_TO_TXN: 3,
    apis.END_TXN: 4,
}
"""The newest versions that contain topic names instead of ids, a single group or key instead of a
list, or transaction partitions in the form for older brokers.
"""
Partition = tuple[str, int]
_T = TypeVar("_T")


@dataclass(slots=True)
class _Known:
    """The cached metadata of `Brokers`, dropped by `forget`."""

    addresses: dict[int, str] = field(default_factory=dict[int, str])
    leaders: dict[Partition, int] = field(default_factory=dict[Partition, int])
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])


class Brokers:
    """The client. Use it as a context manager. It connects on demand."""

    def __init__(
        self,
        bootstrap: str,
        access: Access,
        *,
        moved: Collection[ErrorCode] = MOVED,
        negotiates: bool = False,
        skipped: Collection[int] = (),
    ) -> None:
        """moved: error codes that cause a request to be retried. negotiates: as for `Connection`.
        skipped: ids of brokers that `nodes` and `known_ends` omit because they do not respond.
        """
        self.access = access
        self._bootstrap = bootstrap
        self._moved = moved
        self._negotiates = negotiates
        self._skipped = skipped
        self._known = _Known()
        self._any: Connection | None = None
        self._connections: dict[int, Connection] = {}
        self._silent: dict[int, tuple[float, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def reset(self) -> None:
        """Close all connections, and drop cached leaders and coordinators."""
        for connection in (self._any, *self._connections.values()):
            if connection is not None:
                connection.close()
        self._any, self._connections = None, {}
        self.forget()

    def forget(self) -> None:
        """Drop cached leaders and coordinators, but keep connections."""
        self._known = _Known()

    # --- requests ---------------------------------------------------------------------------------

    def send_request(
        self,
        api: ApiSpec,
        request: object,
        kind: type[_T],
        *,
        node: int | None = None,
        timeout_s: float = TIMEOUT_S,
        version: int | None = None,
    ) -> _T:
        """Send a request to a broker, or to any broker for None. Raises BrokerGone if it does not
        respond; the next request may be sent to another one. version: None for the newest version
        in `BY_NAME`.
        """
        connection = self._connection(node, timeout_s)
        if version is None:
            version = connection.version(api, BY_NAME.get(api))
        try:
            return connection.send_request(api, request, kind, timeout_s, version=version)
        except KafkaFailed as error:
            self._drop(node)
            raise BrokerGone(str(error)) if isinstance(error, NoResponse) else error from None

    def connection(self, node: int) -> Connection:
        """Return the connection to a broker. Raises KafkaFailed."""
        return self._connection(node)

    def version_of(self, api: ApiSpec, node: int, newest: int) -> int:
        """Return the newest version that a broker serves, at most `newest`."""
        return self._connection(node).version(api, newest)

    def retried(
        self, send_request: Callable[[], _T], ends_at: float | None = None, pause_s: float = PAUSE_S
    ) -> _T:
        """Return the result of `send_request`; retry while it raises Moved. ends_at: the deadline,
        according to `time.monotonic`; None for RETRY_S from now, or less if the context limits
        waits.
        """
        if ends_at is None:
            ends_at = time.monotonic() + min(RETRY_S, patience_s())
        while True:
            try:
                return send_request()
            except Moved:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(pause_s)

    def check(self, code: int, message: str | None, failed: str) -> None:
        """Raise Refused for a code other than 0, or Moved if another broker is responsible."""
        if code in self._moved:
            raise self.moved(f"{failed}: {explain(code, message)}")
        check(code, message, failed)

    def moved(self, reason: str) -> Moved:
        """Drop cached leaders and coordinators, and return the error to raise."""
        self.forget()
        return Moved(reason)

    # --- who is responsible -----------------------------------------------------------------------

    def metadata(
        self,
        topics: Iterable[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        node: int | None = None,
    ) -> metadata.MetadataResponse:
        """Return the brokers and the given topics, or all topics if None. node: see
        `send_request`.
        """
        requested = (
            None if topics is None else [metadata.MetadataRequestTopic(name=t) for t in topics]
        )
        found = self.send_request(
            apis.METADATA,
            metadata.MetadataRequest(requested, allow_auto_topic_creation=False),
            metadata.MetadataResponse,
            node=node,
            timeout_s=timeout_s,
        )
        for broker in found.brokers:
            self._add_address(broker.node_id, broker.host, broker.port)
        for topic in found.topics:
            for part in topic.partitions:
                self._known.leaders[topic.name or "", part.partition_index] = part.leader_id
        return found

    def nodes(self) -> list[int]:
        """Return the ids of all brokers except the skipped ones."""
        found = [broker.node_id for broker in self.metadata([]).brokers]
        return [node for node in found if node not in self._skipped]

    def of_all(self, send_request: Callable[[int], _T]) -> tuple[dict[int, _T], dict[int, str]]:
        """Return the results of `send_request` by broker, and the errors of brokers that do not
        respond. Raises KafkaFailed if no broker responds or any rejects the request.
        """
        found: dict[int, _T] = {}
        problems: dict[int, str] = {}
        for node in self.nodes():
            try:
                found[node] = send_request(node)
            except NoResponse as error:
                problems[node] = str(error)
        if problems and not found:
            raise NoResponse(next(iter(problems.values())))
        return found, problems

    def existing(self, wanted: Iterable[Partition]) -> list[Partition]:
        """Return the partitions that exist."""
        keys = list(wanted)
        topics = self.metadata(by_topic(keys)).topics if keys else ()
        there = {
            (topic.name or "", part.partition_index)
            for topic in topics
            for part in topic.partitions
        }
        return [key for key in keys if key in there]

    def by_leader(self, wanted: Iterable[Partition]) -> dict[int, list[Partition]]:
        """Return the partitions by the broker that leads them. Raises Moved."""
        keys = list(wanted)
        if missing := sorted({key[0] for key in keys if key not in self._known.leaders}):
            self.metadata(missing)
        found: dict[int, list[Partition]] = {}
        for key in keys:
            leader = self._known.leaders.get(key, -1)
            if leader not in self._known.addresses:
                raise self.moved(f"partition {key[0]}-{key[1]} has no leader now")
            found.setdefault(leader, []).append(key)
        return found

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition. Raises Moved."""
        return next(iter(self.by_leader([(topic, partition)])))

    def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id. Raises Moved."""
        node = self._known.coordinators.get((kind, key))
        if node is None:
            found = self.send_request(
                apis.FIND_COORDINATOR,
                find_coordinator.FindCoordinatorRequest(key=key, key_type=kind),
                find_coordinator.FindCoordinatorResponse,
            )
            what = "group" if kind == GROUP else "transactional id"
            failed = f"{what} {key!r} has no coordinator"
            self.check(found.error_code, found.error_message, failed)
            node = self._known.coordinators[kind, key] = found.node_id
            self._add_address(node, found.host, found.port)
        return node

    def offsets(
        self,
        wanted: Iterable[Partition],
        timestamp: int | Mapping[Partition, int],
        *,
        committed: bool = False,
    ) -> dict[Partition, int]:
        """Return the offset of each partition at a timestamp, or -1 if there is none.

        timestamp: one of `offset_specs`, or milliseconds since 1970, for all partitions or by
        partition. committed: whether the latest offset is the last stable one.
        """
        keys = list(wanted)
        times = timestamp if isinstance(timestamp, Mapping) else dict.fromkeys(keys, timestamp)

        def send_request() -> dict[Partition, int]:
            found: dict[Partition, int] = {}
            for leader, led in self.by_leader(keys).items():
                for key, part in self.offsets_at(leader, led, times, committed=committed).items():
                    failed = f"the offsets of {key[0]}-{key[1]} cannot be read"
                    self.check(part.error_code, part.error_message, failed)
                    found[key] = part.offset
            return found

        return self.retried(send_request)

    def known_offsets(
        self, wanted: Iterable[Partition], timestamp: int
    ) -> tuple[dict[Partition, int], dict[int, str]]:
        """Return the offsets of partitions, like `offsets`, and the errors of leaders that do not
        respond, by broker. Raises KafkaFailed if a leader rejects the request.
        """
        found: dict[Partition, int] = {}
        problems: dict[int, str] = {}
        for leader, led in self.retried(lambda: self.by_leader(wanted)).items():
            try:
                found |= self.offsets(led, timestamp)
            except NoResponse as error:
                problems[leader] = str(error)
        return found, problems

    def known_ends(self, wanted: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end offsets of partitions whose leaders respond."""
        keys = list(wanted)
        if not keys:
            return {}
        self.metadata(by_topic(keys))
        led: dict[int, list[Partition]] = {}
        for key in keys:
            led.setdefault(self._known.leaders.get(key, -1), []).append(key)
        found: dict[Partition, int] = {}
        for leader, some in led.items():
            if leader < 0 or leader in self._skipped:
                continue
            with suppress(KafkaFailed):
                ends = self.offsets_at(leader, some, dict.fromkeys(some, LATEST))
                found |= {key: part.offset for key, part in ends.items() if not part.error_code}
        return found

    def offsets_at(
        self,
        leader: int,
        led: Sequence[Partition],
        times: Mapping[Partition, int],
        *,
        committed: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[Partition, list_offsets.ListOffsetsPartitionResponse]:
        """Return the response of a leader for each of its partitions. Raises KafkaFailed."""
        found = self.send_request(
            apis.LIST_OFFSETS,
            offsets_request({key: times[key] for key in led}, committed=committed),
            list_offsets.ListOffsetsResponse,
            node=leader,
            timeout_s=timeout_s,
        )
        return offsets_by_partition(found)

    # --- connections ------------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Connect to any broker."""
        return self._opened(self._bootstrap)

    def _opened(self, bootstrap: str) -> Connection:
        return Connection(bootstrap, self.access, negotiates=self._negotiates)

    def _connection(self, node: int | None, timeout_s: float = TIMEOUT_S) -> Connection:
        if node is None:
            if self._any is None:
                self._any = self.connect()
            return self._any
        if node not in self._connections:
            if node not in self._known.addresses:
                self.metadata([], timeout_s)
            address = self._known.addresses.get(node)
            if address is None:
                raise self.moved(f"broker {node} is not available")
            self._connections[node] = self._connected(node, address)
        return self._connections[node]

    def _connected(self, node: int, address: str) -> Connection:
        silent_until, problem = self._silent.get(node, (0.0, ""))
        if time.monotonic() < silent_until:
            self.forget()
            raise BrokerGone(problem)
        try:
            return self._opened(address)
        except NoBroker as error:
            self.forget()
            problem = f"broker {node} does not respond at {address}"
            if error.reason:
                problem += f": {error.reason}"
                self._silent[node] = time.monotonic() + SILENT_S, problem
            raise BrokerGone(problem) from None
        except NoResponse as error:
            self.forget()
            raise BrokerGone(str(error)) from None
        except AuthenticationRefused:
            raise  # rejected by this broker, and thus by all others
        except KafkaFailed as error:
            raise self.moved(str(error)) from None

    def _drop(self, node: int | None) -> None:
        """Close a connection that failed."""
        connection = self._any if node is None else self._connections.pop(node, None)
        if connection is not None:
            connection.close()
        if node is None:
            self._any = None
        self.forget()

    def _add_address(self, node: int, host: str, port: int) -> None:
        literal = f"[{host}]" if ":" in host else host
        self._known.addresses[node] = f"{literal}:{port}"


def by_topic(wanted: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the partitions of each topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in wanted:
        found.setdefault(topic, []).append(partition)
    return found


def offsets_request(
    times: Mapping[Partition, int], *, committed: bool = False
) -> list_offsets.ListOffsetsRequest:
    """Return the request for the offsets of these partitions to their leader."""
    topics = [
        list_offsets.ListOffsetsTopic(
            topic,
            [
                list_offsets.ListOffsetsPartition(index, timestamp=times[topic, index])
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(times).items()
    ]
    timeout_ms = int(min(RETRY_S, patience_s()) * 1_000)
    return list_offsets.ListOffsetsRequest(-1, int(committed), topics, timeout_ms)


def offsets_by_partition(
    response: list_offsets.ListOffsetsResponse,
) -> dict[Partition, list_offsets.ListOffsetsPartitionResponse]:
    return {
        (topic.name, part.partition_index): part
        for topic in response.topics
        for part in topic.partitions
    }

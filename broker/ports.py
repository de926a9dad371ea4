"""What the parts of a broker know of each other: handlers see a `Node` and a `RequestContext`, never the wiring.

Invariant: everything here is a value or a protocol, so that each part runs in tests behind small fakes of the others.
Must not: import a handler, the server, or `broker.node`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from broker.config import BrokerConfig
from broker.request_meter import RequestMeter
from stream.compaction.plan import CompactionConfig
from stream.config import StreamConfig
from stream.ids import Millis, NodeEpoch, NodeId

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator
    from broker.partition.manager import PartitionManager
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.producer_ids import ProducerIds
    from controller.metadata.image import MetadataImage
    from controller.metadata.nodes import NodeState
    from controller.rpc.client import ControllerClient
    from controller.rpc.follower import MetadataFollower
    from stream.storage import Storage

Buffer: TypeAlias = bytes | bytearray | memoryview

Response: TypeAlias = Buffer | Sequence[Buffer] | None
"""A whole frame with its size prefix, in one piece or many (never joined); None: this request gets no answer (acks=0)."""

Respond: TypeAlias = Callable[[Response], None]
"""Fills the request's place in the connection's order of answers. Exactly once; a closed connection swallows it."""


class ConnectionInfo(Protocol):
    """What a handler may know about where a request came from."""

    @property
    def id(self) -> int: ...

    @property
    def listener(self) -> str:
        """Name of the listener that the client came to; it is told the addresses of the other brokers' listeners of that name."""
        ...

    @property
    def local_host(self) -> str:
        """Our address as this client reached it; what Metadata tells when no host is advertised."""
        ...

    @property
    def local_port(self) -> int: ...

    @property
    def peer(self) -> str:
        """host:port of the client, for logs."""
        ...

    @property
    def peer_host(self) -> str: ...

    def close(self, reason: str) -> None:
        """Drop the connection with one log line (a failed Produce with acks=0 has no other way to tell)."""
        ...

    def close_quietly(self) -> None:
        """Send what is answered, then close."""
        ...


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request. `frame` is writable, without the size prefix, and belongs to the handler from here on (nobody reuses it)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo
    frame: memoryview
    body_offset: int
    """Where the request body begins in `frame`, behind the header."""
    received_at: float
    """`loop.time()` when the frame was complete."""
    meter: RequestMeter = field(default_factory=RequestMeter)
    """Told of errors in the answer."""


LeaderChangeListener: TypeAlias = Callable[[str, int, bool], None]
"""(topic name, partition, opened): False when this broker stops leading it. Called on the loop, must not block."""


class Node(Protocol):
    """This broker, as its handlers see it."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def node_epoch(self) -> NodeEpoch: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def stream_config(self) -> StreamConfig: ...

    @property
    def compaction_config(self) -> CompactionConfig: ...

    @property
    def image(self) -> "MetadataImage":
        """The follower's image: mutable, never behind what an answered RPC of ours produced. Do not keep parts across an await."""
        ...

    @property
    def client(self) -> "ControllerClient": ...

    @property
    def follower(self) -> "MetadataFollower": ...

    @property
    def storage(self) -> "Storage": ...

    @property
    def partitions(self) -> "PartitionManager": ...

    @property
    def groups(self) -> "GroupCoordinator": ...

    @property
    def transactions(self) -> "TransactionCoordinator": ...

    @property
    def producer_ids(self) -> "ProducerIds": ...

    def departed(self) -> Sequence["NodeState"]:
        """Brokers that left a moment ago."""
        ...

    def now_ms(self) -> Millis: ...

    def can_write(self) -> bool:
        """False once the session is lost or a fence was met: nothing may be acknowledged or read any more (`broker.lease`)."""
        ...

    def leads_alone(self) -> bool:
        """False as soon as another broker may lead what this one leads: never True while `can_write` is False."""
        ...


Handler: TypeAlias = Callable[[Node, RequestContext], Response | Awaitable[Response]]
"""Answers one request at once, or as a coroutine that the dispatcher runs as a task (cancelled when the connection closes)."""

InlineHandler: TypeAlias = Callable[[Node, RequestContext, Respond], None]
"""Produce's shape: no task, the answer comes through `respond`, possibly much later from a callback."""

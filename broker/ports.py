"""What the parts of a broker know of each other: handlers see a `Node` and a `RequestContext`, never the wiring.

Invariant: everything here is a value or a protocol, so that each part runs in tests behind small fakes of the others.
Must not: import a handler, the server, or `broker.node`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias
from uuid import UUID

from broker.config import BrokerConfig
from stream.ids import Millis, NodeEpoch, NodeId, Offset, StreamEpoch

if TYPE_CHECKING:
    from broker.errors import ErrorCode
    from broker.groups.coordinator import GroupCoordinator
    from controller.metadata.image import MetadataImage
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


class Partition(Protocol):
    """An open partition of which this broker is the leader. Offsets are Kafka offsets."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def topic_name(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> StreamEpoch: ...

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset:
        """End of what is durable: the confirmed offset."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """End of what was appended."""
        ...


LeaderChangeListener: TypeAlias = Callable[[str, int, bool], None]
"""(topic name, partition, opened): False when this broker stops leading it. Called on the loop, must not block."""


class PartitionManager(Protocol):
    """Keeps the open partitions level with the image: what the image says this (node, epoch) leads gets opened, the rest closed."""

    def get(self, topic_name: str, index: int) -> "Partition | ErrorCode":
        """UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or LEADER_NOT_AVAILABLE-like while opening."""
        ...

    def get_by_id(self, topic_id: UUID, index: int) -> "Partition | ErrorCode": ...

    async def wait_open(self, topic_name: str, index: int, deadline: float) -> "Partition | ErrorCode":
        """Wait (until `deadline` on `loop.time()`) for a partition that this broker leads but has not opened yet."""
        ...

    def add_leader_change_listener(self, listener: LeaderChangeListener) -> None: ...

    async def start(self) -> None:
        """Begin to follow the image."""
        ...

    async def close(self) -> None:
        """Graceful: stop accepting, close every partition (commit in place) in few RPCs. Bounded by the caller's deadline."""
        ...


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
    def partitions(self) -> PartitionManager: ...

    @property
    def groups(self) -> "GroupCoordinator": ...

    def now_ms(self) -> Millis: ...

    def can_write(self) -> bool:
        """False once the session is lost or a fence was met: nothing may be acknowledged any more."""
        ...


Handler: TypeAlias = Callable[[Node, RequestContext], Response | Awaitable[Response]]
"""Answers one request at once, or as a coroutine that the dispatcher runs as a task (cancelled when the connection closes)."""

InlineHandler: TypeAlias = Callable[[Node, RequestContext, Respond], None]
"""Produce's shape: no task, the answer comes through `respond`, possibly much later from a callback."""

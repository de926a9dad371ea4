"""A request as received by a handler: the frame, its origin, and how to respond. Contains only
values and protocols, so that tests can run handlers with small fakes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, field

from penstock.base.buffers import Buffer
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import Principal
from penstock.broker.network.request_meter import RequestMeter
from penstock.broker.quotas.clients import RequestQuota
from penstock.broker.security.sasl import SaslState
from penstock.stream.wal.sender import Sender


class LongResponse(Struct, frozen=True):
    """The response to a long request, which the dispatcher encodes in a thread. encode: must only
    use data that does not change.
    """

    encode: "Callable[[], Buffer | Sequence[Buffer]]"


Response: TypeAlias = Buffer | Sequence[Buffer] | LongResponse | None
"""A complete frame with its size prefix, in one or more buffers, which are not joined. None means
no response (acks=0). Handlers may return LongResponse, which is never passed to a connection.
"""

Respond: TypeAlias = Callable[[Response], None]
"""Send the response. Must be called exactly once. Responses on a closed connection are dropped."""


class SoftwareInfo(NamedTuple):
    """The client software, as reported by the client (KIP-511)."""

    name: str = "unknown"
    version: str = "unknown"


UNKNOWN_SOFTWARE: Final = SoftwareInfo()


class ConnectionInfo(Protocol):
    """The origin of a request."""

    client_software: SoftwareInfo
    """Set by ApiVersions. Unknown if the client does not send this request, as in Kafka."""
    sender: Sender
    """The records of the client that are in flight in the WAL."""

    @property
    def id(self) -> int: ...

    @property
    def listener(self) -> str:
        """Return the listener name of this connection. Clients receive the addresses of other
        brokers' listeners with the same name.
        """
        ...

    @property
    def security_protocol(self) -> SecurityProtocol:
        """Return the security protocol of the listener."""
        ...

    @property
    def principal(self) -> Principal:
        """Return the authenticated principal, or ANONYMOUS."""
        ...

    @property
    def sasl(self) -> SaslState | None:
        """Return the state of SASL authentication, or None on listeners without SASL."""
        ...

    def authenticated(self, principal: Principal) -> None:
        """Set the principal."""
        ...

    @property
    def local_host(self) -> str:
        """Return the broker's address as used by this client. Metadata returns it if no host is
        advertised.
        """
        ...

    @property
    def local_port(self) -> int: ...

    @property
    def peer(self) -> str:
        """Return host:port of the client, for log events."""
        ...

    @property
    def peer_host(self) -> str: ...

    def mute(self, wait_ms: int) -> None:
        """Stop reading and starting requests of the connection for this long. Responses are still
        sent (KIP-219).
        """
        ...

    def close(self, reason: str) -> None:
        """Abort the connection with one log event. This is the only way to report an error of a
        Produce with acks=0.
        """
        ...

    def close_quietly(self) -> None:
        """Send the completed responses, then close the connection."""
        ...


class RequestContext(Struct, eq=False):
    """One request. `frame` is writable and has no size prefix. The handler owns it exclusively."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionInfo
    frame: memoryview
    body_offset: int
    """Offset of the request body in `frame`, after the header."""
    received_at: float
    """`loop.time()` when the frame was complete."""
    meter: RequestMeter = field(default_factory=RequestMeter)
    """Counts the errors in responses."""
    quota: RequestQuota | None = None
    """Charges the request to the client's quotas, or None if there are none."""
    body: Any = None
    """The decoded request if it is long, or None if the handler must decode it."""
    on_wait: Callable[[], None] | None = None
    """Set for long requests. See `waits`."""

    @property
    def is_long(self) -> bool:
        return self.body is not None

    def waits(self) -> None:
        """Let other long requests start, because this one is waiting for records or other
        clients.
        """
        if self.on_wait is not None:
            self.on_wait()

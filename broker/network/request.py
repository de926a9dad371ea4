"""The request as its handler receives it: the frame, its origin, and the way to answer.

Invariant: everything here is a value or a protocol, so that tests run handlers with small fakes.
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


class LongAnswer(Struct, frozen=True):
    """The answer to a long request, which the dispatcher has encoded by a thread. encode: uses
    nothing that others may change.
    """

    encode: "Callable[[], Buffer | Sequence[Buffer]]"


Response: TypeAlias = Buffer | Sequence[Buffer] | LongAnswer | None
"""A whole frame with its size prefix, in one or more buffers (never joined). None: this request
gets no answer (acks=0). LongAnswer: from handlers only, never for a connection.
"""

Respond: TypeAlias = Callable[[Response], None]
"""Answer the request, exactly once. Answers on a closed connection are dropped."""


class SoftwareInfo(NamedTuple):
    """What a client says that it is (KIP-511)."""

    name: str = "unknown"
    version: str = "unknown"


UNKNOWN_SOFTWARE: Final = SoftwareInfo()


class ConnectionInfo(Protocol):
    """The origin of a request."""

    client_software: SoftwareInfo
    """Set by ApiVersions. Clients that do not say it are unknown, as in Kafka."""

    @property
    def id(self) -> int: ...

    @property
    def listener(self) -> str:
        """Return the name of the listener of this connection. The client gets the addresses of the
        other brokers' listeners of that name.
        """
        ...

    @property
    def security_protocol(self) -> SecurityProtocol:
        """Return how the listener of this connection is protected."""
        ...

    @property
    def principal(self) -> Principal:
        """Return who authenticated on this connection; ANONYMOUS before or without that."""
        ...

    @property
    def sasl(self) -> SaslState | None:
        """Return the state of the SASL authentication; None for listeners without SASL."""
        ...

    def authenticated(self, principal: Principal) -> None:
        """Note who the client is."""
        ...

    @property
    def local_host(self) -> str:
        """Return the broker's address as this client reached it. Metadata returns it when no host
        is advertised.
        """
        ...

    @property
    def local_port(self) -> int: ...

    @property
    def peer(self) -> str:
        """Return host:port of the client, for logs."""
        ...

    @property
    def peer_host(self) -> str: ...

    def mute(self, wait_ms: int) -> None:
        """Read and start no request of the connection for so long; answers are sent (KIP-219)."""
        ...

    def close(self, reason: str) -> None:
        """Drop the connection with one log line. A failed Produce with acks=0 has no other way to
        report an error.
        """
        ...

    def close_quietly(self) -> None:
        """Send the completed answers, then close."""
        ...


class RequestContext(Struct, eq=False):
    """One request. `frame` is writable and has no size prefix. The handler owns it: nothing else
    uses it again.
    """

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
    """Counts the errors in the answer."""
    quota: RequestQuota | None = None
    """What the request uses of the quotas of its client; None if there are none."""
    body: Any = None
    """The decoded request if it is long; None: the handler decodes it."""
    on_wait: Callable[[], None] | None = None
    """Set for a long request. Called before it waits for records, so that others may begin."""

    @property
    def is_long(self) -> bool:
        return self.body is not None

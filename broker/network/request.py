"""One request as its handler gets it: its frame, where it came from, and the way back.

Invariant: everything here is a value or a protocol, so that handlers run in tests behind small
fakes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from base.buffers import Buffer
from broker.network.request_meter import RequestMeter

Response: TypeAlias = Buffer | Sequence[Buffer] | None
"""A whole frame with its size prefix, in one piece or many (never joined); None: this request gets
no answer (acks=0).
"""

Respond: TypeAlias = Callable[[Response], None]
"""Fills the request's place in the connection's order of answers. Exactly once; a closed connection
swallows it.
"""


class ConnectionInfo(Protocol):
    """What a handler may know about where a request came from."""

    @property
    def id(self) -> int: ...

    @property
    def listener(self) -> str:
        """Name of the listener that the client came to; it is told the addresses of the other
        brokers' listeners of that name.
        """
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
        """Drop the connection with one log line (a failed Produce with acks=0 has no other way to
        tell).
        """
        ...

    def close_quietly(self) -> None:
        """Send what is answered, then close."""
        ...


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request. `frame` is writable, without the size prefix, and belongs to the handler from
    here on (nobody reuses it).
    """

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

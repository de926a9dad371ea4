"""Typed wrappers for the types of gRPC calls that the controller uses, with messages as bytes. No
other module imports `grpc`, because its annotations do not pass strict type checks.

Heartbeats detect broken connections. The server sends no keepalive pings, so it never closes a
stream that its follower considers intact, as `controller.api.follower` requires.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from penstock.base.listening import ListenFailed
from penstock.controller.api.callers import EXCHANGE, FOLLOW
from penstock.controller.api.tls import PemFiles, TlsFiles

CONTROLLER_SERVICE = "penstock.Controller"
METADATA_SERVICE = "penstock.Metadata"
RAFT_SERVICE = "penstock.Raft"
REQUEST_ID_KEY = "penstock-request-id"
EPOCH_KEY = "penstock-controller-epoch"
"""Metadata key for the newest controller epoch that the caller knows. Only the controller of this
epoch executes the attempt, so that a late attempt has no effect after a leader change. Within an
epoch, the request id prevents repeated execution.
"""

MESSAGE_BYTES_MAX = 64 << 20
"""Transport limit in both directions, for messages between voters. Requests have a lower limit, and
larger ones are rejected with INVALID_REQUEST.
"""

HANDSHAKE_TIMEOUT_S = 20
"""Timeout of a client's TLS handshake with a controller."""

_T = TypeVar("_T")
Metadata = Sequence[tuple[str, str]]
END_OF_STREAM: object = cast("Any", grpc.aio).EOF

StatusCode = grpc.StatusCode
RpcFailed = grpc.aio.AioRpcError


class UnaryCallable(Protocol):
    def __call__(
        self, request: bytes, *, timeout: float, metadata: Metadata = ()
    ) -> Awaitable[bytes]: ...


class StreamCall(Protocol):
    """Client side of a bidirectional stream. `read` returns END_OF_STREAM after an orderly end."""

    async def read(self) -> object: ...
    async def write(self, request: bytes) -> None: ...
    def cancel(self) -> bool: ...
    async def code(self) -> grpc.StatusCode: ...
    async def details(self) -> str: ...


async def _cancellable(work: Awaitable[_T]) -> _T:
    """Await a grpc.aio call without losing a cancellation.

    If a call fails at the moment when the waiting task is cancelled, grpc.aio raises the failure
    instead of CancelledError, so a retry loop would not stop.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await work
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class _Stream:
    """Implements StreamCall."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self.cancel = call.cancel
        self.code = call.code
        self.details = call.details

    async def read(self) -> object:
        return await _cancellable(self._call.read())

    async def write(self, request: bytes) -> None:
        await _cancellable(self._call.write(request))


class CallContext(Protocol):
    """Server side of any call."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None: ...
    def peer(self) -> str: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class UnaryContext(CallContext, Protocol):
    def time_remaining(self) -> float | None: ...
    def invocation_metadata(self) -> Metadata: ...


class StreamContext(CallContext, Protocol):
    """Server side of a bidirectional stream."""

    async def read(self) -> object: ...
    async def write(self, message: bytes) -> None: ...


UnaryHandler = Callable[[bytes, UnaryContext], Awaitable[bytes]]
StreamHandler = Callable[[object, StreamContext], Awaitable[None]]

_COMMON_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
]
_CLIENT_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Despite its name, this option limits the duration of a connection attempt, including the
    # handshake. With 500 ms, three controllers on an overloaded machine (20 times its capacity)
    # could not connect for minutes, because every attempt that timed out added to the load.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 2_147_483_647),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_S * 1_000),
]


_NAMES_IN_CERTIFICATE = ("x509_common_name", "peer_dns", "peer_uri")
"""gRPC properties of a connection: the common name of the subject, and its alternative DNS names
and URIs.
"""


def names_in_certificate(context: CallContext) -> list[str]:
    """Return the names in the caller's certificate, which gRPC has verified. Empty without TLS."""
    found = context.auth_context()
    return [
        name.decode("utf-8", "replace")
        for kind in _NAMES_IN_CERTIFICATE
        for name in found.get(kind, ())
    ]


def host_of(context: CallContext) -> str:
    """Return the address of the caller without the port. gRPC formats addresses as
    `ipv4:127.0.0.1:1` and `ipv6:%5B::1%5D:1`.
    """
    return unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")


class Channel:
    """A connection to one controller. Calls on a broken connection fail immediately, and gRPC
    reconnects after 50 to 200 ms.

    tls: None for plaintext. The channel uses the files as of its creation, even after a reconnect.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None) -> None:
        self.address = address
        api = cast("Any", grpc.aio)
        if tls is None:
            self._channel = api.insecure_channel(address, options=_CLIENT_OPTIONS)
        else:
            pem = tls.current()
            credentials = cast("Any", grpc).ssl_channel_credentials(
                root_certificates=pem.ca, private_key=pem.key, certificate_chain=pem.certificate
            )
            self._channel = api.secure_channel(address, credentials, options=_CLIENT_OPTIONS)

    def unary(self, method: str) -> UnaryCallable:
        call = cast("UnaryCallable", self._channel.unary_unary(f"/{CONTROLLER_SERVICE}/{method}"))

        async def send_request(request: bytes, *, timeout: float, metadata: Metadata = ()) -> bytes:
            return await _cancellable(call(request, timeout=timeout, metadata=metadata))

        return send_request

    def follow(self) -> StreamCall:
        return _Stream(self._channel.stream_stream(f"/{METADATA_SERVICE}/{FOLLOW}")())

    def raft(self) -> StreamCall:
        return _Stream(self._channel.stream_stream(f"/{RAFT_SERVICE}/{EXCHANGE}")())

    async def close(self, grace_s: float | None = None) -> None:
        """Close the channel. Calls in progress may complete within `grace_s`; None cancels them."""
        await self._channel.close(grace_s)


class Listener:
    """gRPC server for the controller's services on one port. raft: None if there are no other
    voters. tls: None for plaintext; otherwise every caller needs a certificate signed by the CA.
    on_handshake: callback for the start of a handshake, called in a gRPC thread.
    """

    def __init__(
        self,
        unary: Mapping[str, UnaryHandler],
        follow: StreamHandler,
        raft: StreamHandler | None = None,
        *,
        tls: TlsFiles | None = None,
        on_handshake: Callable[[], None] = lambda: None,
    ) -> None:
        self._tls = tls
        self._on_handshake = on_handshake
        api = cast("Any", grpc)
        self._server = cast("Any", grpc.aio).server(options=_SERVER_OPTIONS)
        handlers = {
            name: api.unary_unary_rpc_method_handler(handler) for name, handler in unary.items()
        }
        stream = {FOLLOW: api.stream_stream_rpc_method_handler(follow)}
        services = [
            api.method_handlers_generic_handler(CONTROLLER_SERVICE, handlers),
            api.method_handlers_generic_handler(METADATA_SERVICE, stream),
        ]
        if raft is not None:
            exchange = {EXCHANGE: api.stream_stream_rpc_method_handler(raft)}
            services.append(api.method_handlers_generic_handler(RAFT_SERVICE, exchange))
        self._server.add_generic_rpc_handlers(tuple(services))

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; return the bound port. Raises ListenFailed if the address is in use."""
        literal = f"[{host}]" if ":" in host else host
        try:
            bound = self._bind(f"{literal}:{port}")
        except RuntimeError as error:
            raise ListenFailed(
                f"cannot listen on {literal}:{port}: {error}. Choose a free port, or 0 for any",
                port,
            ) from error
        await self._server.start()
        return bound

    async def stop(self, grace_s: float | None) -> None:
        """Reject new calls. Calls in progress may complete within `grace_s`; None cancels them."""
        await self._server.stop(grace_s)

    def _bind(self, address: str) -> int:
        if self._tls is None:
            return int(self._server.add_insecure_port(address))
        credentials = _server_credentials(self._tls, self._on_handshake)
        return int(self._server.add_secure_port(address, credentials))


def _server_credentials(tls: TlsFiles, on_handshake: Callable[[], None]) -> object:
    """Return credentials that are updated when the files change. gRPC requests them for each
    handshake. gRPC supports only TLS 1.2 and 1.3.
    """
    api = cast("Any", grpc)
    served = tls.current()

    def configuration(pem: PemFiles) -> object:
        pair = (pem.key, pem.certificate)
        return api.ssl_server_certificate_configuration([pair], root_certificates=pem.ca)

    def changed() -> object:
        """Return the new configuration, or None if it has not changed."""
        nonlocal served
        on_handshake()
        pem = tls.current()
        if pem is served:
            return None
        served = pem
        return configuration(pem)

    return api.dynamic_ssl_server_credentials(
        configuration(served), changed, require_client_authentication=True
    )

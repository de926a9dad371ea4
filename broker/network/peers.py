"""Ask other brokers, over the Kafka protocol at the listener that clients use, or at the one that
`inter.broker.listener.name` names.

Invariants: one connection per broker incarnation, opened on demand and dropped at the first error.
One request on it at a time (the caller ensures that). A larger answer than ANSWER_BYTES_MAX is
invalid.
Must not: retry, or interpret answers.
Source: Kafka InterBrokerSendThread.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.base.ids import NodeEpoch, NodeId
from penstock.broker.security.exchange import AuthenticationFailed
from penstock.broker.security.peers import PeerAccess
from penstock.broker.security.sasl_client import SaslLogin
from penstock.protocol import framing
from penstock.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import sasl_authenticate, sasl_handshake
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage
    from penstock.controller.metadata.nodes import NodeState

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 3.0
"""For the TLS handshake and the login as well."""
_RECONNECT_SHARE: Final = 0.8
"""A connection whose session ends is replaced after this share of its time."""
_DISCARD_BYTES: Final = 4_096
_RETRY_S: Final = 0.002
_T = TypeVar("_T")


class PeerRefused(ConnectionError):
    """Raised when two brokers cannot authenticate to each other."""


class PeerGone(Exception):
    """Raised when the broker is not in the metadata any more."""


@dataclass(slots=True)
class _Connection:
    node_epoch: NodeEpoch
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    correlation_id: int = 0
    ends_at: float | None = None
    """`loop.time()` after which the connection is replaced."""


class PeerConnections:
    """access: how to connect; None where no listener needs TLS or SASL."""

    def __init__(
        self, image: "Callable[[], MetadataImage]", access: PeerAccess | None = None
    ) -> None:
        self._image = image
        self._access = access
        self._peers: dict[NodeId, _Connection] = {}

    async def ask(
        self, node_id: NodeId, api: ApiSpec, version: int, request: object, kind: type[_T]
    ) -> _T:
        """Send a request message of this API and return the response message, which is of this
        kind. No time limit here: the caller cancels. Raises PeerGone, OSError, EOFError, WireError.
        """
        peer = await self._connect(node_id)
        try:
            return await _exchange(peer, api, version, request, kind)
        except BaseException:
            # Also after a timeout: a late answer must not be taken for that of the next request.
            self._drop(node_id)
            raise

    async def wait_closed(self, node_id: NodeId) -> None:
        """Connect if necessary, and return when the broker has closed the connection or its process
        has ended. Raises PeerGone, OSError, EOFError, WireError if it cannot connect.
        """
        peer = await self._connect(node_id)
        try:
            while await peer.reader.read(_DISCARD_BYTES):
                pass  # brokers send nothing on their own
        except OSError:
            pass  # reset
        finally:
            self._drop(node_id)

    def has_broken(self) -> bool:
        """Return whether a connection has broken, also where the event loop comes to it later. One
        system call, and 2 us per connection.
        """
        poll = select.poll()
        for peer in self._peers.values():
            if peer.reader.at_eof() or peer.writer.is_closing():
                return True
            poll.register(peer.writer.get_extra_info("socket").fileno(), select.POLLIN)
        # Brokers send nothing on their own, so what can be read is the end.
        return bool(poll.poll(0))

    async def refuses(self, node_id: NodeId, *, patience_s: float = 0.0) -> bool:
        """Return whether all addresses of the broker refuse connections. False if one accepts, or
        does not answer within CONNECT_TIMEOUT_S. Raises PeerGone.

        patience_s: a process that dies may accept a connection and reset it a moment later, when
        its listener closes. If a connection breaks within this time, the address is tried again.
        """
        host, port = self._address(node_id)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + patience_s
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                for family, kind, protocol, _, address in found:
                    while not await _refuses((family, kind, protocol), address, ends_at):
                        if loop.time() >= ends_at:
                            return False
                        await asyncio.sleep(_RETRY_S)
        except OSError:  # a timeout as well
            return False
        return bool(found)

    def close(self) -> None:
        for node_id in list(self._peers):
            self._drop(node_id)

    def _state(self, node_id: NodeId) -> "NodeState":
        state = self._image().nodes.get(node_id)
        if state is None:
            self._drop(node_id)
            raise PeerGone(f"broker {node_id} is not registered")
        return state

    def _address(self, node_id: NodeId) -> tuple[str, int]:
        listener = "" if self._access is None else self._access.listener
        return _address(self._state(node_id), listener)

    async def _connect(self, node_id: NodeId) -> _Connection:
        state = self._state(node_id)
        peer = self._peers.get(node_id)
        if peer is not None and peer.node_epoch == state.node_epoch and not _has_ended(peer):
            return peer
        self._drop(node_id)
        access = self._access
        host, port = self._address(node_id)
        tls = None if access is None else access.tls()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            peer = _Connection(state.node_epoch, reader, writer)
            login = None if access is None else access.login()
            if login is not None:
                await _log_in(peer, login)
        self._peers[node_id] = peer
        return peer

    def _drop(self, node_id: NodeId) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.writer.transport.abort()


async def _refuses(kind: tuple[int, int, int], address: tuple[Any, ...], ends_at: float) -> bool:
    """Connect; return whether that was refused. Otherwise return when the connection breaks, at
    `ends_at` (`loop.time()`) at the latest. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(*kind) as probe:
        probe.setblocking(False)
        try:
            await loop.sock_connect(probe, address)
            async with asyncio.timeout_at(ends_at):
                await loop.sock_recv(probe, 1)
        except ConnectionRefusedError:
            return True
        except (TimeoutError, ConnectionError):
            pass  # a closing listener resets connections it has not accepted yet
        return False


async def _exchange(
    peer: _Connection, api: ApiSpec, version: int, request: object, kind: type[_T]
) -> _T:
    codec = CODECS[api.key]
    peer.correlation_id += 1
    peer.writer.write(
        framing.encode_request_frame(
            api, version, peer.correlation_id, codec.encode_request, request
        )
    )
    await peer.writer.drain()
    size_bytes = framing.frame_size_bytes(
        await peer.reader.readexactly(framing.SIZE_BYTES), ANSWER_BYTES_MAX
    )
    frame = await peer.reader.readexactly(size_bytes)
    _, body_offset = framing.parse_response_header(api, version, frame)
    response = framing.decode_body(
        codec.decode_response, frame, body_offset, version, MAX_ELEMENTS_COUNT
    )
    assert isinstance(response, kind)
    return response


async def _log_in(peer: _Connection, login: SaslLogin) -> None:
    """Authenticate. Raises PeerRefused; then the connection is closed."""
    try:
        chosen = await _exchange(
            peer,
            SASL_HANDSHAKE,
            SASL_HANDSHAKE.max,
            sasl_handshake.SaslHandshakeRequest(login.mechanism),
            sasl_handshake.SaslHandshakeResponse,
        )
        if chosen.error_code:
            raise PeerRefused(f"a broker has no SASL mechanism {login.mechanism}")
        token: bytes | None = login.first()
        while token is not None:
            answer = await _exchange(
                peer,
                SASL_AUTHENTICATE,
                SASL_AUTHENTICATE.max,
                sasl_authenticate.SaslAuthenticateRequest(token),
                sasl_authenticate.SaslAuthenticateResponse,
            )
            if answer.error_code:
                raise PeerRefused(f"a broker refuses the login: {answer.error_message}")
            token = login.answer(bytes(answer.auth_bytes))
            if answer.session_lifetime_ms:
                lifetime_s = answer.session_lifetime_ms / 1_000
                peer.ends_at = asyncio.get_running_loop().time() + _RECONNECT_SHARE * lifetime_s
    except AuthenticationFailed as error:
        peer.writer.transport.abort()
        raise PeerRefused(str(error)) from None
    except BaseException:
        peer.writer.transport.abort()
        raise


def _has_ended(peer: _Connection) -> bool:
    return peer.reader.at_eof() or (
        peer.ends_at is not None and asyncio.get_running_loop().time() > peer.ends_at
    )


def _address(state: "NodeState", listener: str) -> tuple[str, int]:
    """Return the address that clients of a listener get, else the one from which the broker reaches
    the controller. A broker without a listener of that name has only its first.
    """
    for other in state.other_listeners:
        if other.name == listener:
            return other.host or state.machine_host, other.port
    return state.host or state.machine_host, state.port

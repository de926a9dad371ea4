"""Send requests to other brokers over the Kafka protocol, on `inter.broker.listener.name` if set.

There is one connection per broker incarnation, which is opened on demand and dropped at the first
error. The caller must ensure that only one request is in flight. Requests are not retried, and
responses are not interpreted. See Kafka's InterBrokerSendThread.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.base.ids import NodeEpoch, NodeId
from penstock.broker.security.peers import PeerAccess
from penstock.protocol.apis import ApiSpec
from penstock.protocol.client.async_connection import AsyncConnection

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage
    from penstock.controller.metadata.nodes import NodeState

CONNECT_TIMEOUT_S: Final = 3.0
"""Timeout for connecting, including the TLS handshake and SASL authentication."""
_RETRY_S: Final = 0.002
_T = TypeVar("_T")


class PeerGone(Exception):
    """Raised when the broker is no longer in the metadata."""


class PeerConnections:
    """Connections to other brokers. access: how to connect; None if no listener uses TLS or
    SASL.
    """

    def __init__(
        self, image: "Callable[[], MetadataImage]", access: PeerAccess | None = None
    ) -> None:
        self._image = image
        self._access = access
        self._peers: dict[NodeId, tuple[NodeEpoch, AsyncConnection]] = {}

    async def send_request(
        self, node_id: NodeId, api: ApiSpec, version: int, request: object, kind: type[_T]
    ) -> _T:
        """Send a request message of this API and return the response, decoded as `kind`. There is
        no timeout; the caller must cancel. Raises PeerGone, OSError, EOFError, WireError.
        """
        peer = await self._connect(node_id)
        try:
            return await peer.send_request(api, request, kind, version=version)
        except BaseException:
            # Also drop the connection after a timeout, because a late response would be mistaken
            # for the response to the next request.
            self._drop(node_id)
            raise

    async def wait_closed(self, node_id: NodeId) -> None:
        """Connect if necessary, and return after the broker has closed the connection or its
        process has ended. Raises PeerGone, OSError, EOFError, WireError if it cannot connect.
        """
        peer = await self._connect(node_id)
        try:
            await peer.wait_closed()
        finally:
            self._drop(node_id)

    def has_broken(self) -> bool:
        """Return whether any connection has broken, even if the event loop has not processed that
        yet. This takes one system call, and 2 us per connection.
        """
        poll = select.poll()
        for _, peer in self._peers.values():
            if peer.is_broken:
                return True
            poll.register(peer.fileno(), select.POLLIN)
        # Brokers send nothing unsolicited, so a readable connection has ended.
        return bool(poll.poll(0))

    async def refuses(self, node_id: NodeId, *, patience_s: float = 0.0) -> bool:
        """Return whether all addresses of the broker refuse connections. Return False if one
        accepts, or fails to respond within CONNECT_TIMEOUT_S. Raises PeerGone.

        patience_s: how long to keep trying an address after a connection breaks, because a dying
        process may accept a connection and reset it a moment later, when its listener closes.
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
        except OSError:  # includes timeouts
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

    async def _connect(self, node_id: NodeId) -> AsyncConnection:
        state = self._state(node_id)
        epoch, peer = self._peers.get(node_id, (None, None))
        if peer is not None and epoch == state.node_epoch and not peer.has_ended:
            return peer
        self._drop(node_id)
        access = self._access
        host, port = self._address(node_id)
        tls = None if access is None else access.tls()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            login = None if access is None else access.login()
            peer = await AsyncConnection.open(host, port, tls=tls, login=login)
        self._peers[node_id] = state.node_epoch, peer
        return peer

    def _drop(self, node_id: NodeId) -> None:
        _, peer = self._peers.pop(node_id, (None, None))
        if peer is not None:
            peer.abort()


async def _refuses(kind: tuple[int, int, int], address: tuple[Any, ...], ends_at: float) -> bool:
    """Connect, and return True if the connection is refused. Otherwise, return False when the
    connection breaks, or at `ends_at` (`loop.time()`). Raises OSError.
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
            pass  # a closing listener resets the connections that it has not accepted yet
        return False


def _address(state: "NodeState", listener: str) -> tuple[str, int]:
    """Return the advertised address of the listener, or of the first listener if no other one has
    this name. An empty host is replaced by the address from which the broker connects to the
    controller.
    """
    for other in state.other_listeners:
        if other.name == listener:
            return other.host or state.machine_host, other.port
    return state.host or state.machine_host, state.port

"""Ask other brokers, over the Kafka protocol at their client addresses.

Invariants: one connection per broker incarnation, opened on demand and dropped at the first error.
One request on it at a time (the caller ensures that). A larger answer than ANSWER_BYTES_MAX is
invalid.
Must not: retry, or interpret answers.
Source: Kafka InterBrokerSendThread.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from base.ids import NodeEpoch, NodeId
from broker.wire import framing
from broker.wire.apis import ApiSpec
from broker.wire.codecs import CODECS

if TYPE_CHECKING:
    from controller.metadata.image import MetadataImage
    from controller.metadata.nodes import NodeState

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 3.0
_T = TypeVar("_T")


class PeerGone(Exception):
    """Raised when the broker is not in the metadata any more."""


@dataclass(slots=True)
class _Connection:
    node_epoch: NodeEpoch
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    correlation_id: int = 0


class PeerConnections:
    def __init__(self, image: "Callable[[], MetadataImage]") -> None:
        self._image = image
        self._peers: dict[NodeId, _Connection] = {}

    async def ask(
        self, node_id: NodeId, api: ApiSpec, version: int, request: object, kind: type[_T]
    ) -> _T:
        """Send a request message of this API and return the response message, which is of this
        kind. No time limit here: the caller cancels. Raises PeerGone, OSError, EOFError, WireError.
        """
        codec = CODECS[api.key]
        peer = await self._connect(node_id)
        try:
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
            response = framing.decode_body(codec.decode_response, frame, body_offset, version)
            assert isinstance(response, kind)
            return response
        except BaseException:
            # Also after a timeout: a late answer must not be taken for that of the next request.
            self._drop(node_id)
            raise

    def close(self) -> None:
        for node_id in list(self._peers):
            self._drop(node_id)

    async def _connect(self, node_id: NodeId) -> _Connection:
        state = self._image().nodes.get(node_id)
        if state is None:
            self._drop(node_id)
            raise PeerGone(f"broker {node_id} is not registered")
        peer = self._peers.get(node_id)
        if peer is not None and peer.node_epoch == state.node_epoch and not peer.reader.at_eof():
            return peer
        self._drop(node_id)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(_host(state), state.port)
        peer = self._peers[node_id] = _Connection(state.node_epoch, reader, writer)
        return peer

    def _drop(self, node_id: NodeId) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.writer.transport.abort()


def _host(state: "NodeState") -> str:
    """Return the address that clients get, else the one from which the broker reaches the
    controller.
    """
    return state.host or state.machine_host

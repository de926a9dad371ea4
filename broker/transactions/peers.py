"""Send WriteTxnMarkers to other brokers, over the Kafka protocol at their client addresses. Markers
for this broker need no socket.

Invariants: one connection per broker incarnation, opened on demand and dropped at the first error.
One request on it at a time (the caller ensures that). A larger answer than ANSWER_BYTES_MAX is
invalid.
Must not: retry, or interpret errors.
Source: Kafka InterBrokerSendThread, WriteTxnMarkersRequest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from base.buffers import Buffer
from base.ids import NodeEpoch, NodeId
from broker.partition.local_broker import LocalBroker
from broker.transactions.markers import Target
from broker.transactions.model import TopicPartition
from broker.transactions.records import group_by_topic
from broker.wire import apis, framing
from broker.wire.error_codes import ErrorCode
from broker.wire.gen import write_txn_markers
from controller.metadata.nodes import NodeState
from stream.batch.control import Marker

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 3.0
_VERSION: Final = 1
_API: Final = apis.WRITE_TXN_MARKERS

WriteLocally: TypeAlias = Callable[
    [Marker, Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, ErrorCode]]
]
"""Writes markers here, as the handler of WriteTxnMarkers does for other brokers. It appends before
it returns, so that several share a bulk.
"""


Codes: TypeAlias = Mapping[tuple[int, TopicPartition], int]
"""Error codes by producer id and partition."""


class PeerGone(Exception):
    """Raised when the broker is not in the metadata any more."""


@dataclass(slots=True)
class _Peer:
    node_epoch: NodeEpoch
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    correlation_id: int = 0


class MarkerPeers:
    """Implements `broker.transactions.markers.Write` over the brokers of the image."""

    def __init__(self, node: LocalBroker, write_locally: WriteLocally) -> None:
        self._node = node
        self._write_locally = write_locally
        self._peers: dict[NodeId, _Peer] = {}

    async def write(self, node_id: NodeId, targets: Sequence[Target]) -> Mapping[Target, int]:
        """Write the markers at one broker. Raises PeerGone, OSError, EOFError, WireError."""
        wanted: dict[Marker, list[TopicPartition]] = {}
        for target in targets:
            wanted.setdefault(target.marker, []).append(target.partition)
        codes = (
            await self._write_here(wanted)
            if node_id == self._node.node_id
            else _codes(await self._send(node_id, _request(wanted)))
        )
        found = [
            (target, codes.get((target.marker.producer_id, target.partition))) for target in targets
        ]
        return {target: code for target, code in found if code is not None}

    def close(self) -> None:
        for node_id in list(self._peers):
            self._drop(node_id)

    async def _write_here(self, wanted: Mapping[Marker, Sequence[TopicPartition]]) -> Codes:
        started = [
            (marker, self._write_locally(marker, partitions))
            for marker, partitions in wanted.items()
        ]
        return {
            (marker.producer_id, partition): code
            for marker, codes in started
            for partition, code in (await codes).items()
        }

    async def _send(
        self, node_id: NodeId, request: write_txn_markers.WriteTxnMarkersRequest
    ) -> write_txn_markers.WriteTxnMarkersResponse:
        peer = await self._connect(node_id)
        try:
            peer.correlation_id += 1
            peer.writer.write(
                framing.encode_request_frame(
                    _API, _VERSION, peer.correlation_id, write_txn_markers.encode_request, request
                )
            )
            await peer.writer.drain()
            size_bytes = framing.frame_size_bytes(
                await peer.reader.readexactly(framing.SIZE_BYTES), ANSWER_BYTES_MAX
            )
            return _decode(await peer.reader.readexactly(size_bytes))
        except BaseException:
            # Also after a timeout: a late answer must not be taken for that of the next request.
            self._drop(node_id)
            raise

    async def _connect(self, node_id: NodeId) -> _Peer:
        state = self._node.image.nodes.get(node_id)
        if state is None:
            self._drop(node_id)
            raise PeerGone(f"broker {node_id} is not registered")
        peer = self._peers.get(node_id)
        if peer is not None and peer.node_epoch == state.node_epoch and not peer.reader.at_eof():
            return peer
        self._drop(node_id)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(_host(state), state.port)
        peer = self._peers[node_id] = _Peer(state.node_epoch, reader, writer)
        return peer

    def _drop(self, node_id: NodeId) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.writer.transport.abort()


def _host(state: NodeState) -> str:
    """Return the address that clients get, else the one from which the broker reaches the
    controller.
    """
    return state.host or state.machine_host


def _request(
    wanted: Mapping[Marker, Sequence[TopicPartition]],
) -> write_txn_markers.WriteTxnMarkersRequest:
    markers = [
        write_txn_markers.WritableTxnMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.committed,
            [
                write_txn_markers.WritableTxnMarkerTopic(name, indexes)
                for name, indexes in group_by_topic(partitions).items()
            ],
            marker.coordinator_epoch,
            marker.serial,
        )
        for marker, partitions in wanted.items()
    ]
    return write_txn_markers.WriteTxnMarkersRequest(markers)


def _decode(frame: Buffer) -> write_txn_markers.WriteTxnMarkersResponse:
    _, body_offset = framing.parse_response_header(_API, _VERSION, frame)
    return framing.decode_body(write_txn_markers.decode_response, frame, body_offset, _VERSION)


def _codes(response: write_txn_markers.WriteTxnMarkersResponse) -> Codes:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }

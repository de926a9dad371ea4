"""Send WriteTxnMarkers to other brokers. Markers for this broker need no socket.

Invariant: one request to a broker at a time (the caller ensures that).
Must not: retry, or interpret errors.
Source: Kafka InterBrokerSendThread, WriteTxnMarkersRequest.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from base.ids import NodeId
from broker.partition.local_broker import LocalBroker
from broker.transactions.markers import Target
from broker.transactions.model import TopicPartition
from broker.transactions.records import group_by_topic
from broker.wire import apis
from broker.wire.error_codes import ErrorCode
from broker.wire.gen import write_txn_markers
from stream.batch.control import Marker

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


class MarkerPeers:
    """Implements `broker.transactions.markers.Write` over the brokers of the image."""

    def __init__(self, node: LocalBroker, write_locally: WriteLocally) -> None:
        self._node = node
        self._write_locally = write_locally
        self._peers = node.connect_peers()

    async def write(self, node_id: NodeId, targets: Sequence[Target]) -> Mapping[Target, int]:
        """Write the markers at one broker. Raises PeerGone, OSError, EOFError, WireError."""
        wanted: dict[Marker, list[TopicPartition]] = {}
        for target in targets:
            wanted.setdefault(target.marker, []).append(target.partition)
        codes = (
            await self._write_here(wanted)
            if node_id == self._node.node_id
            else _codes(
                await self._peers.ask(
                    node_id,
                    _API,
                    _VERSION,
                    _request(wanted),
                    write_txn_markers.WriteTxnMarkersResponse,
                )
            )
        )
        found = [
            (target, codes.get((target.marker.producer_id, target.partition))) for target in targets
        ]
        return {target: code for target, code in found if code is not None}

    def close(self) -> None:
        self._peers.close()

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
            serial=marker.serial,
        )
        for marker, partitions in wanted.items()
    ]
    return write_txn_markers.WriteTxnMarkersRequest(markers)


def _codes(response: write_txn_markers.WriteTxnMarkersResponse) -> Codes:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }

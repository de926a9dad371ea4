"""Send WriteTxnMarkers and AddPartitionsToTxn to other brokers, without retries. Requests to this
broker itself do not use a socket. The caller must send only one request at a time to each broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import structlog

from penstock.base.ids import NodeId
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.transactions.markers import Target
from penstock.broker.transactions.model import Membership, TopicPartition
from penstock.broker.transactions.records import group_by_topic
from penstock.protocol import apis
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import add_partitions_to_txn, write_txn_markers

log = structlog.get_logger(__name__)

_VERSION: Final = 2
_API: Final = apis.WRITE_TXN_MARKERS
_ADD_VERSION: Final = 5

_Versioned: TypeAlias = tuple[Marker, int]
"""A marker, and the version of its transaction."""
WriteLocally: TypeAlias = Callable[
    [Marker, Sequence[TopicPartition], int], Awaitable[Mapping[TopicPartition, ErrorCode]]
]
"""Writes markers of a transaction with this version to partitions of this broker, like the
WriteTxnMarkers handler. It appends before it returns, so that several markers share a WAL object.
"""


Codes: TypeAlias = Mapping[tuple[int, TopicPartition], int]
"""Error codes by producer id and partition."""


class MarkerPeers:
    """Implements `broker.transactions.markers.Write` with the brokers of the image."""

    def __init__(self, node: LocalBroker, write_locally: WriteLocally) -> None:
        self._node = node
        self._write_locally = write_locally
        self._peers = node.connect_peers()

    async def write(self, node_id: NodeId, targets: Sequence[Target]) -> Mapping[Target, int]:
        """Write the markers at one broker. Raises PeerGone, OSError, EOFError, WireError."""
        wanted: dict[_Versioned, list[TopicPartition]] = {}
        for target in targets:
            wanted.setdefault((target.marker, target.version), []).append(target.partition)
        codes = (
            await self._write_here(wanted)
            if node_id == self._node.node_id
            else _codes(
                await self._peers.send_request(
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

    async def _write_here(self, wanted: Mapping[_Versioned, Sequence[TopicPartition]]) -> Codes:
        started = [
            (marker, self._write_locally(marker, partitions, version))
            for (marker, version), partitions in wanted.items()
        ]
        return {
            (marker.producer_id, partition): code
            for marker, codes in started
            for partition, code in (await codes).items()
        }


RespondLocally: TypeAlias = Callable[
    [Membership, Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, ErrorCode]]
]
"""Responds for a transaction that this broker coordinates, as
`TransactionCoordinator.respond_to_leader` does.
"""


class CoordinatorPeers:
    """Implements `broker.transactions.verifier.Ask` with the brokers of the image.

    It uses separate connections, because a response may wait until a marker is written.
    """

    def __init__(self, node: LocalBroker, respond_locally: RespondLocally) -> None:
        self._node = node
        self._respond_locally = respond_locally
        self._peers = node.connect_peers()

    async def send_request(
        self, node_id: NodeId, wanted: Mapping[Membership, Sequence[TopicPartition]]
    ) -> Mapping[tuple[str, TopicPartition], ErrorCode]:
        """Send a request to one broker. If it rejects the whole request, the error applies to every
        partition. Raises PeerGone, OSError, EOFError, WireError.
        """
        if node_id == self._node.node_id:
            responses = await asyncio.gather(
                *(self._respond_locally(item, partitions) for item, partitions in wanted.items())
            )
            return {
                (item.transactional_id, partition): code
                for item, codes in zip(wanted, responses, strict=True)
                for partition, code in codes.items()
            }
        response = await self._peers.send_request(
            node_id,
            apis.ADD_PARTITIONS_TO_TXN,
            _ADD_VERSION,
            _add_request(wanted),
            add_partitions_to_txn.AddPartitionsToTxnResponse,
        )
        if response.error_code:
            code = known_code(response.error_code)
            log.warning("coordinator_rejected_request", node_id=node_id, error=code.name)
            if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                # This broker lacks a permission, not the producer. Kafka converts the code in the
                # same way.
                code = ErrorCode.INVALID_TXN_STATE
            return {
                (item.transactional_id, partition): code
                for item, partitions in wanted.items()
                for partition in partitions
            }
        return {
            (item.transactional_id, (topic.name, partition.partition_index)): known_code(
                partition.partition_error_code
            )
            for item in response.results_by_transaction
            for topic in item.topic_results
            for partition in topic.results_by_partition
        }

    def close(self) -> None:
        self._peers.close()


def _add_request(
    wanted: Mapping[Membership, Sequence[TopicPartition]],
) -> add_partitions_to_txn.AddPartitionsToTxnRequest:
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        [
            add_partitions_to_txn.AddPartitionsToTxnTransaction(
                item.transactional_id,
                item.producer.producer_id,
                item.producer.producer_epoch,
                not item.adds,
                [
                    add_partitions_to_txn.AddPartitionsToTxnTopic(name, indexes)
                    for name, indexes in group_by_topic(partitions).items()
                ],
            )
            for item, partitions in wanted.items()
        ]
    )


def _request(
    wanted: Mapping[_Versioned, Sequence[TopicPartition]],
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
            version,
            serial=marker.serial,
        )
        for (marker, version), partitions in wanted.items()
    ]
    return write_txn_markers.WriteTxnMarkersRequest(markers)


def _codes(response: write_txn_markers.WriteTxnMarkersResponse) -> Codes:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }

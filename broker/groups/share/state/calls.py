"""`ShareStateStore` calls as objects, and the corresponding Kafka requests.

Each call runs at a coordinator on this broker, or is batched with other calls of the same kind and
group and sent to another broker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from penstock.base.ids import NodeId
from penstock.broker.groups.share.state.model import (
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateStore,
    ShareStateSummary,
    StateBatch,
)
from penstock.broker.network.peers import PeerConnections
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import delete_share_group_state as deleting
from penstock.protocol.gen import initialize_share_group_state as initializing
from penstock.protocol.gen import read_share_group_state as reading
from penstock.protocol.gen import read_share_group_state_summary as summing
from penstock.protocol.gen import write_share_group_state as writing

_WRITE_VERSION: Final = 1
_SUMMARY_VERSION: Final = 1
_Result = TypeVar("_Result")
_T_co = TypeVar("_T_co", covariant=True)
_C = TypeVar("_C", bound="Call[Any]")


class Call(Protocol, Generic[_T_co]):
    @property
    def key(self) -> SharePartitionKey: ...

    async def run(self, store: ShareStateStore) -> _T_co:
        """Run the call at the coordinator on this broker. Raises ShareStateError."""
        ...

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence[Any]
    ) -> Sequence[_T_co | ShareStateError]:
        """Send calls of this kind for one group in one request. Return their results in order.
        Raises the errors of `PeerConnections.send_request`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadCall:
    key: SharePartitionKey
    leader_epoch: int

    async def run(self, store: ShareStateStore) -> ShareState:
        return await store.read(self.key, self.leader_epoch)

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence["ReadCall"]
    ) -> Sequence[ShareState | ShareStateError]:
        request = reading.ReadShareGroupStateRequest(
            self.key.group_id,
            [
                reading.ReadStateData(
                    topic_id,
                    [reading.PartitionData(call.key.partition, call.leader_epoch) for call in some],
                )
                for topic_id, some in _by_topic(calls).items()
            ],
        )
        response = await peers.send_request(
            node_id,
            apis.READ_SHARE_GROUP_STATE,
            0,
            request,
            reading.ReadShareGroupStateResponse,
        )
        found = _by_partition(response.results)
        return [_result(call, found, _state_of(call.leader_epoch)) for call in calls]


def _state_of(leader_epoch: int) -> Callable[[reading.PartitionResult], ShareState]:
    def decode(result: reading.PartitionResult) -> ShareState:
        batches = tuple(
            StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
            for b in result.state_batches
        )
        return ShareState(result.state_epoch, result.start_offset, leader_epoch, batches)

    return decode


@dataclass(frozen=True, slots=True)
class WriteCall:
    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]

    async def run(self, store: ShareStateStore) -> None:
        await store.write(
            self.key,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.delivery_complete_count,
            batches=self.batches,
        )

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence["WriteCall"]
    ) -> Sequence[ShareStateError | None]:
        request = writing.WriteShareGroupStateRequest(
            self.key.group_id,
            [
                writing.WriteStateData(topic_id, [call.encode() for call in some])
                for topic_id, some in _by_topic(calls).items()
            ],
        )
        response = await peers.send_request(
            node_id,
            apis.WRITE_SHARE_GROUP_STATE,
            _WRITE_VERSION,
            request,
            writing.WriteShareGroupStateResponse,
        )
        found = _by_partition(response.results)
        return [_result(call, found, _nothing) for call in calls]

    def encode(self) -> writing.PartitionData:
        return writing.PartitionData(
            self.key.partition,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.delivery_complete_count,
            [
                writing.StateBatch(
                    b.first_offset, b.last_offset, b.delivery_state, b.delivery_count
                )
                for b in self.batches
            ],
        )


@dataclass(frozen=True, slots=True)
class InitializeCall:
    key: SharePartitionKey
    state_epoch: int
    start_offset: int

    async def run(self, store: ShareStateStore) -> None:
        await store.initialize(
            self.key, state_epoch=self.state_epoch, start_offset=self.start_offset
        )

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence["InitializeCall"]
    ) -> Sequence[ShareStateError | None]:
        request = initializing.InitializeShareGroupStateRequest(
            self.key.group_id,
            [
                initializing.InitializeStateData(
                    topic_id,
                    [
                        initializing.PartitionData(
                            call.key.partition, call.state_epoch, call.start_offset
                        )
                        for call in some
                    ],
                )
                for topic_id, some in _by_topic(calls).items()
            ],
        )
        response = await peers.send_request(
            node_id,
            apis.INITIALIZE_SHARE_GROUP_STATE,
            0,
            request,
            initializing.InitializeShareGroupStateResponse,
        )
        found = _by_partition(response.results)
        return [_result(call, found, _nothing) for call in calls]


@dataclass(frozen=True, slots=True)
class DeleteCall:
    key: SharePartitionKey
    state_epoch: int

    async def run(self, store: ShareStateStore) -> None:
        await store.delete(self.key, state_epoch=self.state_epoch)

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence["DeleteCall"]
    ) -> Sequence[ShareStateError | None]:
        request = deleting.DeleteShareGroupStateRequest(
            self.key.group_id,
            [
                deleting.DeleteStateData(
                    topic_id,
                    [deleting.PartitionData(call.key.partition, call.state_epoch) for call in some],
                )
                for topic_id, some in _by_topic(calls).items()
            ],
        )
        response = await peers.send_request(
            node_id,
            apis.DELETE_SHARE_GROUP_STATE,
            0,
            request,
            deleting.DeleteShareGroupStateResponse,
        )
        found = _by_partition(response.results)
        return [_result(call, found, _nothing) for call in calls]


@dataclass(frozen=True, slots=True)
class SummaryCall:
    key: SharePartitionKey
    leader_epoch: int = -1

    async def run(self, store: ShareStateStore) -> ShareStateSummary:
        return await store.summary(self.key, self.leader_epoch)

    async def send(
        self, peers: PeerConnections, node_id: NodeId, calls: Sequence["SummaryCall"]
    ) -> Sequence[ShareStateSummary | ShareStateError]:
        request = summing.ReadShareGroupStateSummaryRequest(
            self.key.group_id,
            [
                summing.ReadStateSummaryData(
                    topic_id,
                    [
                        summing.PartitionData(call.key.partition, call.leader_epoch, deletions=True)
                        for call in some
                    ],
                )
                for topic_id, some in _by_topic(calls).items()
            ],
        )
        response = await peers.send_request(
            node_id,
            apis.READ_SHARE_GROUP_STATE_SUMMARY,
            _SUMMARY_VERSION,
            request,
            summing.ReadShareGroupStateSummaryResponse,
        )
        found = _by_partition(response.results)
        return [_result(call, found, _summary) for call in calls]


def _summary(result: summing.PartitionResult) -> ShareStateSummary:
    return ShareStateSummary(
        result.state_epoch,
        result.leader_epoch,
        result.start_offset,
        result.delivery_complete_count,
        result.deleted_epoch,
    )


# --- common parts of requests and responses ---------------------------------------------------


def elements_count(call: Call[Any]) -> int:
    """Return the maximum number of array elements that the call adds to a request."""
    return 2 + (len(call.batches) if isinstance(call, WriteCall) else 0)


def _nothing(result: object) -> None:
    """Decode the response of a call without a result."""


def _by_topic(calls: Iterable[_C]) -> dict[UUID, list[_C]]:
    found: dict[UUID, list[_C]] = {}
    for call in calls:
        found.setdefault(call.key.topic_id, []).append(call)
    return found


def _by_partition(results: Iterable[Any]) -> dict[tuple[UUID, int], Any]:
    return {
        (result.topic_id, partition.partition): partition
        for result in results
        for partition in result.partitions
    }


def _result(
    call: Call[Any],
    found: Mapping[tuple[UUID, int], Any],
    decode: Callable[[Any], _Result],
) -> _Result | ShareStateError:
    result = found.get((call.key.topic_id, call.key.partition))
    if result is None:
        return ShareStateError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no result for {call.key.coordinator_key}"
        )
    if result.error_code:
        return ShareStateError(known_code(result.error_code), result.error_message or "")
    return decode(result)

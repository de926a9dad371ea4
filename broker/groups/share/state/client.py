"""Read and write the states of share partitions at their share coordinators: directly if this
broker is the coordinator, otherwise over the Kafka protocol.
"""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import SHARE_STATES_TOPIC, ensure_topic
from penstock.broker.groups.share.state.calls import (
    Call,
    DeleteCall,
    InitializeCall,
    ReadCall,
    SummaryCall,
    WriteCall,
    elements_count,
)
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
)
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.partition.local_broker import LocalBroker
from penstock.controller.api.errors import ControllerError
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.errors import WireError

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage

STORE_TIMEOUT_S: Final = 15.0
"""How long a call is retried: longer than a failover takes."""
REQUEST_TIMEOUT_S: Final = 5.0
LANES_COUNT: Final = 8
CALLS_MAX: Final = 1_000
"""Maximum number of calls in one request."""
ELEMENTS_MAX: Final = 2_000
"""No more calls are added to a request with at least this many array elements.
`protocol.request_limits` allows 4,000. Writes may have more: the maximum number of records that a
group may have in flight per partition is added to the limit.
"""
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_REPEATED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
_T = TypeVar("_T")
Waiting: TypeAlias = tuple[Call[Any], "asyncio.Future[Any]"]
_UNREACHABLE: Final = (PeerGone, OSError, EOFError, WireError, TimeoutError)


@dataclass(slots=True, eq=False)
class _Lane:
    """One connection, and the calls that are queued for it."""

    peers: PeerConnections
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    worker: "asyncio.Task[None] | None" = None


class RoutedShareStates:
    """Implements `ShareStateStore` with the brokers of the image.

    Each connection has at most one request in flight, and queued calls for the same broker and
    group share a request. A call is retried until it succeeds, is rejected, or `STORE_TIMEOUT_S`
    has passed. Late copies of old writes are harmless (`broker.groups.share.state.machine`).
    """

    def __init__(self, node: LocalBroker, local: ShareCoordinator) -> None:
        self._node = node
        self._local = local
        self._lanes: dict[tuple[NodeId, int], _Lane] = {}

    def close(self) -> None:
        for lane in self._lanes.values():
            if lane.worker is not None:
                lane.worker.cancel()
            lane.peers.close()
        self._lanes.clear()

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """See `ShareStateStore`, as for the other methods."""
        return await self._call(ReadCall(key, leader_epoch))

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        await self._call(
            WriteCall(
                key,
                state_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                tuple(batches),
            )
        )

    async def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> None:
        await self._call(InitializeCall(key, state_epoch, start_offset))

    async def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> None:
        await self._call(DeleteCall(key, state_epoch))

    async def summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        return await self._call(SummaryCall(key, leader_epoch))

    # --- one call ---------------------------------------------------------------------------------

    async def _call(self, call: Call[_T]) -> _T:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + STORE_TIMEOUT_S, _PAUSE_MIN_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._attempt(call)
            except ShareStateError as error:
                refused = error
            except (*_UNREACHABLE, ControllerError) as error:
                refused = ShareStateError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            if not self._may_pass(refused, call.key) or loop.time() + pause_s >= deadline:
                raise refused
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _may_pass(self, refused: ShareStateError, key: SharePartitionKey) -> bool:
        """Return True if a retry may succeed."""
        if refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # The metadata image of the coordinator may not contain the topic yet.
            topic = self._image.topics.by_id(key.topic_id)
            return topic is not None and key.partition < len(topic.partitions)
        return refused.code in _REPEATED

    @property
    def _image(self) -> "MetadataImage":
        return self._node.image

    async def _attempt(self, call: Call[_T]) -> _T:
        node_id = await self._coordinator_of(call.key)
        if node_id == self._node.node_id:
            return await call.run(self._local)
        number = zlib.crc32(call.key.group_id.encode()) % LANES_COUNT
        lane = self._lanes.get((node_id, number))
        if lane is None:
            lane = self._lanes[node_id, number] = _Lane(self._node.connect_peers())
        response: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        lane.waiting.append((call, response))
        if lane.worker is None or lane.worker.done():
            lane.worker = asyncio.get_running_loop().create_task(self._work(node_id, lane))
        return await response

    async def _coordinator_of(self, key: SharePartitionKey) -> NodeId:
        await ensure_topic(self._node, SHARE_STATES_TOPIC)
        partition = self._local.partition_of(key.coordinator_key)
        topic = self._image.topics.by_name(SHARE_STATES_TOPIC)
        leader = (
            None
            if partition is None or topic is None
            else announced_leader(self._image, topic.partitions[partition], self._node.gone)
        )
        if leader is None:
            raise ShareStateError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {SHARE_STATES_TOPIC} for {key.coordinator_key} has no leader",
            )
        return leader.node_id

    # --- requests ---------------------------------------------------------------------------------

    async def _work(self, node_id: NodeId, lane: _Lane) -> None:
        """Send the queued calls until none are left."""
        while lane.waiting:
            chosen, lane.waiting = _next_request(lane.waiting)
            if chosen:
                await self._send(node_id, lane, chosen)

    async def _send(self, node_id: NodeId, lane: _Lane, chosen: Sequence[Waiting]) -> None:
        calls = [call for call, _ in chosen]
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                responses = await calls[0].send(lane.peers, node_id, calls)
        except _UNREACHABLE as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            responses = [ShareStateError(code, f"broker {node_id}: {error}")] * len(calls)
        for (_, waiter), response in zip(chosen, responses, strict=True):
            if waiter.done():
                continue
            if isinstance(response, ShareStateError):
                waiter.set_exception(response)
            else:
                waiter.set_result(response)


def _next_request(waiting: Sequence[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    """Return the calls of the next request, which have the same kind and group, and the remaining
    calls. Abandoned calls are dropped.
    """
    first = waiting[0][0]
    chosen: list[Waiting] = []
    later: list[Waiting] = []
    sent_count = 0
    for item in waiting:
        call, response = item
        if response.done():
            continue
        is_alike = type(call) is type(first) and call.key.group_id == first.key.group_id
        if is_alike and len(chosen) < CALLS_MAX and sent_count < ELEMENTS_MAX:
            chosen.append(item)
            sent_count += elements_count(call)
        else:
            later.append(item)
    return chosen, later

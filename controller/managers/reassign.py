"""Start planned leadership changes: reassignments, preferred elections and draining. Each of them
ends with an election. See docs/design/moves-and-failover.md.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from penstock.base.ids import Millis, NodeId
from penstock.controller.api.load_messages import LeaderMove, MoveLeaders
from penstock.controller.api.messages import (
    AlterReassignments,
    DrainBroker,
    ElectPreferred,
    ItemResult,
    ItemResults,
    PartitionName,
    PartitionTarget,
    Progress,
    Status,
)
from penstock.controller.managers.checks import check_count, check_node
from penstock.controller.managers.elections import (
    ELECTIONS_PER_TRANSACTION_MAX,
    Elector,
    has_open_stream,
)
from penstock.controller.managers.placement import REPLICATION_FACTOR_MAX
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Move, PartitionRecord, Record
from penstock.controller.metadata.topics import NO_LEADER, PartitionKey, in_order, is_reassigning
from penstock.stream.ports import BrokerIncarnation

MOVES_MAX = ELECTIONS_PER_TRANSACTION_MAX


class Mover:
    """Starts the moves of one transaction.

    A moving partition has no leader until its streams are closed. The transaction that closes the
    last stream elects the next leader (`commits`, or `failover` if the source is dead), so that two
    brokers never write at the same time. Moves have a timeout, after which the active controller
    fences the brokers in `sources_of` (`controller.active.periodic`). Moving a partition again
    during a move only changes the target.
    """

    def __init__(
        self, image: MetadataImage, live: Collection[NodeId], now_ms: Millis, timeout_ms: int
    ) -> None:
        self.image = image
        self.elector = Elector(image, live)
        self.records: list[Record] = []
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms

    def to(
        self, partition: PartitionRecord, replicas: tuple[NodeId, ...], wanted: tuple[NodeId, ...]
    ) -> None:
        """Change the leader and the candidates. `replicas` are the next candidates. The first
        eligible broker in `wanted` becomes the leader; if there is none, any broker.

        If no stream is open (the source was elected but has not opened any), the election takes
        place immediately.
        """
        changed = msgspec.structs.replace(
            partition, target_replicas=replicas, move=self._move(partition, wanted)
        )
        if has_open_stream(self.image, partition) or not self.elector.eligible:
            self.records.append(
                msgspec.structs.replace(
                    changed, leader=NO_LEADER.node_id, leader_node_epoch=NO_LEADER.node_epoch
                )
            )
        else:
            self.records.append(self.elector.elect(changed, self._now_ms))

    def _move(self, partition: PartitionRecord, wanted: tuple[NodeId, ...]) -> Move:
        target = self.elector.choose(wanted).node_id
        if partition.target_replicas is not None and partition.move is not None:
            return msgspec.structs.replace(partition.move, target=target)
        return Move(partition.leader, target, self._now_ms, Millis(self._now_ms + self._timeout_ms))


class _Named(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


_Item = TypeVar("_Item", bound=_Named)


def _one_by_one(
    mover: Mover, name: str, wanted: Sequence[_Item], act: Callable[[Mover, _Item], None]
) -> Result[ItemResults]:
    """Apply `act` to each partition and return one result per partition. Rejected and duplicate
    partitions do not affect the others. Reject all moves if there are more than `MOVES_MAX`. name:
    name of the list in the request.
    """
    try:
        check_count(name, len(wanted), MOVES_MAX)
    except Refused as refused:
        return refused.result()
    counts = Counter((item.topic, item.partition) for item in wanted)
    items: list[ItemResult] = []
    for item in wanted:
        try:
            _check_once(counts[item.topic, item.partition], item.topic, item.partition)
            act(mover, item)
            items.append(ItemResult())
        except Refused as refused:
            items.append(ItemResult(status=refused.status, detail=refused.detail))
    return Result(mover.records, value=ItemResults(items=items))


def alter_reassignments(
    image: MetadataImage,
    request: AlterReassignments,
    now_ms: Millis,
    *,
    live: Collection[NodeId],
    timeout_ms: int,
) -> Result[ItemResults]:
    """Change candidates. The leader moves only if it is not among the new candidates. A retry
    succeeds without records.
    """
    alter = partial(_alter, may_resize=request.may_resize)
    mover = Mover(image, live, now_ms, timeout_ms)
    return _one_by_one(mover, "partitions", request.partitions, alter)


def elect_preferred(
    image: MetadataImage,
    request: ElectPreferred,
    now_ms: Millis,
    *,
    live: Collection[NodeId],
    timeout_ms: int,
) -> Result[ItemResults]:
    """Move partitions to their first candidates. A partition is rejected with ELECTION_NOT_NEEDED
    if the first candidate already leads it, or if the partition is already moving.
    """
    mover = Mover(image, live, now_ms, timeout_ms)
    return _one_by_one(mover, "partitions", request.partitions, _prefer)


def drain_broker(
    image: MetadataImage,
    request: DrainBroker,
    now_ms: Millis,
    *,
    live: Collection[NodeId],
    timeout_ms: int,
) -> Result[Progress]:
    """Move some partitions of the broker to other brokers, preferably to the candidates with the
    fewest partitions. Call again while any remain.
    """
    me = BrokerIncarnation(request.node_id, request.node_epoch)
    try:
        node = check_node(image, me)
        check_count("partitions", request.partitions_max, MOVES_MAX)
    except Refused as refused:
        return refused.result()
    others = [node_id for node_id in live if node_id != me.node_id]
    records: list[Record] = [] if node.draining else [msgspec.structs.replace(node, draining=True)]
    moves = relieve(
        image, me, now_ms, live=others, timeout_ms=timeout_ms, partitions_max=request.partitions_max
    )
    remaining = image.topics.led_count(me) - len(moves) if moves else 0
    return Result(records + moves, value=Progress(remaining=remaining))


def relieve(
    image: MetadataImage,
    me: BrokerIncarnation,
    now_ms: Millis,
    *,
    live: Collection[NodeId],
    timeout_ms: int,
    partitions_max: int,
) -> list[Record]:
    """Move some partitions of a broker to other brokers, preferably to the candidates with the
    fewest partitions. Return no records if no other broker is eligible.
    """
    mover = Mover(image, live, now_ms, timeout_ms)
    if not mover.elector.eligible:
        return []
    for key in nsmallest(partitions_max, image.topics.led_by(me), key=in_order):
        partition = image.topics.partition(key)
        if partition is not None:
            mover.to(partition, partition.replicas, mover.elector.by_load(partition.replicas))
    return mover.records


def move_leaders(
    image: MetadataImage,
    request: MoveLeaders,
    now_ms: Millis,
    *,
    live: Collection[NodeId],
    timeout_ms: int,
) -> Result[ItemResults]:
    """Make the moves of a balancing plan. Partitions that have changed since the plan, or that are
    moving, are rejected.
    """
    mover = Mover(image, live, now_ms, timeout_ms)
    return _one_by_one(mover, "moves", request.moves, _lead)


class MoveUnderWay(NamedTuple):
    """Identifies one move throughout its duration."""

    key: PartitionKey
    source: NodeId
    leader_epoch: int
    started_ms: Millis


def moves_under_way(image: MetadataImage) -> list[MoveUnderWay]:
    """Return the moves that are waiting for their source, in order. This takes O(partitions without
    a leader).
    """
    found: list[MoveUnderWay] = []
    for key in sorted(image.topics.led_by(NO_LEADER), key=in_order):
        partition = image.topics.partition(key)
        if (
            partition is not None
            and partition.target_replicas is not None
            and partition.move is not None
        ):
            found.append(
                MoveUnderWay(
                    key, partition.move.source, partition.leader_epoch, partition.move.started_ms
                )
            )
    return found


def sources_of(
    image: MetadataImage, moves: Iterable[MoveUnderWay]
) -> dict[BrokerIncarnation, PartitionKey]:
    """Return the live brokers with open streams of moving partitions, each with one such
    partition.
    """
    found: dict[BrokerIncarnation, PartitionKey] = {}
    for move in moves:
        partition = image.topics.partition(move.key)
        for stream_id in partition.stream_ids if partition is not None else ():
            stream = image.streams.get(stream_id)
            if stream is not None and stream.opened and image.nodes.is_alive(stream.owner):
                found.setdefault(stream.owner, move.key)
    return found


def _check_once(count: int, topic: str, partition: int) -> None:
    if count > 1:
        raise Refused(
            Status.DUPLICATE_IN_REQUEST, f"{topic}-{partition} is in the request {count} times"
        )


def _partition(image: MetadataImage, name: str, index: int) -> PartitionRecord:
    topic = image.topics.by_name(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise Refused(Status.UNKNOWN_TOPIC, f"there is no partition {name}-{index}")
    return topic.partitions[index]


def _alter(mover: Mover, item: PartitionTarget, *, may_resize: bool) -> None:
    partition = _partition(mover.image, item.topic, item.partition)
    if item.replicas is None:
        _cancel(mover, partition, f"{item.topic}-{item.partition}")
        return
    replicas = tuple(item.replicas)
    _check_replicas(mover, replicas)
    count = len(partition.target_replicas or partition.replicas)
    if not may_resize and len(replicas) != count:
        detail = f"the replication factor would change from {count} to {len(replicas)}"
        raise Refused(Status.INVALID_REPLICATION_FACTOR, detail)
    if partition.target_replicas is not None:
        if partition.target_replicas != replicas:
            mover.to(partition, replicas, replicas)
    elif partition.leader in replicas:
        if partition.replicas != replicas:
            mover.records.append(msgspec.structs.replace(partition, replicas=replicas))
    else:
        mover.to(partition, replicas, replicas)


def _cancel(mover: Mover, partition: PartitionRecord, name: str) -> None:
    """Move the partition back to the source, with a new leader epoch. The source may already be
    closing its streams, so they must be closed and opened again.
    """
    if not is_reassigning(partition) or partition.move is None:
        raise Refused(Status.NO_REASSIGNMENT, f"{name} is not being reassigned")
    mover.to(partition, partition.replicas, (partition.move.source, *partition.replicas))


def _prefer(mover: Mover, item: PartitionName) -> None:
    partition = _partition(mover.image, item.topic, item.partition)
    name = f"{item.topic}-{item.partition}"
    preferred = partition.replicas[0]
    if partition.target_replicas is not None:
        raise Refused(Status.ELECTION_NOT_NEEDED, f"{name} is moving already")
    if partition.leader == preferred:
        raise Refused(
            Status.ELECTION_NOT_NEEDED, f"{name} is already led by its preferred leader {preferred}"
        )
    if preferred not in mover.elector.eligible:
        raise Refused(
            Status.PREFERRED_NOT_AVAILABLE,
            f"the preferred leader {preferred} of {name} is not available",
        )
    mover.to(partition, partition.replicas, partition.replicas)


def _lead(mover: Mover, item: LeaderMove) -> None:
    partition = _partition(mover.image, item.topic, item.partition)
    name = f"{item.topic}-{item.partition}"
    if partition.target_replicas is not None:
        raise Refused(Status.ELECTION_NOT_NEEDED, f"{name} is moving already")
    if partition.leader != item.source or item.source == item.target:
        raise Refused(
            Status.ELECTION_NOT_NEEDED,
            f"{name} is led by broker {partition.leader}, not by {item.source}",
        )
    if item.target not in mover.elector.eligible:
        raise Refused(
            Status.PREFERRED_NOT_AVAILABLE,
            f"broker {item.target} cannot lead {name}: it is not available",
        )
    left = item.target if item.target in partition.replicas else item.source
    replicas = (item.target, *(node_id for node_id in partition.replicas if node_id != left))[
        :REPLICATION_FACTOR_MAX
    ]
    mover.to(partition, replicas, (item.target,))


def _check_replicas(mover: Mover, replicas: tuple[NodeId, ...]) -> None:
    problem = ""
    if not 1 <= len(replicas) <= REPLICATION_FACTOR_MAX:
        problem = f"1 to {REPLICATION_FACTOR_MAX} brokers are allowed"
    elif len(set(replicas)) != len(replicas):
        problem = "it contains a broker twice"
    elif unknown := [node_id for node_id in replicas if mover.image.nodes.get(node_id) is None]:
        problem = f"brokers {unknown} are not registered"
    elif not set(replicas).intersection(mover.elector.eligible):
        problem = "none of these brokers is alive"
    if problem:
        raise Refused(Status.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)}: {problem}")

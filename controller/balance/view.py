"""Make the planner's input from the metadata image and the brokers' reports.

Invariant: a moving partition counts for the broker that it goes to and is not moved again. The view
holds no reference to the image. Pure; O(partitions).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from base.ids import Millis, NodeId
from controller.balance.loads import LoadBook
from controller.balance.plan import BrokerSlot, PartitionSlot
from controller.metadata.image import MetadataImage
from controller.metadata.nodes import NodeState
from controller.metadata.topics import PartitionKey, PartitionMetadata, is_moving

NO_REPORT = "has not reported its load"


class BalanceView(NamedTuple):
    """The planner's input. `moving` is the number of partitions that are being moved for any
    reason.
    """

    brokers: list[BrokerSlot]
    partitions: list[PartitionSlot]
    moving: int


class Conditions(NamedTuple):
    """What a view depends on besides image and reports.

    `now_ms` is monotonic. `topics` are those whose partitions may move; if it is empty, all may.
    """

    live: Collection[NodeId]
    excluded: Mapping[NodeId, str]
    now_ms: int
    wall_ms: Millis
    cooldown_ms: int
    topics: Collection[str] = ()


def view(image: MetadataImage, book: LoadBook, conditions: Conditions) -> BalanceView:
    brokers = [
        BrokerSlot(node.node_id, _note(node, book, conditions))
        for node in sorted(image.nodes, key=lambda n: n.node_id)
        if not node.fenced
    ]
    partitions: list[PartitionSlot] = []
    moving = 0
    for topic in image.topics:
        allowed = not conditions.topics or topic.name in conditions.topics
        for record in topic.partitions:
            leader = (
                record.move.target
                if is_moving(record) and record.move is not None
                else record.leader
            )
            key = PartitionKey(topic.topic_id, record.partition)
            load = book.load_of(key, leader, conditions.now_ms)
            moving += is_moving(record)
            is_calm = (
                record.leader >= 0 and not is_moving(record) and not _is_cooling(record, conditions)
            )
            movable = allowed and is_calm and book.is_settled(key)
            partitions.append(PartitionSlot(topic.name, record.partition, leader, load, movable))
    return BalanceView(brokers, partitions, moving)


def _note(node: NodeState, book: LoadBook, conditions: Conditions) -> str:
    if node.draining:
        return "is leaving"
    if node.node_id not in conditions.live:
        return "has no session"
    excluded = conditions.excluded.get(node.node_id)
    if excluded is not None:
        return f"is excluded: {excluded}"
    return NO_REPORT if book.report_of(node.node_id, conditions.now_ms) is None else ""


def _is_cooling(record: PartitionMetadata, conditions: Conditions) -> bool:
    """Return True if the partition moved a short time ago, for any reason.

    The time is in its record, so a new controller has it as well.
    """
    return (
        record.move is not None
        and 0 <= conditions.wall_ms - record.move.started_ms < conditions.cooldown_ms
    )

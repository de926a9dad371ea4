"""Create the planner's input from the metadata image and the brokers' reports. This takes
O(partitions).

A moving partition counts toward the load of its target, and is not moved again.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.base.ids import Millis, NodeId
from penstock.controller.active.balance.loads import LoadBook
from penstock.controller.active.balance.plan import BrokerSlot, PartitionSlot
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.topics import PartitionKey, PartitionMetadata, is_moving
from penstock.stream.ports import BrokerIncarnation

NO_REPORT = "has not reported its load"
CAME_BACK = "came back a moment ago"


class BalanceView(NamedTuple):
    """The planner's input. `moving` is the number of partitions being moved for any reason."""

    brokers: list[BrokerSlot]
    partitions: list[PartitionSlot]
    moving: int


class Conditions(NamedTuple):
    """Inputs of a view in addition to the image and the reports.

    `now_ms` is monotonic. `topics` are the topics whose partitions may move; empty for all.
    `return_delay_ms` is how long a restarted broker is neither a source nor a target.
    """

    live: Collection[NodeId]
    excluded: Mapping[NodeId, str]
    now_ms: int
    wall_ms: Millis
    cooldown_ms: int
    return_delay_ms: int
    topics: Collection[str] = ()


def view(image: MetadataImage, book: LoadBook, conditions: Conditions) -> BalanceView:
    # A broker that shuts down gracefully is removed, but its WALs are still listed.
    earlier = {wal.writer.node_id for wal in image.nodes.wals() if _is_over(image, wal.writer)}
    brokers = [
        BrokerSlot(node.node_id, _note(node, book, conditions, node.node_id in earlier))
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


def _is_over(image: MetadataImage, writer: BrokerIncarnation) -> bool:
    node = image.nodes.get(writer.node_id)
    return node is not None and writer.node_epoch < node.node_epoch


def _note(node: NodeState, book: LoadBook, conditions: Conditions, is_back: bool) -> str:
    if node.draining:
        return "is leaving"
    if node.node_id not in conditions.live:
        return "has no session"
    excluded = conditions.excluded.get(node.node_id)
    if excluded is not None:
        return f"is excluded: {excluded}"
    report = book.report_of(node.node_id, conditions.now_ms)
    if report is None:
        return NO_REPORT
    if is_back and conditions.now_ms - report.began_ms < conditions.return_delay_ms:
        return CAME_BACK
    return ""


def _is_cooling(record: PartitionMetadata, conditions: Conditions) -> bool:
    """Return True if the partition has moved recently, for any reason.

    The time of the move is stored in the partition record, so it survives a change of the active
    controller.
    """
    return (
        record.move is not None
        and 0 <= conditions.wall_ms - record.move.started_ms < conditions.cooldown_ms
    )

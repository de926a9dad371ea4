"""Extract the values for pages from a metadata image.

Invariant: pure; the result does not refer to the image.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.base.ids import NodeEpoch, NodeId, ObjectId
from penstock.controller.api.load_messages import BrokerLoad, BrokerSession
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.topics import is_moving
from penstock.deploy.admin.config_units import number_of
from penstock.deploy.admin.reassign.trace import MoveView
from penstock.deploy.clients import kafka as clients
from penstock.deploy.console.health import STALE_S, BrokerHealth
from penstock.deploy.errors import Missing, UsageError
from penstock.deploy.top.view import TopicView, TopView
from penstock.stream.format.layout import BlockEntry
from penstock.stream.ports import ObjectRole

TOPIC_ORDERS: Final[Mapping[str, Callable[[TopicView], tuple[float, str]]]] = {
    "name": lambda topic: (0.0, topic.name),
    "rate": lambda topic: (-(topic.records_s or 0.0), topic.name),
    "records": lambda topic: (-(topic.records or 0), topic.name),
    "size": lambda topic: (-topic.stored_bytes, topic.name),
}
BAR_UNITS: Final = 1_000
"""Width of the timeline of a move."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. leader: -1 for none. end_offset: None if its leader did not report it; the
    committed part of the log may end earlier. size_bytes, objects: refer to the committed part.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    is_moving: bool
    start_offset: int
    end_offset: int | None
    committed_offset: int
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The last planned move of a partition. took_ms: time until the election; None before it."""

    topic: str
    partition: int
    source: int
    target: int
    started_ms: int
    took_ms: int | None


@dataclass(frozen=True, slots=True)
class BarView:
    """One step of a move on its timeline, in units of BAR_UNITS. width: 0 if unknown."""

    number: int
    by: str
    what: str
    took_ms: float | None
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class ObjectView:
    """One object. phase: "prepared", "committed" or "destroyed"."""

    object_id: int
    key: str
    role: str
    phase: str
    size_bytes: int
    refs: int
    since_ms: int
    writer: str


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block of an object, with its partition. topic: empty if the stream id is unknown."""

    topic: str
    partition: int
    kind: str
    block: BlockEntry


class NodeStateView(NamedTuple):
    text: str
    is_good: bool


def open_sessions(
    image: MetadataImage,
    loads: Mapping[NodeId, BrokerLoad],
    alive: Collection[tuple[NodeId, NodeEpoch]],
) -> dict[int, BrokerSession]:
    """Return the reported sessions by broker, without those that have ended since. alive: the
    brokers that were not fenced when the loads were requested.
    """
    return {
        node.node_id: load.session
        for node in image.nodes
        if (load := loads.get(node.node_id)) is not None
        and load.session is not None
        and not (node.fenced and (node.node_id, node.node_epoch) in alive)
    }


def broker_states(
    view: TopView, brokers: Mapping[int, BrokerHealth], controllers_silent_s: float
) -> dict[int, NodeStateView]:
    """Return the known state of each broker."""
    return {
        node.node_id: _node_state(
            brokers.get(node.node_id) or BrokerHealth(node.node_id, node.fenced),
            controllers_silent_s,
        )
        for node in view.cluster.nodes
    }


def _node_state(broker: BrokerHealth, controllers_silent_s: float) -> NodeStateView:
    if controllers_silent_s > STALE_S:
        responds = bool(broker.refusal) or (broker.age_s is not None and broker.age_s <= STALE_S)
        return NodeStateView("responds" if responds else "not known", False)
    if broker.is_fenced:
        return NodeStateView("fenced", False)
    return NodeStateView("silent", False) if broker.is_silent else NodeStateView("alive", True)


def topics_now(image: MetadataImage, measured: Iterable[TopicView]) -> list[TopicView]:
    """Return the existing topics, with measured values where available."""
    figures = {topic.name: topic for topic in measured}
    return [
        figures.get(topic.name)
        or TopicView(
            topic.name,
            len(topic.partitions),
            sum(partition.leader < 0 for partition in topic.partitions),
            records=None,
            records_s=None,
            stored_bytes=0,
        )
        for topic in image.topics
    ]


def view_partitions(
    image: MetadataImage, name: str, ends: Mapping[int, int]
) -> list[PartitionView] | None:
    """Return the partitions of a topic, or None if it does not exist. ends: end offsets."""
    topic = image.topics.by_name(name)
    if topic is None:
        return None
    return [_partition(image, record, ends) for record in topic.partitions]


def client_view(name: str, partitions: Iterable[PartitionView]) -> clients.TopicView:
    """Return the topic in the form used by clients."""
    return clients.TopicView(
        name,
        [
            clients.PartitionView(part.partition, part.leader, list(part.replicas), [])
            for part in partitions
        ],
    )


def end_offset(
    image: MetadataImage, record: PartitionRecord, ends: Mapping[int, int]
) -> int | None:
    """Return the end of a partition's log, or None if its leader did not report it. ends: earlier
    measurements; the committed end in the metadata may be higher by now.
    """
    measured = ends.get(record.partition)
    data = image.streams.get(record.data_stream_id)
    return measured if measured is None or data is None else max(measured, data.end_offset)


def _partition(
    image: MetadataImage, record: PartitionRecord, ends: Mapping[int, int]
) -> PartitionView:
    data = image.streams.get(record.data_stream_id)
    entries = () if data is None else data.entries
    return PartitionView(
        record.partition,
        record.leader,
        record.leader_epoch,
        tuple(record.replicas),
        is_moving(record),
        0 if data is None else data.start_offset,
        end_offset(image, record, ends),
        0 if data is None else data.end_offset,
        len(entries),
        sum(entry.size_bytes for entry in entries),
    )


def partition_record(image: MetadataImage, name: str, index: int) -> PartitionRecord:
    """Return the state of one partition. Raises Missing if it does not exist."""
    topic = image.topics.by_name(name)
    if topic is None or index >= len(topic.partitions):
        raise Missing(f"partition {name}-{index} does not exist; it may have been deleted")
    return topic.partitions[index]


def fork_source(image: MetadataImage, name: str) -> str:
    """Return the name of the topic that this one was forked from, or "" if it is not a fork."""
    topic = image.topics.by_name(name)
    fork = topic.partitions[0].fork if topic is not None and topic.partitions else None
    if fork is None:
        return ""
    return image.topic_name(fork.source_topic_id) or "a topic that is gone"


def planned_moves(image: MetadataImage) -> list[PlannedMove]:
    """Return the last planned move of each partition that has ever moved: moves in progress first,
    then the newest.
    """
    found = [
        PlannedMove(
            topic.name,
            record.partition,
            move.source,
            move.target,
            move.started_ms,
            move.elected_ms - move.started_ms if move.elected_ms else None,
        )
        for topic in image.topics
        for record in topic.partitions
        if (move := record.move) is not None
    ]
    return sorted(found, key=lambda item: (item.took_ms is not None, -item.started_ms))


def bars(move: MoveView) -> list[BarView]:
    """Place the steps of a move one after another on a timeline."""
    known = sum(step.took_ms or 0.0 for step in move.steps)
    scale = BAR_UNITS / known if known else 0.0
    found: list[BarView] = []
    at = 0.0
    for step in move.steps:
        took = step.took_ms or 0.0
        found.append(
            BarView(step.number, step.by, step.what, step.took_ms, at * scale, took * scale)
        )
        at += took
    return found


def view_object(image: MetadataImage, object_id: int) -> ObjectView:
    """Return one object. Raises UsageError if there is none."""
    stored = image.objects.get(ObjectId(object_id))
    if stored is None:
        raise Missing(f"object {object_id} does not exist; compaction may have replaced it")
    return ObjectView(
        stored.object_id,
        stored.key,
        ObjectRole(stored.role).name.lower().replace("_", " ") if stored.role else "not written",
        stored.phase.name.lower(),
        stored.size_bytes,
        stored.refs,
        stored.since_ms,
        "" if stored.wal is None else f"{stored.wal.node_id}/{stored.wal.node_epoch}",
    )


def view_blocks(image: MetadataImage, blocks: Iterable[BlockEntry]) -> list[BlockView]:
    """Look up the partition of each block."""
    found: list[BlockView] = []
    for block in blocks:
        stream = image.streams.get(block.stream_id)
        name = "" if stream is None else image.topic_name(stream.topic_id)
        found.append(
            BlockView(
                name,
                -1 if stream is None else stream.partition,
                "" if stream is None else stream.kind,
                block,
            )
        )
    return found


def parse_settings(text: str) -> dict[str, str]:
    """Parse KEY=VALUE lines; values may have units. Raises UsageError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{line.strip()!r} is not KEY=VALUE, as in retention.ms=7d")
        found[key.strip()] = number_of(key.strip(), value.strip())
    return found

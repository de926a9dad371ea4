"""Snapshots of topics that are deleted and recreated, and restores with `--replace`.

A snapshot contains everything acknowledged before its request, and does not change until its
deletion. A restored topic starts with the ends, configs and records of the snapshot.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.controller.metadata.topics import TopicState
from penstock.protocol.batch.records import Record
from penstock.stream.format.manifest.model import in_snapshot
from tests.sim.checkers import identity_of

if TYPE_CHECKING:
    from tests.sim.topic_life import Incarnation
    from tests.sim.world import World


@dataclass(slots=True, eq=False)
class TopicSnapshot:
    """One topic of a snapshot."""

    name: str
    """Full name, including that of the snapshot."""
    topic: str
    acked_ends: dict[UUID, list[int]]
    """By topic id and partition: end offset of the records acknowledged before the request."""
    topic_id: UUID | None = None
    origin: "Incarnation | None" = None
    ends: list[int] = field(default_factory=list[int])
    """Fork points by partition, once the metadata contains them."""
    is_doomed: bool = False
    """Whether its deletion was requested."""
    is_wanted: bool = False
    """Whether its restore was requested."""


class TopicSnapshots:
    """The metadata of these snapshots over time."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.known: dict[str, TopicSnapshot] = {}

    def usable(self, topic: str) -> list[TopicSnapshot]:
        """Return the restorable snapshots of the topic."""
        return [
            item
            for item in self.known.values()
            if item.topic == topic and item.ends and not item.is_doomed
        ]

    def note(self, topic: str, live: Iterable["Incarnation"]) -> TopicSnapshot:
        """Record a snapshot that is about to be requested."""
        acked_ends = {
            known.topic_id: [
                max(self._world.checker.acked_end(known.place(index)), known.inherited_end(index))
                for index in range(len(known.streams))
            ]
            for known in live
            if known.name == topic
        }
        name = in_snapshot(topic, f"r{len(self.known)}")
        self.known[name] = TopicSnapshot(name, topic, acked_ends)
        return self.known[name]

    def look(self, image: MetadataImage, incarnations: "dict[UUID, Incarnation]") -> None:
        """Check a change of the committed metadata."""
        for item in self.known.values():
            found = image.frozen_topics.by_full_name(item.name)
            if item.ends and not item.is_doomed:
                self._judge_stays(item, found, image)
            elif found is not None and not item.ends:
                self._judge_new(item, found, incarnations)

    def _judge_new(
        self, item: TopicSnapshot, found: FrozenTopic, incarnations: "dict[UUID, Incarnation]"
    ) -> None:
        points = [record.fork for record in found.partitions]
        item.topic_id, item.ends = found.topic_id, [point.end_offset for point in points if point]
        item.origin = incarnations.get(points[0].source_topic_id) if points[0] else None
        if item.origin is None or item.origin.name != item.topic:
            self._world.fail(f"{item.name} is a snapshot of {points[0]}")
            return
        acked_ends = item.acked_ends.get(item.origin.topic_id, [])
        if len(item.ends) < len(acked_ends) or any(
            end < acked for end, acked in zip(item.ends, acked_ends, strict=False)
        ):
            self._world.fail(
                f"{item.name} ends at {item.ends}, acknowledged was {acked_ends} before"
            )
        self._world.trace("topic snapshot", item.name, item.ends)

    def _judge_stays(
        self, item: TopicSnapshot, found: FrozenTopic | None, image: MetadataImage
    ) -> None:
        streams = [
            image.streams.known(record.data_stream_id)
            for record in (() if found is None else found.partitions)
        ]
        bounds = [(stream.start_offset, stream.end_offset) for stream in streams]
        if bounds != [(0, end) for end in item.ends]:
            self._world.fail(f"{item.name} is {bounds} now, it began with the ends {item.ends}")

    def restored(self, topic: TopicState) -> TopicSnapshot | None:
        """Check a new topic. Return the snapshot with which it starts, or None if it
        starts empty.
        """
        points = [record.fork for record in topic.partitions if record.fork is not None]
        if not points:
            return None
        source_id, ends = points[0].source_topic_id, [point.end_offset for point in points]
        for item in self.known.values():
            if item.topic_id == source_id and item.is_wanted and item.topic == topic.name:
                if item.ends != ends:
                    self._world.fail(f"{topic.name} begins with {ends}, {item.name} is {item.ends}")
                return item
        self._world.fail(f"{topic.name} begins with {points}, which was not requested")
        return None

    def configs(self, item: TopicSnapshot) -> dict[str, str]:
        """Return the configs of a topic that starts with this snapshot."""
        assert item.origin is not None
        return item.origin.configs | {FORK_SOURCE: item.name}

    def read(
        self, known: "Incarnation", index: int, offset: int, batches: list[list[Record]]
    ) -> None:
        """Check the records below the fork point of a restored topic."""
        at = offset
        for records in batches:
            first, end = records[0].offset, records[-1].offset + 1
            if not (first <= at < end) or (first < at and at > offset):
                self._world.fail(f"{known.place(index)}: [{first}, {end}) follows {at}")
            if end > known.inherited_end(index):
                self._world.fail(f"{known.place(index)}: [{first}, {end}) lies across its fork")
            at = end
            for record in records:
                owner = known
                while owner.origin is not None and record.offset < owner.inherited_end(index):
                    owner = owner.origin
                place = owner.place(index)
                self._world.checker.read(place, record.offset, identity_of(record))

"""Frozen topics: snapshot topics, and deleted topics that can be restored.

Brokers do not serve frozen topics: they do not list them, and their partitions have no leaders.
Readers of the store find topic `orders` of snapshot `nightly` as `orders@nightly`, a name that
regular topics cannot have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import (
    FrozenTopicRecord,
    FrozenTopicRemoved,
    GroupOffsets,
    MetadataOffset,
    PartitionRecord,
    TopicDeleted,
    TopicUndeleted,
)
from penstock.controller.metadata.topics import PartitionKey, TopicState
from penstock.stream.format.manifest.model import in_snapshot


@dataclass(slots=True)
class FrozenTopic:
    topic_id: UUID
    name: str
    snapshot: str
    """Empty for a deleted topic."""
    configs: Mapping[str, str]
    since_ms: Millis
    keep_ms: int
    """How long the topic is kept; -1 until a request removes it."""
    offset: MetadataOffset
    """End of the metadata log just before the topic was frozen. The age of the topic is measured
    from this point.
    """
    partitions: list[PartitionRecord] = field(default_factory=list[PartitionRecord])
    group_offsets: tuple[GroupOffsets, ...] = ()
    """Consumer group offsets of a snapshot; empty for a deleted topic."""

    @property
    def is_deleted(self) -> bool:
        """Return whether this is a deleted topic; otherwise it is a snapshot topic."""
        return not self.snapshot

    @property
    def full_name(self) -> str:
        """Return the name by which readers of the store find the topic."""
        return in_snapshot(self.name, self.snapshot or str(self.topic_id))

    def record(self) -> FrozenTopicRecord:
        return FrozenTopicRecord(
            self.topic_id,
            self.name,
            self.snapshot,
            tuple(self.configs.items()),
            self.since_ms,
            self.keep_ms,
            self.offset,
            self.group_offsets,
        )


@dataclass(slots=True)
class FrozenTopicsImage:
    _by_id: dict[UUID, FrozenTopic] = field(default_factory=dict[UUID, FrozenTopic])
    _by_full_name: dict[str, FrozenTopic] = field(default_factory=dict[str, FrozenTopic])
    snapshot_partition_count: int = 0
    """Number of partitions of all snapshot topics."""

    def __iter__(self) -> Iterator[FrozenTopic]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, topic_id: UUID) -> bool:
        return topic_id in self._by_id

    def by_id(self, topic_id: UUID) -> FrozenTopic | None:
        return self._by_id.get(topic_id)

    def deleted_by_id(self, topic_id: UUID) -> FrozenTopic | None:
        """Return the deleted topic with this id."""
        topic = self._by_id.get(topic_id)
        return topic if topic is not None and topic.is_deleted else None

    def by_full_name(self, full_name: str) -> FrozenTopic | None:
        """Return the topic with the full name `NAME@SNAPSHOT`, or `NAME@TOPIC_ID` if it is
        deleted.
        """
        return self._by_full_name.get(full_name)

    def partition(self, key: PartitionKey) -> PartitionRecord | None:
        topic = self._by_id.get(key.topic_id)
        return (
            topic.partitions[key.partition]
            if topic is not None and 0 <= key.partition < len(topic.partitions)
            else None
        )

    def deleted(self) -> Iterator[FrozenTopic]:
        return (topic for topic in self if topic.is_deleted)

    def create(self, record: FrozenTopicRecord) -> None:
        self._add(
            FrozenTopic(
                record.topic_id,
                record.name,
                record.snapshot,
                dict(record.configs),
                record.since_ms,
                record.keep_ms,
                record.offset,
                group_offsets=record.group_offsets,
            )
        )

    def take(self, topic: TopicState, configs: Mapping[str, str], record: TopicDeleted) -> None:
        """Add a deleted topic."""
        self._add(
            FrozenTopic(
                topic.topic_id,
                topic.name,
                "",
                dict(configs),
                record.since_ms,
                record.keep_ms,
                record.offset,
                [_without_leader(partition) for partition in topic.partitions],
            )
        )

    def give_back(self, record: TopicUndeleted) -> FrozenTopic:
        """Remove a deleted topic from the image so that it can become a regular topic again."""
        topic = self._remove(record.topic_id)
        if not topic.is_deleted:
            raise broken(f"topic {topic.full_name} is a snapshot topic and was never deleted")
        return topic

    def remove(self, record: FrozenTopicRemoved) -> None:
        self._remove(record.topic_id)

    def set_partition(self, record: PartitionRecord) -> None:
        """Add the next partition of a topic, or replace a partition."""
        topic = self._by_id[record.topic_id]
        if not 0 <= record.partition <= len(topic.partitions) or record.leader >= 0:
            raise broken(
                f"partition {record.partition} with leader {record.leader} does not fit the frozen"
                f" topic {topic.full_name}"
            )
        if record.partition == len(topic.partitions) and not topic.is_deleted:
            self.snapshot_partition_count += 1
        topic.partitions[record.partition : record.partition + 1] = [record]

    def _add(self, topic: FrozenTopic) -> None:
        if topic.topic_id in self._by_id or topic.full_name in self._by_full_name:
            raise broken(f"frozen topic {topic.full_name} ({topic.topic_id}) exists")
        self._by_id[topic.topic_id] = topic
        self._by_full_name[topic.full_name] = topic

    def _remove(self, topic_id: UUID) -> FrozenTopic:
        topic = self._by_id.pop(topic_id, None)
        if topic is None:
            raise broken(f"frozen topic {topic_id} does not exist")
        del self._by_full_name[topic.full_name]
        if not topic.is_deleted:
            self.snapshot_partition_count -= len(topic.partitions)
        return topic


def _without_leader(partition: PartitionRecord) -> PartitionRecord:
    return msgspec.structs.replace(
        partition,
        leader=NodeId(-1),
        leader_node_epoch=NodeEpoch(-1),
        target_replicas=None,
        move=None,
    )

"""Topics and their partitions, with the leader of each partition."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.records import PartitionRecord, TopicRecord
from penstock.stream.ports import BrokerIncarnation

NO_LEADER = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))

PartitionMetadata = PartitionRecord
"""The state of a partition is its last record."""


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


def in_order(key: PartitionKey) -> tuple[int, int]:
    """Return a sort key for a partition. Comparing UUIDs executes Python code, which is slow with
    thousands of keys.
    """
    return key.topic_id.int, key.partition


@dataclass(slots=True)
class TopicState:
    topic_id: UUID
    name: str
    partitions: list[PartitionMetadata] = field(default_factory=list[PartitionMetadata])


def leader_of(partition: PartitionMetadata) -> BrokerIncarnation:
    """Return the incarnation that leads the partition, or `NO_LEADER`.

    The leader may be dead: see `NodesImage.is_alive`.
    """
    return BrokerIncarnation(partition.leader, partition.leader_node_epoch)


def is_moving(partition: PartitionMetadata) -> bool:
    """Return whether the leader is changing. If so, the partition has no leader until the source
    has closed the streams.
    """
    return partition.target_replicas is not None


def is_reassigning(partition: PartitionMetadata) -> bool:
    """Return whether the partition is moving and its candidates change.

    Preferred elections, draining and cancelled moves do not change the candidates.
    """
    return partition.target_replicas is not None and partition.target_replicas != partition.replicas


@dataclass(slots=True)
class TopicsImage:
    _by_id: dict[UUID, TopicState] = field(default_factory=dict[UUID, TopicState])
    _by_name: dict[str, TopicState] = field(default_factory=dict[str, TopicState])
    _led_by: dict[BrokerIncarnation, set[PartitionKey]] = field(
        default_factory=dict[BrokerIncarnation, set[PartitionKey]]
    )

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def by_id(self, topic_id: UUID) -> TopicState | None:
        return self._by_id.get(topic_id)

    def by_name(self, name: str) -> TopicState | None:
        return self._by_name.get(name)

    def partition(self, key: PartitionKey) -> PartitionMetadata | None:
        topic = self._by_id.get(key.topic_id)
        return (
            topic.partitions[key.partition]
            if topic is not None and 0 <= key.partition < len(topic.partitions)
            else None
        )

    def led_by(self, leader: BrokerIncarnation) -> frozenset[PartitionKey]:
        """Return the partitions that this incarnation leads. `NO_LEADER` returns the partitions
        without a leader.

        This takes O(number of these partitions).
        """
        return frozenset(self._led_by.get(leader, ()))

    def led_count(self, leader: BrokerIncarnation) -> int:
        return len(self._led_by.get(leader, ()))

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics. This takes O(broker incarnations that lead a
        partition).
        """
        return sum(map(len, self._led_by.values()))

    def leaders(self) -> Mapping[BrokerIncarnation, set[PartitionKey]]:
        return self._led_by

    def create(self, record: TopicRecord) -> None:
        if record.topic_id in self._by_id or record.name in self._by_name:
            raise broken(f"topic {record.name!r} ({record.topic_id}) exists")
        topic = TopicState(record.topic_id, record.name)
        self._by_id[record.topic_id] = topic
        self._by_name[record.name] = topic

    def remove(self, topic_id: UUID) -> TopicState:
        topic = self._by_id.pop(topic_id, None)
        if topic is None:
            raise broken(f"topic {topic_id} to be removed does not exist")
        del self._by_name[topic.name]
        for partition in topic.partitions:
            self._unlead(partition)
        return topic

    def set_partition(self, record: PartitionRecord) -> None:
        topic = self._by_id.get(record.topic_id)
        if topic is None or not 0 <= record.partition <= len(topic.partitions):
            raise broken(f"partition {record.partition} does not fit topic {record.topic_id}")
        if record.partition == len(topic.partitions):
            topic.partitions.append(record)
        else:
            self._unlead(topic.partitions[record.partition])
            topic.partitions[record.partition] = record
        self._led_by.setdefault(leader_of(record), set()).add(
            PartitionKey(topic.topic_id, record.partition)
        )

    def _unlead(self, partition: PartitionMetadata) -> None:
        leader = leader_of(partition)
        led = self._led_by[leader]
        led.discard(PartitionKey(partition.topic_id, partition.partition))
        if not led:
            del self._led_by[leader]

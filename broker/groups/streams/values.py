"""Values of streams group records (KIP-1071): members, tasks and topologies. Warm-up tasks are
omitted, because Kafka 4.2 does not assign any.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

TaskIds: TypeAlias = Mapping[str, frozenset[int]]
"""Partitions by subtopology. No subtopology has an empty set."""
ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""The member epoch in which the member received each task, by subtopology and partition."""


class StreamsMemberState(Enum):
    """The reconciliation state of a member. The numbers are those in the records."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """The member must still revoke tasks."""
    UNRELEASED_TASKS = 3
    """The member waits for other members to revoke tasks."""
    UNKNOWN = 127
    """A state written by a later version. The member must rejoin."""


@dataclass(frozen=True, slots=True)
class Tasks:
    active: TaskIds = field(default_factory=dict[str, frozenset[int]])
    standby: TaskIds = field(default_factory=dict[str, frozenset[int]])


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Tasks of a member. Active tasks have the epoch in which they were assigned."""

    active: ActiveTasks = field(default_factory=dict[str, Mapping[int, int]])
    standby: TaskIds = field(default_factory=dict[str, frozenset[int]])

    @property
    def is_empty(self) -> bool:
        return not self.active and not self.standby

    def without_epochs(self) -> Tasks:
        active = {key: frozenset(epochs) for key, epochs in self.active.items()}
        return Tasks(active, self.standby)


NO_TASKS: Final = Tasks()
HOLDS_NOTHING: Final = HeldTasks()


@dataclass(frozen=True, slots=True)
class StreamsAssignment:
    """The tasks of a member, with the member epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: HeldTasks = HOLDS_NOTHING
    revoking: HeldTasks = HOLDS_NOTHING
    """Tasks that the member must revoke."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is StreamsMemberState.STABLE and self.epoch == epoch


@dataclass(frozen=True, slots=True)
class StreamsMetadata:
    """The metadata of a member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    """The process of the member. Each thread of a process is a member."""
    endpoint: tuple[str, int] | None = None
    """Host and port at which the application serves interactive queries."""
    client_tags: tuple[tuple[str, str], ...] = ()
    """Sorted by key."""


@dataclass(frozen=True, slots=True)
class StreamsEpoch:
    """The group epoch, and the inputs of the assignment in that epoch."""

    epoch: int = 0
    metadata_hash: int = 0
    """Hash of the topics of the topology and their partition counts; 0 if there are none."""
    validated_topology_epoch: int = -1
    """The epoch of the last topology whose topics all existed, or -1."""
    assignment_configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic, as specified by the application."""

    name: str
    partitions: int = 0
    """0 if the partition count is derived from the source topics."""
    replication_factor: int = 0
    """0 for the cluster default."""
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Source topics that must have equal partition counts, as indexes into the topic lists of the
    subtopology.
    """

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    """Always empty, because Kafka 4.2 does not support regular expressions."""
    changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def all_sources(self) -> tuple[str, ...]:
        repartition = (topic.name for topic in self.repartition_source_topics)
        return (*self.source_topics, *repartition)


@dataclass(frozen=True, slots=True)
class Topology:
    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    def is_same(self, other: "Topology") -> bool:
        """Return whether both topologies are equal, ignoring the order of subtopologies."""
        return self.epoch == other.epoch and self._by_id() == other._by_id()

    def _by_id(self) -> dict[str, Subtopology]:
        return {subtopology.subtopology_id: subtopology for subtopology in self.subtopologies}

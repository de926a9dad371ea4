"""Data types of streams groups (KIP-1071): limits, members, heartbeats and their responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from penstock.broker.groups.common.model import JOIN_EPOCH
from penstock.broker.groups.streams.values import (
    StreamsAssignment,
    StreamsMetadata,
    TaskIds,
    Tasks,
    Topology,
)
from penstock.protocol.error_codes import ErrorCode

SUBTOPOLOGIES_MAX: Final = 1_000
TOPICS_MAX: Final = 10_000
"""Maximum number of topics in one topology."""
CLIENT_TAGS_MAX: Final = 100
TASKS_MAX: Final = 10_000
"""Maximum number of active tasks in one group. Assigning this many blocks the event loop for about
10 ms, or for about 50 ms with two standby tasks for each.
"""
STANDBY_REPLICAS: Final = "num.standby.replicas"
"""Name of this config in the records of a group."""


@dataclass(frozen=True, slots=True)
class StreamsLimits:
    """Limits of streams groups. Defaults are those of Kafka's `group.streams.*` configs."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = (1 << 31) - 1
    standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000

    @property
    def assignment_configs(self) -> tuple[tuple[str, str], ...]:
        return ((STANDBY_REPLICAS, str(self.standby_replicas)),)


class Status(IntEnum):
    """Group statuses that are sent to the members, with the protocol's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True)
class StreamsMember:
    member_id: str
    metadata: StreamsMetadata = field(default_factory=StreamsMetadata)
    current: StreamsAssignment = field(default_factory=StreamsAssignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatRequest:
    """A heartbeat. Fields that are None or -1 are unchanged since the last heartbeat."""

    member_id: str
    member_epoch: int
    endpoint_epoch: int = -1
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    active: TaskIds | None = None
    standby: TaskIds | None = None
    warmup: TaskIds | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    client_tags: Mapping[str, str] | None = None
    has_task_offsets: bool = False
    has_task_end_offsets: bool = False
    is_shutdown: bool = False
    """Whether the member requests the shutdown of all members."""
    connection_id: int | None = None
    """The connection of the request, or None."""

    @property
    def is_joining(self) -> bool:
        return self.member_epoch == JOIN_EPOCH

    @property
    def owned(self) -> Tasks | None:
        """Return the tasks that the member reported, or None if it reported none."""
        if self.active is None or self.standby is None:
            return None
        return Tasks(self.active, self.standby)


@dataclass(frozen=True, slots=True)
class EndpointPartitions:
    """The partitions whose state one endpoint of an application serves."""

    endpoint: tuple[str, int]
    active: Mapping[str, list[int]]
    """Partitions of active tasks, by source topic."""
    standby: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatResult:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    statuses: tuple[tuple[Status, str], ...] = ()
    tasks: Tasks | None = None
    """None if the tasks have not changed since the last response."""
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    """None if the member already has the endpoints of this endpoint epoch."""
    missing_topics: Mapping[str, "MissingTopic"] = field(default_factory=dict[str, "MissingTopic"])
    """Internal topics that do not exist yet."""


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """An internal topic that must be created."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]

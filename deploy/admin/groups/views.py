"""Views of groups that commands print.

Field names are keys of JSON and CSV output, which scripts rely on; the terms are those of
`kafka-consumer-groups`.
"""

from dataclasses import dataclass
from enum import StrEnum


class GroupType(StrEnum):
    """The protocol of a group: classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """coordinator: id of its broker. lag: None if it is unknown or was not requested."""

    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetView:
    """One partition of a group. current_offset: the committed offset; for a share group, its start
    offset. Unknown values are None. member_id, host, client_id: the assigned member; empty for
    share groups, whose partitions may have several.
    """

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None = None
    host: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class TasksView:
    """The tasks of a member of a streams group: partitions by subtopology."""

    active: dict[str, list[int]]
    standby: dict[str, list[int]]
    warmup: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class MemberView:
    """partitions: assigned partitions by topic. epoch: None for a classic member. process_id,
    tasks: only for members of a streams group.
    """

    member_id: str
    instance_id: str | None
    host: str
    client_id: str
    epoch: int | None
    partitions: dict[str, list[int]]
    process_id: str | None = None
    tasks: TasksView | None = None


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as described by its coordinator."""

    state: str
    assignor: str
    members: list[MemberView]
    topology_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """lag: the sum of all lags; None if any of them is unknown. uncommitted: number of partitions
    without a committed offset, which have no lag. topology_epoch: only for a streams group.
    """

    group: str
    type: str
    state: str
    coordinator: int
    assignor: str
    lag: int | None
    uncommitted: int
    offsets: list[OffsetView]
    members: list[MemberView]
    topology_epoch: int | None


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The reset of one partition. current_offset: the committed offset; None if there is none."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int

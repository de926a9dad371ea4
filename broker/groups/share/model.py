"""Data types of share groups (KIP-932): members, assignments, heartbeats, partitions with a
state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.broker.groups.common.model import JOIN_EPOCH, NOTHING, Assignment
from penstock.broker.groups.share.values import (
    NamedPartitions,
    ShareAssignment,
    ShareMetadata,
)


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Limits of share groups. Defaults are those of Kafka's `group.share.*` configs."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 200


@dataclass(frozen=True, slots=True)
class ShareMember:
    member_id: str
    metadata: ShareMetadata = field(default_factory=ShareMetadata)
    current: ShareAssignment = field(default_factory=ShareAssignment)


@dataclass(frozen=True, slots=True)
class ShareHeartbeatRequest:
    """A heartbeat. Fields that are None are unchanged since the last heartbeat."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    subscribed_names: tuple[str, ...] | None = None

    @property
    def is_full(self) -> bool:
        """Return True if the response must contain the assignment."""
        return self.member_epoch == JOIN_EPOCH or self.subscribed_names is not None


def with_partitions(known: NamedPartitions, added: NamedPartitions) -> NamedPartitions:
    merged = dict(known)
    for topic_id, (name, indexes) in added.items():
        merged[topic_id] = (name, merged.get(topic_id, (name, frozenset[int]()))[1] | indexes)
    return merged


def without_partitions(known: NamedPartitions, removed: Assignment) -> NamedPartitions:
    left: dict[UUID, tuple[str, frozenset[int]]] = {}
    for topic_id, (name, indexes) in known.items():
        kept = indexes - removed.get(topic_id, frozenset())
        if kept:
            left[topic_id] = (name, kept)
    return left


def without_topics(known: NamedPartitions, topic_ids: Iterable[UUID]) -> NamedPartitions:
    gone = set(topic_ids)
    return {topic_id: value for topic_id, value in known.items() if topic_id not in gone}


def indexes_of(partitions: NamedPartitions) -> Assignment:
    """Remove the topic names, and return the partitions by topic id."""
    return {topic_id: indexes for topic_id, (_, indexes) in partitions.items()} or NOTHING

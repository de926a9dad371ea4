"""Values of the records of share groups (KIP-932): members, assignments, partitions with a state.

Source: Kafka `group-coordinator` (ShareGroupMember, ShareGroupStatePartitionMetadataInfo); KIP-932.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import Assignment


@dataclass(frozen=True, slots=True)
class ShareMetadata:
    """What a member says of itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: tuple[str, ...] = ()
    """In order, each once."""


@dataclass(frozen=True, slots=True)
class ShareEpoch:
    """The epoch of a group, and the hash of the topics that it reads."""

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """What a member reads, and in which epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict[UUID, frozenset[int]])


NamedPartitions: TypeAlias = Mapping[UUID, tuple[str, frozenset[int]]]
"""Topic name and partitions by topic id."""


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """The partitions of which the share coordinator has a state for this group, or soon has."""

    initializing: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    initialized: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    """Only these are assigned to members."""
    deleting: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """Names of topics whose states are being deleted."""

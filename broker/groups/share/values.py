"""Values of share group records (KIP-932): members, assignments, partitions with a state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import Assignment


@dataclass(frozen=True, slots=True)
class ShareMetadata:
    """The metadata of a member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: tuple[str, ...] = ()
    """Sorted, without duplicates."""


@dataclass(frozen=True, slots=True)
class ShareEpoch:
    """The group epoch, and a hash of the group's topics."""

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """The partitions of a member, with the member epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict[UUID, frozenset[int]])


NamedPartitions: TypeAlias = Mapping[UUID, tuple[str, frozenset[int]]]
"""Topic name and partitions by topic id."""


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """The partitions that have, or will soon have, a state for this group at the share
    coordinator.
    """

    initializing: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    initialized: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    """Only these partitions are assigned to members, except while they are initialized again in a
    newer epoch with an altered start offset.
    """
    deleting: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """Names of the topics whose states are being deleted, by id."""

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
    """In order, without duplicates."""


@dataclass(frozen=True, slots=True)
class ShareEpoch:
    """The group epoch, and the hash of the group's topics."""

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """The partitions of a member, and their epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict[UUID, frozenset[int]])


NamedPartitions: TypeAlias = Mapping[UUID, tuple[str, frozenset[int]]]
"""Topic name and partitions by topic id."""


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """The partitions whose state is, or will soon be, at the share coordinator for this group."""

    initializing: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    initialized: NamedPartitions = field(default_factory=dict[UUID, tuple[str, frozenset[int]]])
    """Only these are assigned to members, unless they are being initialized again: with an altered
    start offset, in a newer epoch.
    """
    deleting: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """Names of topics whose states are being deleted."""

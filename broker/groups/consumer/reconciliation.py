"""Move a member towards its target assignment (KIP-848): it first revokes partitions, then receives
unowned ones.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import NOTHING, Assignment
from penstock.broker.groups.consumer.model import CurrentAssignment, MemberState

IsOwned: TypeAlias = Callable[[UUID, int], bool]
"""Returns whether any member owns the partition."""


def reconcile(
    current: CurrentAssignment,
    target: Assignment,
    target_epoch: int,
    *,
    owned: Assignment | None,
    subscribed: Collection[UUID],
    is_owned: IsOwned,
    has_new_subscription: bool,
) -> CurrentAssignment:
    """Return the next assignment of the member. A partition is added only if no member owns it, and
    the member keeps its epoch until it has revoked everything.

    owned: the partitions that the member reported, or None if it reported none. subscribed: the ids
    of the member's topics.
    """
    is_waiting = current.state is MemberState.UNREVOKED_PARTITIONS and owns_any(
        owned, current.pending_revocation
    )
    is_there = current.is_reconciled_to(target_epoch)
    if not is_there and not is_waiting:
        allowed = {topic: indexes for topic, indexes in target.items() if topic in subscribed}
        return _next(current, allowed, target_epoch, owned, is_owned)
    return _without_unsubscribed(current, owned, subscribed) if has_new_subscription else current


def owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return True unless the member reported its partitions and owns none of these."""
    if owned is None:
        return True
    return any(indexes & partitions.get(topic, frozenset()) for topic, indexes in owned.items())


def is_subset(owned: Assignment | None, assigned: Assignment) -> bool:
    """Return True if the member reported its partitions and owns only partitions in `assigned`."""
    return owned is not None and all(
        indexes <= assigned.get(topic, frozenset()) for topic, indexes in owned.items()
    )


def _next(
    current: CurrentAssignment,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_owned: IsOwned,
) -> CurrentAssignment:
    kept: dict[UUID, frozenset[int]] = {}
    lost: dict[UUID, frozenset[int]] = {}
    added: dict[UUID, frozenset[int]] = {}
    is_unreleased = False
    for topic in {**current.assigned, **target}:
        had = current.assigned.get(topic, frozenset())
        wanted = target.get(topic, frozenset())
        new = wanted - had
        free = frozenset(index for index in new if not is_owned(topic, index))
        is_unreleased = is_unreleased or len(free) < len(new)
        _put(kept, topic, had & wanted)
        _put(lost, topic, had - wanted)
        _put(added, topic, free)
    if lost and owns_any(owned, lost):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, lost
        )
    return CurrentAssignment(
        target_epoch,
        current.epoch,
        MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE,
        union(kept, added),
        NOTHING,
    )


def _without_unsubscribed(
    current: CurrentAssignment, owned: Assignment | None, subscribed: Collection[UUID]
) -> CurrentAssignment:
    lost = {
        topic: indexes for topic, indexes in current.assigned.items() if topic not in subscribed
    }
    if not lost:
        return current
    kept = {topic: indexes for topic, indexes in current.assigned.items() if topic in subscribed}
    pending = union(current.pending_revocation, lost)
    if not owns_any(owned, pending):
        return replace(current, assigned=kept)
    return replace(
        current,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=kept,
        pending_revocation=pending,
    )


def union(first: Assignment, second: Assignment) -> Assignment:
    merged = dict(first)
    for topic, indexes in second.items():
        merged[topic] = merged.get(topic, frozenset()) | indexes
    return merged


def _put(into: dict[UUID, frozenset[int]], topic: UUID, indexes: frozenset[int]) -> None:
    if indexes:
        into[topic] = indexes

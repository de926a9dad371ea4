"""Move a member of a streams group towards its target assignment (KIP-1071): it first revokes
tasks, then receives unowned ones.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.broker.groups.common.model import HeartbeatRefused
from penstock.broker.groups.streams.values import (
    HOLDS_NOTHING,
    HeldTasks,
    StreamsAssignment,
    StreamsMemberState,
    TaskIds,
    Tasks,
)
from penstock.protocol.error_codes import ErrorCode

_NONE: Final[frozenset[int]] = frozenset()


class TaskOwners(Protocol):
    """The current owners of tasks, including members that must revoke them."""

    def active_process(self, subtopology_id: str, partition: int) -> str | None:
        """Return the process of the member with the active task."""
        ...

    def standby_processes(self, subtopology_id: str, partition: int) -> Collection[str]:
        """Return the processes of the members with the standby task."""
        ...


def reconcile(
    current: StreamsAssignment,
    process_id: str,
    target: Tasks,
    target_epoch: int,
    *,
    owned: Tasks | None,
    owners: TaskOwners,
) -> StreamsAssignment:
    """Return the next assignment of the member. Raises HeartbeatRefused with FENCED_MEMBER_EPOCH.

    An active task is added only if no member has it, and never to a process that already has it on
    another member. A member keeps its epoch until it has revoked everything.

    owned: the tasks that the member reported, or None if it reported none.
    """
    step = _Step(
        current=current,
        process_id=process_id,
        target=target,
        target_epoch=target_epoch,
        owned=owned,
        owners=owners,
    )
    if current.is_reconciled_to(target_epoch):
        return current
    if current.state is StreamsMemberState.UNREVOKED_TASKS:
        if has_any(owned, current.revoking):
            return current
        return step.next(current.epoch + 1)
    if current.state is StreamsMemberState.UNKNOWN:
        if owned is None or owned.active or owned.standby:
            raise HeartbeatRefused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its"
                " tasks and rejoin.",
            )
        return step.next(target_epoch)
    return step.next(current.epoch)


def has_any(owned: Tasks | None, tasks: HeldTasks) -> bool:
    """Return True unless the member reported its tasks and has none of these."""
    if owned is None:
        return True
    return any(
        any(indexes & set(lost.get(key, ())) for key, indexes in mine.items())
        for mine, lost in ((owned.active, tasks.active), (owned.standby, tasks.standby))
    )


def is_within(owned: Tasks | None, held: Sequence[HeldTasks]) -> bool:
    """Return True if the member reported its tasks and has only tasks in `held`."""
    return owned is not None and all(
        indexes <= {index for part in parts for index in part.get(key, ())}
        for mine, parts in (
            (owned.active, [each.active for each in held]),
            (owned.standby, [each.standby for each in held]),
        )
        for key, indexes in mine.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    current: StreamsAssignment
    process_id: str
    target: Tasks
    target_epoch: int
    owned: Tasks | None
    owners: TaskOwners

    def next(self, epoch: int) -> StreamsAssignment:
        """Return the next assignment. epoch: the member epoch to use if the member must revoke
        tasks first.
        """
        current, assigned = self.current, self.current.assigned
        kept = HeldTasks(
            _common(assigned.active, self.target.active),
            _intersection(assigned.standby, self.target.standby),
        )
        lost = HeldTasks(
            _difference_with_epochs(assigned.active, self.target.active),
            _difference(assigned.standby, self.target.standby),
        )
        if not lost.is_empty and has_any(self.owned, lost):
            return StreamsAssignment(
                epoch, current.epoch, StreamsMemberState.UNREVOKED_TASKS, kept, lost
            )
        new_active = _difference(self.target.active, kept.active)
        new_standby = _difference(self.target.standby, kept.standby)
        free_active = _filtered(new_active, self._is_free_as_active)
        free_standby = _filtered(new_standby, self._is_free_as_standby)
        is_waiting = (free_active, free_standby) != (new_active, new_standby)
        return StreamsAssignment(
            self.target_epoch,
            current.epoch,
            StreamsMemberState.UNRELEASED_TASKS if is_waiting else StreamsMemberState.STABLE,
            HeldTasks(
                {
                    key: {
                        **kept.active.get(key, {}),
                        **dict.fromkeys(free_active.get(key, ()), self.target_epoch),
                    }
                    for key in {**kept.active, **free_active}
                },
                {
                    key: kept.standby.get(key, _NONE) | free_standby.get(key, _NONE)
                    for key in {**kept.standby, **free_standby}
                },
            ),
            HOLDS_NOTHING,
        )

    def _is_free_as_active(self, key: str, index: int) -> bool:
        return self.owners.active_process(
            key, index
        ) is None and self.process_id not in self.owners.standby_processes(key, index)

    def _is_free_as_standby(self, key: str, index: int) -> bool:
        return self.owners.active_process(
            key, index
        ) != self.process_id and self.process_id not in self.owners.standby_processes(key, index)


def _common(
    first: Mapping[str, Mapping[int, int]], second: TaskIds
) -> dict[str, Mapping[int, int]]:
    found = {
        key: {index: epoch for index, epoch in epochs.items() if index in second.get(key, _NONE)}
        for key, epochs in first.items()
    }
    return {key: epochs for key, epochs in found.items() if epochs}


def _difference_with_epochs(
    first: Mapping[str, Mapping[int, int]], second: TaskIds
) -> dict[str, Mapping[int, int]]:
    found = {
        key: {
            index: epoch for index, epoch in epochs.items() if index not in second.get(key, _NONE)
        }
        for key, epochs in first.items()
    }
    return {key: epochs for key, epochs in found.items() if epochs}


def _intersection(first: TaskIds, second: TaskIds) -> dict[str, frozenset[int]]:
    found = {key: indexes & second.get(key, _NONE) for key, indexes in first.items()}
    return {key: indexes for key, indexes in found.items() if indexes}


def _difference(first: TaskIds, second: Mapping[str, Collection[int]]) -> dict[str, frozenset[int]]:
    found = {key: indexes - set(second.get(key, ())) for key, indexes in first.items()}
    return {key: indexes for key, indexes in found.items() if indexes}


def _filtered(tasks: TaskIds, is_free: Callable[[str, int], bool]) -> dict[str, frozenset[int]]:
    found = {
        key: frozenset(index for index in indexes if is_free(key, index))
        for key, indexes in tasks.items()
    }
    return {key: indexes for key, indexes in found.items() if indexes}

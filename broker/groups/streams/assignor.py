"""Assign tasks to the members of a streams group, balanced and sticky, like Kafka's
StickyTaskAssignor (KIP-1071).
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.broker.groups.streams.topology import ConfiguredSubtopology
from penstock.broker.groups.streams.values import Tasks

Task: TypeAlias = tuple[str, int]
"""Subtopology and partition."""


@dataclass(frozen=True, slots=True)
class StreamsSubscriber:
    """A group member, as seen by the assignor."""

    member_id: str
    process_id: str
    previous: Tasks
    """The member's previous target assignment."""


def assign_tasks(
    members: Sequence[StreamsSubscriber],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    standby_replicas: int,
) -> dict[str, Tasks]:
    """Return the tasks of each member.

    Members are threads, and the threads of a process share its state directory. An active task
    stays with its member, or moves to a member that had it as a standby task, unless that member
    would exceed an equal share. The other tasks are assigned to the members with the fewest tasks.
    Standby tasks are assigned to other processes in the same way. A process has each task at most
    once, and the numbers of active tasks of any two members differ by at most one. The result does
    not depend on the order of the arguments.
    """
    if not members:
        return {}
    counts = {key: each.task_count for key, each in subtopologies.items()}
    stateful = {key: count for key, count in counts.items() if subtopologies[key].is_stateful}
    assignment = _Assignment(members, sum(counts.values()), standby_replicas, stateful)
    assignment.assign_active(_tasks(counts))
    if standby_replicas:
        assignment.assign_standby(_tasks(stateful))
    return assignment.result()


def _tasks(counts: Mapping[str, int]) -> list[Task]:
    return [(key, index) for key, count in sorted(counts.items()) for index in range(count)]


class _Share:
    """The maximum number of tasks that a member may keep. It may shrink as members reach it, so
    that the rest are balanced.
    """

    def __init__(self, task_count: int, member_count: int) -> None:
        self._task_count, self._member_count = task_count, member_count
        self.size = -(-task_count // member_count)

    def note(self, count: int) -> None:
        """Record the number of tasks of a member."""
        if count == self.size and self._member_count > 1:
            self._member_count -= 1
            self._task_count -= count
            self.size = -(-self._task_count // self._member_count)


class _Process:
    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.tasks: set[Task] = set()
        self.members: list[tuple[int, int, _Member]] = []
        """A heap of members by number of tasks. The numbers may be outdated: they only increase."""
        self.member_count = 0

    @property
    def rank(self) -> tuple[float, str]:
        """The process with the lowest rank has the lowest load."""
        return len(self.tasks) / self.member_count, self.process_id

    def lightest(self) -> "_Member":
        while True:
            count, place, member = self.members[0]
            if count == member.count:
                return member
            heapq.heapreplace(self.members, (member.count, place, member))


class _Member:
    def __init__(self, member_id: str, process: _Process) -> None:
        self.member_id, self.process = member_id, process
        self.active: set[Task] = set()
        self.standby: set[Task] = set()
        self.count = 0
        self.place = (process.member_count, process.process_id)
        """Breaks ties between members with the same number of tasks: the member with the lowest
        place is assigned the next task. Consecutive places belong to different processes.
        """
        process.members.append((0, process.member_count, self))
        process.member_count += 1

    def add(self, task: Task, *, is_active: bool) -> None:
        (self.active if is_active else self.standby).add(task)
        self.process.tasks.add(task)
        self.count += 1

    @property
    def rank(self) -> tuple[tuple[float, str], int]:
        """If several members had a task as a standby task, the one with the lowest rank is assigned
        the task.
        """
        return self.process.rank, self.count


class _Assignment:
    def __init__(
        self,
        members: Sequence[StreamsSubscriber],
        active_count: int,
        standby_replicas: int,
        stateful: Mapping[str, int],
    ) -> None:
        standby_count = sum(stateful.values()) * standby_replicas
        self._active_share = _Share(active_count, len(members))
        self._share = _Share(active_count + standby_count, len(members))
        self._replicas = standby_replicas
        self._members: list[_Member] = []
        self._active_before: dict[Task, _Member] = {}
        self._standby_before: dict[Task, list[_Member]] = {}
        self._processes = processes = dict[str, _Process]()
        for subscriber in sorted(members, key=lambda each: each.member_id):
            process_id = subscriber.process_id
            process = processes.setdefault(process_id, _Process(process_id))
            member = _Member(subscriber.member_id, process)
            self._members.append(member)
            for task in _flat(subscriber.previous.active):
                self._active_before[task] = member
            for task in _flat(subscriber.previous.standby):
                self._standby_before.setdefault(task, []).append(member)

    def assign_active(self, tasks: Sequence[Task]) -> None:
        left: list[Task] = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0])):
            member = self._active_before.get(task)
            if member is None or not self._add_active_within_share(member, task):
                left.append(task)
        rest: list[Task] = []
        for task in left:
            candidates = self._standby_before.get(task, ())
            member = min(candidates, key=lambda each: each.rank, default=None)
            if member is None or not self._add_active_within_share(member, task):
                rest.append(task)
        heap = [(member.count, member.place, member) for member in self._members]
        heapq.heapify(heap)
        for task in sorted(rest):
            member = heap[0][2]
            self._add_active(member, task)
            heapq.heapreplace(heap, (member.count, member.place, member))

    def _add_active_within_share(self, member: _Member, task: Task) -> bool:
        if member.count >= self._active_share.size:
            return False
        self._add_active(member, task)
        return True

    def _add_active(self, member: _Member, task: Task) -> None:
        member.add(task, is_active=True)
        self._active_share.note(member.count)
        self._share.note(member.count)

    def assign_standby(self, tasks: Sequence[Task]) -> None:
        missing: list[tuple[Task, int]] = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            left = self._replicas
            while left and self._keep_standby(task):
                left -= 1
            if left:
                missing.append((task, left))
        heap = [(process.rank, process) for process in self._processes.values()]
        heapq.heapify(heap)
        for task, left in sorted(missing, reverse=True):
            for _ in range(left):
                if not self._add_standby_anywhere(heap, task):
                    break

    def _keep_standby(self, task: Task) -> bool:
        """Assign a standby task to a member that previously had the task, as an active or standby
        task.
        """
        active = self._active_before.get(task)
        if active is not None and self._has_room(active, task):
            self._add_standby(active, task)
            return True
        candidates = [
            member
            for member in self._standby_before.get(task, ())
            if task not in member.process.tasks
        ]
        member = min(candidates, key=lambda each: each.rank, default=None)
        if member is None or not self._has_room(member, task):
            return False
        self._add_standby(member, task)
        return True

    def _has_room(self, member: _Member, task: Task) -> bool:
        return task not in member.process.tasks and member.count < self._share.size

    def _add_standby(self, member: _Member, task: Task) -> None:
        member.add(task, is_active=False)
        self._share.note(member.count)

    def _add_standby_anywhere(
        self, heap: list[tuple[tuple[float, str], _Process]], task: Task
    ) -> bool:
        """Assign a standby task to the process with the lowest load that does not have the task."""
        passed: list[_Process] = []
        found = False
        while heap and not found:
            process = heapq.heappop(heap)[1]
            passed.append(process)
            if task not in process.tasks:
                self._add_standby(process.lightest(), task)
                found = True
        for process in passed:
            heapq.heappush(heap, (process.rank, process))
        return found

    def result(self) -> dict[str, Tasks]:
        return {
            member.member_id: Tasks(_by_subtopology(member.active), _by_subtopology(member.standby))
            for member in self._members
        }


def _flat(tasks: Mapping[str, Iterable[int]]) -> list[Task]:
    return [(key, index) for key, indexes in tasks.items() for index in indexes]


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for key, index in tasks:
        found.setdefault(key, set()).add(index)
    return {key: frozenset(indexes) for key, indexes in sorted(found.items())}

"""Assign partitions to the members of a share group, like Kafka's SimpleAssignor (KIP-932). Several
members may read the same partition.

Members keep their partitions as long as the assignment is balanced. If there are fewer partitions
than members, several members share a partition, so that every member has at least one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import Assignment

SIMPLE: Final = "simple"
"""The name of this assignor."""

Partition: TypeAlias = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class ShareSubscriber:
    """A group member, as seen by the assignor."""

    member_id: str
    topics: frozenset[UUID]
    previous: Assignment
    """The member's previous target assignment."""


def assign_shared(
    members: Sequence[ShareSubscriber], assignable: Assignment
) -> dict[str, Assignment]:
    """Return the partitions of each member. The result does not depend on the order of the
    arguments.
    """
    held: dict[str, set[Partition]] = {member.member_id: set() for member in members}
    ordered = sorted(members, key=lambda member: member.member_id)
    for partitions, subscribers in _pools(ordered, assignable):
        for member_id, mine in _share(partitions, subscribers).items():
            held[member_id] |= mine
    return {member_id: _by_topic(mine) for member_id, mine in held.items()}


def _pools(
    members: Sequence[ShareSubscriber], assignable: Assignment
) -> Iterator[tuple[list[Partition], list[ShareSubscriber]]]:
    """Yield sets of partitions, each with the members among which it is balanced: a single set if
    all members subscribe to the same topics, otherwise one set per topic.
    """
    topics = sorted(assignable, key=lambda topic: topic.int)
    if all(member.topics == members[0].topics for member in members):
        if members:
            mine = [topic for topic in topics if topic in members[0].topics]
            yield [(topic, i) for topic in mine for i in sorted(assignable[topic])], list(members)
        return
    for topic in topics:
        subscribers = [member for member in members if topic in member.topics]
        if subscribers:
            yield [(topic, i) for i in sorted(assignable[topic])], subscribers


def _share(
    partitions: Sequence[Partition], members: Sequence[ShareSubscriber]
) -> dict[str, set[Partition]]:
    held: dict[str, set[Partition]] = {member.member_id: set() for member in members}
    if not partitions:
        return held
    sharing = -(-len(members) // len(partitions))
    quotas = _quotas(sharing * len(partitions), members)
    readers = _keep(partitions, members, quotas, sharing, held)
    _fill(readers, quotas, sharing, held)
    return held


def _quotas(total: int, members: Sequence[ShareSubscriber]) -> dict[str, int]:
    """Return the number of partitions for each member. Members that had more partitions get the
    remainder.
    """
    quota, extras_count = divmod(total, len(members))
    by_size = sorted(members, key=lambda member: -sum(map(len, member.previous.values())))
    return {
        member.member_id: quota + (position < extras_count)
        for position, member in enumerate(by_size)
    }


def _keep(
    partitions: Sequence[Partition],
    members: Sequence[ShareSubscriber],
    quotas: Mapping[str, int],
    sharing: int,
    held: Mapping[str, set[Partition]],
) -> dict[Partition, int]:
    """Assign previous partitions again, up to each member's quota. Return the number of readers of
    each partition.
    """
    readers = dict.fromkeys(partitions, 0)
    for member in members:
        mine = held[member.member_id]
        for topic, indexes in sorted(member.previous.items(), key=lambda item: item[0].int):
            for index in sorted(indexes):
                is_free = readers.get((topic, index), sharing) < sharing
                if is_free and len(mine) < quotas[member.member_id]:
                    mine.add((topic, index))
                    readers[topic, index] += 1
    return readers


def _fill(
    readers: dict[Partition, int],
    quotas: Mapping[str, int],
    sharing: int,
    held: Mapping[str, set[Partition]],
) -> None:
    """Assign the rest round-robin, starting with partitions without a reader. A partition gets no
    additional reader if all members below their quota already read it.
    """
    unfilled = [member_id for member_id, mine in held.items() if len(mine) < quotas[member_id]]
    for partition, count in sorted(readers.items(), key=lambda item: item[1]):
        for _ in range(sharing - count):
            member_id = next((m for m in unfilled if partition not in held[m]), None)
            if member_id is None:
                break
            held[member_id].add(partition)
            unfilled.remove(member_id)
            if len(held[member_id]) < quotas[member_id]:
                unfilled.append(member_id)


def _by_topic(partitions: set[Partition]) -> Assignment:
    found: dict[UUID, frozenset[int]] = {}
    for topic, index in partitions:
        found[topic] = found.get(topic, frozenset()) | {index}
    return found

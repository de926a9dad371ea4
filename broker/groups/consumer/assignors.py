"""Assign the partitions of topics to subscribed members, like Kafka's UniformAssignor and
RangeAssignor (KIP-848). `uniform` balances the number of partitions per member with as few moves as
possible. `range` assigns a range of each topic, so that partitions with the same index in topics of
equal size go to the same member.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from penstock.broker.groups.common.model import Assignment
from penstock.broker.groups.consumer.model import RANGE, UNIFORM

_ROUNDS_MAX: Final = 16
"""Maximum number of passes over the topics to balance members with different subscriptions."""

Counts: TypeAlias = Mapping[UUID, int]
"""Partition counts of the subscribed topics that exist."""
Held: TypeAlias = dict[UUID, set[int]]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A group member, as seen by the assignors."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    previous: Assignment
    """The member's previous target assignment."""


def assign(assignor: str, members: Sequence[Subscriber], counts: Counts) -> dict[str, Assignment]:
    """Return the partitions of each member. Topics that are missing in `counts` do not exist. The
    result does not depend on the order of the arguments.
    """
    held = _ASSIGNORS[assignor](members, counts) if members else {}
    return {
        member_id: {topic: frozenset(indexes) for topic, indexes in topics.items() if indexes}
        for member_id, topics in held.items()
    }


# --- range ----------------------------------------------------------------------------------------


def _assign_ranges(members: Sequence[Subscriber], counts: Counts) -> dict[str, Held]:
    """Assign a range of each topic to each subscriber. Static members come first, ordered by
    instance id, so that they keep their ranges after a restart.
    """
    ordered = sorted(
        members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id, m.member_id)
    )
    held: dict[str, Held] = {member.member_id: {} for member in members}
    for topic, count in counts.items():
        subscribers = [member for member in ordered if topic in member.topics]
        start = 0
        for position, member in enumerate(subscribers):
            share, more = divmod(count, len(subscribers))
            end = start + share + (position < more)
            held[member.member_id][topic] = set(range(start, end))
            start = end
    return held


# --- uniform --------------------------------------------------------------------------------------


def _assign_uniformly(members: Sequence[Subscriber], counts: Counts) -> dict[str, Held]:
    ordered = sorted(members, key=lambda member: member.member_id)
    held = _still_valid(ordered, counts)
    topics = sorted(counts, key=lambda topic: topic.int)
    free = _unassigned(topics, held, counts)
    if all(member.topics == ordered[0].topics for member in ordered):
        _even_out_same(held, free, sum(counts[topic] for topic in topics))
    else:
        _even_out_different(ordered, held, free, topics)
    return held


def _still_valid(members: Sequence[Subscriber], counts: Counts) -> dict[str, Held]:
    """Return the previous partitions that each member may keep. If several members had the same
    partition, the first one keeps it.
    """
    taken: Held = {}
    held: dict[str, Held] = {}
    for member in members:
        mine: Held = {}
        for topic, indexes in member.previous.items():
            if topic in member.topics and topic in counts:
                others = taken.setdefault(topic, set())
                mine[topic] = {i for i in indexes if i < counts[topic] and i not in others}
                others |= mine[topic]
        held[member.member_id] = mine
    return held


def _unassigned(
    topics: Sequence[UUID], held: Mapping[str, Held], counts: Counts
) -> list[tuple[UUID, int]]:
    taken = {topic: set[int]() for topic in topics}
    for mine in held.values():
        for topic, indexes in mine.items():
            taken[topic] |= indexes
    return [
        (topic, index)
        for topic in topics
        for index in range(counts[topic])
        if index not in taken[topic]
    ]


def _even_out_same(held: dict[str, Held], free: list[tuple[UUID, int]], total: int) -> None:
    """Balance members with the same topics. Members that already have more partitions keep the
    remainder.
    """
    quota, extras_count = divmod(total, len(held))
    quotas: dict[str, int] = {}
    by_size = sorted(held, key=lambda member_id: -_size(held[member_id]))
    for position, member_id in enumerate(by_size):
        quotas[member_id] = quota + (position < extras_count)
        free += _shed(held[member_id], _size(held[member_id]) - quotas[member_id])
    partitions = iter(sorted(free, key=lambda partition: (partition[1], partition[0].int)))
    for member_id, mine in held.items():
        for _ in range(quotas[member_id] - _size(mine)):
            topic, index = next(partitions)
            mine.setdefault(topic, set()).add(index)


def _size(mine: Held) -> int:
    return sum(map(len, mine.values()))


def _shed(mine: Held, count: int) -> Iterator[tuple[UUID, int]]:
    """Take `count` partitions from a member, each from the topic with the most partitions assigned
    to it.
    """
    if count <= 0:
        return
    left = {topic: sorted(indexes) for topic, indexes in mine.items()}
    for _ in range(count):
        topic = max(left, key=lambda topic: (len(left[topic]), topic.int))
        index = left[topic].pop()
        mine[topic].remove(index)
        yield topic, index


def _even_out_different(
    members: Sequence[Subscriber],
    held: dict[str, Held],
    free: list[tuple[UUID, int]],
    topics: Sequence[UUID],
) -> None:
    """Balance members with different topics. First, each free partition is assigned to the member
    with the fewest partitions, starting with the topics that have few subscribers. Then partitions
    move between subscribers of a topic until no member has two more than another.
    """
    subscribers = {
        topic: [member.member_id for member in members if topic in member.topics]
        for topic in topics
    }
    sizes = {member_id: _size(mine) for member_id, mine in held.items()}
    for topic, index in sorted(free, key=lambda item: (len(subscribers[item[0]]), item[0].int)):
        if subscribers[topic]:
            least = min(subscribers[topic], key=lambda member_id: (sizes[member_id], member_id))
            held[least].setdefault(topic, set()).add(index)
            sizes[least] += 1
    for _ in range(_ROUNDS_MAX):
        moves = [_even_out_topic(topic, subscribers[topic], held, sizes) for topic in topics]
        if not any(moves):
            return


def _even_out_topic(
    topic: UUID, subscribers: Sequence[str], held: dict[str, Held], sizes: dict[str, int]
) -> bool:
    """Move partitions of one topic between its subscribers. Return True if any have moved."""
    has_moved = False
    while True:
        owners = [member_id for member_id in subscribers if held[member_id].get(topic)]
        if not owners:
            return has_moved
        most = max(owners, key=lambda member_id: (sizes[member_id], member_id))
        least = min(subscribers, key=lambda member_id: (sizes[member_id], member_id))
        if sizes[most] - sizes[least] < 2:
            return has_moved
        index = max(held[most][topic])
        held[most][topic].remove(index)
        held[least].setdefault(topic, set()).add(index)
        sizes[most] -= 1
        sizes[least] += 1
        has_moved = True


_ASSIGNORS: Final[Mapping[str, Callable[[Sequence[Subscriber], Counts], dict[str, Held]]]] = {
    UNIFORM: _assign_uniformly,
    RANGE: _assign_ranges,
}

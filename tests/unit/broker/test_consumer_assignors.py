"""The assignors of consumer groups: balance, stickiness and ranges."""

from collections.abc import Mapping, Sequence
from time import process_time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.common.model import Assignment
from penstock.broker.groups.consumer.assignors import Subscriber, assign
from penstock.broker.groups.consumer.model import ASSIGNORS, RANGE, UNIFORM

T, U, V = (UUID(int=number) for number in (1, 2, 3))


def members(
    names: Sequence[str], topics: Sequence[UUID], previous: Mapping[str, Assignment] | None = None
) -> list[Subscriber]:
    return [
        Subscriber(name, None, frozenset(topics), (previous or {}).get(name, {})) for name in names
    ]


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """Return how many partitions have a different owner than before."""
    owners = {
        (topic, index): name
        for name, topics in before.items()
        for topic, indexes in topics.items()
        for index in indexes
    }
    return sum(
        owners.get((topic, index), name) != name
        for name, topics in after.items()
        for topic, indexes in topics.items()
        for index in indexes
    )


def sizes(assignment: Mapping[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in assignment.values())


def test_ranges_are_the_same_for_topics_of_the_same_size() -> None:
    found = assign(RANGE, members(["c", "a", "b"], [T, U]), {T: 7, U: 7})
    assert found["a"] == {T: {0, 1, 2}, U: {0, 1, 2}}
    assert found["b"] == {T: {3, 4}, U: {3, 4}}
    assert found["c"] == {T: {5, 6}, U: {5, 6}}


def test_ranges_start_with_static_members() -> None:
    subscribers = [
        Subscriber("a", None, frozenset([T]), {}),
        Subscriber("b", "z", frozenset([T]), {}),
        Subscriber("c", "y", frozenset([T, U]), {}),
    ]
    found = assign(RANGE, subscribers, {T: 3, U: 1})
    assert found == {"c": {T: {0}, U: {0}}, "b": {T: {1}}, "a": {T: {2}}}


def test_uniform_moves_no_more_partitions_than_necessary() -> None:
    names, counts = [f"m{number:03}" for number in range(99)], {T: 300, U: 200}
    before = assign(UNIFORM, members(names, [T, U]), counts)
    assert sizes(before)[0] == 5
    joined = assign(UNIFORM, members([*names, "m050b"], [T, U], before), counts)
    assert moved(before, joined) == 5
    left = assign(UNIFORM, members(names[1:], [T, U], joined), counts)
    gone = sum(map(len, joined[names[0]].values())) + 5
    assert moved(joined, left) == gone, "the partitions of the two that left"


def test_assigning_500_partitions_to_100_members_takes_milliseconds() -> None:
    names, counts = [f"m{number:03}" for number in range(100)], {T: 300, U: 200}
    before = assign(UNIFORM, members(names[:-1], [T, U]), counts)
    began = process_time()
    assign(UNIFORM, members(names, [T, U], before), counts)
    assert process_time() - began < 0.1


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[UUID, int]]:
    topics = [UUID(int=number) for number in range(1, 5)]
    counts = {topic: draw(st.integers(1, 9)) for topic in topics}
    is_same = draw(st.booleans())
    shared = draw(st.sets(st.sampled_from(topics)))
    subscribers: list[Subscriber] = []
    for name in draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)):
        mine = shared if is_same else draw(st.sets(st.sampled_from(topics)))
        previous = draw(
            st.dictionaries(
                st.sampled_from(topics), st.frozensets(st.integers(0, 10), min_size=1), max_size=3
            )
        )
        subscribers.append(Subscriber(name, None, frozenset(mine), previous))
    used = frozenset[UUID]().union(*(member.topics for member in subscribers))
    return subscribers, {topic: counts[topic] for topic in counts if topic in used}


@given(st.sampled_from(ASSIGNORS), groups())
def test_each_partition_has_one_subscribed_owner(
    assignor: str, group: tuple[list[Subscriber], dict[UUID, int]]
) -> None:
    subscribers, counts = group
    found = assign(assignor, subscribers, counts)
    assert found == assign(assignor, list(reversed(subscribers)), counts)
    given_out = [
        (topic, index)
        for topics in found.values()
        for topic, indexes in topics.items()
        for index in indexes
    ]
    expected = [(topic, index) for topic, count in counts.items() for index in range(count)]
    assert sorted(given_out, key=str) == sorted(expected, key=str)
    assert all(set(found[member.member_id]) <= member.topics for member in subscribers)


@given(groups())
def test_uniform_is_balanced_and_stable(
    group: tuple[list[Subscriber], dict[UUID, int]],
) -> None:
    subscribers, counts = group
    found = assign(UNIFORM, subscribers, counts)
    again = [
        Subscriber(member.member_id, None, member.topics, found[member.member_id])
        for member in subscribers
    ]
    assert assign(UNIFORM, again, counts) == found
    for topic in counts:
        interested = {m.member_id: found[m.member_id] for m in subscribers if topic in m.topics}
        loads = {name: sum(map(len, topics.values())) for name, topics in interested.items()}
        owners = [name for name, topics in interested.items() if topic in topics]
        assert max(loads[name] for name in owners) - min(loads.values()) < 2


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_group_without_members_has_an_empty_assignment(assignor: str) -> None:
    assert assign(assignor, [], {T: 3}) == {}

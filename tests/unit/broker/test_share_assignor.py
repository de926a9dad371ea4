"""The assignor of share groups: balance, sharing and stickiness."""

from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.common.model import Assignment
from penstock.broker.groups.share.assignor import ShareSubscriber, assign_shared

T, U, V = (UUID(int=number) for number in (1, 2, 3))
SUBSCRIPTIONS = st.dictionaries(
    st.integers(0, 9).map(lambda number: f"m{number}"),
    st.frozensets(st.sampled_from([T, U, V])),
    min_size=1,
    max_size=8,
)
COUNTS = st.dictionaries(st.sampled_from([T, U, V]), st.integers(1, 6))


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
    previous: Mapping[str, Assignment] | None = None,
) -> dict[str, Assignment]:
    members = [
        ShareSubscriber(name, topics, (previous or {}).get(name, {}))
        for name, topics in subscriptions.items()
    ]
    return assign_shared(members, {t: frozenset(range(count)) for t, count in counts.items()})


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def check(
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
    found: Mapping[str, Assignment],
) -> None:
    assert found.keys() == subscriptions.keys()
    for name, topics in found.items():
        assert topics.keys() <= subscriptions[name]
        assert all(indexes and max(indexes) < counts[t] for t, indexes in topics.items())
    for topic, count in counts.items():
        if any(topic in topics for topics in subscriptions.values()):
            read = [found[name].get(topic, frozenset()) for name in found]
            assert frozenset().union(*read) == set(range(count)), "each partition is read"


@given(SUBSCRIPTIONS, COUNTS, SUBSCRIPTIONS, COUNTS)
def test_every_partition_is_assigned_to_subscribers(first, counts, second, later_counts) -> None:
    found = assign(first, counts)
    check(first, counts, found)
    later = assign(second, later_counts, found)
    check(second, later_counts, later)
    assert assign(dict(reversed(second.items())), later_counts, found) == later


@given(st.integers(1, 9), st.integers(1, 9))
def test_members_with_the_same_topics_get_equally_many_partitions(
    members_count: int, count: int
) -> None:
    topics = frozenset([T])
    found = assign({f"m{number}": topics for number in range(members_count)}, {T: count})
    sizes = {size(assignment) for assignment in found.values()}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1, "no member is idle"


@given(st.integers(1, 6), st.integers(1, 9))
def test_the_same_members_keep_their_partitions(members_count: int, count: int) -> None:
    subscriptions = {f"m{number}": frozenset([T]) for number in range(members_count)}
    found = assign(subscriptions, {T: count})
    assert assign(subscriptions, {T: count}, found) == found


def test_a_new_member_takes_only_its_share() -> None:
    subscriptions = {name: frozenset([T]) for name in "ab"}
    before = assign(subscriptions, {T: 6})
    after = assign({**subscriptions, "c": frozenset([T])}, {T: 6}, before)
    assert [size(after[name]) for name in "abc"] == [2, 2, 2]
    assert all(after[name][T] < before[name][T] for name in "ab")


def test_topics_with_different_subscribers_are_balanced_separately() -> None:
    found = assign({"a": frozenset([T]), "b": frozenset([T, U])}, {T: 4, U: 2})
    assert found["b"][U] == {0, 1}
    assert (len(found["a"][T]), len(found["b"][T])) == (2, 2)


def test_groups_without_members_or_partitions_have_an_empty_assignment() -> None:
    assert assign({}, {T: 2}) == {}
    assert assign({"a": frozenset([T])}, {}) == {"a": {}}

"""The assignor of streams groups: balance, stickiness, and placement of standby tasks."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.streams.assignor import StreamsSubscriber, Task, assign_tasks
from penstock.broker.groups.streams.topology import ConfiguredSubtopology
from penstock.broker.groups.streams.values import (
    NO_TASKS,
    InternalTopic,
    Subtopology,
    Tasks,
)

Assigned = dict[str, Tasks]


def subtopology(task_count: int, *, is_stateful: bool = True) -> ConfiguredSubtopology:
    changelogs = (InternalTopic("changes", task_count),) if is_stateful else ()
    return ConfiguredSubtopology(task_count, Subtopology("s", ("t",), changelog_topics=changelogs))


def flat(tasks: Tasks, *, is_active: bool) -> set[Task]:
    chosen = tasks.active if is_active else tasks.standby
    return {(key, index) for key, indexes in chosen.items() for index in indexes}


def active(tasks: Tasks) -> set[Task]:
    return flat(tasks, is_active=True)


def standby(tasks: Tasks) -> set[Task]:
    return flat(tasks, is_active=False)


def assign(
    processes: dict[str, str],
    subtopologies: dict[str, ConfiguredSubtopology],
    replicas: int = 0,
    before: Assigned | None = None,
) -> Assigned:
    """Assign the tasks. processes: the process id of each member."""
    members = [
        StreamsSubscriber(member_id, process_id, (before or {}).get(member_id, NO_TASKS))
        for member_id, process_id in processes.items()
    ]
    assigned = assign_tasks(members, subtopologies, replicas)
    assert assigned == assign_tasks(members[::-1], subtopologies, replicas), "depends on the order"
    check(processes, subtopologies, replicas, assigned)
    return assigned


def check(
    processes: dict[str, str],
    subtopologies: dict[str, ConfiguredSubtopology],
    replicas: int,
    assigned: Assigned,
) -> None:
    assert set(assigned) == set(processes)
    tasks = {(key, i) for key, each in subtopologies.items() for i in range(each.task_count)}
    held = [active(each) for each in assigned.values()]
    assert sorted(chain.from_iterable(held)) == sorted(tasks), "each task once"
    counts = list(map(len, held))
    assert max(counts) - min(counts) <= 1, counts
    by_process: dict[str, list[Task]] = {}
    copies: dict[Task, int] = {}
    for member_id, each in assigned.items():
        mine = by_process.setdefault(processes[member_id], [])
        mine += [*active(each), *standby(each)]
        for task in standby(each):
            copies[task] = copies.get(task, 0) + 1
            assert subtopologies[task[0]].is_stateful
    assert all(len(mine) == len(set(mine)) for mine in by_process.values()), "twice in a process"
    copy_count = min(replicas, len(by_process) - 1)
    stateful = {task for task in tasks if subtopologies[task[0]].is_stateful}
    assert copies == (dict.fromkeys(stateful, copy_count) if copy_count else {})


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sampled_from(["p1", "p2", "p3", "p4"]),
    min_size=1,
)
SUBTOPOLOGIES = st.dictionaries(
    st.sampled_from(["0", "1", "2"]),
    st.builds(
        lambda count, is_stateful: subtopology(count, is_stateful=is_stateful),
        st.integers(1, 12),
        st.booleans(),
    ),
    min_size=1,
)


@given(MEMBERS, SUBTOPOLOGIES, st.integers(0, 3))
def test_tasks_are_balanced_and_standby_tasks_are_in_other_processes(
    processes: dict[str, str], subtopologies: dict[str, ConfiguredSubtopology], replicas: int
) -> None:
    assigned = assign(processes, subtopologies, replicas)
    again = assign(processes, subtopologies, replicas, assigned)
    for member_id, each in assigned.items():
        assert active(again[member_id]) == active(each), "nothing changed, so nothing moves"


@given(st.integers(1, 8), SUBTOPOLOGIES, st.integers(0, 3))
def test_standby_tasks_are_stable_if_each_member_is_a_process(
    count: int, subtopologies: dict[str, ConfiguredSubtopology], replicas: int
) -> None:
    """With several threads per process, standby tasks may be swapped, as with Kafka's assignor."""
    processes = {f"m{number}": f"p{number}" for number in range(count)}
    assigned = assign(processes, subtopologies, replicas)
    assert assign(processes, subtopologies, replicas, assigned) == assigned


@given(MEMBERS, MEMBERS, SUBTOPOLOGIES, st.integers(0, 2))
def test_a_change_keeps_the_balance_and_moves_as_few_tasks_as_possible(
    first: dict[str, str],
    second: dict[str, str],
    subtopologies: dict[str, ConfiguredSubtopology],
    replicas: int,
) -> None:
    before = assign(first, subtopologies, replicas)
    after = assign(second, subtopologies, replicas, before)
    total = sum(each.task_count for each in subtopologies.values())
    least = total // len(second)
    for member_id, had in before.items():
        if member_id in after:
            kept = active(had) & active(after[member_id])
            assert len(kept) >= min(len(active(had)), least), (member_id, had, after[member_id])


def test_a_standby_task_becomes_active_on_its_process() -> None:
    two = {"a": "p1", "b": "p2"}
    before = assign(two, {"0": subtopology(4)}, 1)
    assert standby(before["b"]) == active(before["a"])
    after = assign({"b": "p2", "c": "p3"}, {"0": subtopology(4)}, 1, before)
    assert active(after["b"]) == active(before["b"])
    assert active(after["c"]) == active(before["a"])
    copies = {
        "b": Tasks({}, {"0": frozenset({2, 3})}),
        "c": Tasks({}, {"0": frozenset({0, 1})}),
    }
    after = assign({"b": "p2", "c": "p3"}, {"0": subtopology(4)}, 1, copies)
    assert {key: active(each) for key, each in after.items()} == {
        key: standby(each) for key, each in copies.items()
    }


def test_a_group_of_one_process_has_no_standby_tasks() -> None:
    assigned = assign({"a": "p", "b": "p"}, {"0": subtopology(4)}, 2)
    assert not any(standby(each) for each in assigned.values())


def test_groups_without_members_have_an_empty_assignment() -> None:
    assert assign_tasks([], {"0": subtopology(4)}, 1) == {}

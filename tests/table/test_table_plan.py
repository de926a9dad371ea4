"""Export plans: batches and tasks contain every offset once with any limits, and a compaction
merges only files of one partition.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.fetch.slices import Slice
from penstock.lake.table.model import Commit, FileEntry, TableState
from penstock.lake.table.plan import (
    compaction_tasks,
    cut_batch,
    end_offsets,
    file_tasks,
)
from penstock.lake.table.settle import Verdict, verdict


@st.composite
def logs(draw: st.DrawFn) -> list[Slice]:
    slices: list[Slice] = []
    for partition in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, 50))
        for index in range(draw(st.integers(1, 5))):
            end = position + draw(st.integers(1, 40))
            size_bytes = draw(st.integers(0, 500))
            slices.append(
                Slice(
                    f"o{index}",
                    9_000,
                    "t",
                    partition,
                    partition,
                    position,
                    end,
                    size_bytes,
                    end - position,
                )
            )
            position = end
    return slices


def offsets(slices: list[Slice]) -> list[tuple[int, int]]:
    return [
        (part.partition, offset)
        for part in slices
        for offset in range(part.start_offset, part.end_offset)
    ]


@given(logs(), st.integers(1, 3_000), st.integers(1, 700), st.booleans())
def test_batches_and_tasks_cover_each_offset_once(
    log: list[Slice], batch_bytes: int, file_bytes: int, upsert: bool
) -> None:
    expected, taken, left = offsets(log), [], log
    names: set[str] = set()
    for _ in range(len(expected)):
        if not left:
            break
        batch = cut_batch(left, batch_bytes)
        tasks = file_tasks(batch, file_bytes, "x", {}, {} if upsert else None)
        assert all(len({part.partition for part in task.slices}) == 1 for task in tasks)
        if upsert:
            assert len(tasks) == len({part.partition for part in batch})
        assert not names & {task.name for task in tasks}
        names |= {task.name for task in tasks}
        done = [part for task in tasks for part in task.slices]
        assert offsets(done) == offsets(batch)
        taken += offsets(done)
        ends = end_offsets({}, done)
        assert set(ends) == {part.partition for part in left}, "every partition must advance"
        left = [
            Slice(
                part.key,
                part.object_size_bytes,
                "t",
                part.partition,
                part.stream_id,
                max(part.start_offset, ends[part.partition]),
                part.end_offset,
                part.size_bytes,
                part.record_count,
            )
            for part in left
            if part.end_offset > ends[part.partition]
        ]
    assert sorted(taken) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 100)), max_size=40),
    st.integers(1, 200),
)
def test_compactions_merge_neighboring_files_of_one_partition(
    found: list[tuple[int, int, int]], target_bytes: int
) -> None:
    files = [
        FileEntry(f"f{index}", 1, size, (group,), (0, first))
        for index, (group, first, size) in enumerate(found)
    ]
    tasks = compaction_tasks(files, target_bytes, "x")
    named = [file.path for task in tasks for file in task.files]
    assert len(set(named)) == len(named)
    for task in tasks:
        assert len(task.files) > 1
        assert len({file.group for file in task.files}) == 1
        assert [file.first for file in task.files] == sorted(file.first for file in task.files)
        assert sum(file.size_bytes for file in task.files) <= target_bytes
        assert all(file.size_bytes * 2 < target_bytes for file in task.files)


def test_failed_commit_is_retried_or_planned_again_unless_it_took_effect() -> None:
    base = TableState("1", "t", "id", 4, {0: 10})
    old = FileEntry("old", 1, 1, (), (0, 0))
    commit = Commit("mine", base, "t", "id", 5, {0: 20})
    assert (
        verdict(commit, TableState("2", "t", "id", 5, {0: 20}, frozenset({"mine"})))
        is Verdict.COMMITTED
    )
    assert (
        verdict(commit, TableState("2", "t", "id", 5, {0: 20}, frozenset({"other"})))
        is Verdict.REPLAN
    )
    assert (
        verdict(commit, TableState("2", "t", "id", 4, {0: 10}, frozenset({"compaction"})))
        is Verdict.AGAIN
    )
    removing, found = Commit("mine", base, "t", "id", 5, {0: 20}, removed=(old,)), replace(base)
    new = FileEntry("new", 1, 1, (), (0, 0))
    assert verdict(removing, found, [old, new]) is Verdict.AGAIN
    assert verdict(removing, found, [new]) is Verdict.REPLAN
    less = replace(old, delete_paths=frozenset({"deletes"}))
    assert verdict(removing, found, [less]) is Verdict.REPLAN, "its deleted row would return"

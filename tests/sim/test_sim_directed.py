"""Planted bugs that need a few events in one order, each found by a script that makes them happen.

The script finds nothing without the bug.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest

from penstock.base.ids import Offset
from penstock.broker.partition.producer_state import ProducerSnapshot, ProducerState
from penstock.controller.managers import forks as fork_manager
from tests.sim.directed import Script, violation_of
from tests.sim.mutants import patched
from tests.sim.topic_mutants import TOPIC_MUTANTS
from tests.sim.topic_offsets import TopicOffsets

Patch = tuple[Any, str, Any]
_Script = Callable[[Script], Awaitable[None]]
_FEW: Final = 100
"""Producers that a partition with the planted bug remembers. Each costs a request."""
_NOTHING: Final = -1
"""What a group that has committed nothing reads."""
_Bug = Callable[[], list[Patch]]


async def compact_past_a_fork(script: Script) -> None:
    """Replace and clean a record below a fork point that the controller does not have yet, because
    the leader of another partition is paused.
    """
    await _compact_past(script, "f")


async def compact_past_a_snapshot(script: Script) -> None:
    """The same for a snapshot, which is forked later."""
    await _compact_past(script, "t@s")


async def _compact_past(script: Script, name: str) -> None:
    await script.create("t", (1, 2), cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    await script.write(("t", 0), (b"k", b"old"))
    with script.paused(2):
        forking = asyncio.ensure_future(script.fork(name, "t", by=1))
        await asyncio.sleep(0.5)  # the leader of partition 0 has named its end
        await script.write(("t", 0), (b"k", b"new"))
        await script.upload(1)
        assert await script.clean(1) == 1
        assert not forking.done()
    await forking
    if name != "f":
        await script.fork("f", name)
    found = [(record.key, record.value) for record in await script.read(("f", 0))]
    assert found[-1:] == [(b"k", b"new")], f"the fork has {found}"


def forks_that_compaction_has_passed() -> list[Patch]:
    """The controller creates a fork below the end of a cleaner pass."""
    return [(fork_manager, "is_cleaned_beyond", lambda stream, offset: False)]


async def recreate_a_topic(script: Script) -> None:
    """Commit an offset for a topic, delete it and create another one of the same name."""
    offsets = await _recreate(script)
    await offsets.check("t", _NOTHING)


async def recreate_a_topic_and_load_the_group(script: Script) -> None:
    """The same, but the coordinator has the offset from its log."""
    offsets = await _recreate(script)
    await script.restart(1)
    await script.restart(2)
    await offsets.check("t", _NOTHING)


async def _recreate(script: Script) -> TopicOffsets:
    offsets = TopicOffsets(script.world)
    await script.create("t")
    await offsets.check("t", await offsets.commit("t"))
    await script.delete("t")
    await script.create("t")
    return offsets


async def repeat_a_batch_after_other_producers(script: Script) -> None:
    """Repeat the batch of a producer after others have written to the partition."""
    first = await _write_as_many(script)
    await _check_repeated(script, first)


async def repeat_a_batch_after_a_restart(script: Script) -> None:
    """The same, but the leader has the producers from a checkpoint."""
    first = await _write_as_many(script)
    await script.checkpoint(("t", 0))
    await script.restart(1)
    await _check_repeated(script, first)


async def _write_as_many(script: Script) -> int:
    await script.create("t")
    first = await script.write(("t", 0), (b"k", b"0"), producer_id=0, sequence=0)
    for producer_id in range(1, 2 * _FEW):
        await script.write(
            ("t", 0), (b"k", b"%d" % producer_id), producer_id=producer_id, sequence=0
        )
    return first


async def _check_repeated(script: Script, first: int) -> None:
    again = await script.write(("t", 0), (b"k", b"0"), producer_id=0, sequence=0)
    found = [record.value for record in await script.read(("t", 0))]
    assert (again, found.count(b"0")) == (first, 1), (
        f"the batch is stored {found.count(b'0')} times"
    )


def few_producers_remembered() -> list[Patch]:
    """A partition forgets the longest inactive producer beyond a small number."""
    real = ProducerState.__init__

    def init(self: ProducerState, producers_count_max: int = _FEW) -> None:
        real(self, min(producers_count_max, _FEW))

    return [(ProducerState, "__init__", init)]


def few_producers_stored() -> list[Patch]:
    """A checkpoint has only the producers that wrote last."""
    real = ProducerState.snapshot

    def snapshot(self: ProducerState, offset: Offset) -> ProducerSnapshot:
        found = real(self, offset)
        return msgspec.structs.replace(found, producers=found.producers[-_FEW:])

    return [(ProducerState, "snapshot", snapshot)]


SCRIPTS: list[tuple[_Script, _Bug, str]] = [
    (compact_past_a_fork, forks_that_compaction_has_passed, "the fork has []"),
    (compact_past_a_snapshot, forks_that_compaction_has_passed, "the fork has []"),
    (recreate_a_topic, TOPIC_MUTANTS["offsets_kept_by_name"], "offset 1 of topic t is read"),
    (
        recreate_a_topic_and_load_the_group,
        TOPIC_MUTANTS["offsets_kept_by_name"],
        "offset 1 of topic t is read",
    ),
    (
        repeat_a_batch_after_other_producers,
        few_producers_remembered,
        "the batch is stored 2 times",
    ),
    (repeat_a_batch_after_a_restart, few_producers_remembered, "the batch is stored 2 times"),
    (repeat_a_batch_after_a_restart, few_producers_stored, "the batch is stored 2 times"),
]
"""Each with its bug, and what it finds with it."""


@pytest.mark.parametrize(
    ("script", "bug", "finding"),
    SCRIPTS,
    ids=[f"{script.__name__}-{bug.__name__}" for script, bug, _ in SCRIPTS],
)
def test_the_script_finds_its_bug_and_nothing_else(
    script: _Script, bug: _Bug, finding: str
) -> None:
    assert violation_of(script) is None
    with patched(bug()):
        violation = violation_of(script)
    assert finding in (violation or "")

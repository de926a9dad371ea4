"""Records of what other disks have promised: a disk that lost something is rejected, and a complete
disk never is.
"""

import pytest

from penstock.controller.raft.messages import NOBODY, Promise, Start
from penstock.controller.raft.promises import DISKS_MAX, NOTHING, Promised, Promises, forgotten

FIRST = Start(1, 11)


@pytest.mark.parametrize(
    ("start", "promised", "what"),
    [
        (Start(2, 1, 0, NOBODY, 0), NOTHING, ""),
        (Start(2, 1, 3, NOBODY, 9), Promised(3, 9, 7), ""),
        (
            Start(2, 1, 2, NOBODY, 9),
            Promised(3, 9, 7),
            "it had reached term 3, its journal is in term 2",
        ),
        (
            Start(2, 1, 3, NOBODY, 8),
            Promised(3, 9, 7),
            "it acknowledged entries up to 9, its journal ends at 8",
        ),
        # A later leader may discard uncommitted entries, but nothing else.
        (Start(2, 1, 4, NOBODY, 8), Promised(3, 9, 7), ""),
        (
            Start(2, 1, 4, NOBODY, 6),
            Promised(3, 9, 7),
            "it acknowledged entries up to 7, its journal ends at 6",
        ),
        (Start(2, 1, 3, 2, 0), Promised(3, vote=2), ""),
        (
            Start(2, 1, 3, NOBODY, 0),
            Promised(3, vote=2),
            "it voted for controller 2 in term 3, its journal does not have that",
        ),
        (Start(2, 1, 4, 0, 0), Promised(3, vote=2), ""),
    ],
)
def test_lost_promises_of_a_disk_are_detected(start: Start, promised: Promised, what: str) -> None:
    assert forgotten(start, promised) == what


def test_a_restarted_disk_is_accepted_only_if_it_is_complete() -> None:
    memory = Promises()
    assert memory.refusal(1, "d", FIRST) == ""
    memory.acknowledged(1, 4, 20, 18)
    assert memory.refusal(1, "d", FIRST) == "", (
        "what it says now is not compared with what it said since it began"
    )
    assert memory.refusal(1, "d", Start(2, 22, 4, NOBODY, 20)) == ""
    assert "up to 20" in memory.refusal(1, "d", Start(3, 33, 4, NOBODY, 19))
    assert "up to 20" in memory.refusal(1, "d", Start(3, 33, 4, NOBODY, 19)), "it stays refused"


def test_a_copied_disk_with_an_equal_or_lower_start_count_is_rejected() -> None:
    memory = Promises()
    assert memory.refusal(1, "d", Start(5, 55)) == ""
    for number, nonce in ((4, 44), (5, 66)):
        assert "a message of start 5 arrived before" in memory.refusal(1, "d", Start(number, nonce))


def test_late_messages_of_an_earlier_start_do_not_count_for_the_current_one() -> None:
    memory = Promises()
    memory.refusal(1, "d", FIRST)
    memory.acknowledged(1, 4, 20, 18)
    memory.refusal(1, "d", Start(2, 22, 4, NOBODY, 20))
    assert memory.refusal(1, "d", FIRST), "it must not be received"
    assert memory.refusal(1, "d", Start(2, 22, 4, NOBODY, 20)) == ""


def test_followers_remember_what_the_leader_reported() -> None:
    leader, follower = Promises(), Promises()
    leader.refusal(1, "d", FIRST)
    leader.acknowledged(1, 4, 20, 18)
    follower.learn(leader.promises_of((1, 2)))
    assert "up to 20" in follower.refusal(1, "d", Start(2, 22, 4, NOBODY, 3))
    late = Promises()
    late.refusal(1, "d", Start(2, 22, 4, NOBODY, 3))
    late.learn(leader.promises_of((1, 2)))
    assert "up to 20" in late.refusal(1, "d", Start(2, 22, 4, NOBODY, 3)), (
        "also when it arrives later"
    )


def test_a_new_disk_does_not_inherit_promises() -> None:
    memory = Promises()
    memory.refusal(1, "old", FIRST)
    memory.acknowledged(1, 4, 20, 18)
    assert memory.refusal(1, "new", Start(1, 99)) == ""
    memory.acknowledged(1, 5, 3, 3)
    assert memory.refusal(1, "new", Start(2, 98, 5, NOBODY, 3)) == ""


def test_the_number_of_remembered_disks_is_limited() -> None:
    memory = Promises()
    memory.learn(others(3 * DISKS_MAX))
    assert len(memory._disks) == DISKS_MAX


def others(count: int) -> list[Promise]:
    return [Promise(f"d{at}", 1, 1, 1, 1, 1, NOBODY) for at in range(count)]


def test_promises_of_voters_are_not_dropped() -> None:
    """The oldest directory is that of a voter, which may not have restarted for years."""
    leader, follower = Promises(), Promises()
    leader.refusal(1, "d", FIRST)
    leader.acknowledged(1, 4, 20, 18)
    for promise in others(3 * DISKS_MAX):
        follower.learn(leader.promises_of((1,)))
        for memory in (leader, follower):
            memory.learn([promise])
    for memory in (leader, follower):
        assert "up to 20" in memory.refusal(1, "d", Start(2, 22, 4, NOBODY, 3))


def test_a_start_whose_directory_was_dropped_is_not_refused() -> None:
    memory = Promises()
    assert memory.refusal(1, "d", FIRST) == ""
    memory.learn(others(DISKS_MAX))
    memory.acknowledged(1, 4, 20, 18)
    assert memory.refusal(1, "d", FIRST) == ""
    memory.acknowledged(1, 4, 30, 30)
    assert memory.refusal(1, "d", FIRST) == ""
    assert "up to 30" in memory.refusal(1, "d", Start(2, 22, 4, NOBODY, 29))

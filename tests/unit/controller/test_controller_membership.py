"""The rules for membership changes and slow volumes, as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.controller.raft import membership
from penstock.controller.raft.majority import majority
from penstock.controller.raft.messages import Endpoint, Members
from penstock.controller.raft.volume import (
    SAMPLES_MAX,
    SAMPLES_MIN,
    Candidate,
    FsyncWindow,
    SlowVolume,
)

FOUNDED = membership.founded([(1, "b:1"), (0, "a:1"), (2, "c:1")])
LIMIT_US = 50_000
ELECTION_MS = 1_000


def allowed(old: Members, new: Members) -> str | None:
    return membership.refusal(old, new, is_pending=False, has_committed_in_term=True)


def test_a_new_cluster_has_addresses_and_accepts_any_disk() -> None:
    assert FOUNDED.voters == (0, 1, 2)
    assert FOUNDED.endpoint(1) == Endpoint(1, "b:1")
    assert FOUNDED.is_voter(1, "any disk")
    assert not FOUNDED.is_voter(3, "")


def test_only_the_introduced_disk_of_a_controller_can_vote() -> None:
    members = membership.introduced(
        FOUNDED, [Endpoint(1, "b:1", "disk"), Endpoint(7, "x:1", "of a stranger")]
    )
    assert (members.version, members.voters) == (1, (0, 1, 2))
    assert members.is_voter(1, "disk")
    assert not members.is_voter(1, "another")
    assert membership.introduced(members, [Endpoint(1, "elsewhere:1", "another")]) is members
    assert (
        membership.introduced(members, [Endpoint(1, "elsewhere:1", "disk")]).endpoint(1).address
        == "elsewhere:1"
    )


def test_a_controller_with_another_disk_is_rejected_unless_its_members_are_newer() -> None:
    old = membership.introduced(FOUNDED, [Endpoint(1, "b:1", "lost")])
    new = membership.promoted(
        membership.added_learner(membership.removed(old, 1), 1, "b:2", "new"), 1
    )
    assert not membership.is_impostor(old, 1, "lost", 0)
    assert membership.is_impostor(old, 1, "new", 0), "a disk that joined nothing yet"
    assert not membership.is_impostor(old, 1, "new", new.version), "we lag"
    assert membership.is_impostor(new, 1, "lost", old.version), "it was replaced"
    assert membership.is_intended_receiver(new, Endpoint(1, "", "new"), "lost", old.version)
    assert not membership.is_intended_receiver(old, Endpoint(1, "", "lost"), "new", new.version)


def test_only_one_member_may_change_at_a_time() -> None:
    learning = membership.added_learner(FOUNDED, 3, "d:1", "disk")
    voting = membership.promoted(learning, 3)
    assert allowed(FOUNDED, learning) is None
    assert allowed(learning, voting) is None
    assert allowed(FOUNDED, voting) is not None, "made from members that are not the present ones"
    assert allowed(FOUNDED, Members((0, 1, 2, 3, 4), version=1)) is not None
    assert allowed(FOUNDED, Members((0, 1, 2, 2), version=1)) is not None
    assert allowed(FOUNDED, Members((0, 1, 2), (2,), version=1)) is not None
    assert allowed(Members((0,)), Members((), version=1)) is not None
    assert membership.promoted(voting, 3) is voting
    assert membership.removed(voting, 9) is voting
    assert membership.added_learner(voting, 3, "e:1", "other") is voting


@given(
    st.lists(
        st.tuples(st.sampled_from(["learn", "promote", "remove"]), st.integers(0, 6)), max_size=30
    )
)
def test_majorities_of_consecutive_configurations_overlap(steps: list[tuple[str, int]]) -> None:
    members = FOUNDED
    for what, node_id in steps:
        change = {
            "learn": membership.added_learner,
            "promote": membership.promoted,
            "remove": membership.removed,
        }[what]
        changed = change(members, node_id)
        if changed is members or allowed(members, changed) is not None:
            continue
        both = set(members.voters) | set(changed.voters)
        assert majority(len(members.voters)) + majority(len(changed.voters)) > len(both)
        assert {endpoint.node_id for endpoint in changed.endpoints} == set(changed.everyone)
        members = changed


# --- slow volumes ---------------------------------------------------------------------------------


def window(*took_us: int, now_ms: int = 0) -> FsyncWindow:
    made = FsyncWindow()
    for each in took_us:
        made.add(each, now_ms)
    return made


@given(st.lists(st.integers(1, 10**6), min_size=SAMPLES_MIN, max_size=2 * SAMPLES_MAX))
def test_the_window_contains_the_newest_samples_and_their_99th_percentile(
    samples: list[int],
) -> None:
    kept = sorted(samples[-SAMPLES_MAX:])
    p99_us = window(*samples).p99_us
    assert sum(sample <= p99_us for sample in kept) >= 0.99 * len(kept)
    assert sum(sample < p99_us for sample in kept) < 0.99 * len(kept)


def test_old_or_too_few_samples_have_no_percentile() -> None:
    assert window(*[1] * (SAMPLES_MIN - 1)).p99_us == 0
    aged = window(*[90_000] * 50)
    aged.add(1, 31_000)
    assert aged.p99_us == 0


def test_a_slow_leader_transfers_to_the_longest_log_on_a_fast_disk() -> None:
    rule = SlowVolume(LIMIT_US, ELECTION_MS)
    slow = window(*[80_000] * 50)
    rule.gained(0)
    good = [
        Candidate(1, 90, 2_000),
        Candidate(2, 100, 3_000),
        Candidate(3, 200, 40_000),
        Candidate(4, 300, 0),
    ]
    assert [rule.target(now_ms, slow, good) for now_ms in (0, 2_000, 4_999, 5_000)] == [
        None,
        None,
        None,
        2,
    ]
    assert rule.target(5_100, slow, good) is None, "not again at once"
    assert rule.target(35_000, slow, good) == 2


def test_occasional_slow_writes_change_nothing() -> None:
    rule = SlowVolume(LIMIT_US, ELECTION_MS)
    quick = window(*[1_000] * 200, 900_000, 900_000)
    assert all(
        rule.target(now_ms, quick, [Candidate(1, 1, 1_000)]) is None
        for now_ms in range(0, 60_000, 100)
    )


@pytest.mark.parametrize(
    "others",
    [[], [Candidate(1, 1, 26_000)], [Candidate(1, 1, 0)]],
    ids=["nobody", "no better", "unknown"],
)
def test_without_a_better_candidate_the_leader_stays(others: list[Candidate]) -> None:
    rule = SlowVolume(LIMIT_US, ELECTION_MS)
    slow = window(*[80_000] * 50)
    assert all(rule.target(now_ms, slow, others) is None for now_ms in range(0, 60_000, 100))


def test_latencies_between_fast_and_slow_change_nothing() -> None:
    rule = SlowVolume(LIMIT_US, ELECTION_MS)
    better = [Candidate(1, 1, 1_000)]
    assert rule.target(0, window(*[80_000] * 50), better) is None
    assert rule.target(1_000, window(*[40_000] * 50), better) is None
    assert rule.target(2_000, window(*[40_000] * 50), better) == 1, (
        "it was slow and has not become good"
    )
    rule = SlowVolume(LIMIT_US, ELECTION_MS)
    assert rule.target(0, window(*[80_000] * 50), better) is None
    assert rule.target(1_000, window(*[10_000] * 50), better) is None
    assert rule.target(2_000, window(*[80_000] * 50), better) is None, "it was good meanwhile"

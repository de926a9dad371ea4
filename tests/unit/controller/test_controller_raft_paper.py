"""Sections 5 to 7 of the Raft paper, statement by statement, each with a single core."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.controller.raft import majority as quorum
from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore, Role
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.log import RaftLog
from penstock.controller.raft.messages import (
    Append,
    AppendReply,
    Base,
    Entry,
    HardState,
    HeartbeatReply,
    Install,
    Members,
    Message,
    TimeoutNow,
    Vote,
    VoteReply,
)

ELECTION_MS = 1_000


def entries(*terms: int) -> list[Entry]:
    return [
        Entry(index, term, index - 1, [b"%d" % index]) for index, term in enumerate(terms, start=1)
    ]


def voter(*terms: int, term: int = 0, voters: int = 3, node_id: int = 0) -> RaftCore:
    """Return a core whose log contains entries of these terms, all of them durable."""
    base = Base(0, 0, 0, Members(tuple(range(voters))))
    return RaftCore(
        CoreConfig(node_id),
        RaftLog(base, entries(*terms)),
        HardState(term or max(terms, default=0)),
        Random(1),
        0,
    )


def sync(core: RaftCore) -> list[Message]:
    """Sync the disk until no write is left; return all messages."""
    said = core.take_messages()
    while core.take_write() is not None:
        core.persisted()
        said += core.take_messages()
    return said + core.take_messages()


def lead(core: RaftCore) -> RaftCore:
    """Elect the core with the vote of voter 1, and drop its first messages."""
    core.tick(2 * ELECTION_MS)
    sync(core)
    core.step(VoteReply(1, core.id, core.term + 1, granted=True, pre=True), 2_000)
    sync(core)
    core.step(VoteReply(1, core.id, core.term, granted=True), 2_000)
    sync(core)
    assert core.is_leader
    return core


def append(term: int, prev: tuple[int, int], new: list[Entry], commit: int = 0) -> Append:
    return Append(1, 0, term, prev[0], prev[1], new, commit, 1, 0)


def of_kind(messages: list[Message], kind: type[Message]) -> list[Message]:
    return [message for message in messages if isinstance(message, kind)]


# --- 5.1 terms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_a_node_that_sees_a_larger_term_adopts_it_and_becomes_a_follower(role: Role) -> None:
    core = voter()
    if role is Role.LEADER:
        lead(core)
    elif role is Role.CANDIDATE:
        core.tick(2 * ELECTION_MS)
        core.step(VoteReply(1, 0, 1, granted=True, pre=True), 2_000)
    assert core.role is role
    core.step(append(9, (0, 0), []), 2_001)
    assert (core.role, core.term, core.leader) == (Role.FOLLOWER, 9, 1)


def test_messages_of_an_old_term_are_answered_with_the_current_term() -> None:
    core = voter(1, term=5)
    core.step(append(4, (1, 1), entries(1, 4)[1:]), 1)
    assert core.log.last_index == 1
    assert sync(core) == [AppendReply(0, 1, 5, 0, rejected=True)]


# --- 5.2 leader election --------------------------------------------------------------------------


def test_a_follower_without_heartbeats_requests_votes_and_election_timeouts_are_random() -> None:
    deadlines = set()
    for seed in range(20):
        core = RaftCore(
            CoreConfig(0),
            RaftLog(Base(0, 0, 0, Members((0, 1, 2))), []),
            HardState(),
            Random(seed),
            0,
        )
        assert core.deadline_ms is not None
        assert ELECTION_MS <= core.deadline_ms < 2 * ELECTION_MS
        deadlines.add(core.deadline_ms)
        core.tick(core.deadline_ms - 1)
        assert not sync(core)
        core.tick(core.deadline_ms)
        assert [(vote.to, vote.pre, vote.term) for vote in of_kind(sync(core), Vote)] == [
            (1, True, 1),
            (2, True, 1),
        ]
        assert core.term == 0, "a question changes no term"
    assert len(deadlines) > 10


def test_heartbeats_prevent_elections() -> None:
    core = voter()
    for now_ms in range(0, 10_000, 900):
        core.step(append(1, (0, 0), []), now_ms)
        core.tick(now_ms + 899)
        assert core.role is Role.FOLLOWER


@pytest.mark.parametrize(("voters", "needed"), [(1, 0), (3, 1), (5, 2)])
def test_a_majority_of_votes_elects_the_leader(voters: int, needed: int) -> None:
    core = voter(voters=voters)
    core.campaign()
    for peer in range(1, needed + 1):
        core.step(VoteReply(peer, 0, 1, granted=True, pre=True), 1)
    sync(core)
    for peer in range(1, needed + 1):
        assert not core.is_leader
        core.step(VoteReply(peer, 0, 1, granted=True), 1)
    assert core.is_leader
    assert core.term == 1


def test_a_split_vote_leads_to_another_election_with_a_larger_term() -> None:
    core = voter(voters=5)
    core.campaign()
    for peer in (1, 2):
        core.step(VoteReply(peer, 0, 1, granted=True, pre=True), 1)
    sync(core)
    for peer in (1, 2, 3):
        core.step(VoteReply(peer, 0, 1, granted=False), 1)
    assert core.role is Role.FOLLOWER
    assert core.deadline_ms is not None
    core.tick(core.deadline_ms)
    assert [vote.term for vote in of_kind(sync(core), Vote)] == [2] * 4


def test_a_voter_votes_once_in_a_term_first_come_first_served_even_after_a_crash() -> None:
    core = voter()
    core.step(Vote(1, 0, 3, 0, 0), 1)
    core.step(Vote(2, 0, 3, 0, 0), 1)
    core.step(Vote(1, 0, 3, 0, 0), 1)
    assert [(reply.to, reply.granted) for reply in sync(core) if isinstance(reply, VoteReply)] == [
        (1, True),
        (2, False),
        (1, True),
    ]
    again = RaftCore(
        CoreConfig(0), RaftLog(core.log.base, []), HardState(core.term, core.vote), Random(1), 0
    )
    again.step(Vote(2, 0, 3, 0, 0), 1)
    assert of_kind(sync(again), VoteReply) == [VoteReply(0, 2, 3, granted=False)]


def test_votes_and_vote_requests_are_sent_only_when_term_and_vote_are_durable() -> None:
    core = voter()
    core.step(Vote(1, 0, 3, 0, 0), 1)
    write = core.take_write()
    assert write is not None
    assert write.hard == HardState(3, 1)
    assert not core.take_messages()
    core.persisted()
    assert core.take_messages() == [VoteReply(0, 1, 3, granted=True)]
    candidate = voter()
    candidate.campaign()
    candidate.step(VoteReply(1, 0, 1, granted=True, pre=True), 1)
    assert of_kind(candidate.take_messages(), Vote) == [
        Vote(0, 1, 1, 0, 0, pre=True),
        Vote(0, 2, 1, 0, 0, pre=True),
    ]
    write = candidate.take_write()
    assert write is not None
    assert write.hard == HardState(1, 0)
    assert not candidate.take_messages()
    candidate.persisted()
    assert candidate.take_messages() == [Vote(0, 1, 1, 0, 0), Vote(0, 2, 1, 0, 0)]


def test_a_voter_with_a_live_leader_votes_only_in_a_leader_transfer() -> None:
    core = voter(1, 1)
    core.step(append(1, (2, 1), []), 100)
    sync(core)
    core.step(Vote(2, 0, 2, 9, 9, pre=True), 100 + ELECTION_MS - 1)
    core.step(Vote(2, 0, 2, 9, 9), 100 + ELECTION_MS - 1)
    assert not sync(core)
    assert core.term == 1
    core.step(Vote(2, 0, 2, 9, 9, transfer=True), 100 + ELECTION_MS - 1)
    assert sync(core) == [VoteReply(0, 2, 2, granted=True)]


# --- 5.3 log replication --------------------------------------------------------------------------


def test_a_leader_appends_to_its_log_and_sends_in_parallel_before_its_own_disk() -> None:
    core = lead(voter())
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    sync(core)
    assert core.propose([b"a"]) == 2
    sent = of_kind(core.take_messages(), Append)
    assert [
        (message.to, message.entries[0].records) for message in sent if isinstance(message, Append)
    ] == [(1, [b"a"])]
    assert core.take_write() is not None


def test_a_majority_of_durable_copies_commits_an_entry() -> None:
    """The leader counts its own copy only once it is durable."""
    core = lead(voter(voters=3))
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    sync(core)
    core.propose([b"a"])
    assert core.take_write() is not None
    core.step(AppendReply(1, 0, 1, 2), 2_002)
    assert core.commit == 1
    core.persisted()
    assert core.commit == 2


def test_followers_learn_the_commit_index_and_commit_no_further_than_they_match() -> None:
    core = voter(1, 1)
    core.step(append(1, (1, 1), [], commit=9), 1)
    assert core.commit == 1
    core.step(append(1, (2, 1), [], commit=9), 1)
    assert core.commit == 2


@pytest.mark.parametrize(
    ("terms", "prev", "hint"),
    [((1, 1), (3, 1), (2, 1)), ((1, 2, 2), (3, 1), (1, 1)), ((1, 1, 4), (3, 3), (2, 1))],
)
def test_a_follower_rejects_a_conflicting_append_and_returns_a_matching_index(
    terms: tuple[int, ...], prev: tuple[int, int], hint: tuple[int, int]
) -> None:
    core = voter(*terms)
    core.step(append(5, prev, []), 1)
    (reply,) = of_kind(sync(core), AppendReply)
    assert isinstance(reply, AppendReply)
    assert (reply.rejected, reply.index, reply.hint_index, reply.hint_term) == (
        True,
        prev[0],
        *hint,
    )


@pytest.mark.parametrize(
    ("own", "prev", "new", "expected"),
    [
        ((1, 2, 3), (2, 2), (3,), (1, 2, 3)),
        ((1, 2, 3), (2, 2), (3, 3), (1, 2, 3, 3)),
        ((1, 2, 3), (1, 1), (4,), (1, 4)),
        ((1, 2, 3), (2, 2), (), (1, 2, 3)),
        ((), (0, 0), (3, 4), (3, 4)),
    ],
)
def test_conflicting_entries_are_replaced_and_matching_ones_stay(
    own: tuple[int, ...], prev: tuple[int, int], new: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    core = voter(*own)
    sent = [Entry(prev[0] + 1 + at, term, prev[0] + at, [b"n"]) for at, term in enumerate(new)]
    core.step(append(5, prev, sent), 1)
    assert tuple(core.log.term_at(index) for index in range(1, core.log.last_index + 1)) == expected
    (reply,) = of_kind(sync(core), AppendReply)
    assert isinstance(reply, AppendReply)
    assert reply.index == prev[0] + len(new)


def test_entries_are_acknowledged_only_when_durable_and_in_the_same_term() -> None:
    core = voter()
    core.step(append(1, (0, 0), entries(1)), 1)
    assert core.take_write() is not None
    core.step(append(1, (1, 1), entries(1, 1)[1:]), 2)
    assert not core.take_messages()
    core.persisted()
    assert [reply.index for reply in core.take_messages() if isinstance(reply, AppendReply)] == [1]
    core.step(Vote(2, 0, 7, 9, 9), 5_000)
    said = sync(core)
    assert not of_kind(said, AppendReply), (
        "the second acknowledgement was still waiting when the term ended"
    )
    assert of_kind(said, VoteReply) == [VoteReply(0, 2, 7, granted=True)]


def test_a_follower_with_a_busy_disk_acknowledges_each_heartbeat_round_once() -> None:
    core = voter()
    core.step(append(1, (0, 0), entries(1)), 1)
    assert core.take_write() is not None, "with the new term"
    core.step(Append(1, 0, 1, 1, 1, [], 0, 1, 100), 101)
    assert not core.take_messages(), "its disk may still forget the term"
    core.persisted()
    sync(core)
    core.step(append(1, (1, 1), entries(1, 1)[1:]), 150)
    assert core.take_write() is not None
    for _ in range(2):
        core.step(Append(1, 0, 1, 2, 1, [], 0, 2, 200), 201)
    core.step(Append(1, 0, 1, 2, 1, [], 0, 3, 300), 301)
    assert core.take_messages() == [
        HeartbeatReply(0, 1, 1, 2, 200),
        HeartbeatReply(0, 1, 1, 3, 300),
    ]
    core.persisted()
    replies = of_kind(sync(core), AppendReply)
    assert [reply.index for reply in replies if isinstance(reply, AppendReply)] == [2, 2], (
        "that of the write, and the newest of those that waited for it"
    )


def test_responses_that_did_not_wait_for_the_disk_count_only_as_contact() -> None:
    core = lead(voter())
    core.step(AppendReply(1, 0, 1, 1, sent_ms=2_000), 2_001)
    core.propose([b"x"])
    number = core.read_round()
    assert number is not None
    core.step(HeartbeatReply(1, 0, 1, number, 2_800), 2_900)
    assert core.confirmed_round == number
    progress = core.progress_of(1)
    assert progress is not None
    assert (progress.match, progress.heard_ms, core.commit) == (1, 2_000, 1)
    core.tick(2_800 + ELECTION_MS - 1)
    assert core.is_leader
    core.tick(2_800 + ELECTION_MS)
    assert not core.is_leader


def test_a_write_that_ends_after_a_truncation_acknowledges_only_remaining_entries() -> None:
    core = voter()
    core.step(append(1, (0, 0), entries(1, 1, 1)), 1)
    assert core.take_write() is not None
    core.step(append(2, (1, 1), [Entry(2, 2, 1, [b"other"])]), 2)
    core.step(append(3, (1, 1), entries(1, 1, 1)[1:]), 3)
    core.persisted()
    assert core.log.stable == 1
    write = core.take_write()
    assert write is not None
    assert [entry.index for entry in write.entries] == [2, 3]


def test_a_leader_finds_the_matching_index_in_one_round_per_term() -> None:
    core = lead(voter(1, 1, 1, 4, 4))
    core.step(AppendReply(2, 0, 5, 5, rejected=True, hint_index=3, hint_term=1), 2_001)
    (sent,) = [message for message in sync(core) if isinstance(message, Append) and message.to == 2]
    assert (sent.prev_index, sent.prev_term, len(sent.entries)) == (3, 1, 3)


def test_appends_in_flight_are_limited() -> None:
    core = lead(voter())
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    sync(core)
    for _ in range(100):
        core.propose([b"x"])
    assert (
        len(
            [
                message
                for message in core.take_messages()
                if isinstance(message, Append) and message.to == 1
            ]
        )
        == 16
    )
    core.step(AppendReply(1, 0, 1, 17), 2_002)
    (sent,) = [
        message
        for message in core.take_messages()
        if isinstance(message, Append) and message.to == 1 and message.entries
    ]
    assert len(sent.entries) == 84


# --- 5.4 safety -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "last", "granted"),
    [
        ((1,), (1, 1), True),
        ((1,), (2, 1), True),
        ((1, 1), (1, 1), False),
        ((1,), (1, 2), True),
        ((2,), (9, 1), False),
        ((), (0, 0), True),
    ],
)
def test_no_vote_is_granted_to_a_less_up_to_date_log(
    own: tuple[int, ...], last: tuple[int, int], granted: bool
) -> None:
    core = voter(*own)
    core.step(Vote(1, 0, 9, *last), 1)
    assert [reply.granted for reply in sync(core) if isinstance(reply, VoteReply)] == [granted]


def test_only_entries_of_the_leaders_own_term_are_committed_by_counting() -> None:
    core = lead(voter(1, 2))
    core.step(AppendReply(1, 0, core.term, 2), 2_001)
    sync(core)
    assert core.commit == 0
    assert not core.is_ready_to_serve
    core.step(AppendReply(1, 0, core.term, 3), 2_002)
    assert core.commit == 3
    assert core.is_ready_to_serve


# --- 6 membership, thesis 4 -----------------------------------------------------------------------


def test_the_quorum_changes_one_voter_at_a_time_as_soon_as_the_entry_is_appended() -> None:
    core = lead(voter())
    members = membership.added_learner(core.log.members, 3)
    assert core.propose_members(members) == "the leader has not committed anything in its term yet"
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    assert core.propose_members(members) is None
    assert core.log.members == members
    assert (
        core.propose_members(membership.promoted(members, 3))
        == "another change of the quorum is not committed yet"
    )
    sync(core)
    core.step(AppendReply(1, 0, 1, 2), 2_002)
    assert core.propose_members(Members((0, 1, 2, 3, 4))) is not None
    assert core.propose_members(membership.promoted(members, 3)) is None
    assert core.log.members.voters == (0, 1, 2, 3)
    sync(core)
    core.step(AppendReply(1, 0, 1, 3), 2_003)
    assert core.commit == 2, "three of four are needed from now on"
    core.step(AppendReply(3, 0, 1, 3), 2_003)
    assert core.commit == 3


def test_a_learner_receives_the_log_but_neither_votes_nor_campaigns() -> None:
    learner = voter(node_id=3)
    learner.tick(1 << 40)
    assert not sync(learner)
    learner.campaign()
    assert learner.role is Role.FOLLOWER
    assert learner.deadline_ms is None


def test_a_removed_leader_steps_down_when_the_change_is_committed() -> None:
    core = lead(voter())
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    assert core.propose_members(membership.removed(core.log.members, 0)) is None
    sync(core)
    core.step(AppendReply(1, 0, 1, 2), 2_002)
    assert core.is_leader, "the new voters are 1 and 2, both are needed"
    core.step(AppendReply(2, 0, 1, 2), 2_002)
    assert not core.is_leader


def test_truncating_a_membership_entry_restores_the_previous_members() -> None:
    core = voter(1)
    before = core.log.members
    core.step(append(2, (1, 1), [Entry(2, 2, 1, [], Members((0, 1, 2, 3)))]), 1)
    assert core.log.members.voters == (0, 1, 2, 3)
    core.step(append(3, (1, 1), [Entry(2, 3, 1, [])]), 2)
    assert core.log.members == before


# --- 7 snapshots ----------------------------------------------------------------------------------


def test_a_follower_behind_the_start_of_the_log_needs_the_snapshot() -> None:
    core = lead(voter(1, 1, 1))
    core.step(AppendReply(1, 0, 2, 4), 2_001)
    sync(core)
    core.log.compact(3)
    core.step(AppendReply(2, 0, 2, 3, rejected=True, hint_index=1, hint_term=1), 2_002)
    assert of_kind(sync(core), Install) == [
        Install(0, 2, 2, 3, 1 if core.confirmed_round else 0, 2_002)
    ]
    core.step(AppendReply(2, 0, 2, 3), 2_003)
    (sent,) = [message for message in sync(core) if isinstance(message, Append) and message.to == 2]
    assert (sent.prev_index, [entry.index for entry in sent.entries]) == (3, [4])


def test_a_snapshot_replaces_a_conflicting_log_and_keeps_later_entries() -> None:
    members = Members((0, 1, 2))
    log = RaftLog(Base(0, 0, 0, members), entries(1, 1, 1))
    log.reset(Base(2, 1, 2, members))
    assert (log.base.index, log.last_index, log.stable) == (2, 3, 3)
    log.reset(Base(3, 2, 7, members))
    assert (log.base.index, log.last_index, log.end_offset, log.stable) == (3, 3, 7, 3)


# --- thesis 3.10, 6.4: leadership transfer, reads, check-quorum -----------------------------------


def test_the_target_of_a_leadership_transfer_is_elected_when_it_has_caught_up() -> None:
    core = lead(voter())
    assert core.transfer(1)
    assert core.propose([b"late"]) is None
    assert not of_kind(core.take_messages(), TimeoutNow)
    core.step(AppendReply(1, 0, 1, 1), 2_001)
    assert of_kind(core.take_messages(), TimeoutNow) == [TimeoutNow(0, 1, 1)]
    core.tick(2_000 + ELECTION_MS)
    assert core.transferring_to is None


def test_a_read_waits_for_a_heartbeat_round_that_started_after_it() -> None:
    core = lead(voter())
    assert core.read_round() is None, (
        "nothing of its term is committed yet: its commit index is unknown"
    )
    core.step(AppendReply(1, 0, 1, 1, round=0, sent_ms=2_000), 2_001)
    number = core.read_round()
    assert number is not None
    core.step(AppendReply(1, 0, 1, 1, round=number - 1, sent_ms=2_000), 2_002)
    assert core.confirmed_round < number
    core.step(AppendReply(2, 0, 1, 0, round=number, sent_ms=2_000), 2_003)
    assert core.confirmed_round >= number


def test_a_leader_without_a_majority_steps_down_within_an_election_timeout() -> None:
    core = lead(voter())
    core.step(AppendReply(1, 0, 1, 1, sent_ms=2_500), 2_600)
    core.tick(2_500 + ELECTION_MS - 1)
    assert core.is_leader
    core.tick(2_500 + ELECTION_MS)
    assert not core.is_leader


def test_frequent_reads_do_not_keep_the_leadership_on_a_slow_disk() -> None:
    core = lead(voter())
    for now_ms in range(2_000, 20_000, 50):
        core.propose([b"a"])
        while core.take_write() is not None:
            core.persisted(80_000)
        core.step(AppendReply(1, 0, 1, core.log.last_index, sent_ms=now_ms, fsync_us=1_000), now_ms)
        core.read_round()
        if core.deadline_ms is not None and now_ms >= core.deadline_ms:
            core.tick(now_ms)
        if core.transferring_to is not None:
            break
    assert core.transferring_to == 1


# --- majorities -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7))
def test_the_commit_index_is_the_highest_one_reached_by_a_majority(values: list[int]) -> None:
    voters = range(len(values))
    found = quorum.reached(voters, dict(enumerate(values)))
    assert sum(value >= found for value in values) >= quorum.majority(len(values))
    assert sum(value > found for value in values) < quorum.majority(len(values))


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=7))
def test_an_election_is_decided_as_early_as_possible(votes: list[bool | None]) -> None:
    given_votes = {voter: vote for voter, vote in enumerate(votes) if vote is not None}
    result = quorum.tally(range(len(votes)), given_votes)
    granted, refused, needed = votes.count(True), votes.count(False), quorum.majority(len(votes))
    assert (result is quorum.Tally.WON) == (granted >= needed)
    assert (result is quorum.Tally.LOST) == (len(votes) - refused < needed)

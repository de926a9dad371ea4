"""The state machine of classic groups, first with single events, then with random ones; invariants
are checked after each event.
"""

from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.classic.model import (
    CompleteJoin,
    CompleteSync,
    GroupLimits,
    JoinRequest,
    JoinResult,
    PersistGroup,
    Protocol,
    SyncRequest,
    SyncResult,
)
from penstock.broker.groups.common.model import GroupState
from penstock.protocol.error_codes import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000


def new_ids():
    counter = iter(range(1_000_000))
    return lambda prefix: f"{prefix}-{next(counter)}"


def make_group(delay_ms: int = 0) -> ClassicGroup:
    return ClassicGroup(
        "g", GroupLimits(initial_rebalance_delay_ms=delay_ms, members_max=5), new_ids()
    )


def join_request(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: tuple[str, ...] = ("range",),
    metadata: bytes = b"topics",
    known=False,
    skips=False,
) -> JoinRequest:
    offered = tuple(Protocol(name, metadata) for name in protocols)
    return JoinRequest(
        member_id,
        instance_id,
        "client",
        "/127.0.0.1",
        SESSION_MS,
        REBALANCE_MS,
        "consumer",
        offered,
        known,
        skips,
    )


def joins(effects) -> dict[int, JoinResult]:
    return {effect.token: effect.result for effect in effects if isinstance(effect, CompleteJoin)}


def syncs(effects) -> dict[int, SyncResult]:
    return {effect.token: effect.result for effect in effects if isinstance(effect, CompleteSync)}


def stable_pair(group: ClassicGroup) -> tuple[str, str]:
    """Join two members to a stable generation; return (leader, follower)."""
    first = joins(group.join(join_request(), 1, 0))[1].member_id
    group.join(join_request(), 2, 0)
    responses = joins(group.join(join_request(first), 3, 0))
    second = responses[2].member_id
    group.sync(SyncRequest(second, None, group.generation, None, None, {}), 4, 0)
    assert group.sync(
        SyncRequest(first, None, group.generation, None, None, {first: b"1", second: b"2"}), 5, 0
    ) == [PersistGroup(group.generation)]
    done = syncs(group.assignment_persisted(group.generation, ErrorCode.NONE, 0))
    assert done == {
        4: SyncResult(ErrorCode.NONE, "consumer", "range", b"2"),
        5: SyncResult(ErrorCode.NONE, "consumer", "range", b"1"),
    }
    assert group.state is GroupState.STABLE
    return first, second


def test_assignments_are_sent_only_after_they_are_durable() -> None:
    group = make_group()
    member = joins(group.join(join_request(), 1, 0))[1].member_id
    effects = group.sync(SyncRequest(member, None, 1, None, None, {member: b"all"}), 2, 0)
    assert effects == [PersistGroup(1)]
    assert syncs(group.assignment_persisted(1, ErrorCode.NONE, 0))[2].assignment == b"all"


def test_all_members_rejoin_after_the_assignment_could_not_be_stored() -> None:
    group = make_group()
    member = joins(group.join(join_request(), 1, 0))[1].member_id
    group.sync(SyncRequest(member, None, 1, None, None, {member: b"all"}), 2, 0)
    effects = group.assignment_persisted(1, ErrorCode.NOT_COORDINATOR, 0)
    assert syncs(effects)[2].error is ErrorCode.NOT_COORDINATOR
    assert group.state is GroupState.PREPARING_REBALANCE


def test_kip_394_a_member_without_id_gets_one_and_must_rejoin() -> None:
    group = make_group()
    response = joins(group.join(join_request(known=True), 1, 0))[1]
    assert response.error is ErrorCode.MEMBER_ID_REQUIRED
    assert (
        joins(group.join(join_request(response.member_id, known=True), 2, 0))[2].error
        is ErrorCode.NONE
    )


def test_a_member_id_that_is_never_used_does_not_block_the_group() -> None:
    group = make_group()
    group.join(join_request(known=True), 1, 0)
    member = group.join(join_request(), 2, 0)
    assert member == []
    assert group.next_deadline_ms() == SESSION_MS
    assert joins(group.tick(SESSION_MS))[2].error is ErrorCode.NONE


def test_only_the_leader_receives_the_member_list() -> None:
    group = make_group()
    first, second = stable_pair(group)
    group.join(join_request(second, metadata=b"other"), 6, 0)
    responses = joins(group.join(join_request(first), 7, 0))
    assert {member for member, _, _ in responses[7].members} == {first, second}
    assert responses[6].members == ()


def test_heartbeats_report_a_rebalance_and_then_an_old_generation() -> None:
    group = make_group()
    first, second = stable_pair(group)
    generation = group.generation
    assert group.heartbeat(first, None, generation, 1) is ErrorCode.NONE
    group.join(join_request(second, metadata=b"other"), 6, 1)
    assert group.heartbeat(first, None, generation, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(join_request(first), 7, 1)
    assert group.heartbeat(first, None, generation, 1) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("nobody", None, generation, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_expires_and_the_others_rebalance() -> None:
    group = make_group()
    first, second = stable_pair(group)
    assert group.heartbeat(first, None, group.generation, SESSION_MS - 1) is ErrorCode.NONE
    group.tick(SESSION_MS)
    assert set(group.members) == {first}
    assert second not in group.members
    assert group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_does_not_rejoin_is_removed_at_the_rebalance_timeout() -> None:
    group = make_group()
    first, second = stable_pair(group)
    group.join(join_request(first, metadata=b"new"), 6, 0)
    group.heartbeat(second, None, group.generation, 25_000)
    responses = joins(group.tick(REBALANCE_MS))
    assert responses[6].error is ErrorCode.NONE
    assert set(group.members) == {first}


def test_a_leader_that_never_syncs_is_removed_at_the_sync_timeout() -> None:
    group = make_group()
    first = joins(group.join(join_request(), 1, 0))[1].member_id
    group.join(join_request(), 2, 0)
    second = joins(group.join(join_request(first), 3, 0))[2].member_id
    group.sync(SyncRequest(second, None, group.generation, None, None, {}), 4, 0)
    for now_ms in range(0, REBALANCE_MS, 5_000):
        group.heartbeat(first, None, group.generation, now_ms)
        group.heartbeat(second, None, group.generation, now_ms)
    effects = group.tick(REBALANCE_MS)
    assert syncs(effects)[4].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(group.members) == {second}


def test_the_initial_delay_collects_members_into_one_generation() -> None:
    group = make_group(delay_ms=3_000)
    assert group.join(join_request(), 1, 0) == []
    assert group.join(join_request(), 2, 2_000) == []
    assert group.tick(3_000) == []
    responses = joins(group.tick(5_000))
    assert {responses[1].generation, responses[2].generation} == {1}


def stable_static(group: ClassicGroup) -> str:
    """Join one static member "i" to a stable generation; return its id."""
    member = joins(group.join(join_request(instance_id="i"), 1, 0))[1].member_id
    group.sync(SyncRequest(member, "i", 1, None, None, {member: b"all"}), 2, 0)
    group.assignment_persisted(1, ErrorCode.NONE, 0)
    return member


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_member_restarts_without_a_rebalance_and_fences_its_old_instance(
    skips: bool,
) -> None:
    group = make_group()
    old = stable_static(group)
    assert group.join(join_request(instance_id="i", skips=skips), 3, 0) == [PersistGroup(1)], (
        "its new id is durable before it is returned"
    )
    response = joins(group.assignment_persisted(1, ErrorCode.NONE, 0))[3]
    assert (response.error, response.generation) == (ErrorCode.NONE, 1)
    assert response.member_id != old
    # A leader that assigned again would start from an empty assignment: it is told to skip that, or
    # that its old instance is the leader.
    assert (response.leader, response.skip_assignment) == (
        (response.member_id, True) if skips else (old, False)
    )
    assert [member for member, *_ in response.members] == ([response.member_id] if skips else [])
    assert group.heartbeat(old, "i", 1, 0) is ErrorCode.FENCED_INSTANCE_ID
    assert (
        syncs(group.sync(SyncRequest(response.member_id, "i", 1, None, None, {}), 4, 0))[
            4
        ].assignment
        == b"all"
    )


def test_a_static_member_rejoins_if_its_new_id_could_not_be_stored() -> None:
    group = make_group()
    stable_static(group)
    group.join(join_request(instance_id="i"), 3, 0)
    group.join(join_request(instance_id="i"), 4, 0)
    assert (
        joins(group.assignment_persisted(1, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0))[3].error
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert joins(group.unload())[4].error is ErrorCode.NOT_COORDINATOR


def test_a_follower_does_not_expire_while_it_waits_for_the_assignment() -> None:
    group = make_group()
    first = joins(group.join(join_request(), 1, 0))[1].member_id
    group.join(join_request(), 2, 0)
    second = joins(group.join(join_request(first), 3, 0))[2].member_id
    group.sync(SyncRequest(second, None, group.generation, None, None, {}), 4, 0)
    group.heartbeat(first, None, group.generation, SESSION_MS - 1)
    assert group.tick(SESSION_MS + 1) == []
    assert sorted(group.members) == sorted([first, second])


def test_a_sync_timeout_waits_for_a_slow_store() -> None:
    group = make_group()
    member = joins(group.join(join_request(), 1, 0))[1].member_id
    group.sync(SyncRequest(member, None, 1, None, None, {member: b"all"}), 2, 0)
    assert group.next_deadline_ms() is None, (
        "a deadline that can do nothing would fire again and again"
    )
    assert group.tick(2 * REBALANCE_MS) == []
    assert (
        syncs(group.assignment_persisted(1, ErrorCode.NONE, 2 * REBALANCE_MS))[2].assignment
        == b"all"
    )


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (join_request("unknown"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join_request(protocols=("sticky",)), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join_request(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_joins_are_rejected(request_: JoinRequest, error: ErrorCode) -> None:
    group = make_group()
    stable_pair(group)
    assert joins(group.join(request_, 9, 0))[9].error is error
    assert group.state is GroupState.STABLE


def test_the_number_of_members_that_have_not_joined_yet_is_limited() -> None:
    group = make_group()
    ids = [
        joins(group.join(join_request(known=True), token, 0))[token].member_id
        for token in range(2 * group.limits.members_max)
    ]
    oldest = joins(group.join(join_request(ids[0], known=True), 99, 0))
    assert oldest[99].error is ErrorCode.UNKNOWN_MEMBER_ID, "the client starts again"
    assert not joins(group.join(join_request(ids[-1], known=True), 100, 0)), "it is parked"
    assert len(group._pending) == group.limits.members_max - 1


def test_a_full_group_rejects_new_members() -> None:
    group = make_group()
    for token in range(5):
        group.join(join_request(), token, 0)
    assert joins(group.join(join_request(), 9, 0))[9].error is ErrorCode.GROUP_MAX_SIZE_REACHED


STANDALONE = [
    ("", None, -1),
    ("own id", None, -1),
    ("own id", "i", -1),
    ("", "i", -1),
    ("x", None, -2),
]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("caller", STANDALONE)
def test_standalone_consumers_can_commit_while_the_group_is_empty(
    caller: tuple[str, str | None, int], transactional: bool
) -> None:
    group = make_group()
    check = partial(group.check_commit, now_ms=0, transactional=transactional)
    assert check(*caller) is ErrorCode.NONE
    first, second = stable_pair(group)
    is_before_kip_447 = transactional and caller == ("", None, -1)
    refused = ErrorCode.NONE if is_before_kip_447 else ErrorCode.UNKNOWN_MEMBER_ID
    assert check(*caller) is refused
    for member_id in (first, second):
        group.leave(member_id, None, 0)
    assert check(*caller) is ErrorCode.NONE
    assert check("own id", None, 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_require_the_current_generation_and_no_rebalance() -> None:
    group = make_group()
    first, second = stable_pair(group)
    assert group.check_commit(first, None, group.generation, 0) is ErrorCode.NONE
    assert group.check_commit(first, None, group.generation - 1, 0) is ErrorCode.ILLEGAL_GENERATION
    group.join(join_request(second, metadata=b"new"), 6, 0)
    group.join(join_request(first), 7, 0)
    commit = partial(group.check_commit, first, None, group.generation, 0)
    assert commit() is ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(transactional=True) is ErrorCode.NONE


def test_unloading_a_group_completes_all_waiting_requests() -> None:
    group = make_group(delay_ms=3_000)
    group.join(join_request(), 1, 0)
    assert joins(group.unload())[1].error is ErrorCode.NOT_COORDINATOR
    assert group.next_deadline_ms() is None or group.state is GroupState.DEAD


class GroupMachine(RuleBasedStateMachine):
    """Random joins, restarts, silence and failed writes. Every waiting request gets one response,
    and the group becomes stable after a quiet time.
    """

    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.group = ClassicGroup(
            "g", GroupLimits(initial_rebalance_delay_ms=0, members_max=8), new_ids()
        )
        self.parked: set[int] = set()
        self.responses: dict[int, JoinResult | SyncResult] = {}
        self.to_persist: list[int] = []
        self.token = 0

    def run(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, PersistGroup):
                self.to_persist.append(effect.generation)
            else:
                assert effect.token in self.parked, "a second response, or one without a request"
                self.parked.remove(effect.token)
                self.responses[effect.token] = effect.result

    def send_request(self) -> int:
        self.token += 1
        self.parked.add(self.token)
        return self.token

    @rule(
        target=members,
        instance=st.sampled_from([None, None, "a", "b"]),
        metadata=st.sampled_from([b"x", b"y"]),
    )
    def join_new(self, instance, metadata):
        token = self.send_request()
        self.run(
            self.group.join(
                join_request(instance_id=instance, metadata=metadata), token, self.now_ms
            )
        )
        known = {member.join_token: member.member_id for member in self.group.members.values()}
        return known.get(token) or getattr(self.responses.get(token), "member_id", "")

    @rule(member=members, metadata=st.sampled_from([b"x", b"y"]))
    def join_again(self, member, metadata):
        self.run(
            self.group.join(
                join_request(member or "?", metadata=metadata), self.send_request(), self.now_ms
            )
        )

    @rule(member=members, stale=st.booleans())
    def sync(self, member, stale):
        assignments = {name: name.encode() for name in self.group.members}
        generation = self.group.generation - stale
        self.run(
            self.group.sync(
                SyncRequest(member, None, generation, None, None, assignments),
                self.send_request(),
                self.now_ms,
            )
        )

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))
    def persisted(self, error):
        if self.to_persist:
            self.run(self.group.assignment_persisted(self.to_persist.pop(0), error, self.now_ms))

    @rule(member=members)
    def heartbeat(self, member):
        self.group.heartbeat(member, None, self.group.generation, self.now_ms)

    @rule(member=consumes(members))
    def leave(self, member):
        _, effects = self.group.leave(member, None, self.now_ms)
        self.run(effects)

    @rule(elapsed_ms=st.sampled_from([1, 5_000, SESSION_MS, REBALANCE_MS]))
    def wait(self, elapsed_ms):
        self.now_ms += elapsed_ms
        self.run(self.group.tick(self.now_ms))

    @invariant()
    def holds(self):
        self.group.check_invariants()
        waiting = {member.join_token for member in self.group.members.values()} | {
            member.sync_token for member in self.group.members.values()
        }
        waiting |= {token for _, token, _ in self.group._replacing}
        assert self.parked == waiting - {None}, "a parked request without an owner"

    def teardown(self):
        for _ in range(50):
            while self.to_persist:
                self.run(
                    self.group.assignment_persisted(
                        self.to_persist.pop(0), ErrorCode.NONE, self.now_ms
                    )
                )
            deadline_ms = self.group.next_deadline_ms()
            if deadline_ms is None:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.run(self.group.tick(self.now_ms))
        assert not self.parked, "silent members must not leave requests parked"


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestGroupMachine = GroupMachine.TestCase

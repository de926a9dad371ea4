"""The core of consumer groups (KIP-848): epochs, reconciliation, fencing, static members, timeouts,
and topic changes.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest

from penstock.base.regular_expressions import matching
from penstock.broker.groups.common.model import (
    Assignment,
    GroupState,
    HeartbeatRefused,
    HeartbeatResult,
)
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.consumer.model import ConsumerLimits, HeartbeatRequest, MemberState
from penstock.broker.groups.consumer.reconciliation import union
from penstock.broker.groups.consumer.validation import check_heartbeat
from penstock.broker.groups.coordinator.records import decode_consumer_value, encode_consumer_value
from penstock.protocol.error_codes import ErrorCode

LIMITS = ConsumerLimits(session_timeout_ms=10_000, heartbeat_interval_ms=1_000, members_max=5)


@dataclass
class Topics:
    """Topics that a test changes. Implements `TopicsView`."""

    counts: dict[str, int] = field(default_factory=dict)
    version: int = 0
    hidden: frozenset[str] = frozenset()
    """Topics that the client of the next heartbeat is not authorized to describe."""

    def set(self, name: str, count: int | None) -> None:
        self.version += 1
        self.counts.pop(name, None)
        if count is not None:
            self.counts[name] = count

    def matching(self, expression: str) -> frozenset[str]:
        return matching(expression, self.counts) - self.hidden

    def id_of(self, name: str) -> UUID | None:
        return topic_id(name) if name in self.counts else None

    def name_of(self, expected: UUID) -> str | None:
        return next((name for name in self.counts if topic_id(name) == expected), None)

    def partition_count(self, requested: UUID) -> int:
        return self.counts.get(self.name_of(requested) or "", 0)


def topic_id(name: str) -> UUID:
    return UUID(int=int.from_bytes(name.encode(), "big"))


class World:
    """One group, the topics, a clock, and the partitions that each member believes it owns."""

    def __init__(self, limits: ConsumerLimits = LIMITS, **counts: int) -> None:
        self.topics = Topics(dict(counts))
        self.limits = limits
        self.group = ConsumerGroup("g", limits)
        self.now_ms = 1_000
        self.records: dict[Any, Any] = {}
        self.owned: dict[str, Assignment] = {}
        self.epochs: dict[str, int] = {}

    def keep(self, records: list[tuple[Any, Any]]) -> None:
        for key, value in records:
            self.records.pop(key, None)
            if value is not None:
                self.records[key] = decode_consumer_value(
                    key.kind, encode_consumer_value(key.kind, value)
                )
        self.group.check_invariants()

    def send(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatResult:
        request = HeartbeatRequest(member_id, epoch, "client", "/host", **fields)
        if epoch >= 0:
            result, changes = self.group.heartbeat(request, self.topics, self.now_ms)
        else:
            result, changes = self.group.leave(request, self.topics)
        self.keep(changes.records)
        return result

    def join(self, member_id: str, *names: str, **fields: Any) -> HeartbeatResult:
        fields = {"rebalance_timeout_ms": 5_000, "owned": {}, "subscribed_names": names} | fields
        return self._told(member_id, self.send(member_id, 0, **fields))

    def beat(self, member_id: str, **fields: Any) -> HeartbeatResult:
        """Send a client's heartbeat with its epoch and its owned partitions."""
        fields = {"owned": self.owned[member_id]} | fields
        return self._told(member_id, self.send(member_id, self.epochs[member_id], **fields))

    def _told(self, member_id: str, result: HeartbeatResult) -> HeartbeatResult:
        self.epochs[member_id] = result.member_epoch
        if result.assignment is not None:
            self.owned[member_id] = result.assignment
        return result

    def leave(self, member_id: str, epoch: int = -1, **fields: Any) -> None:
        self.send(member_id, epoch, **fields)
        del self.owned[member_id]

    def settle(self) -> int:
        """Send heartbeats until nothing changes. Returns the number of rounds."""
        for rounds in range(20):
            before = (dict(self.owned), dict(self.epochs))
            for member_id in list(self.owned):
                self.beat(member_id)
            if before == (self.owned, self.epochs):
                return rounds
        raise AssertionError("the group does not settle")

    def restored(self) -> ConsumerGroup:
        """Return the group as loaded by the next coordinator."""
        group = ConsumerGroup("g", self.limits)
        group.restore(self.records.items(), self.now_ms)
        group.check_invariants()
        return group

    def partitions(self, member_id: str) -> set[tuple[str, int]]:
        return {
            (self.topics.name_of(topic) or "?", index)
            for topic, indexes in self.owned[member_id].items()
            for index in indexes
        }


def refused(error: ErrorCode, call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(HeartbeatRefused) as caught:
        call(*args, **kwargs)
    assert caught.value.result.error is error
    return caught.value.result.message or ""


def test_the_first_member_is_assigned_all_partitions_at_once() -> None:
    world = World(t=3)
    result = world.join("a", "t")
    assert (result.member_epoch, result.heartbeat_interval_ms) == (1, 1_000)
    assert world.partitions("a") == {("t", 0), ("t", 1), ("t", 2)}
    assert world.group.state is GroupState.STABLE
    assert world.beat("a").assignment is None


def test_a_second_member_waits_until_the_first_has_revoked() -> None:
    world = World(t=2)
    world.join("a", "t")
    joined = world.join("b", "t")
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert world.group.members["b"].current.state is MemberState.UNRELEASED_PARTITIONS
    requested = world.send("a", 1, owned=world.owned["a"])
    assert (requested.member_epoch, len(requested.assignment[topic_id("t")])) == (1, 1)
    assert world.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert world.group.state is GroupState.RECONCILING
    assert world.beat("b").assignment is None, "a has not revoked yet"
    world.owned["a"] = requested.assignment
    assert world.beat("a").member_epoch == 2
    assert len(world.beat("b").assignment[topic_id("t")]) == 1
    assert world.partitions("a") | world.partitions("b") == {("t", 0), ("t", 1)}
    assert world.group.state is GroupState.STABLE


def test_a_member_that_omits_its_partitions_has_not_revoked_them() -> None:
    world = World(t=2)
    world.join("a", "t")
    world.join("b", "t")
    world.send("a", 1, owned=world.owned["a"])
    assert world.send("a", 1, owned=None).member_epoch == 1
    assert world.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS


def test_a_member_that_revokes_too_late_is_removed() -> None:
    world = World(t=2)
    world.join("a", "t", rebalance_timeout_ms=5_000)
    world.join("b", "t")
    world.beat("a")
    assert world.group.next_deadline_ms() == 6_000
    world.now_ms = 6_000
    changes = world.group.tick(world.topics, world.now_ms)
    world.keep(changes.records)
    assert set(world.group.members) == {"b"}
    refused(ErrorCode.UNKNOWN_MEMBER_ID, world.beat, "a")
    world.beat("b")
    assert world.partitions("b") == {("t", 0), ("t", 1)}


def test_a_silent_member_is_removed() -> None:
    world = World(t=2)
    world.join("a", "t")
    world.now_ms += 9_000
    world.join("b", "t")
    world.now_ms += 1_000
    world.keep(world.group.tick(world.topics, world.now_ms).records)
    assert set(world.group.members) == {"b"}
    assert world.group.epoch == 3


@pytest.mark.parametrize(
    ("epoch", "owns_more", "error"),
    [
        (3, False, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, False, None),
        (1, True, ErrorCode.FENCED_MEMBER_EPOCH),
        (0, True, None),
    ],
)
def test_member_epochs_are_validated(epoch: int, owns_more: bool, error: ErrorCode | None) -> None:
    """The previous epoch is accepted if the member owns only its assignment, because the response
    with the new epoch may have been lost.
    """
    world = World(t=2, u=1)
    world.join("a", "t")
    world.beat("a", subscribed_names=("t", "u"))
    assert world.epochs["a"] == 2
    owned = {topic_id("t"): frozenset(range(2 + owns_more))}
    fields = {"owned": owned, "rebalance_timeout_ms": 1, "subscribed_names": ("t", "u")}
    if error is None:
        assert world.send("a", epoch, **fields).member_epoch == 2
    else:
        refused(error, world.send, "a", epoch, **fields)


def test_the_response_that_requests_a_revocation_may_get_lost() -> None:
    world = World(t=2)
    world.join("a", "t")
    world.topics.set("u", 2)
    lost = {"owned": world.owned["a"], "rebalance_timeout_ms": 1, "subscribed_names": ("t", "u")}
    assert world.send("a", 1, **lost).member_epoch == 2
    world.join("b", "t", "u")
    assert world.send("a", 1, **lost).member_epoch == 2
    assert world.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    world.group = world.restored()
    world.beat("a", **lost)
    world.settle()
    assert world.epochs == {"a": 3, "b": 3}
    assert (len(world.partitions("a")), len(world.partitions("b"))) == (2, 2)


def test_a_late_heartbeat_does_not_fence_its_member() -> None:
    world = World(t=2)
    world.join("a", "t")
    late = {"owned": world.owned["a"], "rebalance_timeout_ms": 1, "subscribed_names": ("t",)}
    world.topics.set("t", 3)
    world.beat("a")
    world.topics.set("t", 4)
    assert world.send("a", 1, **late).member_epoch == 3
    assert world.beat("a", subscribed_names=("t",), rebalance_timeout_ms=1).member_epoch == 3


def test_a_late_heartbeat_does_not_revoke_partitions() -> None:
    """The heartbeat was sent before the member owned any partition."""
    world = World(t=2)
    late = {"owned": {}, "rebalance_timeout_ms": 5_000, "subscribed_names": ("t",)}
    world.join("a", "t")
    world.topics.set("t", 3)
    world.beat("a", subscribed_names=("t",))
    world.join("b", "t")
    for _ in range(2):  # once before the coordinator requests a revocation, and once afterwards
        world.send("a", 1, **late)
        current = world.group.members["a"].current
        assert current.state is MemberState.UNREVOKED_PARTITIONS
        assert union(current.assigned, current.pending_revocation) == world.owned["a"]


@pytest.mark.parametrize("seed", range(50))
def test_members_that_lose_several_responses_are_not_fenced(seed: int) -> None:
    rng = Random(seed)
    world = World(t=4)
    count = 0
    for _ in range(60):
        match rng.randrange(8):
            case 0:
                world.topics.set("t", world.topics.counts["t"] + 1)
            case 1 if len(world.owned) < 5:
                count += 1
                world.join(f"m{count}", "t")
            case 2 if len(world.owned) > 1:
                world.leave(rng.choice(sorted(world.owned)))
            case 3:
                world.group = world.restored()
            case _ if world.owned:
                member_id = rng.choice(sorted(world.owned))
                full = {"rebalance_timeout_ms": 5_000, "subscribed_names": ("t",)}
                if rng.random() < 0.7:
                    epoch = world.epochs[member_id]
                    world.send(member_id, epoch, owned=world.owned[member_id], **full)
                else:
                    world.beat(member_id, **full)
            case _:
                pass
        owned = [item for member_id in world.owned for item in world.partitions(member_id)]
        assert len(owned) == len(set(owned)), "a partition has two owners"
    world.settle()


def test_unknown_members_and_members_of_full_groups_are_rejected() -> None:
    world = World(t=2)
    refused(ErrorCode.UNKNOWN_MEMBER_ID, world.send, "a", 5, owned={})
    for number in range(5):
        world.join(f"m{number}", "t")
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, world.join, "m5", "t")
    refused(ErrorCode.UNKNOWN_MEMBER_ID, world.send, "m9", -1)
    assert world.group.epoch == 5


def test_a_returning_static_member_gets_its_partitions_back() -> None:
    world = World(t=4)
    world.join("a1", "t", instance_id="a")
    world.join("b1", "t", instance_id="b")
    world.settle()
    before, epoch = world.partitions("a1"), world.group.epoch
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, world.join, "a2", "t", instance_id="a")
    assert world.join("a1", "t", instance_id="a").member_epoch == epoch, "the response was lost"
    world.leave("a1", -2, instance_id="a")
    assert world.group.members["a1"].current.epoch == -2
    world.join("a2", "t", instance_id="a")
    assert (world.partitions("a2"), world.group.epoch) == (before, epoch)
    assert set(world.group.members) == {"a2", "b1"}
    refused(ErrorCode.FENCED_INSTANCE_ID, world.send, "a1", epoch, instance_id="a")
    assert world.beat("b1").assignment is None
    assert set(world.restored().members) == {"a2", "b1"}


def test_a_static_member_that_does_not_return_is_removed() -> None:
    world = World(t=4)
    world.join("a1", "t", instance_id="a")
    world.leave("a1", -2, instance_id="a")
    world.now_ms += 10_000
    world.keep(world.group.tick(world.topics, world.now_ms).records)
    assert (world.group.members, world.group.static_members) == ({}, {})
    assert world.group.state is GroupState.EMPTY


def revoking(**fields: Any) -> World:
    """Return a group whose member "a" has to revoke two of its four partitions for "b"."""
    world = World(t=4)
    world.join("a", "t", **fields)
    world.join("b", "t")
    before = world.owned["a"]
    world.beat("a")
    assert len(world.partitions("a")) == 2
    world.owned["a"] = before
    return world


def test_the_revocation_deadline_survives_a_failover() -> None:
    world = revoking()
    group = world.restored()
    world.now_ms += 4_999
    group.tick(world.topics, world.now_ms)
    assert set(group.members) == {"a", "b"}
    world.now_ms += 1
    group.tick(world.topics, world.now_ms)
    assert set(group.members) == {"b"}, "its session is twice as long"


def test_a_leaving_static_member_releases_its_pending_revocations() -> None:
    world = revoking(instance_id="i")
    world.leave("a", -2, instance_id="i")
    world.now_ms += 5_000
    world.group.tick(world.topics, world.now_ms)
    assert set(world.group.members) == {"a", "b"}, "it has until the end of its session"
    world.beat("b")
    assert len(world.partitions("b")) == 2


def test_partitions_of_leaving_members_are_reassigned() -> None:
    world = World(t=4)
    world.join("a", "t")
    world.join("b", "t")
    world.settle()
    world.leave("a")
    world.settle()
    assert len(world.partitions("b")) == 4
    world.leave("b")
    assert world.group.state is GroupState.EMPTY
    assert {key.kind.name for key in world.records} == {"GROUP", "TARGET_EPOCH"}


def test_topic_changes_start_a_new_epoch() -> None:
    world = World(t=2)
    world.join("a", "t", "u")
    world.topics.set("other", 3)
    assert world.beat("a").member_epoch == 1
    world.topics.set("u", 1)
    assert world.beat("a").member_epoch == 2
    world.topics.set("t", 4)
    world.settle()
    assert world.partitions("a") == {("t", index) for index in range(4)} | {("u", 0)}
    world.topics.set("t", None)
    world.settle()
    assert (world.partitions("a"), world.epochs["a"]) == ({("u", 0)}, 4)


def test_a_regex_subscription_follows_created_and_deleted_topics() -> None:
    world = World(late1=2, early=1)
    world.join("a", subscribed_names=None, subscribed_regex="late.*")
    assert world.partitions("a") == {("late1", 0), ("late1", 1)}
    world.topics.set("late2", 1)
    world.topics.set("not-late", 1)
    world.settle()
    assert world.partitions("a") == {("late1", 0), ("late1", 1), ("late2", 0)}
    assert world.group.subscribed_names() == {"late1", "late2"}
    world.beat("a", subscribed_regex="", subscribed_names=("early",))
    world.settle()
    assert world.partitions("a") == {("early", 0)}
    assert world.group.regexes == {}


def test_a_regex_is_removed_with_its_last_member() -> None:
    world = World(t1=1, t2=1)
    for member_id in ("a", "b"):
        world.join(member_id, subscribed_names=None, subscribed_regex="t.*")
    world.leave("a")
    assert set(world.group.regexes) == {"t.*"}
    world.leave("b")
    assert world.group.regexes == {}


def test_a_regex_matches_only_topics_that_its_client_may_describe() -> None:
    world = World(t1=1, t2=1)
    world.topics.hidden = frozenset({"t2"})
    world.join("a", subscribed_names=None, subscribed_regex="t.*")
    assert world.partitions("a") == {("t1", 0)}
    world.topics.hidden = frozenset()
    world.join("b", subscribed_names=None, subscribed_regex="t.*")
    world.settle()
    assert world.group.subscribed_names() == {"t1"}, "as resolved before"
    world.topics.hidden = frozenset({"t1"})
    world.topics.set("t3", 1)
    world.beat("b")
    world.settle()
    assert world.group.subscribed_names() == {"t2", "t3"}, "the rights of b"
    assert world.partitions("a") | world.partitions("b") == {("t2", 0), ("t3", 0)}


def test_a_regex_follows_acl_changes_after_the_refresh_interval() -> None:
    world = World(t1=1, t2=1)
    world.join("a", subscribed_names=None, subscribed_regex="t.*")
    world.join("b", "t1", "t2")
    world.leave("b")
    world.settle()
    world.topics.hidden = frozenset({"t2"})
    interval_ms = world.limits.regex_refresh_interval_ms
    world.now_ms += interval_ms - 1
    world.settle()
    assert world.partitions("a") == {("t1", 0), ("t2", 0)}
    world.now_ms += 1
    world.settle()
    assert world.partitions("a") == {("t1", 0)}
    epoch = world.group.epoch
    world.topics.hidden = frozenset()
    world.now_ms += interval_ms - 1
    world.settle()
    assert (world.partitions("a"), world.group.epoch) == ({("t1", 0)}, epoch)
    world.now_ms += 1
    world.settle()
    assert world.partitions("a") == {("t1", 0), ("t2", 0)}


def test_a_regex_excludes_a_hidden_topic_that_another_member_subscribes_to() -> None:
    world = World(t1=2, t2=2)
    world.join("a", subscribed_names=None, subscribed_regex="t.*")
    world.join("b", "t1", "t2")
    world.settle()
    world.topics.hidden = frozenset({"t2"})
    world.now_ms += world.limits.regex_refresh_interval_ms
    world.settle()
    assert world.partitions("b") >= {("t2", 0), ("t2", 1)}


def test_changes_without_a_client_do_not_match_regexes() -> None:
    """A timeout is not a client request and has no rights."""
    world = World(t1=1)
    world.join("a", subscribed_names=None, subscribed_regex="t.*")
    world.now_ms += 9_000
    world.join("b", subscribed_names=None, subscribed_regex="t.*")
    world.topics.set("t2", 1)
    world.now_ms += 2_000
    world.keep(world.group.tick(world.topics, world.now_ms).records)
    assert world.group.subscribed_names() == {"t1"}
    assert set(world.group.members) == {"b"}
    del world.owned["a"]
    world.topics.hidden = frozenset({"t1"})
    world.settle()
    assert world.partitions("b") == {("t2", 0)}


def test_an_invalid_regex_changes_nothing() -> None:
    world = World(t=1)
    world.join("a", "t")
    message = refused(ErrorCode.INVALID_REGULAR_EXPRESSION, world.beat, "a", subscribed_regex="a(")
    assert message.startswith("SubscribedTopicRegex `a(` is not a valid regular expression:")
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, world.join, "b", subscribed_regex="(?=a)")
    assert (set(world.group.members), world.group.epoch) == ({"a"}, 1)
    assert world.group.members["a"].metadata.subscribed_regex == ""


def test_a_regex_takes_linear_time() -> None:
    world = World(**{"a" * 200: 1})
    world.join("a", subscribed_names=None, subscribed_regex="(a*)*b")
    assert world.partitions("a") == set()


def test_the_next_coordinator_restores_the_group() -> None:
    world = World(t=6)
    for name in "abc":
        world.join(name, "t")
    world.beat("a")
    restored = world.restored()
    assert restored.members == world.group.members
    assert restored.targets == world.group.targets
    assert (restored.epoch, restored.target_epoch) == (3, 3)
    assert restored.state is world.group.state is GroupState.RECONCILING
    world.group = restored
    world.settle()
    assert world.group.epoch == 3, "no rebalance"
    assert {len(world.partitions(name)) for name in "abc"} == {2}


def test_a_change_that_cannot_be_written_is_rolled_back() -> None:
    world = World(t=2)
    world.join("a1", "t", instance_id="a")
    world.leave("a1", -2, instance_id="a")
    before = (dict(world.group.members), dict(world.group.targets), world.group.epoch)
    deadline_ms = world.group.next_deadline_ms()
    request = HeartbeatRequest(
        "a2", 0, instance_id="a", rebalance_timeout_ms=1, owned={}, subscribed_names=("t", "u")
    )
    _, changes = world.group.heartbeat(request, world.topics, world.now_ms + 1)
    changes.undo()
    world.group.check_invariants()
    assert (world.group.members, world.group.targets, world.group.epoch) == before
    assert world.group.next_deadline_ms() == deadline_ms


def test_commits_require_the_current_epoch() -> None:
    world = World(t=2)
    check = world.group.check_commit
    assert check("", -1) is ErrorCode.NONE
    world.join("a", "t")
    assert check("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("a", 1) is ErrorCode.NONE
    assert check("a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.check_fetch(None, -1) is ErrorCode.NONE
    assert world.group.check_fetch("a", 2) is ErrorCode.STALE_MEMBER_EPOCH


JOIN = HeartbeatRequest("m", 0, owned={}, rebalance_timeout_ms=1, subscribed_names=())
STAY = HeartbeatRequest("m", 1)


@pytest.mark.parametrize(
    ("group_id", "request_", "version", "error"),
    [
        ("g", JOIN, 1, None),
        ("g", STAY, 1, None),
        ("g", HeartbeatRequest("", -2, instance_id="i"), 0, None),
        ("", JOIN, 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("", 1), 0, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", -3), 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", -2), 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", 1, instance_id=""), 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", 1, rack_id=" "), 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", 0, owned={}), 1, ErrorCode.INVALID_REQUEST),
        ("g", HeartbeatRequest("m", 1, server_assignor="x"), 1, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_invalid_heartbeats_are_rejected(
    group_id: str, request_: HeartbeatRequest, version: int, error: ErrorCode | None
) -> None:
    if error is None:
        check_heartbeat(group_id, request_, version, LIMITS.assignors)
    else:
        refused(error, check_heartbeat, group_id, request_, version, LIMITS.assignors)

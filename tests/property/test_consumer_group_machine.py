"""Consumer groups under random events: members join, send heartbeats, lose responses, leave, crash
and restart, topics change, and coordinators fail over.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from penstock.broker.groups.classic.embedded import decode_assignment
from penstock.broker.groups.classic.model import JoinRequest, Protocol, SyncRequest
from penstock.broker.groups.common.model import Assignment, GroupState, HeartbeatRefused
from penstock.broker.groups.consumer.classic_members import (
    heartbeat_classic,
    join_classic,
    leave_classic,
    sync_classic,
)
from penstock.broker.groups.consumer.model import ASSIGNORS, RANGE, ConsumerLimits
from penstock.protocol.error_codes import ErrorCode
from tests.support.embedded import subscription
from tests.unit.broker.test_consumer_group import World, topic_id


def subscription_of(world: World, names: Iterable[str], owned: Assignment) -> bytes:
    """Return the JoinGroup metadata of a classic consumer, with the topics that still exist."""
    named = {world.topics.name_of(topic): indexes for topic, indexes in owned.items()}
    existing = {name: indexes for name, indexes in named.items() if name is not None}
    return subscription(*sorted(names), owned=existing)


NAMES = ("t", "u", "v")
SESSION_MS = 10_000


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Clients own their assigned partitions until they revoke them. No two clients may own the same
    partition, unless the group has removed one of them.
    """

    members = Bundle("members")
    classics = Bundle("classics")

    @initialize(assignor=st.sampled_from(ASSIGNORS))
    def begin(self, assignor: str) -> None:
        limits = ConsumerLimits(
            session_timeout_ms=SESSION_MS,
            assignors=(assignor, *(name for name in ASSIGNORS if name != assignor)),
        )
        self.world = World(limits, t=3, u=2)
        self.assignor = assignor
        self.started = 0
        self.classic_owned: dict[str, Assignment] = {}
        self.without_response: set[str] = set()
        """Clients that send every field in their next heartbeat."""
        self.fields: dict[str, dict[str, Any]] = {}

    @rule(
        target=members,
        names=st.sets(st.sampled_from(NAMES), min_size=1),
        regex=st.sampled_from([None, "", "[tu]", "v"]),
        is_static=st.booleans(),
    )
    def start(self, names: set[str], regex: str | None, is_static: bool) -> str:
        self.started += 1
        member_id = f"m{self.started}"
        self.fields[member_id] = {
            "subscribed_names": tuple(names),
            "subscribed_regex": regex,
            "instance_id": f"i{self.started}" if is_static else None,
        }
        self.join(member_id)
        return member_id

    def join(self, member_id: str) -> None:
        self.world.join(member_id, **self.fields[member_id])

    @rule(member_id=members)
    def beat(self, member_id: str) -> None:
        fields: dict[str, Any] = {}
        if member_id in self.without_response:
            fields = self.fields[member_id] | {"rebalance_timeout_ms": 5_000}
        try:
            self.world.beat(member_id, **fields)
        except HeartbeatRefused as refused:
            error = refused.result.error
            assert error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
            del self.world.owned[member_id]
            instance_id = self.fields[member_id]["instance_id"]
            if error is ErrorCode.FENCED_MEMBER_EPOCH and instance_id is not None:
                self.world.send(member_id, -2, instance_id=instance_id)
            self.join(member_id)
        self.without_response.discard(member_id)

    @rule(member_id=members)
    def beat_and_lose_response(self, member_id: str) -> None:
        """The client repeats its heartbeat with its old epoch."""
        world = self.world
        if member_id in world.group.members:
            self.without_response.add(member_id)
            with suppress(HeartbeatRefused):
                world.send(member_id, world.epochs[member_id], owned=world.owned[member_id])

    @rule(member_id=members, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def subscribe(self, member_id: str, names: set[str]) -> None:
        self.fields[member_id]["subscribed_names"] = tuple(names)
        self.without_response.add(member_id)
        self.beat(member_id)

    @rule(target=members, member_id=consumes(members))
    def restart(self, member_id: str) -> Any:
        """A static member returns under another id; a dynamic one leaves."""
        known = self.world.group.members.get(member_id)
        instance_id = self.fields[member_id]["instance_id"]
        if known is None:
            del self.world.owned[member_id]
            return multiple()
        if instance_id is None:
            self.world.leave(member_id)
            return multiple()
        self.world.leave(member_id, -2, instance_id=instance_id)
        self.started += 1
        new_id = f"m{self.started}"
        self.fields[new_id] = self.fields[member_id]
        epoch = self.world.group.epoch
        self.join(new_id)
        assert self.world.group.epoch in {epoch, epoch + 1}
        return new_id

    # --- members of the classic protocol ----------------------------------------------------------

    @rule(target=classics, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def start_classic(self, names: set[str]) -> str:
        self.started += 1
        member_id = f"c{self.started}"
        self.fields[member_id] = {"subscribed_names": tuple(names)}
        self.classic_owned[member_id] = {}
        self.join_classic(member_id)
        return member_id

    @rule(member_id=classics)
    def beat_classic(self, member_id: str) -> None:
        world = self.world
        world.keep(world.group.refresh(world.topics).records)
        try:
            epoch = world.epochs[member_id]
            error = heartbeat_classic(world.group, member_id, None, epoch, world.now_ms)
        except HeartbeatRefused as refused:
            error = refused.result.error
            assert error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
            self.classic_owned[member_id] = {}
        if error is not ErrorCode.NONE:
            self.join_classic(member_id)

    def join_classic(self, member_id: str) -> None:
        """Join and sync, as a cooperative consumer does."""
        world = self.world
        names = self.fields[member_id]["subscribed_names"]
        data = subscription_of(world, names, self.classic_owned[member_id])
        protocols = (Protocol("cooperative", data),)
        request = JoinRequest(
            member_id, None, "c", "/h", SESSION_MS, 5_000, "consumer", protocols, True
        )
        joined, changes = join_classic(world.group, request, str, world.topics, world.now_ms)
        world.keep(changes.records)
        world.epochs[member_id] = joined.generation
        sync = SyncRequest(member_id, None, joined.generation, "consumer", "cooperative", {})
        try:
            synced = sync_classic(world.group, sync, world.topics, world.now_ms)
        except HeartbeatRefused as refused:
            error = refused.result.error
            assert error is ErrorCode.REBALANCE_IN_PROGRESS
            return
        found = decode_assignment(synced.assignment)
        self.classic_owned[member_id] = {topic_id(name): found[name] for name in found}

    @rule(member_id=consumes(classics))
    def stop_classic(self, member_id: str) -> None:
        world = self.world
        _, changes = leave_classic(world.group, [(member_id, None)], world.topics)
        world.keep(changes.records)
        del self.classic_owned[member_id]

    # --- the cluster ------------------------------------------------------------------------------

    @rule(passed_ms=st.integers(1, SESSION_MS // 2))
    def wait(self, passed_ms: int) -> None:
        self.world.now_ms += passed_ms
        changes = self.world.group.tick(self.world.topics, self.world.now_ms)
        self.world.keep(changes.records)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def change_topic(self, name: str, count: int) -> None:
        known = self.world.topics.counts.get(name, 0)
        self.world.topics.set(name, max(known, count))

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        self.world.topics.set(name, None)

    @rule()
    def fail_over(self) -> None:
        before = self.world.group
        self.world.group = self.world.restored()
        assert self.world.group.members == before.members
        assert self.world.group.targets == before.targets
        assert self.world.group.static_members == before.static_members
        assert (self.world.group.epoch, self.world.group.target_epoch) == (
            before.epoch,
            before.target_epoch,
        )

    @rule()
    def settle(self) -> None:
        """In the end, each partition has a subscribed owner, and the assignment does not change any
        more.
        """
        world = self.world
        for _ in range(20):
            before = (dict(world.owned), dict(self.classic_owned), dict(world.epochs))
            for member_id in list(world.owned):
                self.beat(member_id)
            for member_id in list(self.classic_owned):
                self.beat_classic(member_id)
            if before == (world.owned, self.classic_owned, world.epochs):
                break
        if not world.group.members:
            return
        assert world.group.state is GroupState.STABLE
        owned = world.owned | self.classic_owned
        for member_id, member in world.group.members.items():
            assert member.current.assigned == world.group.targets.get(member_id, {})
            assert member.current.assigned == owned[member_id]
        self.check_all_assigned()

    def check_all_assigned(self) -> None:
        group, topics = self.world.group, self.world.topics
        owned = {
            (topic, index)
            for member in group.members.values()
            for topic, indexes in member.current.assigned.items()
            for index in indexes
        }
        expected = {
            (topics.id_of(name), index)
            for name in group.subscribed_names()
            for index in range(topics.counts.get(name, 0))
        }
        assert owned == expected
        same = {
            (member.metadata.subscribed_names, member.metadata.subscribed_regex)
            for member in group.members.values()
        }
        if self.assignor != RANGE and len(same) == 1:
            sizes = [
                sum(map(len, member.current.assigned.values())) for member in group.members.values()
            ]
            assert max(sizes) - min(sizes) <= 1

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        world = self.world
        world.group.check_invariants()
        seen: set[tuple[Any, int]] = set()
        for member_id, owned in (world.owned | self.classic_owned).items():
            if member_id not in world.group.members:
                # the group has removed the member, which learns of it from its next heartbeat
                continue
            for topic, indexes in owned.items():
                for index in indexes:
                    assert (topic, index) not in seen
                    seen.add((topic, index))


TestConsumerGroups = ConsumerGroupMachine.TestCase
TestConsumerGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

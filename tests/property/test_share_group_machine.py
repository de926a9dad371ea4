"""Share groups under random events: members join, send heartbeats, lose responses, leave and fall
silent, topics change, states are initialized or not, and coordinators fail over.
"""

from typing import Any
from uuid import UUID

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

from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import HeartbeatRefused
from penstock.broker.groups.common.records import ConsumerRecordKey, ConsumerValue
from penstock.broker.groups.share.group import ShareGroup
from penstock.broker.groups.share.model import ShareHeartbeatRequest, ShareLimits, indexes_of
from penstock.broker.groups.share.values import NamedPartitions
from penstock.protocol.error_codes import ErrorCode

NAMES = ("t", "u", "v")
SESSION_MS = 10_000
LIMITS = ShareLimits(session_timeout_ms=SESSION_MS)


class Topics:
    """Topics that get a new id each time they are created. Implements `TopicsView`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, UUID] = {}
        self.version = 0

    def set(self, name: str, count: int) -> None:
        """Create a topic, or add partitions. 0: delete it."""
        self.version += 1
        if not count:
            self.counts.pop(name, None)
            self.ids.pop(name, None)
            return
        self.counts[name] = count
        self.ids.setdefault(name, UUID(int=self.version))

    def names(self) -> list[str]:
        return list(self.ids)

    def id_of(self, name: str) -> UUID | None:
        return self.ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def is_gone(self, topic_id: UUID) -> bool:
        return self.name_of(topic_id) is None

    def partition_count(self, topic_id: UUID) -> int:
        return self.counts.get(self.name_of(topic_id) or "", 0)


class ShareGroupMachine(RuleBasedStateMachine):
    members = Bundle("members")

    @initialize()
    def begin(self) -> None:
        self.topics = Topics()
        self.topics.set("t", 3)
        self.topics.set("u", 1)
        self.group = ShareGroup("g", LIMITS)
        self.log: dict[ConsumerRecordKey, ConsumerValue] = {}
        self.now_ms = 0
        self.started = 0
        self.epochs: dict[str, int] = {}
        self.subscriptions: dict[str, tuple[str, ...]] = {}
        self.initializing: list[NamedPartitions] = []
        """The partitions whose state this coordinator has started to initialize."""

    def write(self, changes: GroupChanges) -> None:
        for key, value in changes.records:
            self.log.pop(key, None)
            if value is not None:
                self.log[key] = value

    def send(self, member_id: str, epoch: int, names: tuple[str, ...] | None = None) -> Any:
        request = ShareHeartbeatRequest(member_id, epoch, subscribed_names=names)
        result, changes = self.group.heartbeat(request, self.topics, self.now_ms)
        if missing := self.group.begin_initialization(self.topics, changes):
            self.initializing.append(missing)
        self.write(changes)
        return result

    @rule(target=members, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def start(self, names: set[str]) -> str:
        self.started += 1
        member_id = f"m{self.started}"
        self.subscriptions[member_id] = tuple(sorted(names))
        self.join(member_id)
        return member_id

    def join(self, member_id: str) -> None:
        result = self.send(member_id, 0, self.subscriptions[member_id])
        assert result.assignment is not None
        self.epochs[member_id] = result.member_epoch

    @rule(member_id=members)
    def beat(self, member_id: str) -> None:
        try:
            self.epochs[member_id] = self.send(member_id, self.epochs[member_id]).member_epoch
        except HeartbeatRefused as refused:
            error = refused.result.error
            assert error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
            self.join(member_id)

    @rule(member_id=members)
    def beat_and_lose_response(self, member_id: str) -> None:
        if member_id in self.group.members:
            current = self.group.members[member_id].current
            self.send(member_id, current.epoch)

    @rule(member_id=members, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def subscribe(self, member_id: str, names: set[str]) -> None:
        self.subscriptions[member_id] = tuple(sorted(names))
        self.join(member_id)

    @rule(member_id=consumes(members))
    def leave(self, member_id: str) -> None:
        if member_id in self.group.members:
            _, changes = self.group.leave(member_id, self.topics)
            self.write(changes)

    @rule(share=st.floats(0.3, 1.5))
    def wait(self, share: float) -> None:
        self.now_ms += int(SESSION_MS * share)
        self.write(self.group.tick(self.topics, self.now_ms))

    @rule(member_id=members)
    def is_refused_by_the_log(self, member_id: str) -> None:
        """A change whose records cannot be written has no effect."""
        before = self.values()
        request = ShareHeartbeatRequest(
            member_id, 0, subscribed_names=self.subscriptions[member_id]
        )
        _, changes = self.group.heartbeat(request, self.topics, self.now_ms)
        missing = self.group.begin_initialization(self.topics, changes)
        changes.undo()
        self.group.give_up(missing)
        assert self.values() == before

    def values(self) -> Any:
        group = self.group
        return (
            group.epoch,
            group.target_epoch,
            dict(group.members),
            dict(group.targets),
            group.partitions,
            group.deadlines.member_ids,
        )

    @rule(is_done=st.booleans())
    def end_initialization(self, is_done: bool) -> None:
        if self.initializing:
            named = self.initializing.pop(0)
            changes = self.group.end_initialization(
                named if is_done else {}, {} if is_done else named
            )
            self.write(changes)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        known = self.topics.counts.get(name, 0)
        self.topics.set(name, max(known, count))

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        self.topics.set(name, 0)

    @rule(is_done=st.booleans())
    def delete_states(self, is_done: bool) -> None:
        if not self.group.members:
            self.write(self.group.begin_deletion())
            topics = tuple(self.group.partitions.deleting)
            self.group.give_up_deletion(None)
            self.write(self.group.end_deletion(topics if is_done else ()))

    @rule(name=st.sampled_from(NAMES))
    def alter(self, name: str) -> None:
        topic_id = self.topics.id_of(name)
        if topic_id is not None and not self.group.members and not self.initializing:
            indexes = frozenset(range(self.topics.partition_count(topic_id)))
            self.initializing.append({topic_id: (name, indexes)})
            self.write(self.group.begin_alteration(self.initializing[0]))

    @rule(target=members)
    def change_coordinator(self) -> Any:
        """The sessions of all members start again; pending initializations are lost."""
        restored = ShareGroup("g", LIMITS)
        restored.restore(self.log.items(), self.now_ms)
        before = self.values()
        self.group, self.initializing = restored, []
        assert self.values() == before
        return multiple()

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "group"):
            self.group.check_invariants()

    def teardown(self) -> None:
        """In the end, every subscribed partition is assigned, and the assignment does not change
        any more.
        """
        if not hasattr(self, "group"):
            return
        for _ in range(4):
            for member_id in list(self.group.members):
                self.epochs[member_id] = self.send(
                    member_id, 0, self.subscriptions[member_id]
                ).member_epoch
            while self.initializing:
                self.end_initialization(True)
        for _ in range(2):
            for member_id in self.group.members:
                self.epochs[member_id] = self.send(member_id, self.epochs[member_id]).member_epoch
        epoch = self.group.epoch
        read: dict[UUID, frozenset[int]] = {}
        for member_id, member in self.group.members.items():
            self.send(member_id, self.epochs[member_id])
            for topic, indexes in member.current.assigned.items():
                read[topic] = read.get(topic, frozenset()) | indexes
        assert self.group.epoch == epoch
        subscribed = {
            topic_id: frozenset(range(self.topics.partition_count(topic_id)))
            for name in self.group.subscribed_names()
            if (topic_id := self.topics.id_of(name)) is not None
        }
        assert read == subscribed
        initialized = indexes_of(self.group.partitions.initialized)
        assert all(initialized[topic] == indexes for topic, indexes in subscribed.items())


TestShareGroups = ShareGroupMachine.TestCase
TestShareGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

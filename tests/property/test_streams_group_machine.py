"""Streams groups under random events: members join, send heartbeats, lose responses, leave and fall
silent, topics are created and deleted, and coordinators fail over.
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
from penstock.broker.groups.common.model import GroupState, HeartbeatRefused
from penstock.broker.groups.common.records import ConsumerRecordKey, ConsumerValue
from penstock.broker.groups.coordinator.records import decode_consumer_value, encode_consumer_value
from penstock.broker.groups.streams.group import StreamsGroup
from penstock.broker.groups.streams.model import StreamsHeartbeatRequest, StreamsLimits
from penstock.broker.groups.streams.values import (
    InternalTopic,
    Subtopology,
    Tasks,
    Topology,
)
from penstock.protocol.error_codes import ErrorCode

SESSION_MS = 10_000
TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("t",), repartition_sink_topics=("r",)),
        Subtopology(
            "1",
            ("u",),
            repartition_source_topics=(InternalTopic("r"),),
            changelog_topics=(InternalTopic("c"),),
        ),
    ),
)
NAMES = ("t", "u", "r", "c")
PROCESSES = ("p1", "p2", "p3")


class Topics:
    """Topics that get a new id each time they are created. Implements `TopicsView`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, UUID] = {}
        self.version = 0

    def set(self, name: str, count: int) -> None:
        """Create a topic. 0: delete it."""
        self.version += 1
        self.counts.pop(name, None)
        self.ids.pop(name, None)
        if count:
            self.counts[name] = count
            self.ids[name] = UUID(int=self.version)

    def matching(self, expression: str) -> frozenset[str]:
        raise NotImplementedError

    def id_of(self, name: str) -> UUID | None:
        return self.ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def is_gone(self, topic_id: UUID) -> bool:
        return self.name_of(topic_id) is None

    def partition_count(self, topic_id: UUID) -> int:
        return self.counts.get(self.name_of(topic_id) or "", 0)


class StreamsGroupMachine(RuleBasedStateMachine):
    members = Bundle("members")

    @initialize(replicas=st.integers(0, 2), delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, replicas: int, delay_ms: int) -> None:
        self.topics = Topics()
        self.create_topics()
        self.limits = StreamsLimits(
            session_timeout_ms=SESSION_MS,
            standby_replicas=replicas,
            initial_rebalance_delay_ms=delay_ms,
        )
        self.group = StreamsGroup("g", self.limits)
        self.log: dict[ConsumerRecordKey, ConsumerValue] = {}
        self.now_ms = 0
        self.started = 0
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, Tasks] = {}
        """The tasks that each member believes it owns."""

    def create_topics(self) -> None:
        for name, count in (("t", 3), ("u", 2), ("r", 3), ("c", 3)):
            if name not in self.topics.counts:
                self.topics.set(name, count)

    def write(self, changes: GroupChanges) -> None:
        for key, value in changes.records:
            self.log.pop(key, None)
            if value is not None:
                data = encode_consumer_value(key.kind, value)
                self.log[key] = decode_consumer_value(key.kind, data)

    def request(self, member_id: str, epoch: int, **fields: Any) -> StreamsHeartbeatRequest:
        owned = self.owned.get(member_id, Tasks()) if epoch else Tasks()
        fields = {"active": owned.active, "standby": owned.standby, "warmup": {}, **fields}
        if epoch == 0:
            place = int(member_id[1:]) % len(PROCESSES)
            fields |= {
                "topology": TOPOLOGY,
                "process_id": PROCESSES[place],
                "rebalance_timeout_ms": 2 * SESSION_MS,
            }
        return StreamsHeartbeatRequest(member_id=member_id, member_epoch=epoch, **fields)

    def send(self, member_id: str, epoch: int, **fields: Any) -> None:
        """Send a heartbeat, and take over the assignment in the response."""
        if epoch == 0:
            self.owned.pop(member_id, None)
        request = self.request(member_id, epoch, **fields)
        result, changes = self.group.heartbeat(request, self.topics, self.now_ms)
        self.write(changes)
        self.epochs[member_id] = result.member_epoch
        if result.tasks is not None:
            self.owned[member_id] = result.tasks

    @rule(target=members)
    def start(self) -> str:
        self.started += 1
        member_id = f"m{self.started}"
        self.send(member_id, 0)
        return member_id

    @rule(member_id=members)
    def beat(self, member_id: str) -> None:
        try:
            self.send(member_id, self.epochs[member_id])
        except HeartbeatRefused as refused:
            error = refused.result.error
            assert error in {
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                # the member owns tasks that the topology no longer contains
                ErrorCode.INVALID_REQUEST,
            }
            self.send(member_id, 0)

    @rule(member_id=members)
    def beat_without_saying_what_it_has(self, member_id: str) -> None:
        if member_id in self.group.members:
            epoch = self.group.members[member_id].current.epoch
            self.send(member_id, epoch, active=None, standby=None, warmup=None)

    @rule(member_id=members)
    def lose_a_response(self, member_id: str) -> None:
        if member_id in self.group.members:
            epoch = self.group.members[member_id].current.epoch
            request = self.request(member_id, epoch, active=None, standby=None, warmup=None)
            self.write(self.group.heartbeat(request, self.topics, self.now_ms)[1])

    @rule(member_id=members)
    def change_process(self, member_id: str) -> None:
        if member_id in self.group.members:
            epoch = self.group.members[member_id].current.epoch
            fields = {"active": None, "standby": None, "warmup": None}
            self.send(member_id, epoch, process_id=f"own-{member_id}", **fields)

    @rule(member_id=consumes(members))
    def leave(self, member_id: str) -> None:
        if member_id in self.group.members:
            _, changes = self.group.leave(self.request(member_id, -1))
            self.write(changes)

    @rule(share=st.floats(0.1, 1.5))
    def wait(self, share: float) -> None:
        self.now_ms += int(SESSION_MS * share)
        self.write(self.group.tick(self.now_ms))

    @rule(member_id=members)
    def is_refused_by_the_log(self, member_id: str) -> None:
        """A change whose records cannot be written has no effect."""
        before = self.values()
        request = self.request(member_id, 0)
        _, changes = self.group.heartbeat(request, self.topics, self.now_ms)
        changes.undo()
        assert self.values() == before

    def values(self) -> Any:
        group = self.group
        return (
            group.current,
            group.target_epoch,
            group.topology,
            dict(group.members),
            dict(group.targets),
            group.deadlines.member_ids,
            group.state,
        )

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        self.topics.set(name, 0)

    @rule()
    def create(self) -> None:
        self.create_topics()

    @rule(target=members)
    def change_coordinator(self) -> Any:
        """The sessions of all members start again; state that is not in the log is lost."""
        restored = StreamsGroup("g", self.limits)
        restored.restore(self.log.items(), self.now_ms)
        before = self.values()
        self.group = restored
        assert self.values() == before
        return multiple()

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "group"):
            self.group.check_invariants()
            assert self.group.state in {
                GroupState.EMPTY,
                GroupState.NOT_READY,
                GroupState.ASSIGNING,
                GroupState.RECONCILING,
                GroupState.STABLE,
            }

    def teardown(self) -> None:
        """In the end, every task is active, and the assignment does not change any more."""
        if not hasattr(self, "group"):
            return
        self.create_topics()
        self.now_ms += 3_000
        self.write(self.group.tick(self.now_ms))
        members = list(self.group.members)
        if not members:  # their sessions have expired
            return
        for member_id in members:
            self.send(member_id, 0)
        for _ in range(8):
            for member_id in members:
                self.send(member_id, self.epochs[member_id])
        assert self.group.state is GroupState.STABLE
        epoch = self.group.epoch
        for member_id in members:
            self.send(member_id, self.epochs[member_id])
        assert self.group.epoch == epoch
        active = [
            (key, index)
            for member in self.group.members.values()
            for key, indexes in member.current.assigned.active.items()
            for index in indexes
        ]
        assert sorted(active) == [(key, index) for key in ("0", "1") for index in range(3)]
        for member_id, member in self.group.members.items():
            assert member.current.assigned.without_epochs() == self.group.targets[member_id]


TestStreamsGroups = StreamsGroupMachine.TestCase
TestStreamsGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Random valid and invalid requests to all managers: the image stays consistent, repeated requests
change nothing, and snapshots restore the same image.
"""

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.ids import (
    Millis,
    NodeId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.api.messages import (
    AlterReassignments,
    Commit,
    CommitRecovered,
    CreatePartitions,
    DeleteTopics,
    DrainBroker,
    ElectPreferred,
    ForkedPartition,
    NewPartitions,
    NewTopic,
    OpenStreamItem,
    OpenStreams,
    PartitionName,
    PartitionTarget,
    RemoveBroker,
    Status,
    TopicFork,
    TrimStream,
    UnregisterBroker,
)
from penstock.controller.api.rewrite_messages import (
    CommitRewrite,
    PrepareRewrite,
    RewriteItem,
    RewriteSource,
)
from penstock.controller.managers import (
    commits,
    deleted_topics,
    failover,
    nodes,
    objects,
    reassign,
    rewrites,
    streams,
    topics,
)
from penstock.controller.managers.result import Result
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.topic_configs import FORK_SOURCE, UNDELETE
from penstock.controller.metadata.topics import NO_LEADER, PartitionKey, leader_of
from penstock.stream.ports import BrokerIncarnation, ObjectRole
from tests.support.managers_cluster import (
    ManagersCluster,
    close,
    part,
    replaced,
    slot,
    snapshot_of,
    uploaded,
)

NUMBERS = st.integers(0, 1 << 30)
SMALL = st.integers(0, 6)
OFF_BY = st.sampled_from([0, 0, 0, 0, 0, 0, -2, -1, 1])


def _shape(stream: Any) -> tuple[Any, ...]:
    """Return the state that a bulk rewrite must not change."""
    start = max(stream.start_offset, stream.entries[0].start_offset)
    return (
        stream.end_offset,
        stream.owner,
        stream.epoch,
        stream.opened,
        start,
        stream.entries[-1].end_offset,
    )


class Managers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = ManagersCluster()
        self.incarnations: list[BrokerIncarnation] = []
        self.ends: dict[int, tuple[int, int]] = {}
        self.slots: dict[BrokerIncarnation, int] = {}

    @property
    def image(self) -> Any:
        return self.cluster.image

    def submit(self, result: Result[Any]) -> bool:
        """Apply the records of a manager's result; return True if it succeeded."""
        delta = MetadataDelta.of(result.records)
        before = {
            stream.stream_id: (stream.end_offset, stream.start_offset, stream.opened)
            for stream in self.image.streams
        }
        self.cluster.apply(result.records)
        after = {
            stream.stream_id: (stream.end_offset, stream.start_offset, stream.opened)
            for stream in self.image.streams
        }
        changed = {
            stream_id
            for stream_id in before.keys() | after.keys()
            if before.get(stream_id) != after.get(stream_id)
        }
        assert changed <= delta.stream_ids
        assert result.status == Status.OK or not result.records
        return result.status == Status.OK

    def alive(self) -> list[BrokerIncarnation]:
        return [node for node in self.incarnations if self.image.nodes.is_alive(node)]

    def node(self, number: int) -> BrokerIncarnation:
        """Return an incarnation, usually a live one."""
        alive = self.alive()
        pool = alive if alive and number % 9 else self.incarnations
        return pool[number % len(pool)]

    def stream(self, number: int) -> Any:
        """Return a stream, usually an open one."""
        known = sorted(self.image.streams, key=lambda stream: stream.stream_id)
        opened = [stream for stream in known if stream.opened]
        pool = opened if opened and number % 5 else known
        return pool[number % len(pool)] if pool else None

    def owner(self, stream: Any, number: int) -> BrokerIncarnation:
        """Return the owner of the stream, sometimes another broker."""
        return stream.owner if stream.opened and number % 7 else self.node(number)

    @initialize()
    def two_brokers_and_a_topic(self) -> None:
        self.register(1)
        self.register(2)
        self.create("a", 3)
        for number in (1, 2):
            self.open_led(number)

    @rule(node_id=st.integers(1, 4))
    def register(self, node_id: int) -> None:
        if node_id > 1 or not self.alive():
            self.incarnations.append(self.cluster.broker(node_id))

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        if number % 3 == 0 and self.alive():
            self.cluster.die(self.alive()[number % len(self.alive())])

    @rule()
    def tick(self) -> None:
        self.cluster.tick()

    @rule(ms=st.sampled_from([1, 1_000, 4_000_000]))
    def time(self, ms: int) -> None:
        self.cluster.now_ms = Millis(self.cluster.now_ms + ms)
        due = [state.object_id for state in self.cluster.deletable(0, 3_600_000, 5)]
        self.cluster.apply(objects.objects_removed(self.image, due))

    @precondition(lambda self: self.incarnations)
    @rule(name=st.sampled_from("abc"), partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        if self.image.topics.by_name(name) is None and len(self.image.nodes):
            self.cluster.create(NewTopic(name=name, partitions=partitions))
        elif self.image.topics.by_name(name) is not None:
            request = CreatePartitions(topics=[NewPartitions(name=name, total=partitions + 1)])
            self.submit(topics.create_partitions(self.image, request, live=self.cluster.live))

    @rule(name=st.sampled_from("abc"), grace_ms=st.sampled_from([0, 1_000, 5_000_000]))
    def delete(self, name: str, grace_ms: int) -> None:
        if self.image.topics.by_name(name) is not None:
            self.cluster.delete(name, grace_ms)

    @precondition(lambda self: any(self.image.frozen_topics.deleted()))
    @rule(number=NUMBERS, name=st.sampled_from("abcd"))
    def undelete(self, number: int, name: str) -> None:
        deleted = list(self.image.frozen_topics.deleted())
        frozen = deleted[number % len(deleted)]
        status = Status.OK if self.image.topics.by_name(name) is None else Status.TOPIC_EXISTS
        ends = {stream.stream_id: stream.end_offset for stream in self.image.streams}
        configs = {UNDELETE: str(frozen.topic_id)}
        self.cluster.create(NewTopic(name=name, configs=configs), status)
        assert ends == {stream.stream_id: stream.end_offset for stream in self.image.streams}

    @precondition(lambda self: any(self.image.frozen_topics.deleted()))
    @rule(number=NUMBERS)
    def purge(self, number: int) -> None:
        if number % 3 == 0:
            (frozen, *_) = self.image.frozen_topics.deleted()
            assert self.cluster.delete_by_id(frozen.topic_id, purge=True).status == Status.OK

    @rule(name=st.sampled_from("abc"), snapshot=st.sampled_from("st"))
    def snapshot(self, name: str, snapshot: str) -> None:
        """Freeze a topic at its committed end offsets. None of its streams is opened."""
        if self._fork(name, f"{name}@{snapshot}"):
            frozen = self.image.frozen_topics.by_full_name(f"{name}@{snapshot}")
            first = frozen.partitions[0].data_stream_id
            assert not self.image.streams.get(first).opened

    @rule(name=st.sampled_from("abc"), snapshot=st.sampled_from("st"), fork=st.sampled_from("abc"))
    def restore(self, name: str, snapshot: str, fork: str) -> None:
        self._fork(f"{name}@{snapshot}", fork)

    @rule(name=st.sampled_from("abc"), snapshot=st.sampled_from("st"))
    def delete_snapshot(self, name: str, snapshot: str) -> None:
        frozen = self.image.frozen_topics.by_full_name(f"{name}@{snapshot}")
        if frozen is not None:
            request = DeleteTopics(topic_ids=[frozen.topic_id])
            assert self.submit(
                deleted_topics.delete_topics(
                    self.image, request, self.cluster.now_ms, grace_ms=1_000
                )
            )

    @rule(source=st.sampled_from("abc"), name=st.sampled_from("abc"))
    def bring_back_records(self, source: str, name: str) -> None:
        self._fork(source, name, with_kept=True)

    def _fork(self, source: str, name: str, *, with_kept: bool = False) -> bool:
        """Fork a topic or a snapshot at the committed end offsets. Return whether it succeeded."""
        found = self.image.topics.by_name(source) or self.image.frozen_topics.by_full_name(source)
        if found is None:
            return False
        ends = [
            (
                self.image.streams.get(partition.data_stream_id).end_offset,
                self.image.streams.get(partition.txn_stream_id).end_offset,
            )
            for partition in found.partitions
        ]
        points = [
            ForkedPartition(
                end_offset=data, scan_offset=Offset(min(data, 1)), txn_end_offset=min(data, txn)
            )
            for data, txn in ends
        ]
        topic = NewTopic(
            name=name,
            partitions=len(points),
            configs={FORK_SOURCE: source},
            fork=TopicFork(source_topic_id=found.topic_id, partitions=points, with_kept=with_kept),
        )
        result = self.cluster.create_topics([topic])
        assert self.submit(result)
        assert result.value is not None
        return result.value.topics[0].status == Status.OK

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS)
    def open_all(self, number: int) -> None:
        self.cluster.tick()
        for index in range(len(self.alive())):
            self.open_led(number - number % 9 + 1 + index)

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS)
    def open_led(self, number: int) -> None:
        node = self.node(number)
        items = [
            OpenStreamItem(stream_id=stream_id, epoch=partition.leader_epoch)
            for topic in self.image.topics
            for partition in topic.partitions
            if leader_of(partition) == node
            for stream_id in partition.stream_ids
        ]
        request = OpenStreams(node_id=node.node_id, node_epoch=node.node_epoch, items=items)
        if self.submit(streams.open_streams(self.image, request)):
            repeat = streams.open_streams(self.image, request)
            assert repeat.records == []

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS, by=NUMBERS, epoch=st.integers(-1, 4))
    def open_any(self, number: int, by: int, epoch: int) -> None:
        stream = self.stream(number)
        if stream is not None:
            node = self.node(by)
            items = [OpenStreamItem(stream_id=stream.stream_id, epoch=StreamEpoch(epoch))]
            self.submit(
                streams.open_streams(
                    self.image,
                    OpenStreams(node_id=node.node_id, node_epoch=node.node_epoch, items=items),
                )
            )

    @precondition(lambda self: self.incarnations)
    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=3),
        in_place=st.booleans(),
        off_by=OFF_BY,
        sizes=SMALL,
        closing=st.booleans(),
        wal=st.one_of(st.none(), SMALL),
    )
    def commit(
        self,
        numbers: list[int],
        in_place: bool,
        off_by: int,
        sizes: int,
        closing: bool,
        wal: int | None,
    ) -> None:
        found = {
            stream.stream_id: stream for stream in map(self.stream, numbers) if stream is not None
        }
        if not found:
            return
        node = self.owner(next(iter(found.values())), numbers[0])
        first = max(0, off_by)
        ranges = [
            part(
                stream_id,
                max(0, stream.end_offset + (off_by if index == first else 0)),
                stream.end_offset + 1 + sizes,
            )
            for index, (stream_id, stream) in enumerate(found.items())
        ]
        ranges = [item for item in ranges if item.start_offset < item.end_offset]
        if in_place:
            self.slots[node] = self.slots.get(node, 0) + 1
            item = slot(node, self.slots[node] - sizes % 2, *ranges)
        else:
            if not self.image.nodes.is_alive(node):
                return
            item = uploaded(self.cluster.prepare(node)[0], *ranges)
        closes = (
            [
                close(stream.stream_id, stream.epoch, stream.end_offset + 1 + sizes)
                for stream in found.values()
            ]
            if closing
            else []
        )
        self._commit(
            Commit(
                node_id=node.node_id,
                node_epoch=node.node_epoch,
                objects=[item],
                closes=closes,
                wal_committed=None if wal is None else WalSequence(wal),
            )
        )

    @precondition(lambda self: any(len(stream.entries) > 1 for stream in self.image.streams))
    @rule(number=NUMBERS, low=SMALL, count=st.integers(1, 4), off_by=OFF_BY)
    def compact(self, number: int, low: int, count: int, off_by: int) -> None:
        full = sorted(
            (stream for stream in self.image.streams if len(stream.entries) > 1),
            key=lambda stream: stream.stream_id,
        )
        stream = full[number % len(full)]
        node = self.owner(stream, number)
        if not self.image.nodes.is_alive(node):
            return
        at = low % len(stream.entries)
        sources = stream.entries[at : at + count]
        new = part(
            stream.stream_id,
            max(0, sources[0].start_offset + min(off_by, 0)),
            sources[-1].end_offset + max(off_by, 0),
        )
        items = [
            replaced(stream.stream_id, entry.object_id, entry.start_offset, entry.end_offset)
            for entry in sources
        ]
        target = uploaded(self.cluster.prepare(node)[0], new)
        end = stream.end_offset
        self._commit(
            Commit(
                node_id=node.node_id, node_epoch=node.node_epoch, objects=[target], replaced=items
            )
        )
        assert stream.end_offset == end

    @precondition(
        lambda self: any(
            len(stream.entries) > 1 and stream.kind == "data" for stream in self.image.streams
        )
    )
    @rule(number=NUMBERS, low=SMALL, count=st.integers(1, 4), off_by=OFF_BY, back=st.integers(0, 1))
    def rewrite(self, number: int, low: int, count: int, off_by: int, back: int) -> None:
        """Rewrite ranges as an external job does, sometimes based on a manifest that lags by an
        entry.
        """
        full = [
            stream
            for stream in self.image.streams
            if len(stream.entries) > 1 and stream.kind == "data"
        ]
        stream = sorted(full, key=lambda stream: stream.stream_id)[number % len(full)]
        at = low % len(stream.entries)
        entries = stream.entries[at : at + count]
        keys = {state.object_id: state.key for state in self.image.objects}
        found = [
            RewriteSource(
                key=keys[e.object_id], start_offset=e.start_offset, end_offset=e.end_offset
            )
            for e in entries
        ]
        found = found[: len(found) - back] or found
        new = part(
            stream.stream_id,
            max(0, found[0].start_offset + min(off_by, 0)),
            found[-1].end_offset + max(off_by, 0),
        )
        prepared = rewrites.prepare_rewrite(
            self.image, PrepareRewrite(count=1, ttl_ms=60_000), self.cluster.now_ms
        )
        assert prepared.value is not None
        self.submit(prepared)
        target = msgspec.structs.replace(
            uploaded(prepared.value.items[0], new), role=ObjectRole.STREAM
        )
        before = _shape(stream)
        request = CommitRewrite(
            stream_id=stream.stream_id, items=[RewriteItem(new=target, sources=found)]
        )
        result = rewrites.commit_rewrite(self.image, request, self.cluster.now_ms)
        assert result.value is not None
        self.submit(result)
        if result.value.items[0].status == Status.OK:
            assert rewrites.commit_rewrite(self.image, request, self.cluster.now_ms).records == []
        assert _shape(stream) == before

    def _commit(self, request: Commit) -> None:
        if self.submit(
            commits.commit(self.image, request, self.cluster.now_ms, live=self.cluster.live)
        ):
            repeat = commits.commit(
                self.image, request, self.cluster.now_ms, live=self.cluster.live
            )
            assert repeat.status == Status.OK, repeat.detail
            assert repeat.records == []

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS, by=st.integers(-1, 9), keep=st.booleans())
    def trim(self, number: int, by: int, keep: bool) -> None:
        stream = self.stream(number)
        if stream is not None:
            node = self.owner(stream, number)
            request = TrimStream(
                node_id=node.node_id,
                node_epoch=node.node_epoch,
                stream_id=StreamId(stream.stream_id),
                epoch=stream.epoch,
                start_offset=Offset(max(0, stream.start_offset + by)),
                keep=keep,
            )
            now_ms = self.cluster.now_ms
            self.submit(streams.trim_stream(self.image, request, now_ms, grace_ms=1_000))

    @precondition(
        lambda self: any(wal.recoverer.node_id >= 0 for wal in self.image.nodes.running_wals())
    )
    @rule(number=NUMBERS, back=SMALL, ahead=SMALL, done=st.booleans(), off_by=OFF_BY)
    def recover(self, number: int, back: int, ahead: int, done: bool, off_by: int) -> None:
        wals = [wal for wal in self.image.nodes.running_wals() if wal.recoverer.node_id >= 0]
        wal = wals[number % len(wals)]
        by = wal.recoverer if number % 7 else self.node(number)
        found = list(self.image.streams)[:3]
        ranges = [
            part(s.stream_id, max(0, s.end_offset - back + off_by), s.end_offset + 1 + ahead)
            for s in found
        ]
        item = slot(
            wal.writer,
            self.slots.get(wal.writer, 0) + 1,
            *(r for r in ranges if r.start_offset < r.end_offset),
        )
        request = CommitRecovered(
            node_id=by.node_id,
            node_epoch=by.node_epoch,
            failed_node_id=wal.writer.node_id,
            failed_node_epoch=wal.writer.node_epoch,
            objects=[item],
            done=done,
            end=WalSequence(100),
        )
        if self.submit(
            failover.commit_recovered(
                self.image, request, self.cluster.now_ms, live=self.cluster.live
            )
        ):
            repeat = failover.commit_recovered(
                self.image, request, self.cluster.now_ms, live=self.cluster.live
            )
            assert repeat.status == Status.OK, repeat.detail
            assert repeat.records == []

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        if number % 4:
            return
        node = self.node(number)
        opened = [
            self.image.streams.get(stream_id) for stream_id in self.image.streams.opened_by(node)
        ]
        if number % 3:
            closes = [
                close(stream.stream_id, stream.epoch, stream.next_offset) for stream in opened
            ]
            self._commit(Commit(node_id=node.node_id, node_epoch=node.node_epoch, closes=closes))
        request = UnregisterBroker(
            node_id=node.node_id, node_epoch=node.node_epoch, wal_end=WalSequence(50)
        )
        if self.submit(
            nodes.unregister_broker(
                self.image, request, self.cluster.now_ms, live=self.cluster.live
            )
        ):
            self.cluster.live = {
                node_id
                for node_id in self.cluster.live
                if self.image.nodes.get(node_id) is not None
            }
            assert (
                nodes.unregister_broker(
                    self.image, request, self.cluster.now_ms, live=self.cluster.live
                ).records
                == []
            )

    @rule(node_id=st.integers(1, 4).map(NodeId))
    def remove(self, node_id: NodeId) -> None:
        """Remove a broker; only a fenced one without obligations can be removed."""
        state = self.image.nodes.get(node_id)
        running = [wal for wal in self.image.nodes.running_wals() if wal.writer.node_id == node_id]
        request = RemoveBroker(node_id=node_id)
        if self.submit(nodes.remove_broker(self.image, request)):
            assert state is not None
            assert state.fenced
            assert running == []
            assert all(
                node_id not in (partition.leader, *(partition.target_replicas or ()))
                for topic in self.image.topics
                for partition in topic.partitions
            )
            again = nodes.remove_broker(self.image, request)
            assert again.status == Status.NODE_EPOCH_NOT_EXIST

    @precondition(lambda self: bool(self.incarnations) and len(self.image.topics) > 0)
    @rule(
        number=NUMBERS,
        replicas=st.lists(st.integers(1, 4).map(NodeId), max_size=3),
        is_preferred=st.booleans(),
    )
    def move(self, number: int, replicas: list[NodeId], is_preferred: bool) -> None:
        """Reassign, cancel (no replicas) or elect the preferred leader. Repeating it changes
        nothing, except after a cancellation.
        """
        known = [
            (topic.name, found.partition)
            for topic in self.image.topics
            for found in topic.partitions
        ]
        name, index = known[number % len(known)]
        settings: Any = {"live": self.cluster.live, "timeout_ms": 10_000}
        if is_preferred:
            elect = ElectPreferred(partitions=[PartitionName(topic=name, partition=index)])
            assert self.submit(
                reassign.elect_preferred(self.image, elect, self.cluster.now_ms, **settings)
            )
            assert (
                reassign.elect_preferred(self.image, elect, self.cluster.now_ms, **settings).records
                == []
            )
            return
        alter = AlterReassignments(
            partitions=[PartitionTarget(topic=name, partition=index, replicas=replicas or None)]
        )
        assert self.submit(
            reassign.alter_reassignments(self.image, alter, self.cluster.now_ms, **settings)
        )
        assert (
            reassign.alter_reassignments(self.image, alter, self.cluster.now_ms, **settings).records
            == []
        )

    @precondition(lambda self: self.incarnations)
    @rule(number=NUMBERS, count=st.integers(1, 3))
    def drain(self, number: int, count: int) -> None:
        if number % 4 == 0:
            node = self.node(number)
            request = DrainBroker(
                node_id=node.node_id, node_epoch=node.node_epoch, partitions_max=count
            )
            self.submit(
                reassign.drain_broker(
                    self.image,
                    request,
                    self.cluster.now_ms,
                    live=self.cluster.live,
                    timeout_ms=10_000,
                )
            )

    @precondition(lambda self: self.image.topics.led_by(NO_LEADER))
    @rule(number=NUMBERS)
    def give_up(self, number: int) -> None:
        """Let the source of a move close the streams that it no longer leads."""
        node = self.node(number)
        opened = [
            self.image.streams.get(stream_id)
            for stream_id in sorted(self.image.streams.opened_by(node))
        ]
        moved = [stream for stream in opened if self.leader_of(stream) != node]
        closes = [close(stream.stream_id, stream.epoch, stream.next_offset) for stream in moved]
        self._commit(Commit(node_id=node.node_id, node_epoch=node.node_epoch, closes=closes))

    def leader_of(self, stream: Any) -> BrokerIncarnation:
        """Return the leader of the stream's partition; None if the topic is deleted."""
        key = PartitionKey(stream.topic_id, stream.partition)
        partition = self.image.topics.partition(key)
        return NO_LEADER if partition is None else leader_of(partition)

    def teardown(self) -> None:
        """Check that before the deadlines have passed, every partition has exactly one leader,
        which can open it.
        """
        image = self.image
        self.cluster.now_ms = Millis(self.cluster.now_ms + 20_000)
        # this may fence every broker, because each one may be the source of a move
        self.cluster.tick()
        if not any(
            not node.draining
            for node in image.nodes
            if node.node_id in self.cluster.live and not node.fenced
        ):
            self.incarnations.append(self.cluster.broker(5))
        for _ in range(50):
            self.cluster.tick()
            waiting = [wal for wal in image.nodes.running_wals() if wal.recoverer.node_id >= 0]
            if not waiting:
                break
            wal = waiting[0]
            self.cluster.recover(
                wal.recoverer, wal.writer, end=max(wal.committed, self.slots.get(wal.writer, 0)) + 1
            )
        self.cluster.tick()
        for topic in image.topics:
            for partition in topic.partitions:
                assert image.nodes.is_alive(leader_of(partition)), partition
                assert partition.target_replicas is None, partition
        for node in self.alive():
            self.cluster.open_led(node)
        for stream in image.streams:
            is_frozen = stream.topic_id in image.frozen_topics
            assert is_frozen or stream.owner == self.leader_of(stream)
            frozen = image.frozen_topics.by_id(stream.topic_id)
            assert frozen is None or frozen.is_deleted or not stream.opened

    @invariant()
    def ends_and_starts_never_go_back(self) -> None:
        for stream in self.image.streams:
            start, end = self.ends.get(stream.stream_id, (0, 0))
            assert stream.start_offset >= start
            assert stream.end_offset >= end
            self.ends[stream.stream_id] = (stream.start_offset, stream.end_offset)

    @invariant()
    def a_snapshot_is_an_equal_image(self) -> None:
        copy = snapshot_of(self.image)
        assert copy == self.image
        copy.check_invariants()


TestManagers = Managers.TestCase
TestManagers.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

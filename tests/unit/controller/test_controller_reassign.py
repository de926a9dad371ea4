"""Planned leadership moves, one event at a time: each ends with exactly one leader, despite
crashes, hangs and cancellations.
"""

import msgspec
import pytest

from penstock.base.ids import (
    Millis,
    NodeId,
    StreamEpoch,
    WalSequence,
)
from penstock.controller.active.move_traces import TRACES_MAX, MoveTraceRing
from penstock.controller.api.messages import (
    CloseItem,
    DrainBroker,
    ElectPreferred,
    MoveTiming,
    NewTopic,
    PartitionName,
    Status,
    TraceMove,
    UnregisterBroker,
)
from penstock.controller.managers import nodes, reassign
from penstock.controller.metadata.codec import decode_record, encode_record
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.topics import NO_LEADER, is_moving, is_reassigning, leader_of
from tests.support.managers_cluster import (
    MOVE_TIMEOUT_MS,
    ManagersCluster,
    close,
    part,
    slot,
    snapshot_of,
)


class ReassignCluster(ManagersCluster):
    """Brokers 1 to `brokers`; topic t has one partition, whose leader is broker 1 and which is open
    there.
    """

    def __init__(self, brokers: int = 3, *replicas: int) -> None:
        super().__init__()
        self.nodes = {node_id: self.broker(node_id) for node_id in range(1, brokers + 1)}
        self.create(
            NewTopic(name="t", assignment=[[NodeId(node_id) for node_id in replicas or (1,)]])
        )
        self.open_led(self.nodes[1])

    @property
    def t(self) -> PartitionRecord:
        return self.partitions("t")[0]

    def leads(self, node_id: int, epoch: int, *replicas: int) -> None:
        """Check that the broker is the only leader, that no move is in progress, and that it can
        open the streams.
        """
        assert leader_of(self.t) == self.nodes[node_id]
        assert (self.t.leader_epoch, self.t.replicas) == (epoch, replicas)
        assert not is_moving(self.t)
        self.open_led(self.nodes[node_id])
        for other in self.nodes.values():
            assert bool(self.image.streams.opened_by(other)) == (other == self.nodes[node_id])
        assert snapshot_of(self.image) == self.image

    def elect(self, status: Status = Status.OK) -> None:
        request = ElectPreferred(partitions=[PartitionName(topic="t", partition=0)])
        value = self.value_of(
            reassign.elect_preferred(
                self.image, request, self.now_ms, live=self.live, timeout_ms=MOVE_TIMEOUT_MS
            )
        )
        assert value.items[0].status == status, value.items[0].detail

    def give_up_moved(self, node_id: int) -> None:
        """Close the open streams that the broker no longer leads."""
        node = self.nodes[node_id]
        closes: list[CloseItem] = []
        for topic in self.image.topics:
            for partition in topic.partitions:
                for stream_id in partition.stream_ids:
                    stream = self.image.streams.get(stream_id)
                    assert stream is not None
                    if stream.opened and stream.owner == node and leader_of(partition) != node:
                        closes.append(close(stream_id, stream.epoch, stream.next_offset))
        self.commit(node, closes=closes)

    def drain(self, node_id: int, count: int, status: Status = Status.OK) -> int:
        node = self.nodes[node_id]
        request = DrainBroker(
            node_id=node.node_id, node_epoch=node.node_epoch, partitions_max=count
        )
        result = reassign.drain_broker(
            self.image, request, self.now_ms, live=self.live, timeout_ms=MOVE_TIMEOUT_MS
        )
        value = self.run(result, status)
        return -1 if value is None else value.remaining


def test_a_move_removes_the_leader_and_closing_elects_the_target() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2, 3, records=1)
    assert leader_of(cluster.t) == NO_LEADER
    assert (cluster.t.replicas, cluster.t.target_replicas, cluster.t.move.target) == (
        (1,),
        (2, 3),
        2,
    )
    assert is_reassigning(cluster.t)
    cluster.tick()
    assert leader_of(cluster.t) == NO_LEADER, "its source still has it open"
    cluster.open_one(cluster.nodes[2], cluster.t.meta_stream_id, 1, Status.STREAM_FENCED)
    cluster.commit(
        cluster.nodes[1],
        slot(cluster.nodes[1], 0, part(cluster.t.data_stream_id, 0, 7)),
        closes=[close(cluster.t.data_stream_id, 0, 7)],
    )
    assert leader_of(cluster.t) == NO_LEADER, "the meta stream is still open"
    cluster.now_ms = Millis(cluster.now_ms + 70)
    cluster.commit(
        cluster.nodes[1],
        closes=[close(cluster.t.meta_stream_id, 0, 0), close(cluster.t.txn_stream_id, 0, 0)],
        records=3,
    )
    move = cluster.t.move
    assert move is not None
    assert (move.source, move.target, move.elected_ms - move.started_ms) == (1, 2, 70)
    cluster.leads(2, 1, 2, 3)
    assert cluster.end(cluster.t.data_stream_id) == 7


def test_a_repeated_close_elects_no_leader_again() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    closes = [close(stream_id, 0, 0) for stream_id in cluster.t.stream_ids]
    cluster.commit(cluster.nodes[1], closes=closes)
    cluster.commit(cluster.nodes[1], closes=closes, records=0)
    cluster.leads(2, 1, 2)
    cluster.commit(cluster.nodes[1], closes=closes, records=0)


def test_a_partition_that_is_not_open_moves_at_once() -> None:
    cluster = ReassignCluster()
    cluster.create(NewTopic(name="u", assignment=[[NodeId(1)]]))
    cluster.move("u", 0, 3)
    partition = cluster.partitions("u")[0]
    assert leader_of(partition) == cluster.nodes[3]
    cluster.open_one(cluster.nodes[1], partition.meta_stream_id, 0, Status.STREAM_FENCED)


@pytest.mark.parametrize("replicas", [(1, 2, 3), (3, 1), (1,)])
def test_candidates_change_without_moving_the_leader(replicas: tuple[int, ...]) -> None:
    cluster = ReassignCluster(3, 1, 2)
    cluster.move("t", 0, *replicas, records=1)
    cluster.leads(1, 0, *replicas)
    cluster.move("t", 0, *replicas, records=0)


def test_a_partition_can_be_moved_there_and_back() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.give_up(cluster.nodes[1])
    cluster.leads(2, 1, 2)
    cluster.move("t", 0, 1)
    cluster.give_up(cluster.nodes[2])
    cluster.leads(1, 2, 1)


def test_moving_back_before_the_source_has_closed_its_streams() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.move("t", 0, 1)
    cluster.give_up(cluster.nodes[1])
    cluster.leads(1, 1, 1)


def test_a_second_move_changes_the_target_and_keeps_the_deadline() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    first = cluster.t.move
    cluster.now_ms = Millis(cluster.now_ms + 5_000)
    cluster.move("t", 0, 3, records=1)
    cluster.move("t", 0, 3, records=0)
    assert first is not None
    assert cluster.t.move is not None
    assert cluster.t.move.deadline_ms == first.deadline_ms
    cluster.give_up(cluster.nodes[1])
    cluster.leads(3, 1, 3)


def test_a_cancelled_move_returns_to_its_source() -> None:
    cluster = ReassignCluster(3, 1, 3)
    cluster.move("t", 0, 3, 1)
    cluster.leads(1, 0, 3, 1)
    cluster.move("t", 0, 2)
    cluster.move("t", 0)
    assert not is_reassigning(cluster.t)
    cluster.move("t", 0, status=Status.NO_REASSIGNMENT)
    cluster.give_up(cluster.nodes[1])
    cluster.leads(1, 1, 3, 1)
    cluster.move("t", 0, status=Status.NO_REASSIGNMENT)


def test_another_broker_is_elected_if_the_target_dies_before_the_election() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2, 3)
    cluster.die(cluster.nodes[2])
    cluster.give_up(cluster.nodes[1])
    cluster.leads(3, 1, 2, 3)


def test_any_broker_becomes_leader_if_all_targets_die() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.die(cluster.nodes[2])
    cluster.give_up(cluster.nodes[1])
    cluster.leads(1, 1, 2, 1)


def test_a_target_that_dies_after_the_election_is_replaced() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.give_up(cluster.nodes[1])
    cluster.open_led(cluster.nodes[2])
    cluster.die(cluster.nodes[2])
    cluster.tick()
    cluster.recover(cluster.nodes[1], cluster.nodes[2], end=0)
    cluster.leads(1, 2, 2, 1)


def test_recovery_elects_the_target_if_the_source_dies() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.die(cluster.nodes[1])
    cluster.tick()
    assert leader_of(cluster.t) == NO_LEADER
    item = slot(cluster.nodes[1], 0, part(cluster.t.data_stream_id, 0, 5))
    cluster.recover(cluster.nodes[2], cluster.nodes[1], item, end=1)
    cluster.leads(2, 1, 2)
    assert cluster.end(cluster.t.data_stream_id) == 5


def test_a_dead_leader_can_be_reassigned_before_it_is_recovered() -> None:
    cluster = ReassignCluster()
    cluster.die(cluster.nodes[1])
    cluster.tick()
    cluster.move("t", 0, 3)
    cluster.recover(cluster.nodes[2], cluster.nodes[1], end=0)
    cluster.leads(3, 1, 3)


def test_a_hanging_source_is_fenced_at_the_deadline() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    cluster.now_ms = Millis(cluster.now_ms + MOVE_TIMEOUT_MS - 1)
    cluster.tick()
    assert cluster.image.nodes.is_alive(cluster.nodes[1])
    cluster.image = snapshot_of(cluster.image)
    cluster.now_ms = Millis(cluster.now_ms + 1)
    cluster.tick()
    assert not cluster.image.nodes.is_alive(cluster.nodes[1])
    cluster.commit(
        cluster.nodes[1], closes=[close(cluster.t.data_stream_id, 0, 0)], status=Status.NODE_FENCED
    )
    cluster.recover(cluster.nodes[2], cluster.nodes[1], end=0)
    cluster.leads(2, 1, 2)
    cluster.now_ms = Millis(cluster.now_ms + MOVE_TIMEOUT_MS)
    assert cluster.overdue() == {}


def test_a_move_without_eligible_brokers_waits_for_one() -> None:
    cluster = ReassignCluster(2)
    cluster.move("t", 0, 2)
    cluster.live.clear()
    cluster.give_up(cluster.nodes[1])
    assert is_moving(cluster.t)
    cluster.tick()
    assert is_moving(cluster.t)
    cluster.live.add(NodeId(1))
    cluster.tick()
    cluster.leads(1, 1, 2, 1)


def test_a_topic_can_be_deleted_during_a_move() -> None:
    cluster = ReassignCluster()
    cluster.move("t", 0, 2)
    meta, data = cluster.t.meta_stream_id, cluster.t.data_stream_id
    cluster.delete("t")
    cluster.commit(cluster.nodes[1], closes=[close(meta, 0, 0), close(data, 0, 0)], records=0)
    cluster.tick()


@pytest.mark.parametrize(
    ("replicas", "word"),
    [((2, 2), "twice"), ((9,), "registered"), (tuple(range(1, 17)), "1 to 15"), ((3,), "alive")],
)
def test_invalid_replicas_are_rejected(replicas: tuple[int, ...], word: str) -> None:
    cluster = ReassignCluster()
    cluster.die(cluster.nodes[3])
    target = reassign.PartitionTarget(
        topic="t", partition=0, replicas=[NodeId(node_id) for node_id in replicas]
    )
    request = reassign.AlterReassignments(partitions=[target])
    result = reassign.alter_reassignments(
        cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=1
    )
    assert result.records == []
    assert result.value is not None
    assert result.value.items[0].status == Status.INVALID_REPLICA_ASSIGNMENT
    assert word in result.value.items[0].detail


def test_the_replica_count_cannot_change_unless_the_request_allows_it() -> None:
    """During a move, the count is that of the new replicas, as in Kafka."""
    cluster = ReassignCluster(3, 1, 2)

    def status_of(*replicas: int) -> Status:
        target = reassign.PartitionTarget(
            topic="t", partition=0, replicas=[NodeId(node_id) for node_id in replicas]
        )
        request = reassign.AlterReassignments(partitions=[target], may_resize=False)
        result = reassign.alter_reassignments(
            cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=1
        )
        assert result.value is not None
        return result.value.items[0].status

    assert [status_of(3), status_of(1, 2, 3)] == [Status.INVALID_REPLICATION_FACTOR] * 2
    assert status_of(2, 3) == Status.OK
    cluster.move("t", 0, 3)
    assert [status_of(2, 3), status_of(2)] == [Status.INVALID_REPLICATION_FACTOR, Status.OK]


def test_each_unknown_or_repeated_partition_is_rejected() -> None:
    cluster = ReassignCluster()
    target = reassign.PartitionTarget(topic="t", partition=0, replicas=[NodeId(2)])
    unknown = reassign.PartitionTarget(topic="t", partition=1, replicas=[NodeId(2)])
    for targets, statuses in (
        ([target, unknown], [Status.OK, Status.UNKNOWN_TOPIC]),
        ([target, target], [Status.DUPLICATE_IN_REQUEST] * 2),
    ):
        request = reassign.AlterReassignments(partitions=targets)
        result = reassign.alter_reassignments(
            cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=1
        )
        assert result.value is not None
        assert [item.status for item in result.value.items] == statuses
    many = reassign.AlterReassignments(partitions=[target] * (reassign.MOVES_MAX + 1))
    assert (
        reassign.alter_reassignments(
            cluster.image, many, cluster.now_ms, live=(), timeout_ms=1
        ).status
        == Status.INVALID_REQUEST
    )


def test_electing_the_preferred_leader() -> None:
    cluster = ReassignCluster(3, 1, 2)
    cluster.elect(Status.ELECTION_NOT_NEEDED)
    cluster.move("t", 0, 2, 1)
    cluster.leads(1, 0, 2, 1)
    cluster.elect()
    assert not is_reassigning(cluster.t)
    cluster.elect(Status.ELECTION_NOT_NEEDED)
    cluster.give_up(cluster.nodes[1])
    cluster.leads(2, 1, 2, 1)
    cluster.move("t", 0, 1, 2)
    cluster.die(cluster.nodes[1])
    cluster.elect(Status.PREFERRED_NOT_AVAILABLE)


def test_draining_spreads_partitions_over_other_brokers_and_keeps_the_candidates() -> None:
    cluster = ReassignCluster()
    cluster.create(NewTopic(name="many", assignment=[[NodeId(1), NodeId(2), NodeId(3)]] * 6))
    cluster.open_led(cluster.nodes[1])
    assert cluster.drain(1, 4) == 3
    cluster.give_up_moved(1)
    assert cluster.drain(1, 4) == 0
    cluster.give_up_moved(1)
    led = {node_id: cluster.image.topics.led_count(node) for node_id, node in cluster.nodes.items()}
    assert sorted(led.values()) == [0, 3, 4]
    assert led[1] == 0
    assert all(partition.replicas[0] == 1 for partition in cluster.partitions("many"))
    cluster.create(NewTopic(name="new", partitions=4))
    assert cluster.image.topics.led_count(cluster.nodes[1]) == 0
    request = UnregisterBroker(
        node_id=NodeId(1), node_epoch=cluster.nodes[1].node_epoch, wal_end=WalSequence(0)
    )
    cluster.run(nodes.unregister_broker(cluster.image, request, cluster.now_ms, live=cluster.live))
    cluster.drain(1, 1, Status.NODE_EPOCH_NOT_EXIST)


def test_the_last_broker_cannot_be_drained() -> None:
    cluster = ReassignCluster(1)
    assert cluster.drain(1, 10) == 0
    cluster.leads(1, 0, 1)


def test_records_of_earlier_versions_are_decoded() -> None:
    record = ReassignCluster().t
    old = msgspec.msgpack.encode(msgspec.msgpack.decode(encode_record(record))[:10])
    assert decode_record(old) == record


def test_recorded_traces_are_limited() -> None:
    ring = MoveTraceRing()
    topic_id = ReassignCluster().t.topic_id
    for at in range(TRACES_MAX + 1):
        timing = MoveTiming(
            topic_id=topic_id,
            partition=at % 2,
            leader_epoch=StreamEpoch(at),
            gave_up=True,
            steps={},
        )
        ring.add(NodeId(1), [timing], at)
    found = ring.of(TraceMove(topic_id=topic_id, partition=0))
    assert (len(found), found[0].timing.leader_epoch, found[-1].received_ms) == (
        TRACES_MAX // 2,
        2,
        TRACES_MAX,
    )

"""Registration, fencing, recovery, elections, and orderly shutdown."""

from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import NodeEpoch, NodeId, WalSequence
from penstock.controller.api.messages import (
    NewTopic,
    Progress,
    RemoveBroker,
    Status,
    UnregisterBroker,
)
from penstock.controller.managers import elections, failover, nodes
from penstock.controller.metadata.records import WalRecord
from penstock.controller.metadata.topics import NO_LEADER, leader_of
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import ManagersCluster, close, part, registration, slot, stale


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


def leave(
    cluster: ManagersCluster, node: BrokerIncarnation, wal_end: int, status: Status = Status.OK
) -> Progress | None:
    request = UnregisterBroker(
        node_id=node.node_id, node_epoch=node.node_epoch, wal_end=WalSequence(wal_end)
    )
    return cluster.run(
        nodes.unregister_broker(cluster.image, request, cluster.now_ms, live=cluster.live), status
    )


class TestRegistration:
    def test_a_repeated_registration_gets_the_same_response(self, cluster: ManagersCluster) -> None:
        first = cluster.run(nodes.register_broker(cluster.image, registration(-1)), records=2)
        again = cluster.run(nodes.register_broker(cluster.image, registration(-1)), records=0)
        assert first == again
        assert first is not None
        assert first.cluster_id == "test"

    def test_the_lowest_free_id_is_assigned(self, cluster: ManagersCluster) -> None:
        cluster.broker(1)
        cluster.broker(3)
        assert [cluster.broker(-1).node_id for _ in range(2)] == [2, 4]

    def test_a_new_incarnation_replaces_the_older_one(self, cluster: ManagersCluster) -> None:
        old = cluster.broker(1)
        new = cluster.broker(1)
        assert new.node_epoch > old.node_epoch
        assert not cluster.image.nodes.is_alive(old)
        cluster.commit(old, status=Status.NODE_EPOCH_EXPIRED)

    @pytest.mark.parametrize("has_left", [False, True])
    def test_a_registration_that_arrives_after_that_of_the_next_start_is_rejected(
        self, cluster: ManagersCluster, has_left: bool
    ) -> None:
        next_epoch = cluster.image.next_node_epoch
        late = registration(1, next_node_epoch=next_epoch)
        new = cluster.broker(1)
        if has_left:
            leave(cluster, new, 0)
        cluster.run(
            nodes.register_broker(cluster.image, late), Status.NODE_EPOCH_EXPIRED, records=0
        )
        assert cluster.image.nodes.is_alive(new) is not has_left

    def test_a_registration_of_another_node_in_the_meantime_is_no_obstacle(
        self, cluster: ManagersCluster
    ) -> None:
        request = registration(1, next_node_epoch=cluster.image.next_node_epoch)
        cluster.broker(2)
        registered = cluster.run(nodes.register_broker(cluster.image, request), records=2)
        again = cluster.run(nodes.register_broker(cluster.image, request), records=0)
        assert registered == again

    def test_epochs_are_never_reused_even_after_a_node_has_left(
        self, cluster: ManagersCluster
    ) -> None:
        old = cluster.broker(1)
        leave(cluster, old, 0)
        assert cluster.image.nodes.get(old.node_id) is None
        assert cluster.broker(1).node_epoch > old.node_epoch

    def test_a_fenced_incarnation_cannot_register_again(self, cluster: ManagersCluster) -> None:
        cluster.run(nodes.register_broker(cluster.image, registration(1)))
        cluster.die(BrokerIncarnation(NodeId(1), NodeEpoch(1)))
        cluster.run(nodes.register_broker(cluster.image, registration(1)), Status.NODE_FENCED)
        cluster.run(
            nodes.register_broker(cluster.image, registration(1, incarnation_id=UUID(int=8))),
            records=2,
        )

    @pytest.mark.parametrize(
        "changes",
        [{"port": 0}, {"port": 65_536}, {"host": "x" * 256}, {"node_id": -2}, {"rack": "r" * 256}],
    )
    def test_invalid_registrations_are_rejected(
        self, cluster: ManagersCluster, changes: dict[str, object]
    ) -> None:
        cluster.run(
            nodes.register_broker(cluster.image, registration(1, **changes)), Status.INVALID_REQUEST
        )

    def test_fencing_an_old_incarnation_does_not_affect_a_newer_one(
        self, cluster: ManagersCluster
    ) -> None:
        old = cluster.broker(1)
        new = cluster.broker(1)
        assert (
            nodes.fence_brokers(
                cluster.image, [old, stale(old), BrokerIncarnation(NodeId(9), NodeEpoch(1))]
            )
            == []
        )
        assert len(nodes.fence_brokers(cluster.image, [new])) == 1


class TestAppointment:
    def test_a_live_broker_is_appointed_once_to_recover(self, cluster: ManagersCluster) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        assert failover.assign_recoveries(cluster.image, cluster.live) == []
        cluster.die(one)
        cluster.tick()
        wal = cluster.image.nodes.wal(one)
        assert wal is not None
        assert wal.recoverer == two
        assert failover.assign_recoveries(cluster.image, cluster.live) == []

    def test_a_recoverer_that_dies_or_restarts_is_replaced(self, cluster: ManagersCluster) -> None:
        one, two, three = (cluster.broker(n) for n in (1, 2, 3))
        cluster.die(one)
        cluster.tick()
        cluster.die(two)
        cluster.tick()
        assert {
            wal.recoverer for wal in cluster.image.nodes.running_wals() if wal.writer != three
        } == {three}
        new = cluster.broker(3)
        cluster.tick()
        assert {
            wal.recoverer for wal in cluster.image.nodes.running_wals() if wal.writer != new
        } == {new}

    def test_several_recoveries_are_spread_over_the_brokers(self, cluster: ManagersCluster) -> None:
        dead = [cluster.broker(n) for n in (1, 2, 3, 4)]
        cluster.broker(5), cluster.broker(6)
        for node in dead:
            cluster.die(node)
        cluster.tick()
        recoverers = [
            wal.recoverer.node_id
            for wal in cluster.image.nodes.running_wals()
            if wal.writer in dead
        ]
        assert sorted(recoverers) == [5, 5, 6, 6]

    def test_the_future_leader_of_most_partitions_is_appointed(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.broker(2)
        three = cluster.broker(3)
        cluster.create(
            NewTopic(
                name="t",
                assignment=[
                    [NodeId(n) for n in row] for row in ([1, 3, 2], [1, 2, 3], [1, 3, 2], [2, 3, 1])
                ],
            )
        )
        cluster.die(one)
        cluster.tick()
        wal = cluster.image.nodes.wal(one)
        assert wal is not None
        assert wal.recoverer == three

    def test_without_live_brokers_none_is_appointed(self, cluster: ManagersCluster) -> None:
        cluster.die(cluster.broker(1))
        assert failover.assign_recoveries(cluster.image, cluster.live) == []

    def test_a_broker_also_recovers_its_own_earlier_wal(self, cluster: ManagersCluster) -> None:
        old = cluster.broker(1)
        cluster.topic("t")
        cluster.open_led(old)
        new = cluster.broker(1)
        cluster.tick()
        cluster.recover(new, old, slot(old, 0, part(1, 0, 5)), end=1)
        assert leader_of(cluster.partitions("t")[0]) == new
        assert cluster.open_one(new, 1, 1).end_offset == 5


class TestRecovery:
    @pytest.fixture
    def dead(self, cluster: ManagersCluster) -> BrokerIncarnation:
        """Return broker 1, which is dead: it was leader of t-0 (streams 0, 1) and had committed [0,
        5) of stream 1 from slot 0. Broker 2 has to recover its WAL.
        """
        one = cluster.broker(1)
        cluster.topic("t")
        cluster.open_led(one)
        cluster.commit(one, slot(one, 0, part(1, 0, 5)))
        cluster.broker(2)
        cluster.die(one)
        cluster.tick()
        return one

    @pytest.fixture
    def two(self, cluster: ManagersCluster, dead: BrokerIncarnation) -> BrokerIncarnation:
        node = cluster.image.nodes.get(NodeId(2))
        assert node is not None
        return BrokerIncarnation(node.node_id, node.node_epoch)

    def test_recovery_clips_slots_closes_streams_elects_leaders_and_ends_the_wal(
        self, cluster: ManagersCluster, dead: BrokerIncarnation, two: BrokerIncarnation
    ) -> None:
        cluster.recover(
            two, dead, slot(dead, 0, part(1, 0, 5)), slot(dead, 1, part(0, 0, 2), part(1, 3, 9))
        )
        assert [span[:2] for span in cluster.spans(1)] == [(0, 5), (5, 9)]
        assert cluster.recover(two, dead, slot(dead, 2, part(1, 9, 12)), end=3) == Progress(
            remaining=0
        )
        partition = cluster.partitions("t")[0]
        assert (leader_of(partition), partition.leader_epoch, partition.replicas) == (
            two,
            1,
            (1, 2),
        )
        opened = cluster.open_one(two, 1, 1)
        assert opened.end_offset == 12
        cluster.recover(two, dead, slot(dead, 2, part(1, 9, 12)), end=3, records=0)
        cluster.recover(two, dead, end=4, status=Status.WAL_NOT_RECOVERABLE)

    def test_held_partitions_keep_their_streams_and_get_no_leader(
        self, cluster: ManagersCluster, dead: BrokerIncarnation, two: BrokerIncarnation
    ) -> None:
        topic = cluster.partitions("t")[0]
        data = topic.data_stream_id
        assert cluster.recover(two, dead, end=3, held=[data]) == Progress(remaining=0)
        assert leader_of(cluster.partitions("t")[0]) == dead
        assert cluster.image.streams.known(data).opened
        assert [wal.writer for wal in cluster.image.nodes.running_wals() if wal.writer == dead] == [
            dead
        ]
        assert cluster.recover(two, dead, end=3) == Progress(remaining=0)
        assert leader_of(cluster.partitions("t")[0]) == two
        assert cluster.image.nodes.wal(dead) is not None
        assert dead not in [wal.writer for wal in cluster.image.nodes.running_wals()]

    def test_a_repeated_chunk_adds_nothing(
        self, cluster: ManagersCluster, dead: BrokerIncarnation, two: BrokerIncarnation
    ) -> None:
        for records in (1, 0):
            cluster.recover(two, dead, slot(dead, 1, part(0, 0, 2), part(1, 5, 9)), records=records)

    def test_a_gap_fails_the_recovery(
        self, cluster: ManagersCluster, dead: BrokerIncarnation, two: BrokerIncarnation
    ) -> None:
        cluster.recover(
            two, dead, slot(dead, 2, part(1, 6, 9)), end=3, status=Status.OFFSET_NOT_MATCHED
        )
        assert leader_of(cluster.partitions("t")[0]) == dead

    def test_a_trim_beyond_the_committed_end_is_not_a_gap(
        self, cluster: ManagersCluster, two: BrokerIncarnation
    ) -> None:
        three = cluster.broker(3)
        cluster.live = {three.node_id}
        topic = cluster.create(NewTopic(name="u"))
        cluster.live = {two.node_id, three.node_id}
        assert topic.topic_id is not None
        partition = cluster.partitions("u")[0]
        cluster.open_led(three)
        cluster.trim(three, partition.data_stream_id, 0, 8)
        cluster.die(three)
        cluster.tick()
        cluster.recover(two, three, slot(three, 1, part(partition.data_stream_id, 6, 9)), end=2)
        assert cluster.end(partition.data_stream_id) == 9

    def test_closed_or_moved_streams_are_not_changed(self, cluster: ManagersCluster) -> None:
        one = cluster.broker(1)
        cluster.topic("t")
        cluster.open_led(one)
        cluster.commit(one, slot(one, 0, part(1, 0, 5)), closes=[close(1, 0, 5)])
        two = cluster.broker(2)
        cluster.die(one)
        cluster.tick()
        cluster.recover(
            two, one, slot(one, 1, part(1, 5, 9)), slot(one, 2, part(77, 0, 3)), records=0
        )
        assert cluster.end(1) == 5

    def test_only_the_appointed_broker_can_recover_and_only_slots_of_that_wal(
        self, cluster: ManagersCluster, dead: BrokerIncarnation, two: BrokerIncarnation
    ) -> None:
        three = cluster.broker(3)
        cluster.recover(three, dead, end=1, status=Status.WAL_NOT_RECOVERABLE)
        cluster.recover(two, three, end=1, status=Status.WAL_NOT_RECOVERABLE)
        cluster.recover(
            two,
            BrokerIncarnation(NodeId(8), NodeEpoch(8)),
            end=1,
            status=Status.WAL_NOT_RECOVERABLE,
        )
        cluster.recover(two, dead, slot(two, 1, part(1, 5, 9)), status=Status.INVALID_REQUEST)
        cluster.recover(two, dead, slot(dead, 1), slot(dead, 1), status=Status.DUPLICATE_IN_REQUEST)
        cluster.die(two)
        cluster.recover(two, dead, end=1, status=Status.NODE_FENCED)

    def test_the_wal_of_a_live_broker_is_not_recovered(self, cluster: ManagersCluster) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        cluster.apply(
            [WalRecord(one.node_id, one.node_epoch, WalSequence(0), two.node_id, two.node_epoch)]
        )
        cluster.recover(two, one, end=0, status=Status.WAL_NOT_RECOVERABLE)

    def test_a_partition_that_was_being_moved_gets_the_target_as_leader(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.topic("t")
        cluster.open_led(one)
        two = cluster.broker(2)
        moved = msgspec.structs.replace(
            cluster.partitions("t")[0],
            replicas=(2, 1),
            leader=two.node_id,
            leader_node_epoch=two.node_epoch,
            leader_epoch=1,
        )
        cluster.apply([moved])
        cluster.die(one)
        cluster.tick()
        cluster.recover(two, one, slot(one, 0, part(1, 0, 5)), end=1)
        assert cluster.partitions("t") == [moved]
        assert cluster.open_one(two, 1, 1).end_offset == 5

    def test_many_partitions_take_several_transactions(
        self, cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(failover, "ELECTIONS_PER_TRANSACTION_MAX", 2)
        one = cluster.broker(1)
        cluster.topic("t", partitions=5)
        cluster.open_led(one)
        two = cluster.broker(2)
        cluster.die(one)
        cluster.tick()
        remaining = []
        for _ in range(3):
            progress = cluster.recover(two, one, end=0)
            assert progress is not None
            remaining.append(progress.remaining)
        assert remaining == [3, 1, 0]
        assert {leader_of(partition) for partition in cluster.partitions("t")} == {two}
        cluster.recover(two, one, end=0, records=0)

    def test_a_second_recoverer_continues_where_the_first_one_stopped(
        self, cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(failover, "ELECTIONS_PER_TRANSACTION_MAX", 1)
        one = cluster.broker(1)
        partitions = cluster.topic("t", partitions=2)
        cluster.open_led(one)
        two, three = cluster.broker(2), cluster.broker(3)
        cluster.die(one)
        cluster.tick()
        slots = [slot(one, 0, *(part(partition.data_stream_id, 0, 5) for partition in partitions))]
        cluster.recover(two, one, *slots, end=1)
        cluster.open_led(three)
        cluster.die(two)
        cluster.tick()
        assert cluster.recover(three, one, *slots, end=1) == Progress(remaining=0)
        assert {cluster.end(partition.data_stream_id) for partition in partitions} == {5}


class TestElections:
    def test_topics_created_without_brokers_get_leaders_when_one_registers(
        self, cluster: ManagersCluster
    ) -> None:
        cluster.die(cluster.broker(1))
        cluster.topic("t", partitions=3)
        assert {leader_of(partition) for partition in cluster.partitions("t")} == {NO_LEADER}
        assert elections.elect_leaderless(cluster.image, cluster.live, cluster.now_ms) == []
        two = cluster.broker(2)
        cluster.apply(
            elections.elect_leaderless(
                cluster.image, cluster.live, cluster.now_ms, partitions_max=2
            )
        )
        cluster.apply(elections.elect_leaderless(cluster.image, cluster.live, cluster.now_ms))
        assert {(leader_of(p), p.leader_epoch, p.replicas) for p in cluster.partitions("t")} == {
            (two, 1, (1, 2))
        }

    def test_the_first_live_candidate_is_elected_and_others_are_spread(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.broker(2), cluster.broker(3)
        cluster.create(NewTopic(name="t", assignment=[[NodeId(1), NodeId(3)]]))
        cluster.create(NewTopic(name="u", assignment=[[NodeId(1)]] * 3))
        cluster.open_led(one)
        cluster.die(one)
        cluster.tick()
        wal = cluster.image.nodes.wal(one)
        assert wal is not None
        cluster.recover(wal.recoverer, one, end=0)
        leaders = [
            partition.leader for partition in [*cluster.partitions("t"), *cluster.partitions("u")]
        ]
        assert leaders[0] == 3
        assert sorted(leaders) == [2, 2, 3, 3]


class TestLeaving:
    def test_other_brokers_become_leaders_without_a_recovery(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.topic("t", partitions=2)
        two = cluster.broker(2)
        cluster.open_led(one)
        leave(cluster, one, 1, Status.STREAM_NOT_CLOSED)
        cluster.commit(
            one,
            slot(one, 0, part(1, 0, 5)),
            closes=[close(stream_id, 0, 5 if stream_id == 1 else 0) for stream_id in range(6)],
        )
        assert leave(cluster, one, 1) == Progress(remaining=0)
        assert leave(cluster, one, 1) == Progress(remaining=0)
        cluster.tick()
        assert {leader_of(partition) for partition in cluster.partitions("t")} == {two}
        assert [wal.writer for wal in cluster.image.nodes.running_wals()] == [two]

    def test_partitions_have_no_leader_after_the_last_broker_has_left(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.topic("t")
        leave(cluster, one, 0)
        assert leader_of(cluster.partitions("t")[0]) == NO_LEADER
        new = cluster.broker(1)
        cluster.tick()
        assert leader_of(cluster.partitions("t")[0]) == new

    def test_many_partitions_take_several_transactions(
        self, cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nodes, "ELECTIONS_PER_TRANSACTION_MAX", 2)
        one = cluster.broker(1)
        cluster.topic("t", partitions=3)
        cluster.broker(2)
        assert leave(cluster, one, 0) == Progress(remaining=1)
        assert leave(cluster, one, 0) == Progress(remaining=0)
        assert cluster.image.nodes.get(one.node_id) is None

    def test_a_fenced_unknown_or_lagging_broker_cannot_leave(
        self, cluster: ManagersCluster
    ) -> None:
        one = cluster.broker(1)
        cluster.commit(one, wal=3)
        leave(cluster, one, 2, Status.OFFSET_NOT_MATCHED)
        cluster.die(one)
        leave(cluster, one, 3, Status.NODE_FENCED)
        leave(cluster, BrokerIncarnation(NodeId(9), NodeEpoch(9)), 3, Status.NODE_EPOCH_NOT_EXIST)


def remove(
    cluster: ManagersCluster, node: BrokerIncarnation, status: Status = Status.OK, says: str = ""
) -> None:
    result = nodes.remove_broker(cluster.image, RemoveBroker(node_id=node.node_id))
    assert says in result.detail
    cluster.run(result, status, records=1 if status == Status.OK else None)


class TestRemoval:
    def test_a_recovered_broker_is_removed_and_its_slots_are_kept(
        self, cluster: ManagersCluster
    ) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        (t,) = cluster.topic("t")
        cluster.open(one, (t.data_stream_id, 0))
        remove(cluster, one, Status.NODE_IN_USE, "broker 1 is alive")
        cluster.die(one)
        remove(cluster, one, Status.NODE_IN_USE, "the WAL of broker 1 epoch 1 is not recovered")
        cluster.tick()
        cluster.recover(two, one, slot(one, 0, part(t.data_stream_id, 0, 5)), end=1)
        remove(cluster, one)
        assert cluster.image.nodes.get(one.node_id) is None
        cluster.tick()
        cluster.now_ms += 1_000_000
        assert cluster.deletable(1_000_000, 0) == []
        (entry,) = cluster.spans(t.data_stream_id)
        assert entry[:2] == (0, 5)
        assert leader_of(cluster.partitions("t")[0]) == two
        remove(cluster, one, Status.NODE_EPOCH_NOT_EXIST, "Broker ID 1 is not currently registered")

    def test_a_broker_whose_earlier_wal_is_not_recovered_cannot_be_removed(
        self, cluster: ManagersCluster
    ) -> None:
        old, two = cluster.broker(1), cluster.broker(2)
        new = cluster.broker(1)
        cluster.die(new)
        cluster.tick()
        cluster.recover(two, new, end=0)
        remove(cluster, new, Status.NODE_IN_USE, f"epoch {old.node_epoch} is not recovered")
        cluster.recover(two, old, end=0)
        remove(cluster, new)

    def test_a_broker_with_lost_slots_cannot_be_removed(self, cluster: ManagersCluster) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        (t,) = cluster.topic("t")
        cluster.open(one, (t.data_stream_id, 0))
        cluster.die(one)
        cluster.tick()
        cluster.recover(two, one, end=1, held=[t.data_stream_id])
        remove(cluster, one, Status.NODE_IN_USE, "penstock wal repair")

    @pytest.mark.parametrize("replicas", [(1,), (2, 1)])
    def test_a_broker_cannot_be_removed_during_a_move_that_refers_to_it(
        self, cluster: ManagersCluster, replicas: tuple[int, ...]
    ) -> None:
        """As the target, or as a candidate after the move."""
        one, two, three = cluster.broker(1), cluster.broker(2), cluster.broker(3)
        (t,) = cluster.topic("t")
        cluster.move("t", 0, 3)
        cluster.open_led(three)
        cluster.move("t", 0, *replicas)
        cluster.die(one)
        cluster.tick()
        cluster.recover(two, one, end=0)
        remove(cluster, one, Status.NODE_IN_USE, "takes part in the move of t-0")
        cluster.give_up(three)
        assert leader_of(cluster.partitions("t")[0]) == two
        remove(cluster, one)
        assert t.data_stream_id == cluster.partitions("t")[0].data_stream_id

    def test_the_only_candidate_of_a_partition_without_a_leader_cannot_be_removed(
        self, cluster: ManagersCluster
    ) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        cluster.create(NewTopic(name="t", assignment=[[two.node_id]]))
        cluster.die(two)
        cluster.tick()
        cluster.recover(one, two, end=0)
        leave(cluster, one, 0)
        assert cluster.partitions("t")[0].replicas == (two.node_id, one.node_id)
        remove(cluster, two, Status.NODE_IN_USE, "broker 2 is the only candidate of t-0")
        three = cluster.broker(3)
        cluster.tick()
        remove(cluster, two)
        assert leader_of(cluster.partitions("t")[0]) == three

    def test_a_removed_broker_stays_a_candidate_in_case_it_returns(
        self, cluster: ManagersCluster
    ) -> None:
        one, two = cluster.broker(1), cluster.broker(2)
        (before,) = cluster.topic("t")
        cluster.die(one)
        cluster.tick()
        cluster.recover(two, one, end=0)
        remove(cluster, one)
        (after,) = cluster.partitions("t")
        assert after.replicas == before.replicas
        assert cluster.broker(1).node_epoch > two.node_epoch

    def test_a_removed_recoverer_is_replaced(self, cluster: ManagersCluster) -> None:
        one, two, three = cluster.broker(1), cluster.broker(2), cluster.broker(3)
        cluster.die(one)
        cluster.tick()
        wal = cluster.image.nodes.wal(one)
        assert wal is not None
        assert wal.recoverer == two
        cluster.die(two)
        cluster.tick()
        cluster.recover(three, two, end=0)
        remove(cluster, two)
        assert wal.recoverer == three
        cluster.recover(three, one, end=0)
        remove(cluster, one)

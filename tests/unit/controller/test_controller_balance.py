"""Balancing without a controller process: reports, slow brokers, plans, and starting
their moves.
"""

from uuid import UUID

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamEpoch,
)
from penstock.controller.active.balance.loads import KEPT_MS, TRUSTED_MS, LoadBook
from penstock.controller.active.balance.plan import BrokerSlot, Limits, PartitionSlot, plan
from penstock.controller.active.balance.slow import SLOW_REPORTS, WELL_REPORTS, SlowBrokers
from penstock.controller.active.balance.view import CAME_BACK, NO_REPORT, Conditions, view
from penstock.controller.api.load_messages import (
    LeaderMove,
    Load,
    MoveLeaders,
    PartitionLoad,
    ReportLoad,
)
from penstock.controller.api.messages import NewTopic, Status
from penstock.controller.managers import reassign
from penstock.controller.metadata.topics import PartitionKey
from tests.support.managers_cluster import MOVE_TIMEOUT_MS, ManagersCluster

KEY = PartitionKey(UUID(int=7), 0)
MB = 1_000_000


def report(
    node_id: int, *, epoch: int = 0, bytes_in: int = 100, observed_ms: int = 60_000, rest: int = 0
) -> ReportLoad:
    item = PartitionLoad(
        topic_id=KEY.topic_id,
        partition=0,
        leader_epoch=StreamEpoch(epoch),
        load=Load(bytes_in, 0, 1),
        observed_ms=observed_ms,
    )
    return ReportLoad(
        node_id=NodeId(node_id),
        node_epoch=NodeEpoch(1),
        items=[item],
        rest=Load(rest, 0, 0),
        rest_count=4,
        append_p50_ms=5.0,
        append_p99_ms=9.0,
    )


def test_the_backlog_after_a_move_does_not_count_as_load() -> None:
    book = LoadBook(fresh_ms=1_000)
    book.add(report(1, epoch=3, bytes_in=100), 0)
    book.add(report(2, epoch=4, bytes_in=9_000, observed_ms=TRUSTED_MS - 1), 500)
    assert book.load_of(KEY, NodeId(2), 500).bytes_in == 100
    book.add(report(2, epoch=4, bytes_in=120, observed_ms=TRUSTED_MS), 900)
    book.add(report(1, epoch=3, bytes_in=77), 950)
    assert book.load_of(KEY, NodeId(2), 950).bytes_in == 120, "an earlier leader's report is late"


def test_a_partition_that_was_measured_only_briefly_does_not_move() -> None:
    book = LoadBook(fresh_ms=1_000)
    assert book.is_settled(KEY), "an idle one may"
    book.add(report(1, epoch=3, observed_ms=TRUSTED_MS - 1), 0)
    assert not book.is_settled(KEY)
    book.add(report(1, epoch=3, observed_ms=TRUSTED_MS), 1)
    assert book.is_settled(KEY)
    book.add(report(2, epoch=4, observed_ms=10), 2)
    assert book.is_settled(KEY), "the earlier leader's figures stand"


def test_old_reports_expire_and_small_partitions_share_the_remaining_load() -> None:
    book = LoadBook(fresh_ms=1_000)
    book.add(report(1, rest=400), 0)
    assert book.load_of(PartitionKey(UUID(int=8), 3), NodeId(1), 0) == Load(100, 0, 0)
    assert book.latencies(1_000) == {1: 5.0}
    assert book.latencies(1_001) == {}
    assert book.load_of(KEY, NodeId(9), KEPT_MS).bytes_in == 100
    assert book.load_of(KEY, NodeId(9), KEPT_MS + 1).bytes_in == 0


class Watched:
    """Four brokers that report in turn."""

    def __init__(self) -> None:
        self.slow = SlowBrokers()
        self.latencies = {NodeId(n): 10.0 for n in range(4)}

    def rounds(self, count: int) -> list[int]:
        for _ in range(count):
            for node_id in self.latencies:
                self.slow.heard(node_id, NodeEpoch(1), self.latencies)
        return list(self.slow.excluded([NodeId(n) for n in range(4)]))


def test_a_slow_broker_is_excluded_and_returns_when_it_has_recovered() -> None:
    watched = Watched()
    watched.latencies[NodeId(2)] = 900.0
    assert watched.rounds(SLOW_REPORTS - 1) == []
    watched.latencies[NodeId(2)] = 20.0
    assert watched.rounds(1) == []
    watched.latencies[NodeId(2)] = 900.0
    assert watched.rounds(SLOW_REPORTS) == [2]
    assert "900 ms" in watched.slow.excluded([NodeId(n) for n in range(4)])[NodeId(2)]
    watched.latencies[NodeId(2)] = 200.0
    assert watched.rounds(20) == [2], "between the limits nothing changes"
    watched.latencies[NodeId(2)] = 40.0
    assert watched.rounds(WELL_REPORTS - 1) == [2]
    assert watched.rounds(1) == []


def test_at_most_half_of_the_brokers_are_excluded_and_none_if_all_are_slow() -> None:
    watched = Watched()
    watched.latencies |= {NodeId(n): 900.0 for n in (1, 2, 3)}
    assert watched.rounds(20) == [], "three of four are slow: that is how the store is today"
    watched.latencies = {NodeId(n): 10.0 for n in range(4)}
    for node_id in (3, 1, 2):
        watched.latencies[NodeId(node_id)] = 90_000.0 if node_id == 3 else 4_000_000.0
        watched.rounds(SLOW_REPORTS + 1)
    assert len(watched.slow.excluded([NodeId(n) for n in range(4)])) == 2
    assert list(watched.slow.excluded([NodeId(0), NodeId(3)])) == [3]
    assert watched.slow.excluded([NodeId(3)]) == {}


def test_a_restart_of_a_slow_broker_resets_its_measurements() -> None:
    watched = Watched()
    watched.latencies[NodeId(2)] = 900.0
    assert watched.rounds(SLOW_REPORTS) == [2]
    watched.slow.heard(NodeId(2), NodeEpoch(2), watched.latencies)
    assert watched.slow.excluded([NodeId(n) for n in range(4)]) == {}


def test_a_broker_without_appends_is_not_rated() -> None:
    watched = Watched()
    watched.latencies[NodeId(2)] = 900.0
    watched.rounds(SLOW_REPORTS)
    del watched.latencies[NodeId(2)]
    for _ in range(20):
        watched.slow.heard(NodeId(2), NodeEpoch(1), watched.latencies)
    assert watched.slow.excluded([NodeId(n) for n in range(4)])


def test_a_plan_contains_the_reasons() -> None:
    brokers = [BrokerSlot(NodeId(0)), BrokerSlot(NodeId(1)), BrokerSlot(NodeId(2), "is leaving")]
    slots = [PartitionSlot("t", index, NodeId(0), Load(MB, 0, 1), True) for index in range(4)]
    found = plan(brokers, slots, Limits())
    assert [(move.partition, move.target) for move in found.moves] == [(0, 1), (1, 1)]
    assert (
        found.moves[0].reason
        == "network in: broker 0 has 4.00 MB/s, 2.00 x the mean of 2.00 MB/s; broker 1 has 0.0"
        " kB/s, 0.00 x"
    )
    assert [broker.load.bytes_in for broker in found.after] == [2 * MB, 2 * MB, 0]
    assert plan(brokers, slots, Limits(moves_max=1)).moves == found.moves[:1]
    assert plan(brokers, [slot._replace(movable=False) for slot in slots], Limits()).moves == []


def test_the_small_load_of_an_idle_cluster_moves_nothing() -> None:
    brokers = [BrokerSlot(NodeId(0)), BrokerSlot(NodeId(1))]
    rates = [30_000, 0]
    slots = [
        PartitionSlot("t", index, NodeId(index), Load(rates[index], 0, 1), True)
        for index in range(2)
    ]
    assert plan(brokers, slots, Limits(bytes_min=30_001)).moves == []
    assert plan(brokers, slots * 1, Limits(bytes_min=1)).moves == [], (
        "one partition cannot be shared"
    )


def test_a_new_broker_is_filled_first_in_a_cluster_with_ten_thousand_partitions() -> None:
    brokers = [BrokerSlot(NodeId(n)) for n in range(11)]
    slots = [
        PartitionSlot("t", n, NodeId(n % 10), Load(10_000 + n, 5_000, 1), True)
        for n in range(10_000)
    ]
    found = plan(brokers, slots, Limits())
    assert len(found.moves) == 100
    assert {move.target for move in found.moves} == {10}


def test_the_target_of_a_move_replaces_the_source_among_the_candidates() -> None:
    cluster = ManagersCluster()
    me, other = cluster.broker(0), cluster.broker(1)
    cluster.broker(2)
    cluster.create(NewTopic(name="t", assignment=[[NodeId(0), NodeId(1)], [NodeId(0), NodeId(1)]]))
    moves = [
        LeaderMove(topic="t", partition=0, source=me.node_id, target=other.node_id),
        LeaderMove(topic="t", partition=1, source=me.node_id, target=NodeId(2)),
    ]
    result = reassign.move_leaders(
        cluster.image,
        MoveLeaders(moves=moves),
        Millis(0),
        live=[NodeId(n) for n in range(3)],
        timeout_ms=MOVE_TIMEOUT_MS,
    )
    assert result.value is not None
    assert [item.status for item in result.value.items] == [Status.OK, Status.OK]
    cluster.apply(result.records)
    assert [(record.leader, record.replicas) for record in cluster.partitions("t")] == [
        (1, (1, 0)),
        (2, (2, 1)),
    ]


def test_moves_are_skipped_if_the_partition_has_changed_since_the_plan() -> None:
    cluster = ManagersCluster()
    cluster.broker(0)
    cluster.broker(1)
    cluster.create(NewTopic(name="t", assignment=[[NodeId(0), NodeId(1)]]))

    def refused(source: int, target: int, *live: int) -> Status:
        move = LeaderMove(topic="t", partition=0, source=NodeId(source), target=NodeId(target))
        result = reassign.move_leaders(
            cluster.image,
            MoveLeaders(moves=[move]),
            Millis(0),
            live=[NodeId(n) for n in live],
            timeout_ms=MOVE_TIMEOUT_MS,
        )
        assert result.value is not None
        assert result.records == []
        return result.value.items[0].status

    assert refused(1, 0, 0, 1) is Status.ELECTION_NOT_NEEDED
    assert refused(0, 1, 0) is Status.PREFERRED_NOT_AVAILABLE
    assert refused(0, 5, 0, 1) is Status.PREFERRED_NOT_AVAILABLE


def test_slow_silent_and_absent_brokers_and_recently_moved_partitions_are_excluded() -> None:
    cluster = ManagersCluster()
    for node_id in range(3):
        cluster.broker(node_id)
    cluster.create(NewTopic(name="t", assignment=[[NodeId(0)], [NodeId(0)]]))
    cluster.create(NewTopic(name="u", assignment=[[NodeId(0)]]))
    move = LeaderMove(topic="t", partition=1, source=NodeId(0), target=NodeId(1))
    live = [NodeId(n) for n in range(3)]
    cluster.apply(
        reassign.move_leaders(
            cluster.image, MoveLeaders(moves=[move]), Millis(1_000), live=live, timeout_ms=5
        ).records
    )
    book = LoadBook(1_000)
    for node_id in (0, 1):
        book.add(report(node_id), 0)
    excluded = {NodeId(1): "is slow"}
    seen = view(cluster.image, book, Conditions(live[:2], excluded, 0, Millis(1_500), 501, 0))
    assert [broker.note for broker in seen.brokers] == [
        "",
        "is excluded: is slow",
        "has no session",
    ]
    assert {(slot.topic, slot.partition) for slot in seen.partitions if slot.movable} == {
        ("t", 0),
        ("u", 0),
    }
    seen = view(cluster.image, book, Conditions(live, {}, 0, Millis(1_501), 501, 0, ("t",)))
    assert [broker.note for broker in seen.brokers] == ["", "", NO_REPORT]
    assert {
        (slot.topic, slot.partition, slot.leader) for slot in seen.partitions if slot.movable
    } == {("t", 0, 0), ("t", 1, 1)}


def test_a_restarted_broker_waits_for_its_share_and_a_new_one_does_not() -> None:
    cluster = ManagersCluster()
    first, live = cluster.broker(0), [NodeId(0), NodeId(1)]
    cluster.die(first)
    book = LoadBook(1_000)

    def notes(now_ms: int) -> list[str]:
        conditions = Conditions(live, {}, now_ms, Millis(0), 0, 300)
        return [broker.note for broker in view(cluster.image, book, conditions).brokers]

    def received(now_ms: int) -> None:
        for node in (cluster.image.nodes.get(node_id) for node_id in live):
            assert node is not None
            book.add(
                msgspec.structs.replace(report(node.node_id), node_epoch=node.node_epoch), now_ms
            )

    cluster.broker(0)
    cluster.broker(1)
    received(1_000)
    received(1_200)
    assert notes(1_299) == [CAME_BACK, ""]
    assert notes(1_300) == ["", ""]
    cluster.broker(1)
    received(1_400)
    assert notes(1_400) == ["", CAME_BACK], "each start counts, by itself"

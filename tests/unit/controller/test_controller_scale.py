"""Ten thousand partitions: transactions and messages have limited sizes, and work is done in pieces
of limited size.
"""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from penstock.base.ids import NodeId, Offset, StreamEpoch, WalSequence
from penstock.controller.api.messages import (
    AlterReassignments,
    CommitRecovered,
    DeleteTopics,
    DrainBroker,
    ElectPreferred,
    ForkedPartition,
    ItemResults,
    NewTopic,
    PartitionName,
    PartitionTarget,
    Progress,
    Status,
    TopicFork,
)
from penstock.controller.api.transport import MESSAGE_BYTES_MAX
from penstock.controller.config import ControllerConfig
from penstock.controller.managers import deleted_topics, failover, reassign
from penstock.controller.managers.elections import ELECTIONS_PER_TRANSACTION_MAX, elect_leaderless
from penstock.controller.managers.result import Result
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.records import (
    PartitionRecord,
    Record,
    StreamClosed,
    StreamOpened,
    StreamTrimmed,
)
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.controller.metadata.topics import NO_LEADER, leader_of
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.transport import GROUP_BYTES
from tests.support.managers_cluster import MOVE_TIMEOUT_MS, ManagersCluster

PARTITIONS = 10_000
CANDIDATES = 15
"""Candidates per partition: the maximum."""

PIECE_BYTES_MAX = 1 << 20
"""The limit for all requests that do not create or delete whole topics."""


def default(name: str) -> int:
    value = next(
        field.default for field in msgspec.structs.fields(ControllerConfig) if field.name == name
    )
    assert isinstance(value, int)
    return value


def size_of(records: Sequence[Record]) -> int:
    return sum(len(encode_record(record)) for record in records)


def partitions_in(records: Sequence[Record]) -> int:
    return sum(isinstance(record, PartitionRecord) for record in records)


class Large(ManagersCluster):
    """Broker 1 is leader of all partitions; 15 brokers are candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.me = self.broker(1)
        for node_id in range(2, CANDIDATES + 1):
            self.broker(node_id)
        row = [NodeId(node_id) for node_id in range(1, CANDIDATES + 1)]
        requested = [NewTopic(name="t", assignment=[row] * PARTITIONS)]
        self.created = self.create_topics(requested).records
        self.apply(self.created)

    def open_all(self) -> None:
        opened: list[Record] = []
        for partition in self.partitions("t"):
            for stream_id in partition.stream_ids:
                opened.append(
                    StreamOpened(
                        stream_id,
                        partition.leader_epoch,
                        partition.leader,
                        partition.leader_node_epoch,
                    )
                )
        self.apply(opened)

    def pieces(self, step: Callable[[], Result[Progress]]) -> list[Sequence[Record]]:
        """Repeat the request until no work remains; return the records of each piece."""
        found: list[Sequence[Record]] = []
        remaining = 1
        while remaining:
            result = step()
            assert result.value is not None, result.detail
            assert result.value.remaining < remaining or not found, "a piece makes progress"
            remaining = result.value.remaining
            found.append(result.records)
            self.image.apply_all(result.records)
        self.image.check_invariants()
        return found


@pytest.fixture
def cluster() -> Large:
    return Large()


def test_ten_thousand_partitions_are_created_and_deleted_in_one_transaction(cluster: Large) -> None:
    limit = default("transaction_bytes_max")
    assert partitions_in(cluster.created) == PARTITIONS
    assert size_of(cluster.created) < limit
    request = DeleteTopics(topic_ids=[cluster.partitions("t")[0].topic_id])
    deleted = deleted_topics.delete_topics(cluster.image, request, cluster.now_ms, grace_ms=0)
    assert len(deleted.records) == 3 * PARTITIONS + 1
    assert size_of(deleted.records) < limit


def test_a_snapshot_of_ten_thousand_old_partitions_is_one_transaction(cluster: Large) -> None:
    far = Offset(10**12)
    cluster.apply([StreamTrimmed(item.data_stream_id, far) for item in cluster.partitions("t")])
    cluster.apply(
        [
            StreamClosed(item.data_stream_id, StreamEpoch(-1), far)
            for item in cluster.partitions("t")
        ]
    )
    epochs = [(StreamEpoch(100 + number), Offset(far - 10**10 + number)) for number in range(100)]
    point = ForkedPartition(
        end_offset=far, scan_offset=far, txn_end_offset=Offset(0), epochs=epochs
    )
    source_id = cluster.partitions("t")[0].topic_id
    fork = TopicFork(source_topic_id=source_id, partitions=[point] * PARTITIONS)
    topic = NewTopic(name="t@s", configs={FORK_SOURCE: "t"}, fork=fork)
    result = cluster.create_topics([topic])
    assert partitions_in(result.records) == PARTITIONS
    assert size_of(result.records) < default("transaction_bytes_max")


def test_the_largest_message_between_voters_is_far_below_the_transport_limit() -> None:
    entry_bytes = default("batch_bytes_max") + default("transaction_bytes_max")
    assert GROUP_BYTES + max(entry_bytes, CoreConfig(0).append_bytes_max) < MESSAGE_BYTES_MAX / 4


def alter(cluster: Large, count: int) -> Result[ItemResults]:
    """Reassign partitions away from broker 1."""
    replicas = [NodeId(node_id) for node_id in range(2, CANDIDATES + 1)]
    targets = [
        PartitionTarget(topic="t", partition=index, replicas=replicas) for index in range(count)
    ]
    request = AlterReassignments(partitions=targets)
    return reassign.alter_reassignments(
        cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=MOVE_TIMEOUT_MS
    )


def elect(cluster: Large, count: int) -> Result[ItemResults]:
    """Request elections that are not needed: each result contains the reason, which results in the
    longest responses.
    """
    request = ElectPreferred(
        partitions=[PartitionName(topic="t", partition=index) for index in range(count)]
    )
    return reassign.elect_preferred(
        cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=MOVE_TIMEOUT_MS
    )


@pytest.mark.parametrize(("send_request", "moved"), [(alter, reassign.MOVES_MAX), (elect, 0)])
def test_requests_above_the_limit_are_rejected_and_those_at_the_limit_stay_small(
    cluster: Large, send_request: Callable[[Large, int], Result[ItemResults]], moved: int
) -> None:
    cluster.open_all()
    refused = send_request(cluster, reassign.MOVES_MAX + 1)
    assert (refused.status, len(refused.records)) == (Status.INVALID_REQUEST, 0)
    assert "split it" in refused.detail
    full = send_request(cluster, reassign.MOVES_MAX)
    assert partitions_in(full.records) == moved
    assert size_of(full.records) < PIECE_BYTES_MAX
    assert len(msgspec.msgpack.encode(full.value)) < PIECE_BYTES_MAX


def test_a_broker_that_leads_all_partitions_is_drained_in_pieces(cluster: Large) -> None:
    cluster.open_all()
    request = DrainBroker(
        node_id=cluster.me.node_id, node_epoch=cluster.me.node_epoch, partitions_max=100
    )

    def step() -> Result[Progress]:
        return reassign.drain_broker(
            cluster.image, request, cluster.now_ms, live=cluster.live, timeout_ms=MOVE_TIMEOUT_MS
        )

    pieces = cluster.pieces(step)
    assert [partitions_in(piece) for piece in pieces] == [100] * (PARTITIONS // 100)
    assert cluster.image.topics.led_count(NO_LEADER) == PARTITIONS
    assert max(map(size_of, pieces)) < PIECE_BYTES_MAX


def test_a_dead_broker_that_led_all_partitions_is_replaced_in_pieces(cluster: Large) -> None:
    cluster.open_all()
    cluster.die(cluster.me)
    cluster.apply(failover.assign_recoveries(cluster.image, cluster.live))
    wal = cluster.image.nodes.wal(cluster.me)
    assert wal is not None
    request = CommitRecovered(
        node_id=wal.recoverer.node_id,
        node_epoch=wal.recoverer.node_epoch,
        failed_node_id=cluster.me.node_id,
        failed_node_epoch=cluster.me.node_epoch,
        objects=[],
        done=True,
        end=WalSequence(0),
    )
    pieces = cluster.pieces(
        lambda: failover.commit_recovered(cluster.image, request, cluster.now_ms, live=cluster.live)
    )
    assert [partitions_in(piece) for piece in pieces] == [ELECTIONS_PER_TRANSACTION_MAX] * (
        PARTITIONS // ELECTIONS_PER_TRANSACTION_MAX
    )
    assert max(map(size_of, pieces)) < PIECE_BYTES_MAX
    assert all(
        cluster.image.nodes.is_alive(leader_of(partition)) for partition in cluster.partitions("t")
    )


def test_leaders_for_all_leaderless_partitions_are_elected_in_pieces(cluster: Large) -> None:
    """Their previous leader closed them while no broker could be elected, as after the start of a
    whole cluster.
    """
    cluster.image.apply_all(
        msgspec.structs.replace(
            partition, leader=NO_LEADER.node_id, leader_node_epoch=NO_LEADER.node_epoch
        )
        for partition in cluster.partitions("t")
    )
    sizes: list[int] = []
    while records := elect_leaderless(cluster.image, cluster.live, cluster.now_ms):
        sizes.append(size_of(records))
        cluster.image.apply_all(records)
    assert len(sizes) == PARTITIONS // ELECTIONS_PER_TRANSACTION_MAX
    assert max(sizes) < PIECE_BYTES_MAX
    assert cluster.image.topics.led_count(NO_LEADER) == 0

"""Elect partition leaders: the first live candidate, otherwise the live broker that leads the
fewest partitions, which is then appended to the candidates. Any live broker can lead, because
durability comes from the store.
"""

from collections.abc import Collection

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamEpoch,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord, Record
from penstock.controller.metadata.topics import NO_LEADER, in_order
from penstock.stream.ports import BrokerIncarnation

ELECTIONS_PER_TRANSACTION_MAX = 2_000


class Elector:
    """The elections of one transaction. It counts the partitions of each leader, so that the
    partitions of a failed broker are spread across the others.

    live: brokers with a session. They are eligible if they are registered and neither fenced nor
    draining. Targets of moves count as leaders. This takes O(brokers + moves in progress).
    """

    def __init__(
        self, image: MetadataImage, live: Collection[NodeId], *, without: NodeId | None = None
    ) -> None:
        self._eligible: dict[NodeId, NodeEpoch] = {
            node.node_id: node.node_epoch
            for node in image.nodes
            if node.node_id in live
            and not node.fenced
            and not node.draining
            and node.node_id != without
        }
        self._load = {
            node_id: image.topics.led_count(BrokerIncarnation(node_id, epoch))
            for node_id, epoch in sorted(self._eligible.items())
        }
        for key in image.topics.led_by(NO_LEADER):
            partition = image.topics.partition(key)
            if (
                partition is not None
                and partition.target_replicas is not None
                and partition.move is not None
            ):
                self._count(partition.move.target)

    @property
    def eligible(self) -> list[NodeId]:
        return list(self._load)

    def choose(self, candidates: Collection[NodeId]) -> BrokerIncarnation:
        """Return the winner and count it as a leader, or return `NO_LEADER` if no broker is
        eligible.
        """
        winner = next((node_id for node_id in candidates if node_id in self._eligible), None)
        if winner is None and self._load:
            winner = min(self._load, key=lambda node_id: (self._load[node_id], node_id))
        if winner is None:
            return NO_LEADER
        self._count(winner)
        return BrokerIncarnation(winner, self._eligible[winner])

    def by_load(self, candidates: Collection[NodeId]) -> tuple[NodeId, ...]:
        """Return the eligible candidates, ordered by their number of partitions."""
        return tuple(
            sorted(
                (node_id for node_id in candidates if node_id in self._load),
                key=lambda node_id: self._load[node_id],
            )
        )

    def elect(self, partition: PartitionRecord, now_ms: Millis) -> PartitionRecord:
        """Return the next record of the partition, with the next leader epoch. The winner becomes
        the leader; there is no leader if no broker is eligible. This ends a move in progress.
        """
        replicas, move = partition.replicas, partition.move
        candidates = replicas
        if partition.target_replicas is not None and move is not None:
            replicas = partition.target_replicas
            candidates = (move.target, *replicas)
        winner = self.choose(candidates)
        leader_epoch = StreamEpoch(partition.leader_epoch + 1)
        if winner != NO_LEADER and winner.node_id not in replicas:
            replicas = (*replicas, winner.node_id)
        if partition.target_replicas is not None and move is not None:
            move = msgspec.structs.replace(
                move, target=winner.node_id, elected_ms=now_ms, leader_epoch=leader_epoch
            )
        return msgspec.structs.replace(
            partition,
            replicas=replicas,
            leader=winner.node_id,
            leader_node_epoch=winner.node_epoch,
            leader_epoch=leader_epoch,
            target_replicas=None,
            move=move,
        )

    def _count(self, node_id: NodeId) -> None:
        if node_id in self._load:
            self._load[node_id] += 1


def has_open_stream(image: MetadataImage, partition: PartitionRecord) -> bool:
    """Return whether a broker, dead or alive, may still write with the old leader epoch."""
    streams = map(image.streams.get, partition.stream_ids)
    return any(stream is not None and stream.opened for stream in streams)


def elect_leaderless(
    image: MetadataImage,
    live: Collection[NodeId],
    now_ms: Millis,
    partitions_max: int = ELECTIONS_PER_TRANSACTION_MAX,
) -> list[Record]:
    """Elect leaders for partitions without one, for example when the first broker registers. Each
    call elects a limited number; call again while it returns records.

    Only partitions with closed streams are considered. The transaction that closes the streams of a
    moving partition elects its leader, so this function handles the partitions for which no broker
    was eligible at that time.
    """
    elector = Elector(image, live)
    if not elector.eligible:
        return []
    records: list[Record] = []
    for key in sorted(image.topics.led_by(NO_LEADER), key=in_order):
        partition = image.topics.partition(key)
        if partition is not None and not has_open_stream(image, partition):
            records.append(elector.elect(partition, now_ms))
            if len(records) >= partitions_max:
                break
    return records

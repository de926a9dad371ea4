"""Who leads a partition: the first live candidate, else the live broker that leads least.

Invariant: an election raises the leader epoch by one; it is held only for a partition that nobody leads or whose leader's streams are
closed in the same transaction. Any live broker will do, because durability comes from the store: it is then appended to the candidates.
Source: KRaft `PartitionChangeBuilder`, without ISR.
"""

from collections.abc import Collection

import msgspec

from controller.metadata.image import MetadataImage
from controller.metadata.records import PartitionRecord, Record
from controller.metadata.topics import NO_LEADER
from stream.ids import NodeEpoch, NodeId, StreamEpoch
from stream.ports import WalIdentity

ELECTIONS_PER_TRANSACTION_MAX = 2_000


class Elector:
    """Holds elections of one transaction; counts as it goes, so that a failed broker's partitions spread over the others.

    live: brokers with a session. Only those that are registered and not fenced are eligible.
    """

    def __init__(self, image: MetadataImage, live: Collection[NodeId], *, without: NodeId | None = None) -> None:
        self._eligible: dict[NodeId, NodeEpoch] = {
            node.node_id: node.node_epoch for node in image.nodes if node.node_id in live and not node.fenced and node.node_id != without
        }
        self._load = {node_id: image.topics.led_count(WalIdentity(node_id, epoch)) for node_id, epoch in sorted(self._eligible.items())}

    @property
    def eligible(self) -> list[NodeId]:
        return list(self._load)

    def choose(self, candidates: Collection[NodeId]) -> WalIdentity:
        """The winner, counted as leader from now on; `NO_LEADER` when no broker is eligible."""
        winner = next((node_id for node_id in candidates if node_id in self._eligible), None)
        if winner is None and self._load:
            winner = min(self._load, key=lambda node_id: (self._load[node_id], node_id))
        if winner is None:
            return NO_LEADER
        self._load[winner] += 1
        return WalIdentity(winner, self._eligible[winner])

    def elect(self, partition: PartitionRecord) -> PartitionRecord:
        """The partition's next record: one leader epoch higher, led by the winner or by nobody."""
        winner = self.choose(partition.replicas)
        replicas = partition.replicas
        if winner != NO_LEADER and winner.node_id not in replicas:
            replicas = (*replicas, winner.node_id)
        return msgspec.structs.replace(
            partition,
            replicas=replicas,
            leader=winner.node_id,
            leader_node_epoch=winner.node_epoch,
            leader_epoch=StreamEpoch(partition.leader_epoch + 1),
        )


def elect_leaderless(image: MetadataImage, live: Collection[NodeId], partitions_max: int = ELECTIONS_PER_TRANSACTION_MAX) -> list[Record]:
    """Leaders for partitions that nobody leads, e.g. when the first broker comes. Bounded: call again while it answers any."""
    elector = Elector(image, live)
    if not elector.eligible:
        return []
    records: list[Record] = []
    for key in sorted(image.topics.led_by(NO_LEADER))[:partitions_max]:
        partition = image.topics.partition(key)
        if partition is not None:
            records.append(elector.elect(partition))
    return records

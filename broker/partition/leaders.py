"""Whom clients are told to go to for a partition: its leader or, while it moves or its leader is
dead, the broker that is about to lead it.

Why so early: the target parks what comes before it has opened the partition, so a client that goes
there at once waits for the move or the recovery only, not for its own next look at the metadata,
which after half a second without a leader is up to a second away (librdkafka doubles its pauses).
If the election goes otherwise (the target died), the target or its absence says so, and the client
looks again. The epoch told is the one that the election will begin.
Invariant: only brokers that the image has alive are named. The guess is
`controller.managers.elections` without its count of leaders: where no candidate can be elected,
nobody is named.
"""

from collections.abc import Iterable
from typing import NamedTuple

from base.ids import NodeId, StreamEpoch
from controller.metadata.image import MetadataImage
from controller.metadata.topics import NO_LEADER, PartitionMetadata, is_moving, leader_of


class AnnouncedLeader(NamedTuple):
    node_id: NodeId
    leader_epoch: StreamEpoch


def announced_leader(image: MetadataImage, partition: PartitionMetadata) -> AnnouncedLeader | None:
    """None: nobody leads it, and who will is not known yet."""
    if not is_moving(partition) and image.nodes.is_alive(leader_of(partition)):
        return AnnouncedLeader(partition.leader, partition.leader_epoch)
    heir = _heir(image, partition)
    return None if heir is None else AnnouncedLeader(heir, StreamEpoch(partition.leader_epoch + 1))


def is_heir(image: MetadataImage, partition: PartitionMetadata, node_id: NodeId) -> bool:
    """The next election will make this broker the leader, as far as is known: it holds a place for
    what comes early.
    """
    if not is_moving(partition) and image.nodes.is_alive(leader_of(partition)):
        return False
    return _heir(image, partition) == node_id


def _heir(image: MetadataImage, partition: PartitionMetadata) -> NodeId | None:
    candidates: Iterable[NodeId] = partition.replicas
    if partition.target_replicas is not None and partition.move is not None:
        candidates = (partition.move.target, *partition.target_replicas)
    elif partition.leader == NO_LEADER.node_id:
        return None
    for node_id in candidates:
        node = image.nodes.get(node_id)
        if node is not None and not node.fenced and not node.draining:
            return node_id
    return None

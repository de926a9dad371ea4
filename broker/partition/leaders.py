"""Determine the leader that clients get for a partition. While it moves or its leader is dead, that
is the broker that will lead next.

Why so early: the target parks requests until it has opened the partition. A client that goes there
immediately waits only for the move or the recovery, not for its next metadata refresh, which can be
a second away after half a second without a leader (librdkafka doubles its pauses). If the election
ends differently (the target died), the client gets an error or no answer and refreshes. The epoch
in the answer is the one that the election will begin.
Invariant: only brokers that are alive in the image are named. The prediction follows
`controller.managers.elections` without its count of leaders: if no candidate can be elected, none
is named.
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
    """Return the leader to name, or None if there is none and the next one is unknown."""
    if not is_moving(partition) and image.nodes.is_alive(leader_of(partition)):
        return AnnouncedLeader(partition.leader, partition.leader_epoch)
    next_leader = _next_leader(image, partition)
    if next_leader is None:
        return None
    return AnnouncedLeader(next_leader, StreamEpoch(partition.leader_epoch + 1))


def is_next_leader(image: MetadataImage, partition: PartitionMetadata, node_id: NodeId) -> bool:
    """Return True if the next election will make this broker the leader, as far as the image shows.
    It then parks early requests.
    """
    if not is_moving(partition) and image.nodes.is_alive(leader_of(partition)):
        return False
    return _next_leader(image, partition) == node_id


def _next_leader(image: MetadataImage, partition: PartitionMetadata) -> NodeId | None:
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

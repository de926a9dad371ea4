"""Whom clients are told to go to for a partition: its leader or, while it moves, the broker that is about to lead it.

Why so early: the target parks what comes before it has opened the partition, so a client that goes there at once waits for the move only,
not for its own next look at the metadata. If the election goes otherwise (the target died), the target or its absence says so, and the
client looks again. The epoch told is the one that the election will begin.
Invariant: only brokers that the image has alive are named.
"""

from typing import NamedTuple

from controller.metadata.image import MetadataImage
from controller.metadata.topics import PartitionState, is_moving, leader_of, next_leader, next_leader_epoch
from stream.ids import NodeId, StreamEpoch


class AnnouncedLeader(NamedTuple):
    node_id: NodeId
    leader_epoch: StreamEpoch


def announced_leader(image: MetadataImage, partition: PartitionState) -> AnnouncedLeader | None:
    """None: nobody leads it, or who does is dead."""
    if is_moving(partition):
        target = image.nodes.get(next_leader(partition))
        if target is None or target.fenced:
            return None
    elif not image.nodes.is_alive(leader_of(partition)):
        return None
    return AnnouncedLeader(next_leader(partition), next_leader_epoch(partition))

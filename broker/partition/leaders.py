"""Determine the leader returned to clients. While a partition moves or its leader is dead, clients
are sent to the next leader. It parks early requests, so that clients wait only for the move or the
recovery instead of retrying metadata requests for up to a second. If another broker is elected, the
client receives an error or no response, and refreshes its metadata.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from penstock.base.ids import NodeId, StreamEpoch
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import NO_LEADER, PartitionMetadata, is_moving, leader_of
from penstock.stream.ports import BrokerIncarnation

Gone: TypeAlias = Collection[BrokerIncarnation]
"""Brokers whose processes have died, as far as this broker can tell."""


class AnnouncedLeader(NamedTuple):
    node_id: NodeId
    leader_epoch: StreamEpoch


def announced_leader(
    image: MetadataImage, partition: PartitionMetadata, gone: Gone = frozenset()
) -> AnnouncedLeader | None:
    """Return the leader to announce, or None if the partition has no live leader and the next one
    is unknown.

    The next leader and its epoch are predicted as in `controller.managers.elections`, except for
    leader counts. Brokers whose processes have died (`gone`, see `broker.network.peer_watch`) are
    skipped even before the controller fences them; the epoch then does not change, because the
    election might not happen.
    """
    leader = leader_of(partition)
    is_certain = is_moving(partition) or not image.nodes.is_alive(leader)
    if not is_certain and leader not in gone:
        return AnnouncedLeader(partition.leader, partition.leader_epoch)
    next_leader = _next_leader(image, partition, gone)
    if next_leader is None:
        return None
    return AnnouncedLeader(next_leader, StreamEpoch(partition.leader_epoch + is_certain))


def is_next_leader(
    image: MetadataImage,
    partition: PartitionMetadata,
    node_id: NodeId,
    gone: Gone = frozenset(),
) -> bool:
    """Return True if this broker will win the next election, according to the image and `gone`. It
    then parks early requests.
    """
    leader = leader_of(partition)
    if not is_moving(partition) and image.nodes.is_alive(leader) and leader not in gone:
        return False
    return _next_leader(image, partition, gone) == node_id


def _next_leader(image: MetadataImage, partition: PartitionMetadata, gone: Gone) -> NodeId | None:
    candidates: Iterable[NodeId] = partition.replicas
    if partition.target_replicas is not None and partition.move is not None:
        candidates = (partition.move.target, *partition.target_replicas)
    elif partition.leader == NO_LEADER.node_id:
        return None
    for node_id in candidates:
        node = image.nodes.get(node_id)
        if node is None or node.fenced or node.draining:
            continue
        if BrokerIncarnation(node_id, node.node_epoch) not in gone:
            return node_id
    return None

"""Determine the leader that clients get for a partition. While it moves or its leader is dead, that
is the broker that will lead next.

Why so early: the target parks requests until it has opened the partition. A client that goes there
immediately waits only for the move or the recovery, not for its next metadata refresh, which can be
a second away after half a second without a leader (librdkafka doubles its pauses). If the election
ends differently (the target died), the client gets an error or no answer and refreshes. The epoch
in the answer is the one that the election will begin.
A broker whose process has died (`gone`, see `broker.network.peer_watch`) is skipped before the
controller has fenced it. The epoch stays as it is then, because that election may not come.

Invariant: only brokers that are alive in the image are named. The prediction follows
`controller.managers.elections` without its count of leaders: if no candidate can be elected, none
is named.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from penstock.base.ids import NodeId, StreamEpoch
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import NO_LEADER, PartitionMetadata, is_moving, leader_of
from penstock.stream.ports import BrokerIncarnation

Gone: TypeAlias = Collection[BrokerIncarnation]
"""The brokers whose process has died, as far as this broker can see."""


class AnnouncedLeader(NamedTuple):
    node_id: NodeId
    leader_epoch: StreamEpoch


def announced_leader(
    image: MetadataImage, partition: PartitionMetadata, gone: Gone = frozenset()
) -> AnnouncedLeader | None:
    """Return the leader to name, or None if there is none and the next one is unknown."""
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
    """Return True if the next election will make this broker the leader, as far as the image and
    `gone` show. It then parks early requests.
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

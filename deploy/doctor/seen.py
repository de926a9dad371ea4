"""One look at the metadata image, taken out of it: who is there, what nobody leads, what hangs,
which WALs run.

Invariant: pure, O(partitions); nothing of the image is kept.
"""

from collections.abc import Iterable

from controller.metadata.image import MetadataImage
from controller.metadata.nodes import NodeState
from controller.metadata.topics import is_moving, leader_of
from deploy.doctor.facts import BrokerFacts, ClusterSeen, MoveFacts, WalFacts
from stream.format.manifest.model import ManifestRoot

FIRST_LISTENER = "first"
"""The name of a broker's first listener, which brokers use among themselves, is not in the
metadata.
"""


def seen(image: MetadataImage, now_ms: int) -> ClusterSeen:
    leaderless: set[tuple[str, int]] = set()
    hanging: dict[tuple[str, int], MoveFacts] = {}
    moving = 0
    for topic in image.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition)
            if is_moving(partition):
                moving += 1
                move = partition.move
                if move is not None and move.deadline_ms < now_ms:
                    hanging[key] = MoveFacts(move.source, move.target, move.started_ms)
            elif not image.nodes.is_alive(leader_of(partition)):
                leaderless.add(key)
    return ClusterSeen(
        cluster_id=image.cluster_id,
        end_offset=image.end_offset,
        brokers=tuple(_broker(node) for node in sorted(image.nodes, key=lambda node: node.node_id)),
        topic_count=len(image.topics),
        partition_count=sum(len(topic.partitions) for topic in image.topics),
        object_count=len(image.objects),
        leaderless=frozenset(leaderless),
        hanging=hanging,
        moving_count=moving,
        wals={
            wal.writer: WalFacts(
                wal.writer, wal.committed, image.nodes.is_alive(wal.writer), wal.recoverer
            )
            for wal in image.nodes.running_wals()
        },
    )


def lasting(first: ClusterSeen, second: ClusterSeen) -> ClusterSeen:
    """The second look, with only those of its troubles that were there at the first."""
    return ClusterSeen(
        second.cluster_id,
        second.end_offset,
        second.brokers,
        second.topic_count,
        second.partition_count,
        second.object_count,
        leaderless=first.leaderless & second.leaderless,
        hanging={
            key: move for key, move in second.hanging.items() if first.hanging.get(key) == move
        },
        moving_count=second.moving_count,
        wals={
            writer: wal
            for writer, wal in second.wals.items()
            if wal.is_alive or (writer in first.wals and not first.wals[writer].is_alive)
        },
    )


def published(image: MetadataImage) -> frozenset[tuple[object, ...]]:
    """What a manifest must say as well: topics with their partitions, WALs with their first
    slots.
    """
    topics: Iterable[tuple[object, ...]] = (
        (topic.topic_id, len(topic.partitions)) for topic in image.topics
    )
    wals: Iterable[tuple[object, ...]] = (
        (wal.writer, int(wal.committed)) for wal in image.nodes.running_wals()
    )
    return frozenset((*topics, *wals))


def published_by(root: ManifestRoot) -> frozenset[tuple[object, ...]]:
    """The same of a manifest."""
    topics: Iterable[tuple[object, ...]] = (
        (topic.topic_id, topic.partition_count) for topic in root.topics
    )
    wals: Iterable[tuple[object, ...]] = ((wal.writer, int(wal.first_slot)) for wal in root.wals)
    return frozenset((*topics, *wals))


def _broker(node: NodeState) -> BrokerFacts:
    """An address without a host is told to clients from elsewhere with the machine's."""
    told = [
        (FIRST_LISTENER, node.host, node.port),
        *((other.name, other.host, other.port) for other in node.other_listeners),
    ]
    listeners = tuple(
        (name, _address(host or node.machine_host, port)) for name, host, port in told
    )
    return BrokerFacts(node.node_id, node.node_epoch, node.fenced, node.version, listeners)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

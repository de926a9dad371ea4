"""Extract facts from a metadata image: brokers, partitions without a leader, hanging moves, running
WALs.

Invariant: pure, O(partitions + ranges of deleted topics); the result does not refer to the image.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.topics import is_moving, leader_of
from penstock.controller.metadata.wal_store_usage import wal_store_usage
from penstock.deploy.doctor.facts import BrokerFacts, ClusterFacts, MoveFacts, WalFacts
from penstock.stream.format.keys import WAL_STORE_ROOT
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.ports import IN_STORE

FIRST_LISTENER = "first"
"""Placeholder for the name of a broker's first listener, which the metadata does not contain."""


def read_cluster(image: MetadataImage, now_ms: int) -> ClusterFacts:
    leaderless: set[tuple[str, int]] = set()
    hanging: dict[tuple[str, int], MoveFacts] = {}
    ready = {node.node_id for node in image.nodes if not (node.fenced or node.draining)}
    moved_away = Counter[int]()
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
            elif partition.replicas[0] in ready - {partition.leader}:
                moved_away[partition.replicas[0]] += 1
    deleted = list(image.frozen_topics.deleted())
    in_wal_stores = wal_store_usage(image)
    return ClusterFacts(
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
                wal.writer,
                wal.committed,
                image.nodes.is_alive(wal.writer),
                wal.recoverer,
                is_outside=image.current_wal_store is not None and wal.store_id == IN_STORE,
            )
            for wal in image.nodes.running_wals()
        },
        moved_away=moved_away,
        deleted_count=len(deleted),
        wal_store_bytes=in_wal_stores.rewritable_bytes,
        wal_store_oldest_ms=in_wal_stores.oldest_ms,
        wal_store_rewritten_bytes=sum(
            state.size_bytes
            for state in image.objects.destroyed()
            if state.key.startswith(WAL_STORE_ROOT)
        ),
        deleted_bytes=sum(_size_bytes(image, topic) for topic in deleted),
        kept_bytes=sum(
            entry.size_bytes for stream in image.streams.keeping() for entry in stream.kept_entries
        ),
    )


def _size_bytes(image: MetadataImage, topic: FrozenTopic) -> int:
    streams = (
        image.streams.get(stream_id)
        for partition in topic.partitions
        for stream_id in partition.stream_ids
    )
    return sum(
        entry.size_bytes for stream in streams if stream is not None for entry in stream.entries
    )


def lasting_problems(first: ClusterFacts, second: ClusterFacts) -> ClusterFacts:
    """Return the second examination, with only the problems that were found in both."""
    return replace(
        second,
        leaderless=first.leaderless & second.leaderless,
        hanging={
            key: move for key, move in second.hanging.items() if first.hanging.get(key) == move
        },
        wals={
            writer: wal
            for writer, wal in second.wals.items()
            if wal.is_alive or (writer in first.wals and not first.wals[writer].is_alive)
        },
    )


def expected_in_manifest(image: MetadataImage) -> frozenset[tuple[object, ...]]:
    """Return the expected contents of a manifest: topics with partitions, WALs with first slots."""
    topics: Iterable[tuple[object, ...]] = (
        (topic.topic_id, len(topic.partitions))
        for topic in (*image.topics, *image.frozen_topics)
        if not (isinstance(topic, FrozenTopic) and topic.is_deleted)
    )
    wals: Iterable[tuple[object, ...]] = (
        (wal.writer, int(wal.committed)) for wal in image.nodes.running_wals()
    )
    return frozenset((*topics, *wals))


def found_in_manifest(root: ManifestRoot) -> frozenset[tuple[object, ...]]:
    """Return the contents of a manifest, for comparison with `expected_in_manifest`."""
    topics: Iterable[tuple[object, ...]] = (
        (topic.topic_id, topic.partition_count) for topic in root.topics
    )
    wals: Iterable[tuple[object, ...]] = ((wal.writer, int(wal.first_slot)) for wal in root.wals)
    return frozenset((*topics, *wals))


def _broker(node: NodeState) -> BrokerFacts:
    """Return the facts of a broker. A listener without a host uses the host of the machine, as
    clients do.
    """
    endpoints = [
        (FIRST_LISTENER, node.host, node.port),
        *((other.name, other.host, other.port) for other in node.other_listeners),
    ]
    listeners = tuple(
        (name, _address(host or node.machine_host, port)) for name, host, port in endpoints
    )
    return BrokerFacts(node.node_id, node.node_epoch, node.fenced, node.version, listeners)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

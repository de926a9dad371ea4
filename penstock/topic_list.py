"""List the topics of a cluster from the manifest in its object store."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.lake.arrow.cluster import StoreCluster
from penstock.stream.format.manifest.model import split_name


class Topic(NamedTuple):
    """A topic of a cluster.

    Attributes:
        name: The name that clients use; for a snapshot topic, the name of the topic.
        topic_id: The id. A recreated topic gets a new one.
        partition_count: The number of partitions, which are numbered from 0.
        configs: All configs by Kafka's names, such as `cleanup.policy`, `retention.ms` and
            `message.timestamp.type`, with the defaults of those that are not set.
        is_internal: Whether only coordinators write to the topic, as to `__consumer_offsets`.
        snapshot: The name of the snapshot of a snapshot topic; empty for other topics.
    """

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str]
    is_internal: bool
    snapshot: str = ""


def topics(
    store: str, *, cluster_id: str = "", snapshots: bool = False, wal_store: str = ""
) -> list[Topic]:
    """List the topics of a cluster from the newest manifest in its object store. No broker is
    contacted.

    Internal topics, such as `__consumer_offsets`, are included. A topic or a changed config appears
    within about 1 s: controllers publish a manifest every `manifest.interval.ms`.

    Args:
        store: The URL of the object store: `s3://BUCKET?endpoint=URL`, `gs://BUCKET`,
            `az://ACCOUNT/CONTAINER` or `file:DIR`.
        cluster_id: The cluster, needed only if the store holds several.
        snapshots: Include snapshot topics.
        wal_store: The URL of the WAL store, for clusters with the `wal.store` setting.

    Returns:
        The topics, sorted by name and snapshot.

    Raises:
        ManifestNotFound: The store holds no cluster, or not this one.
        SeveralClusters: The store holds several clusters and `cluster_id` is empty.
        WalStoreRequired: The cluster has a WAL store, and `wal_store` is empty.
        WalStoreWrong: `wal_store` is not the WAL store of this cluster.
        ObjectStoreError: The URL is invalid, or the store cannot be read.

    Example:
        >>> from penstock import topics
        >>> {topic.name: topic.partition_count for topic in topics("file:/data/objects")}
        {'clicks': 12, 'orders': 3}
        >>> {topic.name: topic.configs["cleanup.policy"] for topic in topics("file:/data/objects")}
        {'clicks': 'delete', 'orders': 'compact'}
    """
    root = StoreCluster(store, cluster_id, wal_store).newest_root()
    found: list[Topic] = []
    for topic in root.topics:
        name, snapshot = split_name(topic.name)
        if snapshots or not snapshot:
            found.append(
                Topic(
                    name,
                    topic.topic_id,
                    topic.partition_count,
                    root.configs_of(topic),
                    topic.is_internal,
                    snapshot,
                )
            )
    return sorted(found, key=lambda topic: (topic.name, topic.snapshot))

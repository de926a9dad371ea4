"""The endpoints that serve an application's interactive queries, with the partitions of each
(KIP-1071, KIP-535).
"""

from collections.abc import Collection, Iterable, Mapping

from penstock.broker.groups.common.model import TopicsView
from penstock.broker.groups.streams.model import EndpointPartitions, StreamsMember
from penstock.broker.groups.streams.topology import ConfiguredTopology


def endpoint_partitions(
    members: Iterable[StreamsMember], configured: ConfiguredTopology, topics: TopicsView
) -> tuple[EndpointPartitions, ...]:
    """Return the source partitions of each member with an endpoint."""
    return tuple(
        EndpointPartitions(
            member.metadata.endpoint,
            _partitions(member.current.assigned.active, configured, topics),
            _partitions(member.current.assigned.standby, configured, topics),
        )
        for member in members
        if member.metadata.endpoint is not None
    )


def _partitions(
    tasks: Mapping[str, Collection[int]], configured: ConfiguredTopology, topics: TopicsView
) -> dict[str, list[int]]:
    """Return the partitions of these tasks by topic. A topic may have fewer partitions than its
    subtopology has tasks.
    """
    found: dict[str, list[int]] = {}
    for key, indexes in sorted(tasks.items()):
        known = configured.subtopologies.get(key)
        for name in () if known is None else known.subtopology.all_sources:
            topic_id = topics.id_of(name)
            count = 0 if topic_id is None else topics.partition_count(topic_id)
            found[name] = sorted(index for index in indexes if index < count)
    return found

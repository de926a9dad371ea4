"""Synchronize consumer group offsets.

Invariant: the offset of a group at the target only increases, unless this process set it, so a
group whose consumers have already moved keeps its position. A group with members is not changed.
Source: KIP-545 (MirrorMaker's offset sync), whose translation is less exact.
"""

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from penstock.deploy.admin.groups.committed import CommittedOffset
from penstock.deploy.mirror.cluster import Cluster, grouped
from penstock.protocol import apis
from penstock.protocol.client.brokers import GROUP, Partition
from penstock.protocol.client.errors import Moved
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import list_groups, offset_commit

_WITH_OFFSETS: Final = frozenset({"", "consumer", "streams"})
"""Protocol types of groups that commit offsets. The type is empty for clients that only commit
offsets and never join.
"""
_COMMIT_BY_ID: Final = 10
"""The first version of OffsetCommit with topic ids."""
_ACTIVE: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
)


def to_commit(
    source: Mapping[Partition, CommittedOffset],
    target: Mapping[Partition, CommittedOffset],
    own: Mapping[Partition, int],
    translated: Callable[[Partition, int], int | None],
) -> dict[Partition, CommittedOffset]:
    """Return the offsets to set at the target.

    own: the offsets set by this process. translated: None for offsets that are not copied, or not
    yet.
    """
    found: dict[Partition, CommittedOffset] = {}
    for key, committed in source.items():
        offset = translated(key, committed.offset)
        if offset is None:
            continue
        present = target.get(key)
        if present is not None and present.offset == offset:
            continue
        if present is None or present.offset < offset or present.offset == own.get(key):
            found[key] = CommittedOffset(offset, committed.metadata)
    return found


def group_names(cluster: Cluster) -> tuple[list[str], list[int]]:
    """Return the groups that commit offsets, and the brokers that did not respond. A dead broker
    stays listed for a while after other brokers have taken over its groups. Raises KafkaFailed.
    """
    found: set[str] = set()
    silent: list[int] = []
    for node in cluster.retried(cluster.nodes):
        try:
            response = cluster.send_request(
                apis.LIST_GROUPS,
                list_groups.ListGroupsRequest(),
                list_groups.ListGroupsResponse,
                node=node,
            )
            cluster.check(response.error_code, None, f"broker {node} cannot list groups")
        except Moved:
            silent.append(node)
            continue
        found |= {
            item.group_id
            for item in response.groups
            if item.protocol_type in _WITH_OFFSETS and item.group_type.lower() != "share"
        }
    return sorted(found), silent


def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[Partition, CommittedOffset],
    ids: Mapping[str, str],
) -> bool:
    """Set the offsets of a group without members. Return False if the group has members. Raises
    KafkaFailed, and Moved to be called again.

    ids: the ids of the topics. Offsets of recreated topics are omitted, unless the cluster accepts
    only names, as Kafka before 4.1 does.
    """
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            UUID(ids[topic]) if ids[topic] else None,
            topic,
            [
                offset_commit.OffsetCommitRequestPartition(
                    index, item.offset, committed_metadata=item.metadata
                )
                for index, item in items
            ],
        )
        for topic, items in grouped(offsets).items()
    ]
    coordinator = cluster.coordinator(GROUP, group)
    version = cluster.version_of(
        apis.OFFSET_COMMIT, coordinator, _COMMIT_BY_ID if all(ids.values()) else _COMMIT_BY_ID - 1
    )
    response = cluster.send_request(
        apis.OFFSET_COMMIT,
        offset_commit.OffsetCommitRequest(group, topics=topics),
        offset_commit.OffsetCommitResponse,
        node=coordinator,
        version=version,
    )
    codes = {part.error_code for topic in response.topics for part in topic.partitions}
    if codes & _ACTIVE:
        return False
    for code in codes - {ErrorCode.UNKNOWN_TOPIC_ID}:
        cluster.check(code, None, f"the offsets of group {group!r} were not set")
    return True

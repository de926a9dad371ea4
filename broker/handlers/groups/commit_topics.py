"""Resolve the topic names of committed offsets to ids, from the member's assignment or this
broker's image.

The image may be outdated if a topic was deleted and recreated, so responses that depend on it wait
until a read from the controller has refreshed it. The read runs concurrently with the append.
"""

import asyncio
from collections.abc import Mapping
from uuid import UUID

from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.offsets.topics import stores_ids
from penstock.broker.requests.node import Node
from penstock.protocol.error_codes import ErrorCode


class CommitTopics:
    """The topics of one request that commits offsets by topic name."""

    def __init__(self, node: Node, group_id: str, member_id: str) -> None:
        self._node = node
        self._assigned = node.groups.assigned_topics(group_id, member_id)
        self.needs_read = False
        """Whether the image was the only source of an id and must therefore be refreshed."""

    def id_of(self, name: str) -> UUID | None:
        """Return the id of a topic. Return None if the topic does not exist, or if the member's
        partitions may belong to a deleted topic with this name.
        """
        image = self._node.image
        topic = image.topics.by_name(name)
        if topic is not None and topic.topic_id in self._assigned:
            return topic.topic_id
        if any(self._may_be(topic_id, name) for topic_id in self._assigned):
            return None
        self.needs_read = True
        return None if topic is None else topic.topic_id

    def _may_be(self, topic_id: UUID, name: str) -> bool:
        """Return whether this is a deleted topic that may have had this name. Permanently removed
        topics may have had any name, because their names are not kept.
        """
        image = self._node.image
        if image.topics.by_id(topic_id) is not None:
            return False
        deleted = image.frozen_topics.deleted_by_id(topic_id)
        return deleted is None or deleted.name == name


def begin_read(node: Node) -> "asyncio.Future[bool] | None":
    """Start refreshing the image. Return None below level 1 of `offsets.version`, because older
    controllers do not support the read.
    """
    return node.confirmed_reads.begin() if stores_ids(node.image) else None


async def is_refreshed(read: "asyncio.Future[bool] | None") -> bool:
    """Wait for the read, which concurrent requests share. Return whether the image is current."""
    return read is None or await asyncio.shield(read)


async def settled(
    node: Node,
    results: Mapping[TopicPartition, ErrorCode],
    offsets: Mapping[TopicPartition, CommittedOffset],
    read: "asyncio.Future[bool] | None",
) -> dict[TopicPartition, ErrorCode]:
    """Return the results once the image is current. UNKNOWN_TOPIC_ID means that the topic was
    deleted.
    """
    if ErrorCode.NONE not in results.values():
        return dict(results)
    refreshed = await is_refreshed(read)
    codes: dict[TopicPartition, ErrorCode] = {}
    for key, code in results.items():
        codes[key] = code
        topic = node.image.topics.by_name(key[0])
        if code is ErrorCode.NONE and not refreshed:
            codes[key] = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif code is ErrorCode.NONE and (topic is None or topic.topic_id != offsets[key].topic_id):
            codes[key] = ErrorCode.UNKNOWN_TOPIC_ID
    return codes

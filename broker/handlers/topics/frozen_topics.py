"""Describe frozen topics in a Metadata response, if a tagged field of the request selects them.
Other requests do not see them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext
from penstock.broker.requests.authorization import allows_group, allows_topic
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import sliced
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.streams import StreamState
from penstock.protocol.frozen_topics import FrozenPartition, FrozenTopicInfo, encode_frozen_topic
from penstock.protocol.gen.metadata import MetadataRequestTopic, MetadataResponseTopic

_ENTRIES_PER_SLICE_COUNT: Final = 5_000
"""Ranges counted between two yields to the event loop, which takes about 1 ms."""


async def describe_frozen_topics(
    node: Node, ctx: RequestContext, requested: Sequence[MetadataRequestTopic]
) -> list[MetadataResponseTopic]:
    """Return the frozen topics with these names or ids. Without names, return all frozen topics,
    and the deleted records of topics that can be restored. Names have the form used by readers of
    the store: `NAME@SNAPSHOT`, or `NAME@TOPIC_ID` for a deleted topic. Topics that the client may
    not describe are omitted.
    """
    image = node.image
    if not requested:
        found = [
            await _info(node, ctx, topic)
            for topic in list(image.frozen_topics)
            if allows_topic(node, ctx, Operation.DESCRIBE, topic.name, logs=False)
        ]
        frozen = [response for response in found if response is not None]
        return frozen + [
            response
            for response in _deleted_records(image)
            if allows_topic(node, ctx, Operation.DESCRIBE, response.name or "", logs=False)
        ]
    responses: list[MetadataResponseTopic] = []
    for item in requested:
        topic = _find(node.image, item.name, item.topic_id)
        name = item.name if topic is None else topic.name
        if name is not None and not allows_topic(node, ctx, Operation.DESCRIBE, name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            responses.append(MetadataResponseTopic(code, item.name, item.topic_id))
            continue
        response = None if topic is None else await _info(node, ctx, topic)
        responses.append(_unknown(item) if response is None else response)
    return responses


def _find(image: MetadataImage, name: str | None, topic_id: UUID | None) -> FrozenTopic | None:
    if topic_id is not None:
        return image.frozen_topics.by_id(topic_id)
    return None if name is None else image.frozen_topics.by_full_name(name)


def _unknown(item: MetadataRequestTopic) -> MetadataResponseTopic:
    code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if item.topic_id is None
        else ErrorCode.UNKNOWN_TOPIC_ID
    )
    return MetadataResponseTopic(error_code=code, name=item.name, topic_id=item.topic_id)


def _deleted_records(image: MetadataImage) -> list[MetadataResponseTopic]:
    """Describe the deleted records of topics that a fork can restore."""
    keeping: dict[UUID, list[StreamState]] = {}
    for stream in image.streams.keeping():
        if stream.kind == "data":
            keeping.setdefault(stream.topic_id, []).append(stream)
    responses: list[MetadataResponseTopic] = []
    for topic_id, streams in keeping.items():
        topic = image.topics.by_id(topic_id)
        if topic is None:
            continue
        graces = [stream.kept.trims[-1].grace for stream in streams if stream.kept is not None]
        newest = max(graces, key=lambda grace: grace.offset)
        info = FrozenTopicInfo(
            topic.name,
            "",
            topic_id,
            newest.since_ms,
            newest.keep_ms,
            {},
            [
                FrozenPartition(
                    stream.kept_offset,
                    stream.start_offset,
                    sum(entry.size_bytes for entry in stream.kept_entries),
                    sum(entry.record_count for entry in stream.kept_entries),
                )
                for stream in sorted(streams, key=lambda stream: stream.partition)
            ],
            {},
            of_live_topic=True,
        )
        responses.append(
            MetadataResponseTopic(
                name=topic.name, topic_id=topic_id, frozen_topic=encode_frozen_topic(info)
            )
        )
    return responses


async def _info(
    node: Node, ctx: RequestContext, topic: FrozenTopic
) -> MetadataResponseTopic | None:
    """Describe one topic, or return None if it was removed in the meantime. Configs and groups that
    the client may not describe are omitted.
    """
    partitions: list[FrozenPartition] = []
    counted = 0
    for partition in topic.partitions:
        stream = node.image.streams.get(partition.data_stream_id)
        if stream is None:
            return None
        partitions.append(
            FrozenPartition(
                stream.start_offset,
                stream.next_offset,
                sum(entry.size_bytes for entry in stream.entries),
                sum(entry.record_count for entry in stream.entries),
            )
        )
        counted += 1 + len(stream.entries)
        if counted >= _ENTRIES_PER_SLICE_COUNT:
            counted = 0
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    shows_configs = allows_topic(node, ctx, Operation.DESCRIBE_CONFIGS, topic.name, logs=False)
    info = FrozenTopicInfo(
        topic.name,
        topic.snapshot,
        topic.topic_id,
        topic.since_ms,
        topic.keep_ms,
        dict(topic.configs) if shows_configs else {},
        partitions,
        {
            group.group: {at: int(offset) for at, offset in group.offsets}
            async for group in sliced(topic.group_offsets)
            if allows_group(node, ctx, Operation.DESCRIBE, group.group, logs=False)
        },
    )
    return MetadataResponseTopic(
        name=topic.full_name, topic_id=topic.topic_id, frozen_topic=encode_frozen_topic(info)
    )

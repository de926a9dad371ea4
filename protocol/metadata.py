"""Hand-written encoder of Metadata, so that partitions can be encoded in advance.

The bytes equal the output of `protocol.gen.metadata` (tests/unit/protocol compare all versions).
For 10,000 partitions, the generated code takes 45 ms, whereas joining encoded partitions takes 1
ms.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.protocol.gen.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    encode_response,
)
from penstock.protocol.primitives import Writer

_FLEXIBLE_FROM = 9
_FROZEN_TOPIC_TAG = 10_000
_CODE_INDEX_LEADER = struct.Struct(">hii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_BOOL = struct.Struct(">?")


class EncodedTopic(NamedTuple):
    """head: everything except the partitions, whose list is empty. partitions: their encoded bytes
    from `encode_partition`.
    """

    head: MetadataResponseTopic
    partitions: Sequence[bytes]


class EncodedMetadata(NamedTuple):
    """head: everything except the topics, whose list is empty."""

    head: MetadataResponse
    topics: Sequence[EncodedTopic]


def encode_partition(partition: MetadataResponsePartition, version: int) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    writer = Writer()
    writer += _CODE_INDEX_LEADER.pack(
        partition.error_code, partition.partition_index, partition.leader_id
    )
    if version >= 7:
        writer += _I32.pack(partition.leader_epoch)
    writer.i32s(partition.replica_nodes, flexible)
    writer.i32s(partition.isr_nodes, flexible)
    if version >= 5:
        writer.i32s(partition.offline_replicas, flexible)
    if flexible:
        writer.append(0)
    return bytes(writer)


def encode_metadata(writer: Writer, message: EncodedMetadata, version: int) -> None:
    """Encode a response. The generated code encodes the response with an empty list, which the
    encoded topics then replace.
    """
    flexible = version >= _FLEXIBLE_FROM
    assert not message.head.topics, "topics come encoded"
    encode_response(writer, message.head, version)
    tail_bytes = (2 if version >= 13 else 0) + (4 if 8 <= version <= 10 else 0) + flexible
    tail = bytes(writer[len(writer) - tail_bytes :])
    del writer[len(writer) - tail_bytes - (1 if flexible else 4) :]
    writer.length(len(message.topics), flexible)
    for topic in message.topics:
        _write_topic(writer, topic, version, flexible=flexible)
    writer += tail


def _write_topic(writer: Writer, topic: EncodedTopic, version: int, *, flexible: bool) -> None:
    head = topic.head
    assert not head.partitions, "partitions come encoded"
    writer += _I16.pack(head.error_code)
    writer.nullable_string(head.name or "" if version < 12 else head.name, flexible)
    if version >= 10:
        writer.uuid(head.topic_id)
    if version >= 1:
        writer += _BOOL.pack(head.is_internal)
    writer.length(len(topic.partitions), flexible)
    writer += b"".join(topic.partitions)
    if version >= 8:
        writer += _I32.pack(head.topic_authorized_operations)
    if not flexible:
        return
    if not head.frozen_topic:
        writer.append(0)
        return
    field = Writer()
    field.byte_string(head.frozen_topic, flexible)
    writer.uvarint(1)
    writer.tagged(_FROZEN_TOPIC_TAG, field)

"""Descriptions of frozen topics, in the tagged `frozen_topic` field of Metadata, which Kafka's
clients skip.

Fields are only added at the end, with defaults, so that older and newer tools and brokers are
compatible.
"""

from uuid import UUID

import msgspec


class FrozenPartition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of a frozen topic. record_count, size_bytes: totals of its ranges, estimated if
    a snapshot ends inside an object.
    """

    start_offset: int
    end_offset: int
    size_bytes: int
    record_count: int


class FrozenTopicInfo(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot topic or, if `snapshot` is empty, a deleted topic. keep_ms: how long it is
    retained after `since_ms`; -1 means forever.

    group_offsets: committed offsets by group and partition.
    """

    name: str
    snapshot: str
    topic_id: UUID
    since_ms: int
    keep_ms: int
    configs: dict[str, str]
    partitions: list[FrozenPartition]
    group_offsets: dict[str, dict[int, int]]
    of_live_topic: bool = False
    """Whether the topic exists. `partitions` then describes its deleted records while they can be
    restored.
    """


encode_frozen_topic = msgspec.msgpack.Encoder().encode
decode_frozen_topic = msgspec.msgpack.Decoder(FrozenTopicInfo).decode

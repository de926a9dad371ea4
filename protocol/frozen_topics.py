"""Define what a broker tells about a frozen topic, in the tagged field `frozen_topic` of Metadata.

Invariant: fields are only ever added at the end, with defaults, so that older and newer tools and
brokers understand each other.
Source: none in Kafka, whose clients skip the tag.
"""

from uuid import UUID

import msgspec


class FrozenPartition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of a frozen topic. record_count, size_bytes: those of its ranges, which are
    estimated where a snapshot ends inside of an object.
    """

    start_offset: int
    end_offset: int
    size_bytes: int
    record_count: int


class FrozenTopicInfo(msgspec.Struct, frozen=True, array_like=True):
    """A topic of a snapshot, or a deleted topic, whose `snapshot` is empty. keep_ms: how long it is
    kept after `since_ms`, -1 forever.

    group_offsets: what consumer groups had committed, by group and partition.
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
    """The topic is there. `partitions` describe what DeleteRecords deleted from it, while that can
    come back.
    """


encode_frozen_topic = msgspec.msgpack.Encoder().encode
decode_frozen_topic = msgspec.msgpack.Decoder(FrozenTopicInfo).decode

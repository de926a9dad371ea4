"""`__consumer_offsets` as the coordinator sees it: an ordinary topic, led partition by partition, appended to like any other.

Appends take the same way as a client's produce (`AppendGroup`): same checks, same bulk, durable in order. It must not cache anything.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from broker.groups.coordinator import KeyValue
from broker.partition.append import AppendGroup
from broker.partition.partition import Partition
from broker.ports import Node
from broker.wire.error_codes import ErrorCode
from stream.batch.records import Record, decode_records, encode_batch

OFFSETS_TOPIC: Final = "__consumer_offsets"
READ_BYTES: Final = 1 << 20
"""One read while loading: about 10,000 commits, a few milliseconds of decoding between two turns of the loop."""


class NotLed(Exception):
    """The partition of `__consumer_offsets` is not led here (any more)."""


class TopicOffsetsLog:
    """Implements `broker.groups.coordinator.OffsetsLog` over the partitions of this node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def partition_count(self) -> int:
        topic = self._node.image.topics.by_name(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def is_ours(self, partition: int) -> bool:
        topic = self._node.image.topics.by_name(OFFSETS_TOPIC)
        if topic is None:
            return False
        record = topic.partitions[partition]
        return (record.leader, record.leader_node_epoch) == (self._node.node_id, self._node.node_epoch)

    def append(self, partition: int, records: Sequence[KeyValue], done: Callable[[ErrorCode], None]) -> None:
        """`done` may be called before this returns, if the partition is not led here."""
        led = self._node.partitions.get(OFFSETS_TOPIC, partition)
        if not isinstance(led, Partition) or not self._node.can_write():
            done(ErrorCode.NOT_COORDINATOR)
            return
        now_ms = self._node.now_ms()
        batch = encode_batch([Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)])

        def settled() -> None:
            done(_for_members(group.outcomes[0].code))

        group = AppendGroup(settled)
        group.run(self._node.storage, [(led, memoryview(batch))], now_ms)

    async def read(self, partition: int) -> AsyncIterator[Sequence[KeyValue]]:
        """From the log start to the high watermark as it is now; nothing is appended before the partition is loaded. Raises NotLed."""
        led = self._node.partitions.get(OFFSETS_TOPIC, partition)
        if not isinstance(led, Partition):
            raise NotLed(f"{OFFSETS_TOPIC}-{partition}: {led}")
        offset, end_offset = led.log_start_offset, led.high_watermark
        while offset < end_offset:
            for batch in await led.read(offset, READ_BYTES):
                decoded = decode_records(batch)
                offset = type(offset)(decoded[-1].offset + 1)
                yield [(record.key or b"", record.value) for record in decoded]


def _for_members(code: ErrorCode) -> ErrorCode:
    """What a failed append means to a group member: look for the coordinator again, or try again. Source: Kafka GroupMetadataManager."""
    if code is ErrorCode.NONE:
        return code
    if code in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
        return ErrorCode.NOT_COORDINATOR
    if code in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.COORDINATOR_NOT_AVAILABLE

"""Read committed offsets of groups, from brokers of any Kafka version."""

from dataclasses import dataclass

from penstock.protocol import apis
from penstock.protocol.client.brokers import GROUP, Brokers, Partition
from penstock.protocol.gen import offset_fetch


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    metadata: str = ""


def committed_offsets(brokers: Brokers, group: str) -> dict[Partition, CommittedOffset]:
    """Return the offsets that a group has committed. Raises KafkaFailed."""

    def send_request() -> dict[Partition, CommittedOffset]:
        found = brokers.send_request(
            apis.OFFSET_FETCH,
            offset_fetch.OffsetFetchRequest(group_id=group, topics=None),
            offset_fetch.OffsetFetchResponse,
            node=brokers.coordinator(GROUP, group),
        )
        brokers.check(found.error_code, None, f"the offsets of group {group!r} cannot be read")
        return {
            (topic.name, part.partition_index): CommittedOffset(
                part.committed_offset, part.metadata or ""
            )
            for topic in found.topics
            for part in topic.partitions
            if part.committed_offset >= 0 and not part.error_code
        }

    return brokers.retried(send_request)

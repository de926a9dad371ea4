"""A source or target cluster: Penstock, or Kafka 2.1 or newer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.base.buffers import Buffer
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.target import find_brokers, no_broker
from penstock.protocol.client.brokers import MOVED, Brokers, Partition
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import KafkaFailed, NoBroker
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import metadata, produce

_OUTDATED = MOVED | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
}
_ACKS_ALL: Final = -1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Addresses and credentials of a cluster."""

    bootstrap: str
    security: ClientSecurity
    is_source: bool = False


@dataclass(slots=True)
class TopicInfo:
    """A topic with its number of partitions. topic_id: empty if the cluster does not use topic
    ids.
    """

    name: str
    topic_id: str
    partition_count: int
    is_internal: bool


class Cluster(Brokers):
    """A client of a cluster. Use as a context manager."""

    def __init__(self, where: ClusterAddress) -> None:
        self.where = where
        self._target = find_brokers(where.bootstrap)
        super().__init__(self._target.bootstrap, where.security, moved=_OUTDATED, negotiates=True)

    def connect(self) -> Connection:
        try:
            return super().connect()
        except KafkaFailed as error:
            if self.where.is_source:
                raise KafkaFailed(
                    f"the source cannot be reached: {error}; check --from and --from-config"
                ) from None
            if not isinstance(error, NoBroker):
                raise error from None
            raise no_broker(self._target, error.reason) from None

    def topics(self) -> tuple[str, dict[str, TopicInfo]]:
        """Return the cluster id, and the topics by name."""
        response = self.metadata()
        return response.cluster_id or "", _by_name(response)

    def topic_ids(self, names: Collection[str], node: int | None = None) -> dict[str, str]:
        """Return the ids of the topics that exist, as `TopicInfo.topic_id`. node: the broker to
        read the metadata from.
        """
        found = _by_name(self.metadata(names, node=node))
        return {name: topic.topic_id for name, topic in found.items()}


def _by_name(response: metadata.MetadataResponse) -> dict[str, TopicInfo]:
    return {
        topic.name or "": TopicInfo(
            topic.name or "",
            "" if topic.topic_id is None else str(topic.topic_id),
            len(topic.partitions),
            topic.is_internal,
        )
        for topic in response.topics
        if not topic.error_code
    }


def produce_request(
    data: Mapping[Partition, Buffer],
    timeout_ms: int,
    *,
    transactional_id: str | None = None,
    mirror_source: str = "",
) -> produce.ProduceRequest:
    """Return the request to append a batch, or several with the offsets of the source, to each
    partition, acknowledged once they are durable.
    """
    topics = [
        produce.TopicProduceData(
            name=topic, partition_data=[produce.PartitionProduceData(*item) for item in items]
        )
        for topic, items in grouped(data).items()
    ]
    return produce.ProduceRequest(
        transactional_id, _ACKS_ALL, timeout_ms, topics, mirror_source=mirror_source
    )


def grouped(values: Mapping[Partition, _T]) -> dict[str, list[tuple[int, _T]]]:
    """Group values by topic, as pairs of partition and value."""
    found: dict[str, list[tuple[int, _T]]] = {}
    for (topic, index), value in values.items():
        found.setdefault(topic, []).append((index, value))
    return found

"""Request the sizes of partitions in the object store from their leaders.

Invariant: sizes that no broker reports are None, never zero. Apache Kafka brokers report only
bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from penstock.deploy.admin.cost import Prices, get_usd, storage_usd_month
from penstock.deploy.clients.kafka import TopicView
from penstock.deploy.clients.wire import WireClient
from penstock.lake.fetch.limits import ReadConfig
from penstock.protocol import apis
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.gen import describe_log_dirs as wire

_UNKNOWN: Final = -1
_PART_BYTES: Final = ReadConfig().part_bytes_max

_Sizes = dict[tuple[str, int], wire.DescribeLogDirsPartition]


@dataclass(frozen=True, slots=True)
class SizeView:
    """The size of a partition, or the sum of several.

    objects: a shared object is counted in each partition. shared_bytes: the part of `stored_bytes`
    that other logs also reference and count. usd_month: storage only, because an idle topic causes
    no requests. read_requests, read_usd: estimate for one complete read, with an index and parts of
    8 MiB per object.
    """

    stored_bytes: int | None
    shared_bytes: int | None
    objects: int | None
    wal_bytes: int | None
    usd_month: float | None
    read_requests: int | None
    read_usd: float | None


@dataclass(frozen=True, slots=True)
class PartitionSizeView:
    partition: int
    leader: int
    size: SizeView


@dataclass(frozen=True, slots=True)
class TopicSizeView:
    name: str
    size: SizeView
    partitions: list[PartitionSizeView]


def topic_sizes(
    addresses: Mapping[int, str], topics: Sequence[TopicView], prices: Prices
) -> list[TopicSizeView]:
    """Return the sizes of topics; one request to each broker that leads one of their partitions.
    addresses: addresses of brokers, as HOST:PORT by node id.

    Raises KafkaFailed.
    """
    sizes: _Sizes = {}
    for leader in sorted({part.leader for topic in topics for part in topic.partitions}):
        if leader in addresses:
            sizes |= _send_request(addresses[leader], _led_by(topics, leader))
    return [_topic(topic, sizes, prices) for topic in topics]


def _led_by(topics: Sequence[TopicView], leader: int) -> list[wire.DescribableLogDirTopic]:
    led = {
        topic.name: [part.partition for part in topic.partitions if part.leader == leader]
        for topic in topics
    }
    return [wire.DescribableLogDirTopic(name, indexes) for name, indexes in led.items() if indexes]


def _send_request(address: str, topics: list[wire.DescribableLogDirTopic]) -> _Sizes:
    with WireClient(address) as client:
        response = client.send_request(
            apis.DESCRIBE_LOG_DIRS,
            wire.DescribeLogDirsRequest(topics, details=True),
            wire.DescribeLogDirsResponse,
        )
    codes = [response.error_code, *(result.error_code for result in response.results)]
    if any(codes):
        raise KafkaFailed(f"the broker at {address} returned no sizes: error {max(codes)}")
    return {
        (topic.name, part.partition_index): part
        for result in response.results
        for topic in result.topics
        for part in topic.partitions
        if not part.is_future_key
    }


def _topic(
    topic: TopicView, sizes: Mapping[tuple[str, int], wire.DescribeLogDirsPartition], prices: Prices
) -> TopicSizeView:
    partitions = [
        PartitionSizeView(
            part.partition, part.leader, _size(sizes.get((topic.name, part.partition)), prices)
        )
        for part in topic.partitions
    ]
    return TopicSizeView(topic.name, total([part.size for part in partitions]), partitions)


def _size(found: wire.DescribeLogDirsPartition | None, prices: Prices) -> SizeView:
    if found is None:
        return SizeView(None, None, None, None, None, None, None)
    objects = _known(found.object_count)
    requests = None if objects is None else _read_requests(found.partition_size, objects)
    return SizeView(
        found.partition_size,
        _known(found.shared_bytes),
        objects,
        _known(found.wal_bytes),
        storage_usd_month(found.partition_size, prices),
        requests,
        None if requests is None else get_usd(requests, prices),
    )


def _read_requests(size_bytes: int, objects: int) -> int:
    """Return an estimate of the GETs for one complete read; records that exist only in the WAL are
    not included.
    """
    return objects + -(-size_bytes // _PART_BYTES)


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value


def total(sizes: Sequence[SizeView]) -> SizeView:
    """Return the sum of sizes. A field is None if it is unknown for any of them."""
    names = [field.name for field in fields(SizeView)]
    return SizeView(*(_sum([getattr(size, name) for size in sizes]) for name in names))


def _sum(values: Sequence[Any]) -> Any:  # noqa: ANN401 - integers, floats and None
    return None if None in values else sum(values)

"""Views of `penstock top`.

Invariant: pure. Unknown values are None, never 0. Field names are keys of `--json`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.streams import StreamState
from penstock.deploy.admin.cost import Prices, StoreCost, store_cost
from penstock.deploy.admin.views import ClusterView

STANDARD = Prices()


@dataclass(frozen=True, slots=True)
class Stored:
    """The metadata of a topic. bytes: size of its records. starts: log start offsets by partition.
    state_bytes: size of the partitions' other streams.
    """

    partitions: int
    led: int
    bytes: int
    topic_id: UUID | None = None
    starts: Mapping[int, int] = field(default_factory=dict[int, int])
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicCount:
    """records: offsets between start and end of the logs; None until each partition was measured
    once. records_s: written per second; None before the second measurement. age_s: age of the
    oldest measurement in `records`.
    """

    records: int | None
    records_s: float | None
    age_s: float


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. records, records_s, records_age_s: see `TopicCount`. stored_bytes: size of records
    in committed objects; records of the last seconds are still in WALs.
    """

    name: str
    partitions: int
    without_leader: int
    records: int | None
    records_s: float | None
    stored_bytes: int
    records_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TopView:
    cluster: ClusterView
    topics: list[TopicView]
    stored_bytes: int
    cost: StoreCost


def stored_topics(image: MetadataImage) -> dict[str, Stored]:
    """Return partitions, sizes and log start offsets of each topic."""
    sizes: dict[UUID, int] = defaultdict(int)
    for stream in image.streams:
        sizes[stream.topic_id] += _size_of(stream)
    found: dict[str, Stored] = {}
    for topic in image.topics:
        data = {
            part.partition: of_data
            for part in topic.partitions
            if (of_data := image.streams.get(part.data_stream_id)) is not None
        }
        record_bytes = sum(_size_of(stream) for stream in data.values())
        found[topic.name] = Stored(
            len(topic.partitions),
            sum(part.leader >= 0 for part in topic.partitions),
            record_bytes,
            topic.topic_id,
            {partition: stream.start_offset for partition, stream in data.items()},
            sizes[topic.topic_id] - record_bytes,
        )
    return found


def wal_store_urls_of(image: MetadataImage) -> list[str]:
    """Return the URLs of the WAL stores to which brokers send requests."""
    return [store.url for store in image.nodes.wal_stores()]


def _size_of(stream: StreamState) -> int:
    return sum(entry.size_bytes for entry in stream.entries)


def view_top(
    cluster: ClusterView,
    stored: Mapping[str, Stored],
    counts: Mapping[str, TopicCount],
    *,
    prices: Prices = STANDARD,
    wal_store_urls: Iterable[str] = (),
) -> TopView:
    """Build the view, with the busiest topics first. wal_store_urls: see `wal_store_urls_of`."""
    unknown = TopicCount(None, None, 0.0)
    topics = [
        TopicView(
            name,
            has.partitions,
            has.partitions - has.led,
            count.records,
            count.records_s,
            has.bytes,
            round(count.age_s, 3),
        )
        for name, has in stored.items()
        for count in (counts.get(name, unknown),)
    ]
    topics.sort(key=lambda topic: (-(topic.records_s or 0.0), -(topic.records or 0), topic.name))
    stored_bytes = sum(has.bytes + has.state_bytes for has in stored.values())
    return TopView(
        cluster,
        topics,
        stored_bytes,
        store_cost((node.store for node in cluster.nodes), stored_bytes, prices, wal_store_urls),
    )

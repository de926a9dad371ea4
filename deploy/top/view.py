"""Define what `penstock top` shows, as values.

Invariant: pure. Rates of topics need two measurements of end offsets; before the second they are
None. Field names are keys of `--json`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.admin.cost import Prices, StoreCost, store_cost
from penstock.deploy.admin.views import ClusterView

STANDARD = Prices()
Offsets = Mapping[str, int]
"""Sum of the end offsets of each topic's partitions."""


@dataclass(frozen=True, slots=True)
class Stored:
    partitions: int
    led: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. records: written so far. stored_bytes: in committed objects; the last seconds are
    still in WALs.
    """

    name: str
    partitions: int
    without_leader: int
    records: int
    records_s: float | None
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class TopView:
    cluster: ClusterView
    topics: list[TopicView]
    stored_bytes: int
    cost: StoreCost


def stored_topics(image: MetadataImage) -> dict[str, Stored]:
    """Return partitions and bytes of each topic."""
    sizes: dict[UUID, int] = defaultdict(int)
    for stream in image.streams:
        sizes[stream.topic_id] += sum(entry.size_bytes for entry in stream.entries)
    return {
        topic.name: Stored(
            len(topic.partitions),
            sum(part.leader >= 0 for part in topic.partitions),
            sizes[topic.topic_id],
        )
        for topic in image.topics
    }


def view_top(
    cluster: ClusterView,
    stored: Mapping[str, Stored],
    now: Offsets,
    before: Offsets | None,
    elapsed_s: float,
    *,
    prices: Prices = STANDARD,
) -> TopView:
    """Build the view, with the busiest topics first. before: offsets `elapsed_s` seconds ago. A
    topic with fewer records now has been created again.
    """
    topics: list[TopicView] = []
    for name, has in stored.items():
        records = now.get(name, 0)
        known = before is not None and name in before and records >= before[name] and elapsed_s > 0
        rate = (records - before[name]) / elapsed_s if before is not None and known else None
        topics.append(
            TopicView(name, has.partitions, has.partitions - has.led, records, rate, has.bytes)
        )
    topics.sort(key=lambda topic: (-(topic.records_s or 0.0), -topic.records, topic.name))
    stored_bytes = sum(has.bytes for has in stored.values())
    return TopView(
        cluster,
        topics,
        stored_bytes,
        store_cost((node.store for node in cluster.nodes), stored_bytes, prices),
    )

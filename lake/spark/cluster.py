"""Read a cluster like Spark's Kafka source: topics, bounds, offsets by timestamp, and a lease.

Invariant: like `StoreCluster`, it contains only an address, can be pickled, and only advances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.errors import TooManyLeases
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.lake.spark.errors import InvalidOption, OffsetsMismatch
from penstock.lake.spark.offsets import Offsets, TopicPartition, scala_set
from penstock.lake.spark.options import Topics
from penstock.lake.spark.ranges import Bounds
from penstock.objectstore.errors import InvalidStoreUrl, ObjectStoreError
from penstock.objectstore.url import redact_url

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Patterns do not match these topics, as with Kafka consumers."""


class Found(NamedTuple):
    """The partitions with their bounds, and the topics with their ids."""

    bounds: dict[TopicPartition, Bounds]
    topic_ids: dict[str, str]


@dataclass(frozen=True)
class SparkCluster(StoreCluster):
    def find(self, topics: Topics, *, read_committed: bool, missing_ok: bool = False) -> Found:
        """Return the topics and bounds from a fresh view. Raise OffsetsMismatch for missing topics
        or partitions unless `missing_ok`, which skips them.
        """
        return self._with_view(
            lambda view: _find(view, topics, read_committed, missing_ok), refresh=True
        )

    def first_offsets(
        self, timestamps_ms: Offsets, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset of each partition with a record at or after its timestamp:
        Kafka's offsetsForTimes.
        """
        items = list(timestamps_ms)
        found = self.first_at(
            [(OffsetRange(*item, *bounds[item]), timestamps_ms[item]) for item in items]
        )
        return dict(zip(items, found, strict=True))

    def take_lease(self, lease_id: UUID, ttl_ms: int, *, renewed: bool) -> str | None:
        """Acquire or renew a lease on the current objects. Return the reason for a failure, or
        None. Without a lease, the query plans again where necessary.
        """
        try:
            self.lease(lease_id, self.root(), ttl_ms, "spark", renewed=renewed)
        except (TooManyLeases, ObjectStoreError, ValueError) as error:
            return str(error)
        return None

    # --- on the loop ------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        try:
            return await super().view()
        except InvalidStoreUrl as error:
            is_store = error.redacted_url == redact_url(self.store_url)
            option = "store" if is_store else "wal_store"
            raise InvalidOption(f"option {option!r}: {error}") from None


async def _find(view: ClusterView, topics: Topics, read_committed: bool, missing_ok: bool) -> Found:
    existing = {
        topic.name: str(topic.topic_id)
        for topic in view.topics(topics.pattern or None, topics.snapshot)
    }
    if topics.pattern:
        names = sorted(existing.keys() - INTERNAL_TOPICS)
    else:
        names = list(topics.names) or sorted({item.topic for item in topics.partitions})
    missing = [name for name in names if name not in existing]
    if missing and not missing_ok:
        where = f"snapshot {topics.snapshot!r}" if topics.snapshot else "the cluster"
        raise OffsetsMismatch(
            f"topics do not exist: {', '.join(missing)}; {where} has"
            f" {', '.join(sorted(existing)[:20]) or 'none'}"
        )
    names = [name for name in names if name in existing]
    states = await view.partitions(names, committed=read_committed)
    bounds = {
        TopicPartition(state.topic, state.partition): Bounds(
            state.log_start, state.readable_end(committed=read_committed)
        )
        for state in states
    }
    if topics.partitions:
        bounds = _assigned(topics.partitions, bounds, missing_ok)
    return Found(bounds, {name: existing[name] for name in names})


def _assigned(
    wanted: Sequence[TopicPartition], existing: dict[TopicPartition, Bounds], missing_ok: bool
) -> dict[TopicPartition, Bounds]:
    missing = [item for item in wanted if item not in existing]
    if missing and not missing_ok:
        raise OffsetsMismatch(f"assigned partitions do not exist: {scala_set(missing)}")
    return {item: existing[item] for item in wanted if item in existing}

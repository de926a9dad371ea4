"""Read a topic for the export, only from the store, and plan again if objects have been deleted.

Invariant: the rows for an offset range do not depend on the objects that contain them. A range that
cannot be read completely is an error. Only committed records are read. An object of this class
contains only names and can be pickled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.arrow.renew import read_renewed
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable
from penstock.lake.manifest.errors import TopicReplaced
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.table.plan import Bounds


@dataclass(frozen=True, slots=True)
class TopicSource:
    cluster: StoreCluster
    topic: str

    def bounds(self) -> tuple[str, dict[int, Bounds]]:
        """Return the topic's id and the bounds of its partitions, from a fresh view. Raise
        UnknownPartition, ManifestNotFound or ObjectStoreError.
        """
        states = self.cluster.partitions(self.topic, committed=True)
        bounds = {
            state.partition: Bounds(state.log_start, state.readable_end(committed=True))
            for state in states
        }
        return str(states[0].topic_id), bounds

    def plan(self, ranges: Sequence[OffsetRange], topic_id: str) -> list[Slice]:
        """Return slices from the current view, which may be newer than the bounds. Raise
        TopicReplaced if the topic now has a different id, because its offsets then refer to other
        records.
        """
        slices = self.cluster.plan(ranges)
        # The topic is checked after planning. Views only advance, so the plan is not newer than
        # this manifest.
        found = [topic for topic in self.cluster.root().topics if topic.name == self.topic]
        if [str(topic.topic_id) for topic in found] != [topic_id]:
            raise TopicReplaced(self.topic)
        return slices

    def read(
        self,
        slices: Sequence[Slice],
        columns: Sequence[str],
        on_unreadable: OnUnreadable = raise_unreadable,
    ) -> Iterator[RecordBatch]:
        """Yield the records of slices. Raise ReadError (damage), OffsetsLost, TopicReplaced (the
        topic was deleted and created again in the meantime), or the errors raised by
        `on_unreadable`.
        """
        return read_renewed(
            self.cluster, slices, columns, committed=True, on_unreadable=on_unreadable
        )

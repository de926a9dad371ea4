"""The topic as the export reads it: from the store alone, on the reader's background loop, planned anew when objects are gone.

Invariant: the rows of a range of offsets are the same whichever objects hold them; a range that can not be read whole is an error.
An object of this class is only a name: it may be pickled; what is remembered belongs to the process.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from stream.manifest.plan import OffsetRange
from stream.manifest.view import ClusterView
from stream.reader.arrow import RecordBatch
from stream.reader.errors import ObjectGone
from stream.reader.read_sync import BackgroundLoop, background, read_slices_sync
from stream.reader.slices import Slice
from stream.spark.table.errors import RecordsLost
from stream.spark.table.plan import Bounds

DEADLINE_S = 300.0
"""Of one look, whatever it needs; requests have shorter ones of their own."""

REPLANS_MAX = 5

_views: "WeakKeyDictionary[BackgroundLoop, dict[tuple[str, str], ClusterView]]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class TopicSource:
    """cluster_id: empty if the store holds only one cluster."""

    store_url: str
    cluster_id: str
    topic: str

    def look(self) -> tuple[str, dict[int, Bounds]]:
        """The topic's id and its partitions, as of now. Raises UnknownPartition, ManifestNotFound, ObjectStoreError."""
        return background().run(self._look(), DEADLINE_S)

    def plan(self, ranges: Sequence[OffsetRange]) -> list[Slice]:
        """As of the last look."""
        return background().run(self._plan(ranges), DEADLINE_S)

    def read(self, slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[RecordBatch]:
        """slices: of one partition, one after the other. Raises ReadError (damage), OffsetsLost, RecordsLost (the topic was deleted)."""
        tries = 0
        while slices:
            try:
                with closing(read_slices_sync(self.store_url, slices, columns)) as batches:
                    yield from batches
                return
            except ObjectGone as gone:
                tries = tries + 1 if gone.slice.start_offset == slices[0].start_offset else 1
                if tries > REPLANS_MAX:
                    raise
                left = OffsetRange(self.topic, gone.slice.partition, gone.slice.start_offset, slices[-1].end_offset)
                stream_id = slices[0].stream_id
            slices = background().run(self._plan_anew(left), DEADLINE_S)
            if any(part.stream_id != stream_id for part in slices):
                raise RecordsLost(f"topic {self.topic} was deleted and created again while it was read")

    async def _view(self) -> ClusterView:
        shared = background()
        views = _views.setdefault(shared, {})
        view = views.get((self.store_url, self.cluster_id))
        if view is None:
            view = views[self.store_url, self.cluster_id] = ClusterView(await shared.store(self.store_url), self.cluster_id)
        return view

    async def _look(self) -> tuple[str, dict[int, Bounds]]:
        view = await self._view()
        await view.refresh()
        states = await view.partitions([self.topic])
        topic_id = str(states[0].topic_id)
        return topic_id, {state.partition: Bounds(state.log_start, max(state.log_start, state.last_stable_offset)) for state in states}

    async def _plan(self, ranges: Sequence[OffsetRange]) -> list[Slice]:
        return await (await self._view()).plan(ranges)

    async def _plan_anew(self, wanted: OffsetRange) -> list[Slice]:
        view = await self._view()
        await view.refresh()
        return await view.plan([wanted])

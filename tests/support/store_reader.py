"""Follow one topic through the store alone, and check that records never change after they have
been read.
"""

import asyncio
from collections.abc import Sequence

from penstock.base.ids import (
    Millis,
    ObjectId,
    Offset,
    StreamId,
)
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import decode_records
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.ports import ObjectRange, ObjectRole, StreamRange
from penstock.stream.read.object_reader import ObjectReader
from tests.support.ack_recorder import Load, number_of
from tests.support.waiting import PATIENCE_S


async def read(store: ObjectStore, slices: Sequence[Slice]) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of every record of every slice, by partition."""
    found: dict[int, list[tuple[int, int]]] = {item.partition: [] for item in slices}
    reader = ObjectReader(store, BlockCache(32 << 20))
    for item in slices:
        start, end = item.start_offset, item.end_offset
        held = StreamRange(
            StreamId(item.stream_id),
            Offset(start),
            Offset(end),
            item.record_count,
            item.size_bytes,
            Millis(0),
        )
        source = ObjectRange(
            ObjectId(0),
            item.key,
            ObjectRole.STREAM,
            item.object_size_bytes,
            held,
            StreamId(item.stored_stream_id),
        )
        position = start
        while position < end:
            for view in await reader.read([source], position, 1 << 20, end_offset=end):
                for record in (
                    record for at, _ in iter_headers(view) for record in decode_records(view[at:])
                ):
                    if position <= record.offset < end:
                        assert record.value is not None
                        found[item.partition].append((record.offset, number_of(record.value)))
                        position = record.offset + 1
    await reader.close()
    return found


class Follower:
    def __init__(self, store: ObjectStore, topic: str, partitions: Sequence[int]) -> None:
        self.store = store
        self.topic = topic
        self.view = ClusterView(store)
        self.ends = dict.fromkeys(partitions, 0)
        self.moment = (0, 0)

    async def look(self) -> dict[int, int]:
        """Refresh, and return the current end offsets."""
        root = await self.view.refresh()
        assert root.moment >= self.moment
        self.moment = root.moment
        if not self.view.topics(self.topic):
            return self.ends
        ends = {
            state.partition: state.end_offset for state in await self.view.partitions([self.topic])
        }
        assert all(ends[partition] >= end for partition, end in self.ends.items()), (
            self.ends,
            ends,
        )
        self.ends = ends
        return ends

    async def until_seen(self, load: Load) -> None:
        """Wait until the view contains every record that is acknowledged now."""
        acknowledged = {
            partition: max((offset for _, offset in acks), default=-1)
            for partition, acks in load.acks.items()
        }
        async with asyncio.timeout(PATIENCE_S):
            ends = await self.look()
            while any(ends[partition] <= offset for partition, offset in acknowledged.items()):
                await asyncio.sleep(0.01)  # sets the pace: the store does not announce changes
                ends = await self.look()

    async def log(self) -> dict[int, list[tuple[int, int]]]:
        """Return all rows up to the observed end offsets. If objects were deleted in the meantime,
        plan again, as readers do.
        """
        requested = [
            OffsetRange(self.topic, partition, 0, end) for partition, end in self.ends.items()
        ]
        for _ in range(5):
            try:
                return await read(self.store, await self.view.plan(requested))
            except ObjectNotFound:
                await self.view.refresh()
        raise AssertionError("objects of a fresh plan are repeatedly missing")

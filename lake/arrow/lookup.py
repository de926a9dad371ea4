"""Find the first record in slices at or after a timestamp. Source: Kafka `offsetsForTimes`."""

from collections.abc import Sequence
from contextlib import aclosing

from penstock.lake.arrow.columns import TYPES
from penstock.lake.arrow.pyarrow_untyped import Array, pa, pc
from penstock.lake.arrow.read import read_slices
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import TimeBounds
from penstock.objectstore.ports import ObjectStore


async def first_as_young(
    store: ObjectStore, slices: Sequence[Slice], timestamp_ms: int
) -> int | None:
    """Return the offset of the first record at or after the timestamp, or None if all are older. An
    unreadable record counts as recent, so that readers do not miss any record. Raise the errors of
    `read_slices`.
    """
    for part in slices:
        unreadable: list[ReadError] = []
        found: int | None = None
        async with aclosing(
            read_slices(
                store,
                [part],
                ("offset", "timestamp"),
                times=TimeBounds(timestamp_ms),
                on_unreadable=unreadable.append,
            )
        ) as batches:
            async for batch in batches:
                index = first_not_before(batch.column("timestamp"), timestamp_ms)
                if index is not None:
                    found = int(batch.column("offset")[index].as_py())
                    break
        offsets = [max(error.offset, part.start_offset) for error in unreadable]
        if found is not None or offsets:
            return min(offsets if found is None else [found, *offsets])
    return None


def first_not_before(timestamps: Array, timestamp_ms: int) -> int | None:
    """Return the index of the first row at or after the timestamp, or None."""
    young = pc.greater_equal(timestamps, pa.scalar(timestamp_ms * 1_000, TYPES["timestamp"]))
    index = int(pc.index(young, True).as_py())
    return None if index < 0 else index

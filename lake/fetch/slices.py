"""A slice: a range of a partition in one object. Slices are planned on one machine and read on
others.
"""

from dataclasses import dataclass
from typing import Final

PLACE_COLUMNS: Final = frozenset({"topic", "partition", "offset"})
"""The columns that the slice alone determines if it has a record at each offset."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The part [start_offset, end_offset) of a partition in one object.

    size_bytes and record_count come from the metadata, for packing and limits. They are estimates
    for a part of a committed range, but a count equal to the number of offsets is exact.
    stored_stream_id: the stream under which the object contains the slice, if the partition is a
    fork that references an object of its source; otherwise -1.

    Invariant: a slice contains the object, the stream and the offsets, so that reading it requires
    only the store. Its offsets were committed for this object, so the object contains all of them.
    The planner guarantees that a partition's slices together cover each offset once, in order. Must
    not import more than the standard library: drivers and executors pickle slices by the thousand.
    """

    key: str
    object_size_bytes: int
    topic: str
    partition: int
    stream_id: int
    start_offset: int
    end_offset: int
    size_bytes: int
    record_count: int
    stored_stream_id: int = -1

    @property
    def stream_id_in_object(self) -> int:
        return self.stream_id if self.stored_stream_id < 0 else self.stored_stream_id

    @property
    def is_dense(self) -> bool:
        """Return whether each offset has a record, which may be a transaction marker."""
        return self.record_count == self.end_offset - self.start_offset

    def __reduce__(
        self,
    ) -> tuple[type["Slice"], tuple[str, int, str, int, int, int, int, int, int, int]]:
        """Pickle the slice as a call. This takes half the bytes of the default, and equal keys and
        topics are written once.
        """
        return Slice, (
            self.key,
            self.object_size_bytes,
            self.topic,
            self.partition,
            self.stream_id,
            self.start_offset,
            self.end_offset,
            self.size_bytes,
            self.record_count,
            self.stored_stream_id,
        )


def share(number: int, part: int, whole: int) -> int:
    """Estimate a count for `part` of `whole` offsets in proportion. It is rounded down, so that a
    part counts as dense only if the whole is dense.
    """
    return number * part // whole

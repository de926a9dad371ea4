"""Errors of reading partitions from the store. Every message contains object, partition and offset.

They must survive pickling, because executors raise them and drivers display them.
"""

from functools import partial

from penstock.base.errors import StreamError
from penstock.lake.fetch.slices import Slice


class ReadError(StreamError):
    """Records, or an object, have invalid bytes. Reading again raises the same error.

    Records in [offset, end_offset) of the partition cannot be read; end_offset is None for a
    damaged object, which no option skips.
    """

    def __init__(
        self,
        key: str,
        topic: str,
        partition: int,
        offset: int,
        what: str,
        *,
        end_offset: int | None = None,
    ) -> None:
        last = offset if end_offset is None else end_offset - 1
        offsets = f"offsets {offset} to {last}" if last > offset else f"offset {offset}"
        hint = "" if end_offset is None else '; on_error="skip" leaves such records out'
        super().__init__(f"object {key}, {topic}-{partition} at {offsets}: {what}{hint}")
        self.key = key
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.what = what
        self.end_offset = end_offset

    @property
    def reason(self) -> str:
        """Return the problem, with the offsets if there are several."""
        if self.end_offset is None or self.end_offset <= self.offset + 1:
            return self.what
        return f"offsets {self.offset} to {self.end_offset - 1}: {self.what}"

    def __reduce__(self) -> tuple[object, tuple[str, str, int, int, str]]:
        values = (self.key, self.topic, self.partition, self.offset, self.what)
        return partial(ReadError, end_offset=self.end_offset), values


class ObjectGone(StreamError):
    """The object was compacted or has expired since the plan was made. Its offsets are now in other
    objects.

    Everything before `slice` has been returned, but nothing in `slice` and `remaining`. To
    continue, plan their offsets again.
    """

    retriable = True

    def __init__(self, slice_: Slice, remaining: tuple[Slice, ...] = ()) -> None:
        super().__init__(
            f"object {slice_.key} with [{slice_.start_offset}, {slice_.end_offset}) of"
            f" {slice_.topic}-{slice_.partition} is gone: plan these offsets again"
        )
        self.slice = slice_
        self.remaining = remaining

    def __reduce__(self) -> tuple[type["ObjectGone"], tuple[Slice, tuple[Slice, ...]]]:
        return ObjectGone, (self.slice, self.remaining)


class ObjectStillMissing(StreamError):
    """Plans from the newest manifest repeatedly reference missing objects.

    Rows before `slice` have been returned. Reading them again raises the same error until an
    operator restores the object.
    """

    def __init__(self, slice_: Slice, plans: int, *, is_same: bool = True) -> None:
        """`plans` is the number of unsuccessful plans. `is_same`: whether the last two plans
        referenced the same object.
        """
        part, offsets = (
            f"{slice_.topic}-{slice_.partition}",
            f"[{slice_.start_offset}, {slice_.end_offset})",
        )
        named = "it" if is_same else "it or other missing objects"
        cause = (
            "the store has lost it"
            if is_same
            else "something deletes objects before readers may consider them deleted"
        )
        super().__init__(
            f"{part}: offsets {offsets} cannot be read: object {slice_.key} is gone from the store,"
            f" and {plans} plans named {named}: {cause}. `penstock doctor` lists lost objects."
            " Restore the object (from a bucket version or a copy), or read the offsets before and"
            " behind this range"
        )
        self.slice = slice_
        self.plans = plans
        self.is_same = is_same

    def __reduce__(self) -> tuple[object, tuple[Slice, int]]:
        return partial(ObjectStillMissing, is_same=self.is_same), (self.slice, self.plans)

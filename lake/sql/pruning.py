"""Determine the partitions, offsets and times of a topic that can match a filter. Pure.

Arrow simplifies the filter under an assumption, such as `_partition = 3`; if the result is false,
no such record matches. This works for any form of DuckDB's expressions. An assumption takes 25 us;
up to 200 are needed per partition whose offsets are searched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.lake.arrow.pyarrow_untyped import Schema, pa, pc
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.sql.pyarrow_untyped import Expression, ds, fs

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
PARTITIONS_SEARCHED_MAX: Final = 64
"""Maximum number of partitions whose offsets are searched individually. If there are more, one
range of offsets that covers the matches of all partitions is used.
"""

_TIME_MS_MAX: Final = 1 << 47
"""Timestamp in about the year 6400. Later records are not pruned."""

Offsets = Mapping[int, tuple[int, int]]
"""The first offset and the end offset, exclusive, of each partition."""


def prune_offsets(expression: Expression, schema: Schema, offsets: Offsets) -> Offsets:
    """Return the partitions and offsets that may contain matching records."""
    filter_ = _Filter(expression, schema)
    text = str(expression)
    left = dict(offsets)
    if PARTITION in text:
        field = pc.field(PARTITION)
        kept = filter_.possible([field == number for number in left])
        left = {
            number: bounds
            for (number, bounds), is_kept in zip(left.items(), kept, strict=True)
            if is_kept
        }
    if OFFSET not in text:
        return left
    if len(left) > PARTITIONS_SEARCHED_MAX:
        low, high = filter_.bounds(
            OFFSET,
            min(start for start, _ in left.values()),
            max(end for _, end in left.values()),
            int,
        )
        cut = {number: (max(start, low), min(end, high)) for number, (start, end) in left.items()}
    else:
        cut = {
            number: filter_.bounds(OFFSET, start, end, int, pc.field(PARTITION) == number)
            for number, (start, end) in left.items()
        }
    return {number: (start, end) for number, (start, end) in cut.items() if start < end}


def prune_times(expression: Expression, schema: Schema) -> TimeBounds:
    """Return the timestamp bounds of matching records."""
    if TIMESTAMP not in str(expression):
        return ALL_TIMES
    low, high = _Filter(expression, schema).bounds(
        TIMESTAMP, -_TIME_MS_MAX, _TIME_MS_MAX, _timestamp_of
    )
    if low >= high:
        return TimeBounds(_TIME_MS_MAX, _TIME_MS_MAX)
    return TimeBounds(
        ALL_TIMES.from_ms if low == -_TIME_MS_MAX else low,
        ALL_TIMES.to_ms if high == _TIME_MS_MAX else high - 1,
    )


class _Filter:
    """A filter that can be evaluated under assumptions."""

    def __init__(self, expression: Expression, schema: Schema) -> None:
        self._expression = expression
        self._schema = schema
        self._format = ds.IpcFileFormat()
        self._files = fs.LocalFileSystem()

    def possible(self, assumptions: Sequence[Expression]) -> list[bool]:
        """Return, for each assumption, whether the filter can be true. No files are accessed,
        because each fragment of the dataset merely represents an assumption.
        """
        fragments = [
            self._format.make_fragment(
                str(number), filesystem=self._files, partition_expression=assumption
            )
            for number, assumption in enumerate(assumptions)
        ]
        dataset = ds.FileSystemDataset(fragments, self._schema, self._format, self._files)
        kept = {int(item.path) for item in dataset.get_fragments(filter=self._expression)}
        return [number in kept for number in range(len(assumptions))]

    def bounds(
        self,
        name: str,
        low: int,
        high: int,
        value_of: Callable[[int], Any],
        also: Expression | None = None,
    ) -> tuple[int, int]:
        """Return the part of [low, high) outside of which the filter is false, by two binary
        searches.
        """
        field = pc.field(name)

        def is_possible(assumption: Expression) -> bool:
            return self.possible([assumption if also is None else also & assumption])[0]

        first = _search(low, high, lambda at: is_possible(field < value_of(at)))
        end = _search(low, high, lambda at: not is_possible(field >= value_of(at)))
        return max(low, first - 1), end


def _search(low: int, high: int, is_true: Callable[[int], bool]) -> int:
    """Return the lowest number in [low, high] for which a monotone condition is true, or `high`."""
    while low < high:
        middle = (low + high) // 2
        if is_true(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _timestamp_of(timestamp_ms: int) -> Any:  # noqa: ANN401 - pyarrow is untyped
    return pa.scalar(timestamp_ms * 1_000, pa.timestamp("us", tz="UTC"))

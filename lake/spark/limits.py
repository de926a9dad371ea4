"""Limit one micro-batch by rows, as Kafka's source does, and by bytes.

Invariant: ends lie within [start, latest], every partition with new records advances, and the
result depends only on the arguments. Source: Spark `KafkaMicroBatchStream#rateLimit`,
`#delayBatch`.
"""

from collections.abc import Mapping, Sequence

from penstock.lake.fetch.slices import Slice
from penstock.lake.spark.offsets import Offsets, TopicPartition


def available_rows(start: Offsets, latest: Offsets) -> int:
    return sum(max(0, end - start.get(item, 0)) for item, end in latest.items())


def must_wait(rows: int, rows_min: int, since_last_ms: float, delay_ms_max: int) -> bool:
    """Return whether there are too few rows for a micro-batch and the delay has not passed yet."""
    return since_last_ms < delay_ms_max and rows < rows_min


def limit_rows(rows_max: int, start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Limit the new rows to `rows_max`, in proportion. A partition's share is rounded down, but is
    at least one row.

    `start` includes new partitions.
    """
    sizes = {
        item: end - start[item]
        for item, end in latest.items()
        if item in start and end > start[item]
    }
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(latest)
    shares = {item: max(1, rows_max * size // total) for item, size in sizes.items()}
    return {
        item: min(end, start[item] + shares[item]) if item in sizes else end
        for item, end in latest.items()
    }


def limit_bytes(
    bytes_max: int, slices: Mapping[TopicPartition, Sequence[Slice]], latest: Offsets
) -> dict[TopicPartition, int]:
    """Limit the new stored bytes to `bytes_max`, in proportion, with at least one offset each.

    The slices begin at the partitions' starts, in offset order.
    """
    sizes = {item: sum(part.size_bytes for part in parts) for item, parts in slices.items()}
    total = sum(sizes.values())
    if total <= bytes_max:
        return dict(latest)
    return dict(latest) | {
        item: min(latest[item], _reached(parts, bytes_max * sizes[item] // total))
        for item, parts in slices.items()
        if parts
    }


def _reached(parts: Sequence[Slice], left_bytes: int) -> int:
    """Return the offset at which `left_bytes` are used up."""
    begin = parts[0].start_offset
    for part in parts:
        if part.size_bytes > left_bytes:
            share = (part.end_offset - part.start_offset) * left_bytes // part.size_bytes
            return max(begin + 1, part.start_offset + share)
        left_bytes -= part.size_bytes
    return parts[-1].end_offset

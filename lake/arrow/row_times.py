"""Choose the rows of an Arrow batch by their timestamps. Source: `lake.fetch.times`."""

from typing import Any

from penstock.lake.arrow.decode_table import FAR_FUTURE_MS, FAR_PAST_MS
from penstock.lake.arrow.pyarrow_untyped import Array, RecordBatch, pa, pc
from penstock.lake.fetch.times import TimeBounds

_VIEW: Any = pa.binary_view()


def rows_within(batch: RecordBatch, times: TimeBounds) -> RecordBatch:
    """Return the rows with wanted timestamps. With bounds, the batch has the `timestamp` column."""
    if not times.is_bounded:
        return batch
    mask = _mask(batch, times)
    if mask.true_count == batch.num_rows:
        return batch
    # Arrow cannot filter views.
    schema = batch.schema
    copied = pa.schema(
        [field.with_type(pa.binary()) if field.type == _VIEW else field for field in schema]
    )
    return batch.cast(copied).filter(mask).cast(schema)


def count_within(batch: RecordBatch, times: TimeBounds) -> int:
    """Return the number of rows that `rows_within` returns."""
    if not times.is_bounded:
        return int(batch.num_rows)
    return int(pc.sum(_mask(batch, times), min_count=0).as_py())


def _mask(batch: RecordBatch, times: TimeBounds) -> Array:
    stamps = batch.column("timestamp").cast(pa.int64())
    young = pc.greater_equal(stamps, _us(times.from_ms))
    return pc.and_(young, pc.less_equal(stamps, _us(times.to_ms)))


def _us(timestamp_ms: int) -> int:
    """Convert milliseconds to microseconds, limited to the range of row timestamps."""
    return min(max(timestamp_ms * 1_000, -(1 << 63)), (1 << 63) - 1)


def for_python(rows: Any) -> Any:  # noqa: ANN401 - a batch or a table
    """Return the rows with timestamps that Python's `datetime` can hold. Producers that write
    microseconds store timestamps far beyond the year 9999.
    """
    for at, field in enumerate(rows.schema):
        kind = field.type
        if not pa.types.is_timestamp(kind) or kind.unit != "us":
            continue
        counts = rows.column(at).cast(pa.int64())
        low, high = FAR_PAST_MS * 1_000, FAR_FUTURE_MS * 1_000
        bounds = pc.min_max(counts).as_py()
        if bounds["min"] is None or (bounds["min"] >= low and bounds["max"] <= high):
            continue
        clipped = pc.min_element_wise(pc.max_element_wise(counts, low), high, skip_nulls=False)
        clipped = pc.if_else(pc.is_null(counts), None, clipped)
        rows = rows.set_column(at, field, clipped.cast(kind))
    return rows

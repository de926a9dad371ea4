"""Choose the rows of an Arrow batch by their timestamps (`lake.fetch.times`), and limit times to
those that Python can represent.
"""

from typing import Any, Final

from penstock.lake.arrow.decode_table import FAR_FUTURE_MS, FAR_PAST_MS
from penstock.lake.arrow.pyarrow_untyped import Array, DataType, RecordBatch, pa, pc
from penstock.lake.fetch.times import TimeBounds

_VIEW: Any = pa.binary_view()
_DAY_MS: Final = 86_400_000
_UNITS_S: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
"""Units per second. All nanoseconds of 64 bits are within the years 1 to 9999."""


def rows_within(batch: RecordBatch, times: TimeBounds) -> RecordBatch:
    """Return the rows with wanted timestamps. If there are bounds, the batch must contain the
    `timestamp` column.
    """
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
    """Return the rows with dates and timestamps that Python can represent, also in lists,
    maps and structs. Producers that write microseconds store timestamps far beyond the year 9999.
    """
    for at, field in enumerate(rows.schema):
        if not _holds_times(field.type):
            continue
        column = rows.column(at)
        if isinstance(column, pa.ChunkedArray):
            found = pa.chunked_array([_limited(chunk) for chunk in column.chunks], field.type)
        else:
            found = _limited(column)
        rows = rows.set_column(at, field, found)
    return rows


def with_text_nanoseconds(rows: Any) -> Any:  # noqa: ANN401 - a batch or a table
    """Return the rows with columns of nanoseconds, which Python cannot represent, as text."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type) and getattr(field.type, "unit", "") == "ns":
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.string()))
    return rows


def _holds_times(kind: Any) -> bool:  # noqa: ANN401 - pyarrow is untyped
    if pa.types.is_struct(kind):
        return any(_holds_times(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _holds_times(kind.key_type) or _holds_times(kind.item_type)
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return _holds_times(kind.value_type) if is_list else _bounds(kind) is not None


def _bounds(kind: Any) -> tuple[Any, int, int] | None:  # noqa: ANN401 - pyarrow is untyped
    """Return the integer type of a time, and its values at both ends of the years 1 to 9999."""
    if pa.types.is_date32(kind):
        return pa.int32(), FAR_PAST_MS // _DAY_MS, FAR_FUTURE_MS // _DAY_MS
    if pa.types.is_timestamp(kind) and kind.unit in _UNITS_S:
        unit_s = _UNITS_S[kind.unit]
        return pa.int64(), FAR_PAST_MS * unit_s // 1_000, FAR_FUTURE_MS * unit_s // 1_000
    return None


def _limited(array: Array) -> Array:
    kind = array.type
    if not len(array) or not _holds_times(kind):
        return array
    if pa.types.is_struct(kind):
        children = [_limited(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return with_elements(array, _limited(array.flatten()), kind)
    if pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind):
        array = array.take(pa.array(range(len(array))))  # a copy without an offset
        if pa.types.is_fixed_size_list(kind):
            values, nulls = _limited(array.values), array.is_null()
            return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
        is_valid = pa.concat_arrays([array.is_valid(), pa.array([True])])
        offsets = pc.if_else(is_valid, array.offsets, pa.scalar(None, pa.int32()))
        return pa.MapArray.from_arrays(offsets, _limited(array.keys), _limited(array.items), kind)
    found = _bounds(kind)
    assert found is not None, "other types contain no times"
    number, low, high = found
    counts = array.cast(number)
    extremes = pc.min_max(counts).as_py()
    if extremes["min"] is None or (extremes["min"] >= low and extremes["max"] <= high):
        return array
    least, most = pa.scalar(low, number), pa.scalar(high, number)
    limited = pc.if_else(pc.less(counts, least), least, counts)
    return pc.if_else(pc.greater(limited, most), most, limited).cast(kind)


def with_elements(lists: Array, elements: Array, kind: DataType) -> Array:
    """Return lists of this type, with other elements in place of those of `lists.flatten()`."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(ends, elements, type=kind, mask=lists.is_null())

"""Conditions on the rows of an Arrow batch. The one place of this package that computes with Arrow; its objects are Any to the checkers."""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as _compute  # type: ignore[import-untyped]

from stream.reader.arrow import Array, RecordBatch, pa
from stream.spark.filters import Condition

pc: Any = _compute
_TIMESTAMP: Any = pa.timestamp("us", tz="UTC")
_COMPARE: Any = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def chosen(batch: RecordBatch, conditions: Sequence[Condition]) -> RecordBatch:
    """The rows for which all of the conditions hold."""
    for item in conditions:
        if batch.num_rows:
            mask = _mask(batch.column(item.column), item)
            batch = batch.filter(pc.invert(mask) if item.negated else mask)
    return batch


def first_not_before(timestamps: Array, timestamp_ms: int) -> int | None:
    """The index of the first row that is as young as that."""
    young = pc.greater_equal(timestamps, pa.scalar(timestamp_ms * 1_000, _TIMESTAMP))
    index = int(pc.index(young, True).as_py())
    return None if index < 0 else index


def _mask(column: Array, item: Condition) -> Array:
    kind = column.type
    if item.operator == "in":
        return pc.is_in(column, value_set=pa.array(item.value, kind))
    return _COMPARE[item.operator](column, pa.scalar(item.value, kind))

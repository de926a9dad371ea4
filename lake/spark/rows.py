"""Apply conditions to the rows of an Arrow batch. This is the only module of the package that
computes with Arrow, whose objects type checkers treat as Any.
"""

from collections.abc import Sequence
from typing import Any

from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    RecordBatch,
    pa,
    pc,
)
from penstock.lake.spark.filters import Condition

_COMPARE: Any = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def filter_rows(batch: RecordBatch, conditions: Sequence[Condition]) -> RecordBatch:
    """Return the rows for which all conditions hold."""
    for item in conditions:
        if batch.num_rows:
            mask = _mask(batch.column(item.column), item)
            batch = batch.filter(pc.invert(mask) if item.negated else mask)
    return batch


def _mask(column: Array, item: Condition) -> Array:
    kind = column.type
    if item.operator == "in":
        return pc.is_in(column, value_set=pa.array(item.value, kind))
    return _COMPARE[item.operator](column, pa.scalar(item.value, kind))

"""Convert Spark's filters to conditions, and support pushdown without requiring it.

Source: `pyspark.sql.worker.plan_data_source_read` of 4.3.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pyspark.sql.datasource import DataSourceReader

from penstock.lake.spark.filters import PUSHED_COLUMNS, Condition, Operator

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # since Spark 4.1; Spark 4.0 applies all filters

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATORS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}
"""Operators by the names of Spark's filters."""


class TakesFilters(Protocol):
    def take_filters(self, filters: "list[Filter]") -> "list[Filter]":
        """Accept filters, and return those that Spark must apply itself."""
        ...


class OfferedFilters:
    """The class attribute `pushFilters` of a reader.

    Spark rejects a reader that overrides `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, its default; it checks
    `reader.pushFilters.__func__`. A descriptor returns the inherited method there: with the setting
    off, filters are not pushed and nothing fails; with it on, they are pushed.
    """

    def __get__(
        self, reader: "TakesFilters", owner: type[object] | None = None
    ) -> "Callable[[list[Filter]], Iterable[Filter]]":
        offered: Any = partial(reader.take_filters)
        offered.__func__ = getattr(DataSourceReader, "pushFilters", None)  # since Spark 4.1
        return cast("Callable[[list[Filter]], Iterable[Filter]]", offered)


def split_filters(filters: "Sequence[Filter]") -> "tuple[list[Condition], list[Filter]]":
    """Return the conditions that are enforced here and the filters that Spark must apply itself."""
    conditions: list[Condition] = []
    left: list[Any] = []
    for item in filters:
        found = _conditions(item)
        if found is None:
            left.append(item)
        else:
            conditions += found
    return conditions, left


def _conditions(item: Any) -> list[Condition] | None:  # noqa: ANN401 - a filter of any class
    """Return the conditions of a filter; None if Spark must apply it, and empty if it is always
    true.
    """
    negated = type(item).__name__ == "Not"
    inner = item.child if negated else item
    kind = type(inner).__name__
    if kind == "Not" or len(inner.attribute) != 1 or inner.attribute[0] not in PUSHED_COLUMNS:
        return None
    column: str = inner.attribute[0]
    if kind == "IsNotNull":
        return None if negated else []
    operator = _OPERATORS.get(kind)
    if operator is None:
        return None
    given = inner.value if operator == "in" else [inner.value]
    values = [_value(column, value) for value in given]
    if None in values or (column == "topic" and operator not in {"=", "in"}):
        return None
    return [Condition(column, operator, tuple(values) if operator == "in" else values[0], negated)]


def _value(column: str, value: object) -> str | int | None:
    """Return the value in the column's type, or None if Spark must apply the filter."""
    if column == "topic":
        return value if isinstance(value, str) else None
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""Convert Spark's filters to conditions, and support pushdown without requiring it.

Source: `pyspark.sql.worker.plan_data_source_read` of 4.3.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from penstock.lake.spark.filter_types import (
    INHERITED,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from penstock.lake.spark.filters import PUSHED_COLUMNS, Condition, Operator

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATORS: Final[dict[type[Filter], Operator]] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
}


class TakesFilters(Protocol):
    def take_filters(self, filters: list[Filter]) -> list[Filter]:
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
        return _Offered(reader)


class _Offered:
    __func__ = staticmethod(INHERITED)

    def __init__(self, reader: TakesFilters) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


def split_filters(filters: Sequence[Filter]) -> tuple[list[Condition], list[Filter]]:
    """Return the conditions that are enforced here and the filters that Spark must apply itself."""
    conditions: list[Condition] = []
    left: list[Filter] = []
    for item in filters:
        found = _conditions(item)
        if found is None:
            left.append(item)
        else:
            conditions += found
    return conditions, left


def _conditions(item: Filter) -> list[Condition] | None:
    """Return the conditions of a filter; None if Spark must apply it, and empty if it is always
    true.
    """
    negated = isinstance(item, Not)
    inner: Any = item.child if isinstance(item, Not) else item
    if (
        isinstance(inner, Not)
        or len(inner.attribute) != 1
        or inner.attribute[0] not in PUSHED_COLUMNS
    ):
        return None
    column: str = inner.attribute[0]
    if isinstance(inner, IsNotNull):
        return None if negated else []
    operator = _operator(inner)
    if operator is None:
        return None
    values = [
        _value(column, value) for value in (inner.value if operator == "in" else [inner.value])
    ]
    if None in values or (column == "topic" and operator not in {"=", "in"}):
        return None
    return [Condition(column, operator, tuple(values) if operator == "in" else values[0], negated)]


def _operator(item: Filter) -> Operator | None:
    return _OPERATORS.get(type(item))


def _value(column: str, value: object) -> str | int | None:
    """Return the value in the column's type, or None if Spark must apply the filter."""
    if column == "topic":
        return value if isinstance(value, str) else None
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

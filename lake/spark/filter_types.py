"""Spark's types of pushed filters, which are available to Python sources since Spark 4.1.

Spark 4.0 applies all filters itself.
"""

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

INHERITED: Final[Any] = getattr(datasource.DataSourceReader, "pushFilters", None)
"""The inherited method, used by readers without pushdown."""

if TYPE_CHECKING or INHERITED is not None:
    from pyspark.sql.datasource import (
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
else:

    class Filter: ...

    class EqualNullSafe(Filter): ...

    class EqualTo(Filter): ...

    class GreaterThan(Filter): ...

    class GreaterThanOrEqual(Filter): ...

    class In(Filter): ...

    class IsNotNull(Filter): ...

    class LessThan(Filter): ...

    class LessThanOrEqual(Filter): ...

    class Not(Filter): ...


__all__ = [
    "INHERITED",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "IsNotNull",
    "LessThan",
    "LessThanOrEqual",
    "Not",
]

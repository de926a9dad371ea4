"""Filters that Spark pushes down, applied to partitions, offsets and objects.

Invariant: every accepted filter is enforced exactly: topic and partition when planning, offset and
timestamp row by row after pruning. These four columns are never null. Timestamps are microseconds
since 1970, as in Arrow. Source: `pyspark.sql.datasource.Filter`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from penstock.lake.fetch.times import ALL_TIMES, TimeBounds

Operator = Literal["=", "<", "<=", ">", ">=", "in"]
PUSHED_COLUMNS: Final = ("topic", "partition", "offset", "timestamp")


class Condition(NamedTuple):
    """A comparison of a column. `value` is text for `topic` and a number otherwise; for "in" it is
    a tuple of these.
    """

    column: str
    operator: Operator
    value: Any
    negated: bool = False


_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda have, value: have == value,
    "<": lambda have, value: have < value,
    "<=": lambda have, value: have <= value,
    ">": lambda have, value: have > value,
    ">=": lambda have, value: have >= value,
    "in": lambda have, value: have in value,
}
_OPPOSITE: Final[Mapping[str, Operator]] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Conditions that must all hold."""

    conditions: Sequence[Condition] = ()

    def selects(self, topic: str, partition: int) -> bool:
        return all(
            _HOLDS[item.operator](topic if item.column == "topic" else partition, item.value)
            != item.negated
            for item in self.conditions
            if item.column in {"topic", "partition"}
        )

    def offsets(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) that the conditions may match; it may contain other
        rows.
        """
        low, high = self._bounds("offset")
        return max(start, low if low is not None else start), min(
            end, high + 1 if high is not None else end
        )

    @property
    def times(self) -> TimeBounds:
        """The timestamp bounds of wanted rows: objects, blocks and batches outside of them contain
        no wanted rows.
        """
        low, high = self._bounds("timestamp")
        return TimeBounds(
            ALL_TIMES.from_ms if low is None else low // 1_000,
            ALL_TIMES.to_ms if high is None else high // 1_000,
        )

    @property
    def of_rows(self) -> list[Condition]:
        """The conditions that must be checked row by row."""
        return [item for item in self.conditions if item.column in {"offset", "timestamp"}]

    def _bounds(self, column: str) -> tuple[int | None, int | None]:
        """Return the lowest and the highest value that can satisfy the conditions."""
        lows: list[int] = []
        highs: list[int] = []
        for item in self.conditions:
            if item.column == column:
                low, high = _bounds(item)
                lows += [] if low is None else [low]
                highs += [] if high is None else [high]
        return max(lows, default=None), min(highs, default=None)


def _bounds(item: Condition) -> tuple[int | None, int | None]:
    operator = item.operator
    if item.negated:
        if operator not in _OPPOSITE:
            return None, None
        operator = _OPPOSITE[operator]
    match operator:
        case "=":
            return item.value, item.value
        case "in":
            return min(item.value, default=0), max(item.value, default=-1)
        case "<":
            return None, item.value - 1
        case "<=":
            return None, item.value
        case ">":
            return item.value + 1, None
        case ">=":
            return item.value, None

"""Paginate long lists.

Invariant: pure. A page of the console has at most `ROWS_MAX` rows, regardless of the cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

ROWS_MAX: Final = 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Page(Generic[_T]):
    """One page of a list. number: from 1."""

    rows: Sequence[_T]
    number: int
    pages: int
    total: int

    @property
    def first(self) -> int:
        """Return the position of the first row, from 1."""
        return (self.number - 1) * ROWS_MAX + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return (self.number - 1) * ROWS_MAX + len(self.rows)


def page_of(items: Sequence[_T], number: int) -> Page[_T]:
    """Return a page, or the nearest one if the number does not exist."""
    pages = max(1, -(-len(items) // ROWS_MAX))
    number = min(max(number, 1), pages)
    begin = (number - 1) * ROWS_MAX
    return Page(items[begin : begin + ROWS_MAX], number, pages, len(items))

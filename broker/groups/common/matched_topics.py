"""The topics that regular expressions match, updated as topics come and go.

Matching takes 4 us per name and typical expression, so 10,000 topics and 100 expressions take 4 s;
a malicious expression may take a thousand times as long.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.base.regular_expressions import check_regex, match_steps, matching

EXPRESSIONS_MAX: Final = 1_000
STEPS_PER_SLICE: Final = 100_000
"""About 1 ms: 250 names of 20 characters and an expression of the same length."""

_UNUSED_COUNT: Final = 1_000
"""An expression is dropped when more pending changes than this plus the number of topics wait for
it.
"""


@dataclass(slots=True)
class _Entry:
    pending: list[str]
    """Names to match, possibly with duplicates."""
    matched: set[str] = field(default_factory=set[str])
    result: frozenset[str] | None = None
    """`matched`, unless it has changed since."""


class MatchedTopics:
    """New names are queued and matched in slices between event loop iterations (`work`), or all at
    once if a caller needs the result earlier (`of`). At most EXPRESSIONS_MAX expressions are kept;
    the least recently used one is dropped first.

    names: the current names of all topics.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def changed(self, name: str) -> None:
        """Record that a topic was created or deleted. Call it after the names have changed."""
        for entry in self._entries.values():
            entry.pending.append(name)
        most = len(self._names) + _UNUSED_COUNT
        for expression in [
            expression for expression, entry in self._entries.items() if len(entry.pending) > most
        ]:
            del self._entries[expression]  # unused for a long time

    def slices_max(self, expression_count: int) -> int:
        """Return the maximum number of slices for this many expressions, unless topics are added:
        each slice matches at least one name.
        """
        return expression_count * (len(self._names) + 2)

    def work(self, expressions: Iterable[str]) -> bool:
        """Match one slice of the pending names of these expressions. Return whether some are left.
        Raises RegexInvalid.
        """
        left = STEPS_PER_SLICE
        for expression in expressions:
            entry = self._entry(expression)
            count = 0
            while count < len(entry.pending) and left > 0:
                count += 1
                left -= match_steps(expression, entry.pending[-count])
            self._match(expression, entry, count)
            if entry.pending:
                return True
        return False

    def of(self, expression: str) -> frozenset[str]:
        """Return the names of the topics that match. Raises RegexInvalid."""
        entry = self._entry(expression)
        self._match(expression, entry, len(entry.pending))
        if entry.result is None:
            entry.result = frozenset(entry.matched)
        return entry.result

    def _entry(self, expression: str) -> _Entry:
        entry = self._entries.get(expression)
        if entry is None:
            check_regex(expression)
            entry = self._entries[expression] = _Entry(list(self._names))
            if len(self._entries) > EXPRESSIONS_MAX:
                self._entries.popitem(last=False)
        self._entries.move_to_end(expression)
        return entry

    def _match(self, expression: str, entry: _Entry, count_max: int) -> None:
        """Match at most this many pending names."""
        names = entry.pending[-count_max:] if count_max else []
        if not names:
            return
        del entry.pending[-count_max:]
        existing = [name for name in names if name in self._names]
        entry.matched.difference_update(names)
        entry.matched |= matching(expression, existing)
        entry.result = None

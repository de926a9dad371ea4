"""The topics that match regular expressions, kept up to date as topics are created and deleted.

Matching a typical expression takes 4 us per name, so 10,000 topics and 100 expressions take 4 s. A
malicious expression may take a thousand times as long.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.base.regular_expressions import check_regex, match_steps, matching

EXPRESSIONS_MAX: Final = 1_000
STEPS_PER_SLICE: Final = 100_000
"""Steps of the matcher per slice, about 1 ms. Matching 250 names of 20 characters with an
expression of the same length takes this many.
"""

_UNUSED_COUNT: Final = 1_000
"""An expression is considered unused, and dropped, when it has this many more pending names than
there are topics.
"""


@dataclass(slots=True)
class _Entry:
    pending: list[str]
    """Names that have not been matched yet, possibly with duplicates."""
    matched: set[str] = field(default_factory=set[str])
    result: frozenset[str] | None = None
    """A copy of `matched`, or None if `matched` has changed since the last copy."""


class MatchedTopics:
    """Caches the topics that match each regular expression. New names are queued and matched in
    slices between event loop iterations (`work`), or all at once if a caller needs the result
    earlier (`of`). At most EXPRESSIONS_MAX expressions are kept; the least recently used one is
    dropped first.

    names: the current names of all topics.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def changed(self, name: str) -> None:
        """Record that a topic was created or deleted. Call this after `names` has changed."""
        for entry in self._entries.values():
            entry.pending.append(name)
        most = len(self._names) + _UNUSED_COUNT
        for expression in [
            expression for expression, entry in self._entries.items() if len(entry.pending) > most
        ]:
            del self._entries[expression]  # not used for a long time: drop it

    def slices_max(self, expression_count: int) -> int:
        """Return the maximum number of slices for this many expressions if no topics are added.
        Each slice matches at least one name.
        """
        return expression_count * (len(self._names) + 2)

    def work(self, expressions: Iterable[str]) -> bool:
        """Match one slice of the pending names of these expressions. Return whether any are left.
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
        """Return the names of the topics that match the expression. Raises RegexInvalid."""
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
        """Match at most `count_max` pending names."""
        names = entry.pending[-count_max:] if count_max else []
        if not names:
            return
        del entry.pending[-count_max:]
        existing = [name for name in names if name in self._names]
        entry.matched.difference_update(names)
        entry.matched |= matching(expression, existing)
        entry.result = None

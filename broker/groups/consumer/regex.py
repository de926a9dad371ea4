"""Match the names of topics against regular expressions of subscriptions, in linear time.

Source: Kafka, which uses RE2/J; ADR 0050.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol, cast

import re2

CACHED_MAX: Final = 256
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False


class _Pattern(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


class RegexInvalid(Exception):
    """Raised with the reason why an expression cannot be used."""


def check_regex(expression: str) -> None:
    """Raises RegexInvalid."""
    _compiled(expression)


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match as a whole. Raises RegexInvalid."""
    pattern = _compiled(expression)
    return frozenset(name for name in names if pattern.fullmatch(name))


@lru_cache(maxsize=CACHED_MAX)
def _compiled(expression: str) -> _Pattern:
    try:
        return cast("_Pattern", re2.compile(expression, options=_OPTIONS))
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise RegexInvalid(text) from error

"""Match names against regular expressions of clients and of settings, in linear time.

Source: Kafka, which uses RE2/J; ADR 0050.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol, cast

import re2

CACHED_MAX: Final = 256


class RegexGroups(Protocol):
    def groups(self) -> Sequence[str | None]: ...

    def group(self, number: int) -> str | None: ...


class Regex(Protocol):
    def fullmatch(self, text: str) -> RegexGroups | None: ...


class _Options(Protocol):
    log_errors: bool


class _Library(Protocol):
    """What is used of `re2`, which has no types."""

    error: type[Exception]

    def Options(self) -> _Options: ...

    def compile(self, pattern: str, options: _Options) -> Regex: ...


class RegexInvalid(Exception):
    """Raised with the reason why an expression cannot be used."""


def check_regex(expression: str) -> None:
    """Raises RegexInvalid."""
    compiled(expression)


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match as a whole. Raises RegexInvalid."""
    pattern = compiled(expression)
    return frozenset(name for name in names if pattern.fullmatch(name))


@lru_cache(maxsize=CACHED_MAX)
def compiled(expression: str) -> Regex:
    """Raises RegexInvalid."""
    library = cast("_Library", re2)
    options = library.Options()
    options.log_errors = False
    try:
        return library.compile(expression, options)
    except library.error as error:
        reason: object = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise RegexInvalid(text) from error

"""Match names against regular expressions from clients and settings with RE2, in linear time. See
docs/design/groups.md. Without the limits below, 8,000 optional groups took 1 GB and more than a
second for one name; with them, a name takes at most 5 ms, and typically 4 us.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Final, Protocol, cast

CACHED_MAX: Final = 64

CHARACTERS_MAX: Final = 4_096
"""Maximum length of an expression. Compiling one takes up to 9 ms."""

INSTRUCTIONS_MAX: Final = 4_096
"""Maximum size of a compiled expression: `[a-z]{1000}` has 1,004 instructions."""

_BYTES_MAX: Final = 2 << 20
"""Memory limit of a compiled expression with the states added by matching. Above this limit, RE2
matches without cached states.
"""


class RegexGroups(Protocol):
    def groups(self) -> Sequence[str | None]: ...

    def group(self, number: int) -> str | None: ...


class Regex(Protocol):
    @property
    def programsize(self) -> int: ...

    def fullmatch(self, text: str) -> RegexGroups | None: ...


class _Options(Protocol):
    log_errors: bool
    max_mem: int
    never_capture: bool


class _Library(Protocol):
    """Types for the part of the untyped `re2` module that is used here."""

    error: type[Exception]

    def Options(self) -> _Options: ...

    def compile(self, pattern: str, options: _Options) -> Regex: ...


class RegexInvalid(Exception):
    """Raised with the reason why an expression is rejected."""


def check_regex(expression: str) -> None:
    """Raises RegexInvalid."""
    compiled(expression)


def match_steps(expression: str, name: str) -> int:
    """Return the maximum number of steps needed to match this name; 100,000 steps take about 1 ms.
    Raises RegexInvalid.
    """
    return compiled(expression).programsize * (len(name) + 1)


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match completely. Raises RegexInvalid."""
    pattern = compiled(expression)
    return frozenset(name for name in names if pattern.fullmatch(name))


@lru_cache(maxsize=CACHED_MAX)
def compiled(expression: str, *, has_groups: bool = False) -> Regex:
    """Return the compiled expression. Groups are captured only if `has_groups` is set. Raises
    RegexInvalid.
    """
    if len(expression) > CHARACTERS_MAX:
        raise RegexInvalid(
            f"it has {len(expression)} characters, at most {CHARACTERS_MAX} are allowed"
        )
    # Imported on demand, because most nodes never need it: it takes 1 MB, and 10 ms to import.
    library = cast("_Library", import_module("re2"))
    options = library.Options()
    options.log_errors = False
    options.max_mem = _BYTES_MAX
    options.never_capture = not has_groups
    try:
        found = library.compile(expression, options)
    except library.error as error:
        reason: object = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise RegexInvalid(text) from error
    if found.programsize > INSTRUCTIONS_MAX:
        raise RegexInvalid(
            f"it takes {found.programsize} instructions, at most {INSTRUCTIONS_MAX} are allowed:"
            " repeat less, and use smaller classes of characters"
        )
    return found

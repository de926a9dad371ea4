"""Escape characters that could affect a terminal or forge log lines. Pure.

Clients choose the names of groups, users and clients, which occur in error messages: ANSI escapes,
line breaks, C1 controls and bidirectional marks.
"""

from typing import Any, Final

_PLAIN: Final = frozenset({type(None), bool, int, float, list, tuple, dict})


def printable(text: str, *, kept: str = "") -> str:
    r"""Return the text with every non-printable character escaped, for example as `\x1b`. kept:
    characters that are not escaped, for example line breaks in a whole page.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in kept else ascii(letter)[1:-1] for letter in text
    )


def printable_value(value: Any) -> Any:  # noqa: ANN401 - values of log lines have any type
    """Return a value whose text contains only printable characters. Only strings are changed: the
    `repr` of other values is printable, except for objects that define their own.
    """
    if isinstance(value, str):
        return printable(value)
    return value if type(value) in _PLAIN else printable(str(value))

"""Escape what could act on a terminal or pass for another line.

Clients choose names of groups, users and clients, and texts of errors contain them: ANSI escapes,
line breaks, C1 controls and marks that turn the direction of text.
Invariant: pure. What is printable stays as it is.
"""

from typing import Any, Final

_PLAIN: Final = frozenset({type(None), bool, int, float, list, tuple, dict})


def printable(text: str, *, kept: str = "") -> str:
    """Return the text with every other character as its escape, such as `\\x1b`. kept: characters
    that stay, for example line breaks of a whole page.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in kept else ascii(letter)[1:-1] for letter in text
    )


def printable_value(value: Any) -> Any:  # noqa: ANN401 - values of log lines have any type
    """Return a value whose text has no such characters. Only texts are changed: what `repr` shows
    of other values is printable, except for objects with a representation of their own.
    """
    if isinstance(value, str):
        return printable(value)
    return value if type(value) in _PLAIN else printable(str(value))

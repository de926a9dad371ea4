r"""Format records with a template in the syntax of `kcat -f`. Pure.

%s value, %k key, %t topic, %p partition, %o offset, %T timestamp in milliseconds, %h headers, %S
and %K lengths of value and key in bytes (-1 for null), %% a percent sign; \n, \t, \r, \0 and \\ as
in C.
"""

import re
from collections.abc import Callable
from typing import Final

from penstock.deploy.errors import UsageError
from penstock.deploy.records.displayed_record import ShownRecord

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PIECE: Final = re.compile(r"%(.)|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_LETTERS: Final[dict[str, Callable[[ShownRecord], str]]] = {
    "s": lambda record: record.value or "",
    "k": lambda record: record.key or "",
    "t": lambda record: record.topic,
    "p": lambda record: str(record.partition),
    "o": lambda record: str(record.offset),
    "T": lambda record: str(record.timestamp_ms),
    "h": lambda record: ",".join(f"{name}={value}" for name, value in record.headers),
    "S": lambda record: str(record.value_bytes),
    "K": lambda record: str(record.key_bytes),
    "%": lambda _: "%",
}


def parse_template(text: str) -> Callable[[ShownRecord], str]:
    """Return a function that formats a record. Raises UsageError for an unknown letter."""
    parts: list[Callable[[ShownRecord], str]] = []
    for found in _PIECE.finditer(text):
        letter, escape, plain, rest = found.groups()
        if letter is not None:
            if letter not in _LETTERS:
                known = ", ".join(f"%{known}" for known in _LETTERS)
                raise UsageError(f"--template: unknown letter %{letter}; use {known}")
            parts.append(_LETTERS[letter])
            continue
        shown = plain or rest or _ESCAPES.get(escape, f"\\{escape}")
        parts.append(lambda _, shown=shown: shown)  # type: ignore[misc]
    return lambda record: "".join(part(record) for part in parts)

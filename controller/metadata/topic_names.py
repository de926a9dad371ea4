"""Validate topic names, as in Kafka."""

import re
from typing import Final

NAME_CHARS_MAX: Final = 249
_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_CHARS_MAX}}}")


def is_topic_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def topic_name_problem(name: str) -> str:
    """Return the reason why a topic name is invalid, or "" if it is valid."""
    if is_topic_name(name):
        return ""
    return (
        f"topic name {name[:260]!r} is not allowed: 1 to {NAME_CHARS_MAX} of a-z, A-Z, 0-9, '.',"
        " '_' and '-', and neither '.' nor '..'"
    )

"""SQL errors on topics. Each message contains the value, the existing names and a remedy."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

_LISTED_MAX: Final = 20


class SqlError(Exception):
    """A statement is invalid, or a value does not fit its column and `strict` was given."""


class SqlStopped(SqlError):
    """A statement was canceled, or took longer than `max_seconds`."""


def canceled() -> SqlStopped:
    return SqlStopped("the statement was canceled")


def time_limit_exceeded() -> SqlStopped:
    return SqlStopped(
        "the statement took longer than its limit of time: filter by _partition, _offset or"
        " _timestamp, or raise the limit"
    )


def unknown_topic(name: str, known: Sequence[str]) -> SqlError:
    """Return the error for a table that does not exist, with similar topic names."""
    by_lower = {topic.lower(): topic for topic in known}
    if name.lower() in by_lower:
        return SqlError(
            f"{name!r} is a topic, which statements can only name without a schema, after FROM or"
            " JOIN"
        )
    near = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {', '.join(by_lower[item] for item in near)}?"
    elif known:
        hint = f"topics are: {shortened(sorted(known))}; SHOW TABLES lists them"
    else:
        hint = "the cluster has no topics; a new one appears within about 1 s"
    return SqlError(f"no topic or view is named {name!r}; {hint}")


def read_only(topic: str) -> SqlError:
    """Return the error for a statement that would change a topic."""
    return SqlError(
        f"topic {topic!r} cannot be changed by SQL: write records with a producer or `penstock"
        f" produce {topic}`; CREATE TABLE and CREATE VIEW make objects that last as long as the"
        " session"
    )


def shortened(names: Sequence[str]) -> str:
    """Join names for a message, with the number of omitted ones."""
    left = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {left:,} more" if left > 0 else "")

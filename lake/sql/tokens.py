"""Split SQL into statements, find the tables that a statement may refer to, and replace `AS OF`.

Invariant: this module processes DuckDB's tokens, so strings and comments are never mistaken for
SQL. Invalid SQL is passed through unchanged, and DuckDB reports the error. There is no I/O.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple

import duckdb

from penstock.lake.sql.errors import SqlError

_BEFORE_TABLES: Final = frozenset(
    {"FROM", "JOIN", "TABLE", "DESCRIBE", "DESC", "SUMMARIZE", "PIVOT", "UNPIVOT", "SHOW", ",", "("}
)
_CHANGES: Final = frozenset(
    {"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "DROP", "ALTER", "COMMENT"}
)
_BEFORE_CHANGED: Final = frozenset(
    {"OR", "REPLACE", "IGNORE", "INTO", "FROM", "TABLE", "VIEW", "IF", "EXISTS", "ON", "ONLY"}
)
"""Words that may occur between one of `_CHANGES` and a table name."""


class Token(NamedTuple):
    """A token. `text` is the original text; `start` and `end` are byte positions in the SQL."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The text of a keyword or unquoted identifier, in uppercase."""
        return self.text.upper()

    @property
    def name(self) -> str:
        """The name of an identifier, or "" if the token cannot be an identifier."""
        if self.kind not in {"identifier", "keyword"}:
            return ""
        if self.text.startswith('"'):
            return self.text[1:-1].replace('""', '"')
        return self.text


class TableRef(NamedTuple):
    """A table in a statement: a topic, optionally as of a time or snapshot.

    `known_as` is its name in the statement for DuckDB.
    """

    known_as: str
    topic: str
    as_of: datetime | None = None
    snapshot: str = ""


def tokens_of(sql: str) -> list[Token]:
    """Return all tokens except comments."""
    data = sql.encode()
    marks = [(int(at), kind.name) for at, kind in duckdb.tokenize(sql)]
    found: list[Token] = []
    for number, (start, kind) in enumerate(marks):
        end = marks[number + 1][0] if number + 1 < len(marks) else len(data)
        text = data[start:end].decode("utf-8", "replace").rstrip()
        if kind != "comment":
            found.append(Token(kind, text, start, start + len(text.encode())))
    return found


def statements_of(sql: str) -> list[str]:
    """Split SQL at its semicolons. Empty statements are omitted."""
    data, start = sql.encode(), 0
    found: list[str] = []
    ends = [token.start for token in tokens_of(sql) if _is_semicolon(token)]
    for end in [*ends, len(data)]:
        text = data[start:end].decode("utf-8", "replace").strip()
        if tokens_of(text):
            found.append(text)
        start = end + 1
    return found


def is_complete(sql: str) -> bool:
    """Return whether the text ends with a semicolon that ends a statement."""
    tokens = tokens_of(sql)
    return bool(tokens) and _is_semicolon(tokens[-1])


def table_names(tokens: Sequence[Token]) -> Iterator[TableRef]:
    """Yield the names at positions where a table may occur. Some of them are columns or
    functions.
    """
    for number, token in enumerate(tokens):
        before = tokens[number - 1].word if number else ""
        after = tokens[number + 1].text if number + 1 < len(tokens) else ""
        if token.name and before in _BEFORE_TABLES and after not in {".", "("}:
            yield TableRef(token.name, token.name)


def changed_name(tokens: Sequence[Token]) -> str:
    """Return the name of the table or view that a statement changes or drops, or "" if there is
    none.
    """
    depth, at = 0, None
    for number, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        starts = not number or (tokens[0].word == "WITH" and tokens[number - 1].text == ")")
        if not depth and starts and token.kind == "keyword" and token.word in _CHANGES:
            at = number
            break
    if at is None:
        return ""
    rest = [token for token in tokens[at + 1 :] if token.word not in _BEFORE_CHANGED]
    while len(rest) > 2 and rest[1].text == ".":
        rest = rest[2:]
    return rest[0].name if rest else ""


def names_in(tokens: Sequence[Token]) -> frozenset[str]:
    """Return all names in a statement, in lowercase."""
    return frozenset(token.name.lower() for token in tokens if token.name)


def replace_as_of(sql: str) -> tuple[str, list[TableRef]]:
    """Replace `NAME AS OF TIMESTAMP '...'` and `NAME AS OF SNAPSHOT '...'` with table names.

    Return the statement and those tables. Raise SqlError for an invalid time.
    """
    data, tokens = sql.encode(), tokens_of(sql)
    parts: list[bytes] = []
    found: list[TableRef] = []
    at, number = 0, 0
    while number < len(tokens):
        group = tokens[number : number + 5]
        if not _is_as_of(group):
            number += 1
            continue
        table = _table_as_of(group)
        found.append(table)
        following = tokens[number + 5] if number + 5 < len(tokens) else None
        alias = "" if _is_alias(following) else f" AS {quoted(table.topic)}"
        parts += [data[at : group[0].start], f"{quoted(table.known_as)}{alias}".encode()]
        at, number = group[4].end, number + 5
    return b"".join([*parts, data[at:]]).decode(), found


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """Return text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def moment_of(text: str) -> datetime:
    """Parse a time. A time without a zone is in UTC. Raise SqlError."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SqlError(
            f"{text!r} is not a time: use ISO 8601, such as 2026-03-01 or 2026-03-01T12:30:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_semicolon(token: Token) -> bool:
    return token.kind == "operator" and token.text == ";"


def _is_as_of(group: Sequence[Token]) -> bool:
    return (
        len(group) == 5
        and bool(group[0].name)
        and [token.word for token in group[1:3]] == ["AS", "OF"]
        and group[3].word in {"TIMESTAMP", "SNAPSHOT"}
        and group[4].kind == "string_const"
        and group[4].text.startswith("'")
    )


def _table_as_of(group: Sequence[Token]) -> TableRef:
    topic, kind = group[0].name, group[3].word
    value = group[4].text.strip("'").replace("''", "'")
    known_as = f"{topic} as of {kind.lower()} {value}"
    if kind == "SNAPSHOT":
        return TableRef(known_as, topic, snapshot=value)
    return TableRef(known_as, topic, as_of=moment_of(value))


def _is_alias(token: Token | None) -> bool:
    """Return whether the token after a table is an alias."""
    if token is None or not token.name:
        return False
    return token.text.startswith('"') or token.word == "AS" or token.word not in _no_aliases()


@cache
def _no_aliases() -> frozenset[str]:
    """Return the keywords that may follow a table but, without AS, are not an alias."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT upper(keyword_name) FROM duckdb_keywords() GROUP BY ALL"
            " HAVING bool_and(keyword_category IN ('reserved', 'type_function'))"
        ).fetchall()
    return frozenset(name for (name,) in found)

"""The prompt of `penstock sql`: history, completion, statements over several lines.

Invariant: uses the standard library's readline, with the same keys as shells. An error ends the
statement, not the prompt.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.base.errors import ExpectedError, StreamError
from penstock.base.own_directory import cache_roots
from penstock.deploy.errors import print_error
from penstock.deploy.output import remark, say
from penstock.deploy.sql.command import Command
from penstock.lake.sql.errors import SqlError
from penstock.lake.sql.tokens import is_complete, quoted, tokens_of
from penstock.objectstore.errors import ObjectStoreError

HISTORY_LINES_MAX: Final = 10_000
HELP: Final = """\
statements end with ;       \\d  list topics and views     \\d TOPIC  list its columns
Ctrl-C cancels a statement  \\q  quit                      Tab       complete names and keywords
AS OF TIMESTAMP '2026-03-01' and AS OF SNAPSHOT 'nightly' after a topic read an earlier state"""
_WORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN", "LEFT", "USING",
    "ON", "AS", "OF", "TIMESTAMP", "SNAPSHOT", "AND", "OR", "NOT", "NULL", "IS", "IN", "BETWEEN",
    "LIKE", "DISTINCT", "COUNT", "SUM", "AVG", "MIN", "MAX", "CASE", "WHEN", "THEN", "ELSE", "END",
    "WITH", "UNION", "ALL", "DESC", "ASC", "INTERVAL", "CREATE", "VIEW", "SHOW", "TABLES",
    "DESCRIBE", "SUMMARIZE", "EXPLAIN", "CAST", "OVER", "PARTITION", "QUALIFY", "UNNEST",
)  # fmt: skip


def run_prompt(command: Command) -> None:
    """Read statements and run them until \\q or the end of input."""
    completer = _Completer(command)
    history = _prepare(completer)
    say('SQL on topics; "\\?" helps, "\\q" quits')
    lines: list[str] = []
    while True:
        try:
            line = input("penstock> " if not lines else "     ...> ")
            if not lines and line.strip() in {"\\q", "\\quit"}:
                break
            _take(command, lines, line)
        except EOFError:
            say("")
            break
        except KeyboardInterrupt:
            say("")
            lines.clear()
        completer.text = "\n".join(lines)
    _save(history)


def _take(command: Command, lines: list[str], line: str) -> None:
    """Add a line to the lines of a statement, and run it when it is complete."""
    if not lines and line.strip().startswith("\\"):
        _try(command, _meaning(line.strip()))
        return
    lines.append(line)
    text = "\n".join(lines)
    if not text.strip():
        lines.clear()
    elif is_complete(text):
        lines.clear()
        _try(command, text)


def _meaning(line: str) -> str:
    """Return the SQL for a command that begins with a backslash; empty if the help is to be
    printed.
    """
    name, _, topic = line.partition(" ")
    if name == "\\d":
        topic = topic.strip().rstrip(";").strip('"')
        return f"DESCRIBE {quoted(topic)}" if topic else "SHOW TABLES"
    return ""


def _try(command: Command, sql: str) -> None:
    """Run SQL, and print errors instead of raising them."""
    if not sql:
        say(*HELP.splitlines())
        return
    began = time.monotonic()
    try:
        command.run_all(sql)
    except KeyboardInterrupt:
        remark("canceled")
    except (SqlError, ExpectedError, StreamError, ObjectStoreError, ValueError) as error:
        print_error(error)
    else:
        remark(f"({time.monotonic() - began:.1f} s)")


class _Completer:
    """Completes names of topics, columns of the topics in the statement, and keywords."""

    def __init__(self, command: Command) -> None:
        self.text = ""
        self._command = command
        self._found: list[str] = []
        self._topics: list[str] | None = None

    def complete(self, text: str, state: int) -> str | None:
        if state == 0:
            try:
                self._found = [name for name in self._matching(text) if name.isprintable()]
            except (SqlError, StreamError, ObjectStoreError, ValueError):
                self._found = []
        return self._found[state] if state < len(self._found) else None

    def _matching(self, text: str) -> list[str]:
        import readline

        if self._topics is None:
            self._topics = list(self._command.session.topics())
        line = readline.get_line_buffer()
        if line.startswith("\\d "):
            return [name for name in self._topics if name.lower().startswith(text.lower())]
        written = f"{self.text}\n{line}"
        named = {token.name.lower() for token in tokens_of(written)}
        names = list(self._topics)
        for topic in self._topics:
            if topic.lower() in named:
                names += self._command.session.columns(topic)
        if text.startswith("\\"):
            return [name for name in ("\\d", "\\q", "\\?") if name.startswith(text)]
        shown = [name if name.isidentifier() else quoted(name) for name in dict.fromkeys(names)]
        begins = text.lower()
        words = [word if text.isupper() else word.lower() for word in _WORDS]
        return [
            item
            for item in [*shown, *words]
            if item.lower().lstrip('"').startswith(begins.lstrip('"'))
        ]


def _prepare(completer: _Completer) -> Path | None:
    """Set up readline, and return the history file."""
    try:
        import readline
    except ImportError:
        return None
    path = cache_roots()[0] / "sql_history" if cache_roots() else None
    if path is not None:
        with suppress(OSError):
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer_delims(" \t\n(),;=<>+-*/'")
    readline.set_completer(completer.complete)
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    return path


def _save(path: Path | None) -> None:
    if path is None:
        return
    import readline

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
        readline.write_history_file(path)

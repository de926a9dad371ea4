"""Print the output of commands: tables for people; JSON, YAML and CSV for programs.

Invariant: stdout contains only the result; progress and remarks go to stderr. With `--output`, the
result is one document without colors; field names are stable. Names from clients cannot control a
terminal or forge a line: non-printable characters are escaped, and names are never markup. JSON and
YAML use the escapes of their formats. CSV has no escapes, so its output is only escaped on a
terminal.
"""

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from penstock.base.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SLOW_S: Final = 1.0
_TIME_MIN_MS: Final = -62_135_596_800_000
_TIME_MAX_MS: Final = 253_402_300_799_000
"""The years 1 to 9999, outside of which there is no ISO time."""
_LAYOUT: Final = "\n\t"
_PADDING_CHARS: Final = 3
"""Characters added to the width of a column: a space on each side, and the border between
columns.
"""
_FOLDED_CHARS: Final = 12
"""Cells that do not fit are wrapped into lines of at least this many characters."""
_WORD_CHARS: Final = 21
"""Words of up to this length, such as 255.255.255.255:65535, are not broken."""


class Format(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def print_document(output: Format, value: object) -> None:
    """Print one document in a format for programs; dataclasses and structs become objects.

    CSV has one line for each object of `deploy.output.csv_rows.rows_of`.
    """
    sys.stdout.write(_encoded(output, value))
    sys.stdout.flush()


def _encoded(output: Format, value: object) -> str:
    if output is Format.YAML:
        from penstock.deploy.output.yaml_text import encode_yaml

        return encode_yaml(msgspec.to_builtins(value))
    if output is Format.CSV:
        from penstock.deploy.output.csv_rows import encode_csv

        return encode_csv(msgspec.to_builtins(value), escaped=sys.stdout.isatty())
    return json_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"


def report(output: Format, document: object, *sentences: str) -> None:
    """Print the result of a command: text for people, or a document for programs."""
    if output is Format.TABLE:
        for sentence in sentences:
            say(sentence)
    else:
        print_document(output, document)


def report_table(
    output: Format,
    document: object,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Print the result of a command: a table for people, or a document for programs."""
    report_with(output, document, lambda: print_table(title, columns, rows))


def report_with(output: Format, document: object, show: Callable[[], None]) -> None:
    """Print the result of a command: for people with `show`, or a document for programs."""
    if output is Format.TABLE:
        show()
    else:
        print_document(output, document)


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, and flush."""
    print(json_line(value), flush=True)


def json_line(value: object) -> str:
    """Return one JSON document on one line, with escapes for all non-printable characters."""
    return json_text(msgspec.json.encode(value).decode())


def say(*lines: str) -> None:
    """Print sentences on stdout, and flush. Escapes non-printable characters, including line
    breaks.
    """
    print(*map(printable, lines), sep="\n", flush=True)


def remark(*lines: str) -> None:
    """Print sentences on stderr, like `say`."""
    print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


def json_text(document: str) -> str:
    """Return a JSON document with escapes for all non-printable characters."""
    if document.isprintable():
        return document
    return "".join(
        letter if letter.isprintable() or letter in _LAYOUT else json.dumps(letter)[1:-1]
        for letter in document
    )


def cell(text: str) -> "Text":
    """Return the text for a rich table; markup in it is not interpreted."""
    from rich.text import Text

    return Text(printable(text, kept=_LAYOUT))


def rich_console(width: int = 160) -> "Console":
    """Return rich's console on stdout. width: characters if stdout is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def end_line_of_interrupt() -> None:
    """End the line in which a terminal shows `^C`, before printing a summary."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with numbers right-aligned, and dashes for None. For an empty table, print a
    sentence instead. On a narrow terminal, the table has only the first columns, followed by the
    names of the others.
    """
    from rich.table import Table

    console = rich_console()
    cells = [list(row) for row in rows]
    shown_count = fitting_count(columns, cells, console.width)
    hidden = columns[shown_count:]
    caption = hidden_columns(hidden) if hidden else None if cells else "(nothing)"
    table = Table(
        title=cell(title) if title else None,
        title_justify="left",
        header_style="bold",
        caption=None if caption is None else cell(caption),
        caption_justify="left" if hidden else "center",
    )
    for index, column in enumerate(columns[:shown_count]):
        values = [row[index] for row in cells if row[index] is not None]
        is_number = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=_least_width(column, [_text_of(row[index]) for row in cells]),
        )
    for row in cells:
        table.add_row(*(cell(_text_of(value)) for value in row[:shown_count]))
    console.print(table)


def hidden_columns(names: Sequence[str]) -> str:
    """Return the caption of a table that is too narrow for these columns."""
    return f"too narrow for: {', '.join(names)}; --output json prints all"


def fitting_count(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> int:
    """Return the number of columns that fit."""
    used = 1
    for index, column in enumerate(columns):
        used += _PADDING_CHARS + _least_width(column, [_text_of(row[index]) for row in rows])
        if used > width and index:
            return index
    return len(columns)


def _least_width(column: str, cells: Sequence[str]) -> int:
    """Return the least width of a column: longer cells are wrapped, but words of at most
    _WORD_CHARS, such as an address, are not broken.
    """
    longest = max(map(len, cells), default=0)
    words = [len(word) for text in (column, *cells) for word in text.split()]
    word = max((chars for chars in words if chars <= _WORD_CHARS), default=0)
    return max(word, min(longest, _FOLDED_CHARS))


def _text_of(value: Any) -> str:  # noqa: ANN401 - a cell is anything that has a text
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 0.001:
        return "<0.001" if value > 0 else ">-0.001"
    # three significant digits, so that a small number is not shown as 0.0
    return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:,.1f}"


def iso_time(time_ms: int) -> str:
    """Return a time in UTC, as in 2026-01-31T12:00:00.000Z, no later than the year 9999.

    time_ms: since 1970.
    """
    found = datetime.fromtimestamp(max(_TIME_MIN_MS, min(time_ms, _TIME_MAX_MS)) / 1_000, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_iso_times(value: object, *names: str) -> Any:  # noqa: ANN401 - a document
    """Return the document with `NAME`, an ISO time, in place of `NAME_ms`; None if unknown."""
    built: Any = msgspec.to_builtins(value)
    if isinstance(built, list):
        return [with_iso_times(item, *names) for item in cast("Iterable[Any]", built)]
    replaced = {f"{name}_ms": name for name in names}
    return {
        replaced.get(key, key): _iso_or_none(item) if key in replaced else item
        for key, item in built.items()
    }


def _iso_or_none(time_ms: int | None) -> str | None:
    return None if time_ms is None or time_ms < 0 else iso_time(time_ms)


class Progress:
    """A progress bar on stderr for work that takes longer than 1 s; shows nothing without a
    terminal.

    total: None if unknown. Use as a context manager. `advance` only reads the clock, so it can be
    called often.
    """

    def __init__(
        self, what: str, total: int | None, unit: str = "", *, is_shown: bool = True
    ) -> None:
        """is_shown: whether to show the bar; False for a command that prints on this terminal at
        the same time.
        """
        self._what = printable(what)
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = time.monotonic()
        self._wanted = is_shown and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, total: int) -> None:
        """Set the total when it becomes known or increases."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def advance(self, count: int = 1) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif self._wanted and time.monotonic() - self._began > _SLOW_S:
            self._show()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self._unit),
            TimeElapsedColumn(),
        )
        self._bar = _bars(*columns)
        self._task = self._bar.add_task(self._what, total=self._total, completed=self._done)
        self._bar.start()


class StepProgress:
    """A progress bar for the current one of several steps."""

    def __init__(self) -> None:
        self._step = ""
        self._bar: Progress | None = None

    def advance(self, step: str, count: int = 1) -> None:
        if self._bar is None or step != self._step:
            self.close()
            self._bar, self._step = Progress(step, None), step
        self._bar.advance(count)

    def close(self) -> None:
        """Remove the bar, for example before printing. `advance` shows another one."""
        if self._bar is not None:
            self._bar.__exit__()
        self._bar = None


def _bars(*columns: Any) -> Any:  # noqa: ANN401 - rich is loaded late
    """Return rich's progress bars on stderr. By default they would redirect stdout to it."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    return Bars(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def waiting(what: str) -> Generator[None, None, None]:
    """Show a description and the duration of one long request on stderr; nothing without a
    terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with _bars(*columns) as bars:
        bars.add_task(printable(what), total=None)
        yield


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: 1 record, 2,000 records. plural: the plural if it is not noun
    + s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size(count_bytes: int) -> str:
    """Format a number of bytes: 1536 becomes 1.5 KiB."""
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"

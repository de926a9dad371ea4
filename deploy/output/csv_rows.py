"""Flatten a document to CSV lines with one header.

Invariant: pure. CSV readers get every cell unchanged. Columns are named after fields; for a field
of a nested object, both names are joined by a dot.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO, cast

import msgspec

from penstock.base.printable import printable

_Object = dict[str, Any]
_SCALARS: Final = (str, int, float, bool, type(None))


class CsvWriter:
    """Writes lines of CSV.

    escaped: escape non-printable characters, for terminals. CSV has no escapes, so programs get
    cells unchanged.
    """

    def __init__(self, out: TextIO, *, escaped: bool) -> None:
        self._out, self._escaped = out, escaped
        # With "\n" as the line terminator, Python 3.11 and 3.12 do not quote a cell with "\r".
        self._lines = csv.writer(self, lineterminator="\r\n")

    def add(self, cells: Iterable[object]) -> None:
        if self._escaped:
            cells = (printable(cell) if isinstance(cell, str) else cell for cell in cells)
        self._lines.writerow(cells)

    def write(self, line: str) -> None:
        """Receive a line from the writer."""
        self._out.write(line.removesuffix("\r\n") + "\n")


def encode_csv(value: Any, *, escaped: bool = False) -> str:  # noqa: ANN401 - any document
    """Return the lines, with a header; an empty text if there are no rows.

    value: the result of `msgspec.to_builtins`. None becomes an empty cell; lists of plain values
    are joined by a semicolon, because a comma would need quotes. escaped: as in `CsvWriter`.
    """
    rows = [_flat(row) for row in rows_of(value)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = CsvWriter(text, escaped=escaped)
    if columns:
        writer.add(columns)
    for row in rows:
        writer.add(row.get(name, "") for name in columns)
    return text.getvalue()


def rows_of(value: Any) -> Iterator[_Object]:  # noqa: ANN401 - any document
    """Yield one object for each line.

    A document with a list of objects becomes one line per object, with the plain fields of the
    document first; fields of the object take precedence. Any other document becomes one line.
    """
    if isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from rows_of(item)
        return
    if not isinstance(value, dict):
        yield {"value": value}
        return
    document = cast("_Object", value)
    inner = next((items for items in document.values() if _is_list_of_objects(items)), None)
    if inner is None:
        yield document
        return
    outer = {name: item for name, item in document.items() if isinstance(item, _SCALARS)}
    for item in inner:
        for row in rows_of(item):
            yield outer | row


def _is_list_of_objects(value: Any) -> bool:  # noqa: ANN401 - any field
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, dict) for item in cast("Iterator[Any]", value))


def _flat(row: _Object, prefix: str = "") -> _Object:
    flat: _Object = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(cast("_Object", value), f"{prefix}{name}.")
        else:
            flat[prefix + name] = _cell(value)
    return flat


def _cell(value: Any) -> object:  # noqa: ANN401 - any field
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if all(isinstance(item, _SCALARS) for item in items):
            return ";".join(str(_cell(item)) for item in items)
        return msgspec.json.encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value

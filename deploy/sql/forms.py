"""Write rows as a table, CSV, JSON, YAML or Parquet.

Invariant: all formats except tables are written batch by batch, so memory does not grow with the
rows. A NULL is empty in CSV, and bytes are text if they are UTF-8, otherwise hexadecimal.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from penstock.base.errors import ExpectedError
from penstock.deploy.output import Format, cell, json_text, remark, rich_console
from penstock.deploy.output.csv_rows import CsvWriter

if TYPE_CHECKING:
    from penstock.lake.sql.result import SqlResult


def print_rows(table: Any) -> None:  # noqa: ANN401 - an Arrow table
    """Print a table with numbers right-aligned. Columns that do not fit are wrapped."""
    from rich.table import Table

    if not table.num_columns:
        remark("done")
        return
    shown = Table(header_style="bold", caption=None if table.num_rows else "(no rows)")
    columns: list[list[object]] = [column.to_pylist() for column in _times(table).columns]
    for name, values in zip(table.column_names, columns, strict=True):
        is_number = any(_is_number(value) for value in values) and all(
            value is None or _is_number(value) for value in values
        )
        shown.add_column(cell(name), justify="right" if is_number else "left", overflow="fold")
    for row in zip(*columns, strict=True):
        shown.add_row(*(cell(_text(value)) if value is not None else "NULL" for value in row))
    rich_console(width=200).print(shown)


def print_batches(output: Format, columns: Sequence[str], batches: Iterable[Any]) -> None:
    """Print Arrow batches in a format for programs. columns: their names."""
    if output is Format.CSV:
        _print_csv(columns, batches)
    elif output is Format.YAML:
        _print_yaml(batches)
    else:
        _print_json(batches)
    sys.stdout.flush()


def _print_csv(names: Sequence[str], batches: Iterable[Any]) -> None:
    writer = CsvWriter(sys.stdout, escaped=sys.stdout.isatty())
    writer.add(names)
    for batch in batches:
        columns = [column.to_pylist() for column in _times(batch).columns]
        for row in zip(*columns, strict=True):
            writer.add("" if value is None else _text(value) for value in row)


def _print_json(batches: Iterable[Any]) -> None:
    """Print one JSON array, with one object per line."""
    separator = "[\n"
    for batch in batches:
        for row in _objects(batch):
            document = json_text(json.dumps(row, ensure_ascii=False))
            sys.stdout.write(separator + document)
            separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _print_yaml(batches: Iterable[Any]) -> None:
    """Print one YAML sequence, an object per row."""
    from penstock.deploy.output.yaml_text import encode_yaml

    is_empty = True
    for batch in batches:
        if rows := _objects(batch):
            sys.stdout.write(encode_yaml(rows))
            is_empty = False
    sys.stdout.write("[]\n" if is_empty else "")


def write_parquet(result: "SqlResult", path: Path) -> int:
    """Write a file, and return the number of rows. An incomplete file is removed. Raises
    ExpectedError.
    """
    parquet: Any = __import__("pyarrow.parquet").parquet
    rows, beside = 0, path.with_name(f".{path.name}.part")
    try:
        with parquet.ParquetWriter(str(beside), result.schema, compression="zstd") as writer:
            for batch in result.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
        beside.replace(path)
    except OSError as error:
        raise ExpectedError(f"--parquet {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            beside.unlink()
    return rows


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names for the members of an object. A duplicate `a` becomes `a_1`, as in DuckDB's
    subqueries.
    """
    taken = set(names)
    if len(taken) == len(names):
        return list(names)
    found: dict[str, None] = {}
    for name in names:
        chosen, number = name, 0
        while chosen in found or (number and chosen in taken):
            number += 1
            chosen = f"{name}_{number}"
        found[chosen] = None
    return list(found)


def _objects(batch: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - an Arrow batch
    names = distinct_names(batch.schema.names)
    return [_plain(row) for row in _times(batch).rename_columns(names).to_pylist()]


def _times(rows: Any) -> Any:  # noqa: ANN401 - an Arrow table or batch
    from penstock.lake.arrow.row_times import for_python, with_text_nanoseconds

    return with_text_nanoseconds(for_python(rows))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return the value for JSON, in which NaN and infinity become strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "0x" + value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date | time) else str(value)

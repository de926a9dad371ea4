"""Parse JSON values into columns with DuckDB's vectorized parser.

Only the fields that a statement uses become columns. A value that does not fit its column becomes
NULL and is reported; whether it fits depends only on the value and the column. Nothing is rounded:
1.5 does not fit BIGINT, 9007199254740993 and 1e400 do not fit DOUBLE, and VARCHAR preserves all
digits.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np

from penstock.lake.arrow.pyarrow_untyped import Array, DataType, Table, pa, pc
from penstock.lake.sql.exact_numbers import exact_field
from penstock.lake.sql.inference import (
    TIME,
    ZONE,
    JsonType,
    ListOf,
    StructOf,
    fraction,
    structure_fits,
    text_holds_fraction,
    value_fits,
)
from penstock.lake.sql.tokens import text_literal

NOT_JSON: Final = "_value"
"""The column under which values that are not JSON objects are reported."""

_EXACT_MAX: Final = float(1 << 53)
_MANY_DIGITS: Final = (
    "'(^|[^0-9.eE])-?[0-9]{16,20}([^0-9.eE]|$)|[0-9][eE][+]?[0-9]{3,}([^0-9A-Za-z\"]|$)'"
)
"""Matches JSON that may contain an integer beyond 53 bits, or a number that DOUBLE cannot
represent.
"""

_BEYOND_63_BITS: Final = "'(^|[^0-9.eE])(9[2-9][0-9]{17}|[0-9]{20})([^0-9.eE]|$)'"
"""Matches JSON that may contain a positive integer beyond 63 bits, for which DuckDB returns NULL.
"""

_LONG_FRACTION: Final = "'[1-9]([0-9]{15}|[0-9.]{16})'"
"""Matches JSON that may contain a fraction with more than 15 digits, which DOUBLE may round."""

_FRACTION_OR_NESTED: Final = r"^(-?[0-9]+[.e]|[\[{])"
"""Matches the text of fractions, lists and objects in a VARCHAR column, and a few strings."""

_VIEW_BYTES: Final = 16
"""Size of one element of a `string_view` array (Arrow columnar format, "Variable-size Binary View
Layout").
"""


def _to_timestamp(pattern: str, kind: str) -> str:
    """Return the SQL that parses text of this pattern. DuckDB alone would also cast 'epoch' and
    'infinity', ignore the zone of a TIMESTAMP, and drop digits after the sixth.
    """
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    return (
        "TRY_CAST(regexp_extract("
        "CASE WHEN contains({0}, '\\') THEN '\"' || ({0}::JSON ->> '$') || '\"' ELSE {0} END,"
        f" '^\"({escaped})\"$', 1) AS {kind})"
    )


_FROM_JSON: Final = {
    "BOOLEAN": "CASE {0} WHEN 'true' THEN true WHEN 'false' THEN false END",
    "BIGINT": "TRY_CAST({0} AS DOUBLE)",  # detect fractions, which DuckDB would round
    "DOUBLE": "TRY_CAST({0} AS DOUBLE)",
    "TIMESTAMP": _to_timestamp(TIME, "TIMESTAMP"),
    "TIMESTAMPTZ": _to_timestamp(TIME + ZONE, "TIMESTAMPTZ"),
}
"""SQL by type, which converts the text of a JSON value. Unlike `from_json`, it returns NULL for
values of other JSON types instead of casting them.
"""


_UNQUOTED: Final = (
    "CASE WHEN starts_with({0}, '\"') AND NOT contains({0}, '\\') THEN {0}[2:-2]"
    " ELSE from_json({0}, '\"VARCHAR\"') END"
)
"""SQL for the text of a JSON value. For a string without escapes, this is the text between its
quotes. `->>` is not used, because it writes 1e18 with all digits, unlike `from_json` for many
columns.
"""

_PLAIN_FIELD: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
EXTRACTED_COLUMNS_MAX: Final = 4


class JsonColumn(NamedTuple):
    """A column: its name, the name of the field, and its type."""

    name: str
    field: str
    kind: JsonType


class MisfitRows(NamedTuple):
    """The row numbers of values in a batch that do not fit their column."""

    column: str
    rows: Sequence[int]


_TYPES: Final[dict[str, DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "VARCHAR": pa.string(),
}


def arrow_type(kind: JsonType) -> DataType:
    """Return the Arrow type of a column of this type."""
    if isinstance(kind, ListOf):
        return pa.list_(pa.field("l", arrow_type(kind.item)))
    if isinstance(kind, StructOf):
        return pa.struct([(name, arrow_type(item)) for name, item in kind.fields])
    return _TYPES[kind]


@dataclass(frozen=True, slots=True)
class ParsedTable:
    """Columns in the requested order, and the values that did not fit."""

    arrays: list[Array]
    misfits: list[MisfitRows]


class JsonDecoder:
    """A parser for the requested columns. It must be closed."""

    def __init__(self, columns: Sequence[JsonColumn]) -> None:
        self._columns = columns
        self._groups = _groups(columns)
        self._extraction = _extraction(columns) if _is_extracted(columns) else ""
        self._database: Any = duckdb.connect(config={"threads": 1})
        self._idle: list[Any] = []
        """Unused connections. A parsing thread runs DuckDB itself. Connections are not
        thread-local, because one that is destroyed with its thread crashes the process (DuckDB
        2.0).
        """

    def close(self) -> None:
        """Close the parser. After this, no thread may parse values."""
        for connection in (*self._idle, self._database):
            connection.close()

    def parse(self, values: Array) -> ParsedTable:
        """Parse a batch of `string_view` values; the columns of a null value are null. Any number
        of threads may parse concurrently.
        """
        misfits: list[MisfitRows] = []
        source, table = values, self._select(values)
        if table is None:
            source = self._column(
                "SELECT CASE WHEN json_valid(v) THEN v END AS v FROM batch", values
            )
            table = self._select(source)
            assert table is not None, "DuckDB parses what it calls valid"
        found = [_one(column) for column in table.columns]
        found, unfit = found[: len(self._columns)], iter(found[len(self._columns) :])
        others = self._others(values, source, found)
        if others:
            misfits.append(MisfitRows(NOT_JSON, others))
        arrays = [
            self._checked(
                column, source, array, next(unfit) if column.kind in _FROM_JSON else None, misfits
            )
            for column, array in zip(self._columns, found, strict=True)
        ]
        return ParsedTable(arrays, misfits)

    # --- one pass over the batch ------------------------------------------------------------------

    def _select(self, values: Array) -> Table | None:
        """Return the parsed columns, followed by, for each column whose type is in `_FROM_JSON`,
        whether any value has a different type; None if a value is not JSON.
        """
        try:
            return self._run(self._extraction or self._conversion(), values)
        except (duckdb.Error, UnicodeDecodeError):  # the message may contain non-UTF-8 bytes
            return None

    def _conversion(self) -> str:
        """Return the statement that parses any columns with `from_json`."""
        parsed = ", ".join(
            f"from_json(v, {text_literal(json.dumps(_first_pass(group)))}) AS s{number}"
            for number, group in enumerate(self._groups)
        )
        texts = ", ".join(
            f"{self._text(column)} AS t{number}" for number, column in enumerate(self._columns)
        )
        return _converted(self._columns, f"SELECT {texts} FROM (SELECT {parsed} FROM batch)")  # noqa: S608 - quoted

    def _run(self, sql: str, values: Array) -> Table:
        """Run SQL on the table `batch`, whose column `v` contains the values."""
        try:
            connection = self._idle.pop()
        except IndexError:  # all connections are in use
            connection = self._database.cursor()
            connection.execute("SET TimeZone = 'UTC'")
        try:
            connection.register("batch", pa.table({"v": values}))
            return connection.sql(sql).to_arrow_table()
        finally:
            self._idle.append(connection)

    def _column(self, sql: str, values: Array) -> Array:
        return _one(self._run(sql, values).column(0))

    def _others(self, values: Array, source: Array, found: Sequence[Array]) -> list[int]:
        """Return the rows whose value is not a JSON object and thus has no fields."""
        empty = pc.is_valid(values)
        for array in found:
            empty = pc.and_(empty, pc.is_null(array))
        if not pc.any(empty, min_count=0).as_py():
            return []
        is_object = self._column(
            "SELECT coalesce(json_type(v) = 'OBJECT', false) FROM batch", _filtered(source, empty)
        )
        rows = _numbers(empty)
        return [row for row, has in zip(rows, is_object.to_pylist(), strict=True) if not has]

    def _text(self, column: JsonColumn) -> str:
        """Return the SQL of a column, which is JSON text if its type is in `_FROM_JSON`."""
        number = next(n for n, group in enumerate(self._groups) if column in group)
        field = f"struct_extract(s{number}, {text_literal(column.field)})"
        return f"{field}::VARCHAR" if column.kind in _FROM_JSON else field

    # --- a closer look ----------------------------------------------------------------------------

    def _checked(
        self,
        column: JsonColumn,
        values: Array,
        found: Array,
        unfit: Array,
        misfits: list[MisfitRows],
    ) -> Array:
        """Return the final column, and record the rows whose values have a different type. `unfit`:
        the rows found by the first pass, None for text and nested types.
        """
        if column.kind == "VARCHAR":
            look = pc.match_substring_regex(found, _FRACTION_OR_NESTED).fill_null(False)
            return self._with_digits(column, values, found, look)
        if not isinstance(column.kind, str):
            return self._checked_nested(column, values, found, misfits)
        changed = False
        if column.kind == "BIGINT":
            exact = _as_integers(found)
            changed = exact is None
            found = self._as_bigint(column, values) if exact is None else exact
        if column.kind == "DOUBLE" and _has_large(found):
            changed = True
            large = pc.greater_equal(pc.abs(found), _EXACT_MAX).fill_null(False)
            raw = self._raw(column, _filtered(values, large))
            rounded = _misfits(large, raw, column.kind)
            found = pc.if_else(rounded, pa.scalar(None, found.type), found)
        lost = self._lost(column, values, found) if changed else _numbers(unfit)
        if lost:
            misfits.append(MisfitRows(column.name, lost))
        return found

    def _lost(self, column: JsonColumn, values: Array, found: Array) -> list[int]:
        """Return the rows that have a value that is null in `found`."""
        unknown = pc.and_(pc.is_null(found), pc.is_valid(values))
        exists = pc.is_valid(self._raw(column, _filtered(values, unknown))).to_pylist()
        return [row for row, has in zip(_numbers(unknown), exists, strict=True) if has]

    def _as_bigint(self, column: JsonColumn, values: Array) -> Array:
        """Parse the values as integers and as doubles, and keep the integers that are not
        rounded.
        """
        return self._column(
            "SELECT CASE WHEN b::DOUBLE = d THEN b END AS b FROM"
            " (SELECT TRY_CAST(v AS BIGINT) AS b, TRY_CAST(v AS DOUBLE) AS d FROM batch)",
            self._raw(column, values),
        )

    def _raw(self, column: JsonColumn, values: Array) -> Array:
        """Return the JSON of the field; null if it is missing or null."""
        spec = text_literal(json.dumps({column.field: "JSON"}))
        return self._column(
            f"SELECT struct_extract(from_json(v, {spec}), {text_literal(column.field)})::VARCHAR"  # noqa: S608 - quoted
            " FROM batch",
            values,
        )

    def _with_digits(self, column: JsonColumn, values: Array, found: Array, look: Array) -> Array:
        """Parse the rows `look` again if they may contain fractions in VARCHAR that DuckDB has
        rounded to DOUBLE.
        """
        if not pc.any(look, min_count=0).as_py():
            return found
        chosen = _filtered(values, look)
        sql = f"SELECT regexp_matches(v, {_LONG_FRACTION}) AS v FROM batch"  # noqa: S608 - a literal
        is_long = self._column(sql, chosen)
        rows = [row for row, long in zip(_numbers(look), is_long.to_pylist(), strict=True) if long]
        if not rows:
            return found
        exact = dict[int, Any]()
        for row, text in zip(rows, _filtered(chosen, is_long).to_pylist(), strict=True):
            with suppress(RecursionError):  # more levels than Python can parse
                exact[row] = exact_field(text, column.field, column.kind)
        places = np.arange(len(found))
        places[list(exact)] = np.arange(len(found), len(found) + len(exact))
        return pa.concat_arrays([found, pa.array(list(exact.values()), found.type)]).take(
            pa.array(places)
        )

    def _checked_nested(
        self, column: JsonColumn, values: Array, found: Array, misfits: list[MisfitRows]
    ) -> Array:
        """Compare the structure of each value with the type. A value with a different structure
        becomes NULL as a whole, as does a value with more than 128 levels, whose structure DuckDB
        does not return.
        """
        raw = self._raw(column, values)
        structures = self._column("SELECT TRY(json_structure(v))::VARCHAR FROM batch", raw)
        known = {
            text: json.loads(text) for text in pc.unique(structures).to_pylist() if text is not None
        }
        unfit = [
            text for text, structure in known.items() if not structure_fits(structure, column.kind)
        ]
        rounded = [
            text for text, structure in known.items() if text_holds_fraction(structure, column.kind)
        ]
        lost = pc.and_(pc.is_null(structures), pc.is_valid(raw))
        unclear = [text for text in unfit if '"JSON"' in text]
        look = pc.is_in(structures, value_set=pa.array(unclear, structures.type))
        if unfit:
            lost = pc.or_(lost, pc.is_in(structures, value_set=pa.array(unfit, structures.type)))
        holds_doubles = _holds(column.kind, "DOUBLE")
        if holds_doubles or _holds(column.kind, "BIGINT"):
            pattern = _MANY_DIGITS if holds_doubles else _BEYOND_63_BITS
            sql = f"SELECT regexp_matches(v, {pattern}) AS v FROM batch"  # noqa: S608 - a literal
            look = pc.or_(look, self._column(sql, raw).fill_null(False))
        if pc.any(look, min_count=0).as_py():
            clear = pc.and_(lost, pc.invert(look))
            lost = pc.or_(clear, _misfits(look, raw.filter(look), column.kind))
        if pc.any(lost, min_count=0).as_py():
            misfits.append(MisfitRows(column.name, _numbers(lost)))
            found = pc.if_else(lost, pa.scalar(None, found.type), found)
        look = pc.is_in(structures, value_set=pa.array(rounded, structures.type))
        return self._with_digits(column, values, found, pc.and_(look, pc.is_valid(found)))


def _has_large(found: Array) -> bool:
    """Return whether a double may be a rounded integer."""
    extremes = pc.min_max(found).as_py()
    low, high = extremes["min"], extremes["max"]
    return low is not None and (low <= -_EXACT_MAX or high >= _EXACT_MAX)


def _misfits(rows: Array, raw: Array, kind: JsonType) -> Array:
    """Return the selected rows that do not fit the type. `raw`: their JSON."""
    fits = [text is None or _text_fits(text, kind) for text in raw.to_pylist()]
    unfit = {row for row, fit in zip(_numbers(rows), fits, strict=True) if not fit}
    return pa.array([row in unfit for row in range(len(rows))], pa.bool_())


def _text_fits(text: str, kind: JsonType) -> bool:
    try:
        return value_fits(json.loads(text, parse_float=fraction), kind)
    except (RecursionError, ValueError):  # more levels or digits than Python can parse
        return False


def _holds(kind: JsonType, scalar: str) -> bool:
    """Return whether a type contains a scalar type."""
    if isinstance(kind, ListOf):
        return _holds(kind.item, scalar)
    if isinstance(kind, StructOf):
        return any(_holds(item, scalar) for _, item in kind.fields)
    return kind == scalar


def _groups(columns: Sequence[JsonColumn]) -> list[list[JsonColumn]]:
    """Split columns so that no group contains two fields whose names differ only in case, because a
    DuckDB struct cannot contain both.
    """
    groups: list[list[JsonColumn]] = []
    for column in columns:
        for group in groups:
            if all(column.field.lower() != other.field.lower() for other in group):
                group.append(column)
                break
        else:
            groups.append([column])
    return groups


def _is_extracted(columns: Sequence[JsonColumn]) -> bool:
    """Return whether to use `json_extract` instead of `from_json`. `json_extract` is faster for up
    to 8 columns, and takes less than 0.85 of the CPU time for up to 4. It is used only for plain
    field names, because others would require escapes in paths.
    """
    return len(columns) <= EXTRACTED_COLUMNS_MAX and all(
        isinstance(column.kind, str) and _PLAIN_FIELD.fullmatch(column.field) for column in columns
    )


def _extraction(columns: Sequence[JsonColumn]) -> str:
    """Return the statement that parses a few columns of scalar types with `json_extract`."""
    paths = ", ".join(f"'$.\"{column.field}\"'" for column in columns)
    texts = ", ".join(f"j[{number + 1}]::VARCHAR AS t{number}" for number in range(len(columns)))
    extracted = f"SELECT json_extract(v, [{paths}]) AS j FROM batch"  # noqa: S608 - plain names
    return _converted(columns, f"SELECT {texts} FROM ({extracted})", _UNQUOTED)  # noqa: S608 - plain names


def _converted(columns: Sequence[JsonColumn], texts: str, others: str = "{0}") -> str:
    """Return the statement that converts JSON texts, and finds those of a different type. `texts`:
    the statement that returns them as t0 and so on. `others`: SQL for columns not in `_FROM_JSON`.
    """
    fields, unfit = list[str](), list[str]()
    for number, column in enumerate(columns):
        sql = _FROM_JSON.get(str(column.kind), others)
        fields.append(f"{sql.format(f't{number}')} AS c{number}")
        if column.kind in _FROM_JSON:
            unfit.append(f"c{number} IS NULL AND t{number} <> 'null'")
    names = [f"c{number}" for number in range(len(columns))]
    return f"SELECT {', '.join(names + unfit)} FROM (SELECT *, {', '.join(fields)} FROM ({texts}))"  # noqa: S608 - quoted


def _first_pass(group: Sequence[JsonColumn]) -> dict[str, Any]:
    """Return the structure argument for `from_json`."""
    return {
        column.field: "JSON" if column.kind in _FROM_JSON else _spec(column.kind)
        for column in group
    }


def _spec(kind: JsonType) -> Any:  # noqa: ANN401 - JSON
    if isinstance(kind, ListOf):
        return [_spec(kind.item)]
    if isinstance(kind, StructOf):
        return {name: _spec(item) for name, item in kind.fields}
    return kind


def _as_integers(found: Array) -> Array | None:
    """Return doubles as integers, or None if one may differ from the number in the text."""
    if _has_large(found):
        return None
    try:
        return found.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _filtered(values: Array, mask: Array) -> Array:
    """Return the values where the mask is true. Arrow cannot filter views, so they are filtered as
    fixed-size bytes. This takes less than 1 ms of CPU per batch; DuckDB would take 6 ms.
    """
    if values.type != pa.string_view():
        return values.filter(mask)
    valid, views, *data = values.buffers()
    fixed = pa.Array.from_buffers(
        pa.binary(_VIEW_BYTES), len(values), [valid, views], offset=values.offset
    ).filter(mask)
    return pa.Array.from_buffers(pa.string_view(), len(fixed), [*fixed.buffers(), *data])


def _numbers(mask: Array) -> list[int]:
    """Return the numbers of the rows where the mask is true."""
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def _one(column: Any) -> Array:  # noqa: ANN401 - pyarrow is untyped
    """Return a column of a table as one array."""
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        return found.chunk(0) if found.num_chunks else pa.array([], found.type)
    return found

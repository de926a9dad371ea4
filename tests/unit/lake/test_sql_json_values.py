"""JSON values are converted to arrays of the declared column types."""

import json
import math
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.sql.inference import JsonType, ListOf, StructOf
from penstock.lake.sql.json_values import (
    EXTRACTED_COLUMNS_MAX,
    JsonColumn,
    JsonDecoder,
    arrow_type,
)
from penstock.lake.table.values import ValueDecoder, ValueFormat

KINDS: list[JsonType] = [
    "BOOLEAN",
    "BIGINT",
    "DOUBLE",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "VARCHAR",
    ListOf("BIGINT"),
    ListOf(ListOf("TIMESTAMPTZ")),
    StructOf((("a", "VARCHAR"), ("b", ListOf(StructOf((("c", "BOOLEAN"),)))))),
]


def test_array_types_do_not_depend_on_the_values() -> None:
    columns = [JsonColumn(f"c{i}", f"f{i}", kind) for i, kind in enumerate(KINDS)]
    with closing(JsonDecoder(columns)) as decoder:
        given: list[list[str | None]] = [[], ["{}", None]]
        for values in given:
            found = decoder.parse(pa.array(values, pa.string_view()))
            assert [array.type for array in found.arrays] == [arrow_type(kind) for kind in KINDS]


def test_sql_takes_the_first_of_repeated_names_and_tables_the_last() -> None:
    """DuckDB finds the first member, msgspec and Jackson the last one. The documentation of SQL
    describes the difference.
    """
    inner = StructOf((("b", "BIGINT"),))
    columns = [JsonColumn("a", "a", "BIGINT"), JsonColumn("o", "o", inner)]
    texts = [
        '{"a": 1, "o": {"b": 1, "b": 2}, "a": 2}',
        '{"a": 1, "a": null, "o": {"b": 1}, "o": {"b": 2}}',
        '{"a": 1, "\\u0061": 2, "o": {"b": 1, "b": null}}',
    ]
    for asked in ([columns[0]], columns):  # with json_extract and with from_json
        with closing(JsonDecoder(asked)) as decoder:
            parsed = decoder.parse(pa.array(texts, pa.string_view()))
        assert parsed.misfits == []
        found = [array.to_pylist() for array in parsed.arrays]
        assert found == [[1, 1, 1], [{"b": 1}] * 3][: len(asked)]
    integer = {"type": ["integer", "null"]}
    members = {"a": integer, "o": {"type": "object", "properties": {"b": integer}}}
    schema = json.dumps({"type": "object", "properties": members}).encode()
    table = ValueDecoder(ValueFormat("json", schema))
    decoded = table.decode(pa.array([text.encode() for text in texts], pa.binary()))
    assert decoded.columns["a"].to_pylist() == [2, None, 2]
    assert decoded.columns["o"].to_pylist() == [{"b": 2}, {"b": 2}, {"b": None}]


def test_rows_that_do_not_fit_are_found_in_sliced_views() -> None:
    """Views are filtered as bytes: short values are inside the view itself, long ones elsewhere."""
    long = "x" * 100
    values = ["{}", '{"a": 1}', None, '{"a": "no"}', "{}", f'{{"a": "{long}"}}', "[]", '{"a": 2}']
    sliced = pa.array(values, pa.string_view()).slice(1)
    with closing(JsonDecoder([JsonColumn("a", "a", "BIGINT")])) as decoder:
        found = decoder.parse(sliced)
    assert found.arrays[0].to_pylist() == [1, None, None, None, None, None, 2]
    assert {item.column: list(item.rows) for item in found.misfits} == {"a": [2, 4], "_value": [5]}


ODD = [
    *('"a"', '""', '"\\""', '"null"', "null", "true", "1", "1.50", "-0.0", "1e400", '"2"'),
    *("12345678901234567890", "9007199254740993", '"\\u00e9\\n"', '"\u65e5"', '"\u0301x\u200d"'),
    *("1e15", "1e18", "-1.5e22", "1e-7", "0.00001", "[1e18]", '{"x": 1e300}', "1E2"),
    *('{"x": null}', '[1, "2"]', "{}", '"2026-01-01T00:00:00Z"', '"\\ud83d\\ude00"', '"\\\\"'),
]
"""A field in JSON."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if isinstance(kind, str)])
def test_few_and_many_columns_are_parsed_to_the_same_values(kind: JsonType) -> None:
    """Up to EXTRACTED_COLUMNS_MAX columns are parsed by a different SQL statement."""
    values = [f'{{"f0": {value}, "f1": {other}}}' for value in ODD for other in ("1", '"z"')]
    values += ['{"f0":1,"f0":2}', '{"F0":1}', "5", '[{"f0":1}]', "null", ' {"f1" : "b"} ', '{"f0":']
    source = pa.array(values, pa.string_view())
    columns = [JsonColumn(f"f{i}", f"f{i}", kind) for i in range(EXTRACTED_COLUMNS_MAX + 1)]
    with closing(JsonDecoder(columns[:2])) as few, closing(JsonDecoder(columns)) as many:
        found, expected = few.parse(source), many.parse(source)
    assert [array.to_pylist() for array in found.arrays] == [
        array.to_pylist() for array in expected.arrays[:2]
    ]
    assert found.misfits == expected.misfits


@pytest.mark.parametrize(
    ("kind", "fits", "others"),
    [
        (
            "DOUBLE",
            {
                "9007199254740992": 2.0**53,
                "1152921504606846976": 2.0**60,
                "1180591620717411300000": 2.0**70,
                "9007199254740993.5": 9007199254740994.0,
                "1e300": 1e300,
                "-Infinity": -math.inf,
            },
            [
                *("9007199254740993", "-9007199254740993", "18446744073709551615", "1" * 5_000),
                *("1e400", "-1.5E+309", "1" * 400),
            ],
        ),
        (
            ListOf("DOUBLE"),
            {
                "[1.5, 9007199254740992]": [1.5, 2.0**53],
                "[0.12345678901234567]": [0.12345678901234567],
                "[1e300]": [1e300],
            },
            [
                *("[1, 1e400]", "[-1.5E+309 , 1]"),
                "[1.5, 9007199254740993]",
                "[ -9007199254740993]",
                f"[12345678901234567, {'1' * 5_000}]",
                f"{'[' * 5_000}12345678901234567{']' * 5_000}",
            ],
        ),
        (
            StructOf((("a", "DOUBLE"), ("b", "BIGINT"))),
            {'{"a": 1, "b": 9007199254740993}': {"a": 1.0, "b": 9007199254740993}},
            ['{"b": 1, "a":9007199254740993}', '{"a":1e400}'],
        ),
        (
            StructOf((("a", "BIGINT"),)),
            {"{}": {"a": None}, '{"a": 9223372036854775807}': {"a": 2**63 - 1}},
            ["[]", '{"a": 9223372036854775808}', '{"a":18446744073709551615}'],
        ),
        (
            ListOf(ListOf("BIGINT")),
            {"[[-9223372036854775808],null]": [[-(2**63)], None]},
            ["[[1,9223372036854775808]]", "[[-9223372036854775809]]"],
        ),
        (
            ListOf("VARCHAR"),
            {'[1, "x", {"a": [2]}, [3], null, true]': ["1", "x", '{"a":[2]}', "[3]", None, "true"]},
            ["1"],
        ),
    ],
)
def test_nothing_is_rounded_or_lost(
    kind: JsonType, fits: dict[str, Any], others: list[str]
) -> None:
    rows = {f'{{"x": {text}}}': value for text, value in fits.items()}
    rows |= dict.fromkeys(f'{{"x": {text}}}' for text in others)
    with closing(JsonDecoder([JsonColumn("x", "x", kind)])) as decoder:
        found = decoder.parse(pa.array(list(rows), pa.string_view()))
    assert found.arrays[0].to_pylist() == list(rows.values())
    assert [list(item.rows) for item in found.misfits] == [list(range(len(fits), len(rows)))]


LONG = "0.12345678901234567890"
LONG_IN_TEXT: dict[str, str | None] = {
    LONG: LONG,
    f"-{LONG}e-7": f"-{LONG}e-7",
    "1234567890123456.789012": "1234567890123456.789012",
    "12345678901234567891e3": "12345678901234567891e3",
    "0.10000000000000000001": "0.10000000000000000001",
    f'"{LONG}"': LONG,
    f'[ {LONG}, 1, "a\\"b\u00e9", null ]': f'[{LONG},1,"a\\"b\u00e9",null]',
    f'{{"x": true, "x": {LONG}, "y": {{}}}}': f'{{"x":true,"x":{LONG},"y":{{}}}}',
    "null": None,
    "1.5": "1.5",
}


@pytest.mark.parametrize("others", [0, EXTRACTED_COLUMNS_MAX])
def test_text_keeps_all_digits_of_fractions(others: int) -> None:
    rows = {f'{{"x": {text}, "x": 1}}': value for text, value in LONG_IN_TEXT.items()}
    columns = [JsonColumn("x", "x", "VARCHAR")]
    columns += [JsonColumn(f"f{i}", f"f{i}", "VARCHAR") for i in range(others)]
    with closing(JsonDecoder(columns)) as decoder:
        found = decoder.parse(pa.array([None, *rows], pa.string_view()))
    assert found.arrays[0].to_pylist() == [None, *rows.values()]
    assert found.misfits == []


def test_nested_text_keeps_all_digits_of_fractions() -> None:
    item = StructOf((("t", "VARCHAR"), ("n", "BIGINT"), ("d", "DOUBLE"), ("b", "BOOLEAN")))
    rows = {
        f'{{"x": [{{"t": {text}, "n": 7, "d": {LONG}, "b": true, "t": 1}}, null, {{}}]}}': value
        for text, value in LONG_IN_TEXT.items()
    }
    rows[f'{{"x": [{{"t": {LONG}, "n": "no"}}]}}'] = None
    with closing(JsonDecoder([JsonColumn("x", "x", ListOf(item))])) as decoder:
        found = decoder.parse(pa.array(list(rows), pa.string_view()))
    *fitting, unfit = found.arrays[0].to_pylist()
    empty = dict.fromkeys("tndb")
    assert fitting == [
        [{"t": value, "n": 7, "d": float(LONG), "b": True}, None, empty]
        for value in LONG_IN_TEXT.values()
    ]
    assert unfit is None
    assert [list(misfits.rows) for misfits in found.misfits] == [[len(LONG_IN_TEXT)]]


ODD_TIMES = [
    *('"epoch"', '"infinity"', '"2026-01-02"', '"2026-01-02T03:04"', '" 2026-01-02T03:04:05"'),
    *('"2026-1-2 3:4:5"', '"2026-01-02T03:04:05.1234567"', '"2026-01-02T03:04:05 Europe/Berlin"'),
    *('"10000-01-01T00:00:00Z"', '"2026-01-02T03:04:05.123456789Z"', '"2026-02-30T00:00:00"'),
]
"""Strings that DuckDB casts to a time, and similar ones that it does not cast."""


@pytest.mark.parametrize(
    ("kind", "fits", "others"),
    [
        ("DOUBLE", {"1.5": 1.5, "3": 3.0, " -2e3": -2000.0}, ["true", "false", '"2"', '"yes"']),
        ("BIGINT", {"1": 1, "0": 0, "9007199254740993": 9007199254740993}, ["true", '"2"', "1.5"]),
        ("BOOLEAN", {"true": True, " false": False}, ["1", "0", '"yes"', '"true"', "-1.5"]),
        (
            "TIMESTAMP",
            {'"2026-01-02T03:04:05"': datetime.fromisoformat("2026-01-02T03:04:05")},
            ["5", "true", *ODD_TIMES, '"2026-01-02T03:04:05Z"', '"2026-01-02 03:04:05+02"'],
        ),
        (
            "TIMESTAMPTZ",
            dict.fromkeys(
                ('"2026-01-02T03:04:05Z"', '"2026-01-02T05:04:05\\u002b0200"'),
                datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            ),
            ["1767323045", "false", '"soon"', *ODD_TIMES, '"2026-01-02T03:04:05"'],
        ),
    ],
)
def test_values_of_another_type_do_not_fit(
    kind: str, fits: dict[str, Any], others: list[str]
) -> None:
    """DuckDB casts most of them."""
    for name in ("a", 'odd ".*name[', "\u00e9"):
        key = json.dumps(name, ensure_ascii=False)
        rows = {f"{{{key}: {text}}}": value for text, value in fits.items()}
        rows |= dict.fromkeys(f'{{"z":[],{key}:{text} }}' for text in (*others, "[]", "{}"))
        rows |= {f'{{"n": {{{key}: {others[0]}}}}}': None, f"{{{key}: null}}": None}
        escaped = "".join(f"\\u{ord(char):04x}" for char in name)
        rows |= {f'{{"{escaped}": {text}}}': None for text in others}
        with closing(JsonDecoder([JsonColumn("column", name, kind)])) as decoder:
            found = decoder.parse(pa.array(list(rows), pa.string_view()))
        assert found.arrays[0].to_pylist() == list(rows.values())
        (misfits,) = found.misfits
        assert misfits.column == "column"
        assert len(misfits.rows) == 2 * len(others) + 2

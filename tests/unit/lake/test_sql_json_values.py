"""JSON values become arrays of the types that the columns of a topic are said to have."""

from contextlib import closing

from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.sql.inference import JsonType, ListOf, StructOf
from penstock.lake.sql.json_values import JsonColumn, JsonDecoder, arrow_type

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


def test_types_are_known_before_values_are_parsed() -> None:
    columns = [JsonColumn(f"c{i}", f"f{i}", kind) for i, kind in enumerate(KINDS)]
    with closing(JsonDecoder(columns)) as decoder:
        given: list[list[str | None]] = [[], ["{}", None]]
        for values in given:
            found = decoder.parse(pa.array(values, pa.string_view()))
            assert [array.type for array in found.arrays] == [arrow_type(kind) for kind in KINDS]


def test_rows_of_a_slice_of_views_that_do_not_fit_are_found() -> None:
    """Views are filtered as bytes: short values lie in the view itself, long ones elsewhere."""
    long = "x" * 100
    values = ["{}", '{"a": 1}', None, '{"a": "no"}', "{}", f'{{"a": "{long}"}}', "[]", '{"a": 2}']
    sliced = pa.array(values, pa.string_view()).slice(1)
    with closing(JsonDecoder([JsonColumn("a", "a", "BIGINT")])) as decoder:
        found = decoder.parse(sliced)
    assert found.arrays[0].to_pylist() == [1, None, None, None, None, None, 2]
    assert {item.column: list(item.rows) for item in found.misfits} == {"a": [2, 4], "_value": [5]}

"""JSON values become arrays of the types that the columns of a topic are said to have."""

from contextlib import closing

from lake.arrow.pyarrow_untyped import pa
from lake.sql.inference import JsonType, ListOf, StructOf
from lake.sql.json_values import JsonColumn, JsonDecoder, arrow_type

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

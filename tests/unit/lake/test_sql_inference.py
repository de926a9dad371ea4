"""Column types inferred from samples: they accommodate every sample, and depend only on the
samples.
"""

import json
from typing import Any

import pytest

from penstock.lake.sql.inference import (
    COLUMNS_MAX,
    DEPTH_MAX,
    NESTED_FIELDS_MAX,
    ListOf,
    StructOf,
    infer,
    structure_fits,
)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(2**63)], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([1, 2**63], "VARCHAR"),
        ([True, False], "BOOLEAN"),
        ([True, 1], "VARCHAR"),
        ([1, "1"], "VARCHAR"),
        ([None], "VARCHAR"),
        (["2026-03-01T12:00:00Z", "2026-03-01 12:00:00.123+02:00"], "TIMESTAMPTZ"),
        (["2026-03-01T12:00:00"], "TIMESTAMP"),
        (["2026-03-01T12:00:00", "2026-03-01T12:00:00Z"], "VARCHAR"),
        (["2026-03-01"], "VARCHAR"),
        (["2026-03-01 12:00:00", "0000-00-00 00:00:00"], "VARCHAR"),
        (["2026-02-30T12:00:00Z"], "VARCHAR"),
        (["2026-03-01T12:00:00-99:99"], "VARCHAR"),
        (["2026-03-01T12:00:00.5+05", "2026-03-01T12:00:00+0530"], "TIMESTAMPTZ"),
        ([[1], [], [2.5]], ListOf("DOUBLE")),
        ([[]], ListOf("VARCHAR")),
        ([{"a": 1}, {"b": [True]}], StructOf((("a", "BIGINT"), ("b", ListOf("BOOLEAN"))))),
        ([{"a": 1}, {"A": 1}], "VARCHAR"),
        ([{"a": 1}, [1]], "VARCHAR"),
        ([{}], "VARCHAR"),
        ([{}, {"a": 1}, {}], StructOf((("a", "BIGINT"),))),
        ([{"b": {}}, {"b": {"a": 1}}], StructOf((("b", StructOf((("a", "BIGINT"),))),))),
        ([[{}, {"a": 1}], [{}]], ListOf(StructOf((("a", "BIGINT"),)))),
        ([[{}], []], ListOf("VARCHAR")),
        ([{}, 1], "VARCHAR"),
        ([{"b": {}}], StructOf((("b", "VARCHAR"),))),
        ([9007199254740993, 1], "BIGINT"),
        ([9007199254740993, 1.5], "VARCHAR"),
        ([1, 1.5, -9007199254740993], "VARCHAR"),
        ([9007199254740992, 1.5, 2**60], "DOUBLE"),
        ([[9007199254740993], [1.5]], ListOf("VARCHAR")),
        ([[1, 1.5, 9007199254740993]], ListOf("VARCHAR")),
        ([{"a": 9007199254740993}, {"a": 1.5}], StructOf((("a", "VARCHAR"),))),
        ([[1, "x"]], ListOf("VARCHAR")),
        ([[1, {"a": 1}], [[2]]], ListOf("VARCHAR")),
        ([{str(n): n for n in range(NESTED_FIELDS_MAX + 1)}], "VARCHAR"),
    ],
)
def test_a_column_type_accommodates_every_sample(values: list[Any], kind: object) -> None:
    found = infer(json.dumps({"x": value}).encode() for value in values)
    assert found.fields == (("x", kind),)
    assert infer(json.dumps({"x": value}).encode() for value in reversed(values)).fields[0][
        1
    ] == kind or isinstance(kind, StructOf)


def test_values_that_are_not_objects_are_counted_and_ignored() -> None:
    samples = [b'{"a": 1}', b"[1]", b"7", b"nope", b"\xff", b"[" * 100_000]
    found = infer(samples)
    assert (found.objects, found.others, found.invalid) == (1, 2, 3)
    assert found.fields == (("a", "BIGINT"),)


def test_numbers_that_double_cannot_hold_become_text() -> None:
    numbers = b'{"a": 1e400, "b": [-1e309], "c": 1e308, "d": Infinity}', b'{"a": 1.5, "b": [1]}'
    expected = (("a", "VARCHAR"), ("b", ListOf("VARCHAR")), ("c", "DOUBLE"), ("d", "DOUBLE"))
    assert infer(numbers).fields == expected


def test_types_of_deep_and_wide_values_are_limited() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX + 5):
        deep = {"d": deep}
    kind = infer([json.dumps({"x": deep}).encode()]).fields[0][1]
    depth = 0
    while isinstance(kind, StructOf):
        kind, depth = kind.fields[0][1], depth + 1
    assert (kind, depth) == ("VARCHAR", DEPTH_MAX)
    wide = {f"f{n}": n for n in range(COLUMNS_MAX + 100)}
    assert len(infer([json.dumps(wide).encode()]).fields) == COLUMNS_MAX


def test_a_structure_fits_only_without_loss() -> None:
    kind = StructOf((("a", "BIGINT"), ("b", ListOf("DOUBLE"))))
    assert structure_fits({"a": "UBIGINT", "b": ["DOUBLE"], "new": "VARCHAR"}, kind)
    assert structure_fits({"a": "NULL"}, kind)
    assert not structure_fits({"a": "DOUBLE"}, kind)
    assert not structure_fits({"b": ["VARCHAR"]}, kind)
    assert not structure_fits(["UBIGINT"], kind)

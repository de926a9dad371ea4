"""`AS OF`, statements and tables are found in SQL, and never in strings, names or comments."""

from datetime import UTC, datetime

import pytest

from penstock.lake.sql.errors import SqlError
from penstock.lake.sql.tokens import (
    changed_name,
    is_complete,
    names_in,
    replace_as_of,
    statements_of,
    table_names,
    tokens_of,
)


def test_as_of_is_replaced_by_a_table() -> None:
    text, tables = replace_as_of(
        "SELECT 'é', x FROM \"or\"\"ders\" as of TIMESTAMP '2026-03-01T00:00:00+01:00' o"
        " JOIN b AS OF snapshot 'it''s' USING (x)"
    )
    assert [(table.topic, table.as_of, table.snapshot) for table in tables] == [
        ('or"ders', datetime.fromisoformat("2026-03-01T00:00:00+01:00"), ""),
        ("b", None, "it's"),
    ]
    assert text == (
        'SELECT \'é\', x FROM "or""ders as of timestamp 2026-03-01T00:00:00+01:00" o'
        ' JOIN "b as of snapshot it\'s" AS "b" USING (x)'
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'orders AS OF TIMESTAMP ''2026''' FROM x",
        "SELECT 1 -- FROM orders AS OF TIMESTAMP '2026-01-01'",
        "SELECT 1 /* orders AS OF SNAPSHOT 'a' */",
        "SELECT $$orders AS OF SNAPSHOT 'a'$$",
        "SELECT 1 AS \"orders AS OF SNAPSHOT 'a'\"",
        "SELECT x AS of FROM t",
        "SELECT 'open",
    ],
)
def test_strings_are_not_parsed_as_sql(sql: str) -> None:
    assert replace_as_of(sql) == (sql, [])


def test_a_time_without_a_zone_is_utc_and_invalid_times_are_rejected() -> None:
    _, (table,) = replace_as_of("FROM t AS OF TIMESTAMP '2026-03-01'")
    assert table.as_of == datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(SqlError, match="'soon' is not a time"):
        replace_as_of("FROM t AS OF TIMESTAMP 'soon'")


@pytest.mark.parametrize(
    ("rest", "alias"),
    [
        ("RETURNING t.x", ' AS "t"'),
        ("ANTI JOIN b USING (x)", ' AS "t"'),
        (")", ' AS "t"'),
        ("AS o", ""),
        ("map", ""),
        ('"where"', ""),
    ],
)
def test_a_table_as_of_a_snapshot_keeps_its_name_without_an_alias(rest: str, alias: str) -> None:
    text, _ = replace_as_of(f"SELECT * FROM t AS OF SNAPSHOT 's' {rest}")
    assert text == f'SELECT * FROM "t as of snapshot s"{alias} {rest}'


def test_statements_end_at_semicolons_outside_strings() -> None:
    assert statements_of("SELECT ';'; -- a;b\n SELECT \";\" ;;") == [
        "SELECT ';'",
        '-- a;b\n SELECT ";"',
    ]
    assert is_complete("SELECT 1; -- done")
    assert not is_complete("SELECT ';")
    assert not is_complete("SELECT 1 -- ;")


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("INSERT INTO t VALUES (1)", "t"),
        ('insert or replace into "a.b" (x) SELECT 1', "a.b"),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "t"),
        ("UPDATE t SET a = 1", "t"),
        ("DELETE FROM main.t WHERE a", "t"),
        ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", "t"),
        ("TRUNCATE t", "t"),
        ("DROP VIEW IF EXISTS t", "t"),
        ("ALTER TABLE t ADD COLUMN x INT", "t"),
        ("COMMENT ON TABLE t IS 'x'", "t"),
        ("SELECT * FROM t", ""),
        ("SELECT delete FROM t", ""),
        ("WITH x AS (SELECT 1) SELECT * FROM t", ""),
        ("CREATE VIEW v AS SELECT 1", ""),
        ("DROP", ""),
    ],
)
def test_the_target_of_a_statement_is_found(sql: str, name: str) -> None:
    assert changed_name(tokens_of(sql)) == name


def test_table_names_are_found() -> None:
    tokens = tokens_of('SELECT a.b, "_value" FROM a, "c.d" JOIN f(1) x ON lower(k) = \'q\'')
    assert {item.topic for item in table_names(tokens)} >= {"a", "c.d"}
    assert "f" not in {item.topic for item in table_names(tokens)}
    assert "_value" in names_in(tokens)
    assert "q" not in names_in(tokens)

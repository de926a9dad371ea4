"""The option `--schema` of `penstock table sync` and `penstock sql`: files with ids."""

from pathlib import Path

import pytest

from penstock.deploy.cli.sql import TopicOptions
from penstock.deploy.cli.table import RowOptions
from penstock.deploy.errors import UsageError
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.values import ValueFormat


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("one.avsc", "two=2.avsc", "three.desc")]
    for path in paths:
        path.write_text(path.stem)
    return list(map(str, paths))


def test_schemas_of_a_table_export(files: list[str]) -> None:
    one, two, _ = files
    plain = RowOptions(value_format="avro", schema=[two])
    assert plain.format("orders") == ValueFormat("avro", b"two=2")
    given = RowOptions(value_format="avro", schema=[f"7={one}", f"8={two}", one], framed=True)
    by_id = ((7, b"one"), (8, b"two=2"))
    assert given.format("orders") == ValueFormat("avro", b"one", "", framed=True, schemas=by_id)
    with pytest.raises(InvalidSchema, match="add --framed"):
        RowOptions(value_format="avro", schema=[f"7={one}"]).format("orders")
    with pytest.raises(UsageError, match=r"--schema 7=missing: No such file"):
        RowOptions(value_format="avro", schema=["7=missing"], framed=True).format("orders")


def test_schemas_of_an_sql_statement(files: list[str]) -> None:
    one, two, three = files
    given = TopicOptions(schema=[f"a=7={one}", f"a=8={two}", f"b={one}"], framed=["a"])
    by_id = ((7, b"one"), (8, b"two=2"))
    assert given.formats() == {
        "a": ValueFormat("avro", b"", "", framed=True, schemas=by_id),
        "b": ValueFormat("avro", b"one"),
    }
    with pytest.raises(UsageError, match="the same format"):
        TopicOptions(schema=[f"a=7={one}", f"a=8={three}"], framed=["a"]).formats()
    with pytest.raises(UsageError, match="--framed for a requires --schema"):
        TopicOptions(framed=["a"]).formats()

"""Upgrade Iceberg tables with the column `_partition`, which Iceberg reserves. Parquet tables keep
it. Fields of producers may have almost any name.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.table import Table as NativeTable
from pyiceberg.transforms import DayTransform, IdentityTransform

from penstock.base.partition_spec import DAY
from penstock.lake.table.catalog import open_catalog
from penstock.lake.table.compact import compact
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.iceberg import LAYOUT, RESERVED
from penstock.lake.table.model import LAYOUT_VERSION, OLDER_PARTITION, PARTITION
from penstock.lake.table.rows import row_schema
from penstock.lake.table.values import ValueDecoder, ValueFormat
from penstock.objectstore.directory import DirectoryStore
from tests.support.table_log import Log
from tests.support.table_runs import JSON, Run

MODES: list[dict[str, Any]] = [
    {},
    {"partition_by": (DAY,)},
    {"upsert": True},
    {"upsert": True, "partition_by": (DAY,)},
]


@pytest.fixture
def run(log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", "iceberg")


def native(run: Run) -> NativeTable:
    return open_catalog(run.catalog_name, run.warehouse.properties()).load_table("default.t")


def create_older(run: Run, *, upsert: bool = False, partition_by: object = None) -> None:
    """Create an Iceberg table with layout version 1."""
    catalog: Any = open_catalog(run.catalog_name, run.warehouse.properties())
    catalog.create_namespace("default")
    schema = row_schema(ValueDecoder(JSON).schema, headers=False, partition_column=OLDER_PARTITION)
    with (
        catalog.create_table_transaction("default.t", schema) as made,
        made.update_spec() as spec,
    ):
        if upsert:
            spec.add_field(OLDER_PARTITION, IdentityTransform(), "partition")
        if partition_by:
            spec.add_field("_timestamp", DayTransform(), "day")


def check_rows(run: Run, *, upsert: bool = False, **_: Any) -> None:
    if not upsert:
        run.check()
        return
    assert {(row[PARTITION], row["_key"]): row["_offset"] for row in run.rows()} == {
        key: record.offset for key, record in run.log.of_key().items()
    }


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_next_export_renames_the_column_of_an_older_table(run: Run, mode: dict[str, Any]) -> None:
    create_older(run, **mode)
    assert run.sync(older=True, **mode).run_batch() is not None
    older = native(run)
    field = older.schema().find_field(OLDER_PARTITION)
    first = older.current_snapshot()
    assert first is not None
    rows = older.scan().to_arrow()
    assert rows.num_rows
    assert LAYOUT not in older.properties
    run.all(**mode)
    table = native(run)
    assert OLDER_PARTITION not in table.schema().column_names
    assert table.schema().find_field(PARTITION).field_id == field.field_id
    assert table.properties[LAYOUT] == str(LAYOUT_VERSION)
    assert len(table.schemas()) == 2
    mapped = {item.field_id: item.names for item in table.name_mapping()}
    assert set(mapped[field.field_id]) == {OLDER_PARTITION, PARTITION}
    assert table.spec() == older.spec()
    check_rows(run, **mode)
    assert all(row[PARTITION] is not None for row in run.rows_of_files())
    before = table.scan(snapshot_id=first.snapshot_id).to_arrow()
    assert before.sort_by("_offset") == rows.sort_by("_offset")
    assert run.all(**mode) == []


def test_concurrent_exports_rename_the_column_once(run: Run) -> None:
    create_older(run)
    assert run.sync(older=True).run_batch() is not None
    run.three_at_once()
    run.check()
    assert len(native(run).schemas()) == 2


@pytest.mark.parametrize("mode", MODES[:3:2], ids=str)
def test_export_started_before_the_rename_loses_no_record(run: Run, mode: dict[str, Any]) -> None:
    """The column is renamed just before a batch with the old name is committed."""
    create_older(run, **mode)

    def upgrade(_: Any) -> None:
        table = run.warehouse.existing("t")
        table.state()
        table.upgrade()

    sync = run.sync(older=True, before=upgrade, **mode)
    while sync.run_batch() is not None:
        pass
    check_rows(run, **mode)
    assert len(native(run).schemas()) == 2


def test_compaction_of_an_older_table_keeps_its_column_names(run: Run) -> None:
    create_older(run)
    sync = run.sync(older=True)
    assert sync.run_batch() is not None
    assert sync.run_batch() is not None
    assert compact(run.warehouse.existing("t"), run.engine).rows
    assert OLDER_PARTITION in native(run).schema().column_names
    run.all()
    run.check()


def test_table_with_both_columns_is_refused(run: Run) -> None:
    run.sync().run_batch()
    with native(run).update_schema() as update:
        update.union_by_name(pa.schema([(OLDER_PARTITION, pa.int32())]))
    with pytest.raises(InvalidTable, match=r"_partition and _kafka_partition.*another table"):
        run.all()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_parquet_tables_keep_the_older_name(log: Log, tmp_path: Path, mode: dict[str, Any]) -> None:
    run = Run(log, tmp_path / "warehouse", "parquet")
    assert run.sync(older=True, **mode).run_batch() is not None
    compact(run.warehouse.existing("t"), run.engine)
    run.all(**mode)
    rows = run.rows()
    assert OLDER_PARTITION in rows[0]
    assert PARTITION not in rows[0]
    assert {(row[OLDER_PARTITION], row["_offset"]) for row in rows} == {
        (record.partition, record.offset)
        for record in (log.of_key().values() if mode.get("upsert") else log.sent)
        if record.value is None or record.row is not None
    }
    names = {path.name for path in (tmp_path / "warehouse" / "t").rglob("*=*")}
    assert ("_partition=0" in names) == bool(mode.get("upsert"))
    assert not any(name.startswith(PARTITION) for name in names)


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_table_of_a_newer_version_is_refused(log: Log, tmp_path: Path, kind: str) -> None:
    run = Run(log, tmp_path / "warehouse", kind)
    run.sync().run_batch()
    before = run.rows()
    if kind == "iceberg":
        with native(run).transaction() as transaction:
            transaction.set_properties({LAYOUT: str(LAYOUT_VERSION + 1)})
    else:
        path = next((run.directory / "t" / "_penstock_log").glob("*.json"))
        commit = json.loads(path.read_bytes()) | {"version": 2, "add": [], "remove": []}
        commit["layout_version"] = LAYOUT_VERSION + 1
        store = DirectoryStore(str(run.directory))
        asyncio.run(store.put(f"t/_penstock_log/{2:020}.json", msgspec.json.encode(commit)))
    for use in (run.all, lambda: compact(run.warehouse.existing("t"), run.engine)):
        with pytest.raises(
            InvalidTable, match=r"layout version 3.*supports up to 2: use the newer"
        ):
            use()
    assert before


def values_with(*names: str) -> ValueFormat:
    properties = {name: {"type": "string"} for name in names} | {
        "n": {"type": "integer"},
        "timestamp": {"type": "number"},
    }
    return ValueFormat("json", json.dumps({"type": "object", "properties": properties}).encode())


NAMES = (
    "_id",
    "__deleted",
    "__op",
    "_class",
    "_headers",
    "_kafka_offset",
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "day",
)


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_fields_may_have_names_of_other_systems(log: Log, tmp_path: Path, kind: str) -> None:
    run = Run(log, tmp_path / "warehouse", kind)
    names = NAMES if kind == "iceberg" else (*NAMES, "_partition", "_file")
    run.all(value_format=values_with(*names), partition_by=(DAY,), upsert=True)
    assert {*names, "timestamp", PARTITION} <= set(run.rows()[0])
    compact(run.warehouse.existing("t"), run.engine)


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
@pytest.mark.parametrize("name", [PARTITION, "_offset", "_KEY", "_Headers"])
def test_fields_named_like_metadata_columns_are_refused(
    log: Log, tmp_path: Path, kind: str, name: str
) -> None:
    run = Run(log, tmp_path / "warehouse", kind)
    with pytest.raises(InvalidSchema, match=f"fields {name}: Penstock uses these names"):
        run.all(value_format=values_with(name), headers=True)


@pytest.mark.parametrize("name", [*RESERVED, "_Partition"])
def test_fields_that_iceberg_reserves_are_refused(run: Run, name: str) -> None:
    with pytest.raises(InvalidSchema, match=f"fields {name}: Iceberg uses"):
        run.all(value_format=values_with(name))


def test_field_used_in_the_path_of_a_file_is_refused(log: Log, tmp_path: Path) -> None:
    run = Run(log, tmp_path / "warehouse", "parquet")
    with pytest.raises(InvalidSchema, match="fields _day: the path of a file uses"):
        run.all(value_format=values_with("_day"), partition_by=(DAY,))
    run.all(value_format=values_with("_day"))

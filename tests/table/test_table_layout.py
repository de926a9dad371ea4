"""Files of exported tables: partitions by day, encodings, schema evolution, compaction, and SQL
queries.
"""

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock.lake.table.sync as sync
from penstock.base.partition_spec import DAY
from penstock.lake.table.catalog import open_catalog
from penstock.lake.table.compact import TARGET_BYTES, compact
from penstock.lake.table.errors import (
    InvalidSchema,
    InvalidTable,
    OtherTopic,
    RecordsLost,
    TableAhead,
)
from penstock.lake.table.files import GroupedFiles
from penstock.lake.table.job import CompactionJob
from penstock.lake.table.model import PARTITION, Commit, Layout
from penstock.lake.table.plan import Bounds, compaction_tasks, wanted_ranges
from penstock.lake.table.query import query
from penstock.lake.table.rows import OFFSET
from penstock.lake.table.source import TopicSource
from penstock.lake.table.values import ValueFormat
from penstock.lake.table.warehouse import Warehouse
from tests.support.iceberg_deletes import delete_row
from tests.support.table_log import BEGIN_MS, DAY_MS, SCHEMA, Log
from tests.support.table_runs import Run, Watched, nothing
from tests.support.waiting import PATIENCE_S

RAW = ValueFormat()


@pytest.fixture(params=["iceberg", "parquet"])
def run(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", request.param)


def test_raw_values_and_headers_are_unchanged(run: Run) -> None:
    run.all(value_format=RAW, headers=True)
    rows = {(row["_kafka_partition"], row["_offset"]): row for row in run.rows_of_files()}
    assert len(rows) == len(run.rows()) == len(run.log.sent)
    for record in run.log.sent:
        row = rows[record.partition, record.offset]
        assert (row["_key"], row["value"]) == (record.key, record.value)
        number = (record.timestamp_ms - BEGIN_MS) % DAY_MS
        assert row["_headers"] == (
            [{"key": "trace", "value": str(number).encode()}] if number % 2 else None
        )
    assert run.rows("t__dlq") == []


@pytest.mark.parametrize("run", ["iceberg"], indirect=True)
def test_compaction_keeps_fields_renamed_in_structs_and_files_without_ids(run: Run) -> None:
    """Another engine renames a field in a struct, and adds a file that has names only."""
    run.all()
    rows = run.rows()
    table = open_catalog(run.catalog_name, run.warehouse.properties()).load_table("default.t")
    added = pa.Table.from_pylist(rows[:5], schema=table.scan().to_arrow().schema)
    path = run.directory / "added.parquet"
    pq.write_table(added.replace_schema_metadata(), path)
    table.add_files([f"file://{path}"])
    with table.update_schema() as update:
        update.rename_column("at.x", "y")
    before = [row | {"at": row["at"] and {"y": row["at"]["x"]}} for row in rows + rows[:5]]
    assert sorted(map(str, run.rows())) == sorted(map(str, before))
    assert compact(run.warehouse.existing("t"), run.engine).files_replaced > 1
    assert sorted(map(str, run.rows())) == sorted(map(str, before))


def test_table_partitioned_by_day_has_one_day_in_each_file(run: Run) -> None:
    run.all(partition_by=(DAY,))
    run.check()
    table = run.warehouse.existing("t")
    table.state()
    files = table.files()
    assert {file.group for file in files} == {(BEGIN_MS // DAY_MS + day,) for day in range(3)}
    for file in files:
        days = {row["_timestamp"].toordinal() for row in table.place().read(file).to_pylist()}
        assert len(days) == 1


def test_columns_have_the_configured_encodings(run: Run) -> None:
    run.all(value_format=RAW)
    path = next(path for path in run.directory.rglob("*.parquet") if "/t__dlq/" not in str(path))
    group = pq.read_metadata(path).row_group(0)
    columns = {
        group.column(index).path_in_schema: group.column(index)
        for index in range(group.num_columns)
    }
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in columns["_offset"].encodings
    assert "DELTA_BINARY_PACKED" in columns["_timestamp"].encodings
    assert columns["_kafka_partition"].has_dictionary_page
    assert columns["_topic"].has_dictionary_page
    assert not columns["value"].has_dictionary_page
    assert not columns["_key"].has_dictionary_page


def test_field_added_to_the_schema_becomes_a_column(run: Run) -> None:
    assert run.sync().run_batch() is not None
    schema = json.loads(SCHEMA)
    schema["properties"]["unknown"] = {"type": "integer"}
    run.all(value_format=ValueFormat("json", json.dumps(schema).encode()))
    run.check()
    found = {row["unknown"] for row in run.rows()}
    assert found == {None, 1}


def test_field_with_another_type_is_refused(run: Run) -> None:
    assert run.sync().run_batch() is not None
    schema = json.loads(SCHEMA)
    schema["properties"]["n"] = {"type": "string"}
    with pytest.raises(InvalidTable, match="another type"):
        run.all(value_format=ValueFormat("json", json.dumps(schema).encode()))


def test_field_that_differs_from_a_column_only_in_case_is_refused(run: Run) -> None:
    """Spark and DuckDB could not read a table with both."""
    assert run.sync().run_batch() is not None
    schema = json.loads(SCHEMA)
    schema["properties"]["at"]["properties"] = {"X": {"type": "number"}}
    with pytest.raises(InvalidSchema, match=r"fields at\.x and at\.X differ only in case"):
        run.all(value_format=ValueFormat("json", json.dumps(schema).encode()))


def test_compaction_merges_small_files_and_keeps_the_rows(run: Run) -> None:
    reports = run.all(partition_by=(DAY,), batch_bytes=8_000)
    before = sorted(map(str, run.rows_of_files()))
    assert any("'tags': None" in row for row in before)
    assert any("'tags': []" in row for row in before)
    report = compact(run.warehouse.existing("t"), run.engine)
    assert report.files_before == sum(report.files for report in reports) > 20
    assert (report.files_after, report.files_written, report.rows) == (3, 3, len(before))
    assert sorted(map(str, run.rows_of_files())) == before
    assert run.state_offsets() == run.ends()
    again = compact(run.warehouse.existing("t"), run.engine)
    assert (again.files_before, again.files_replaced) == (3, 0)
    assert run.all(partition_by=(DAY,)) == []
    run.check()


def test_compaction_and_export_run_concurrently(run: Run) -> None:
    run.sync().run_batch()
    done = threading.Event()
    errors: list[BaseException] = []

    def join() -> None:
        try:
            while not done.is_set():
                compact(run.warehouse.existing("t"), run.engine)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    try:
        run.all(batch_bytes=10_000)
    finally:
        done.set()
        thread.join(PATIENCE_S)
    assert errors == []
    run.check()
    assert run.state_offsets() == run.ends()


def test_upserts_during_compaction_lose_no_record(run: Run) -> None:
    def join(commit: Any) -> None:
        if commit.batch_id % 2 == 0:
            compact(run.warehouse.existing("t"), run.engine)

    run.all(upsert=True, before=join)
    assert {(row["_kafka_partition"], row["_key"]): row["_offset"] for row in run.rows()} == {
        key: record.offset for key, record in run.log.of_key().items()
    }


@pytest.mark.parametrize("run", ["iceberg"], indirect=True)
def test_rows_deleted_during_compaction_do_not_return(run: Run) -> None:
    """Another engine deletes a row with merge-on-read, which does not replace the data file."""
    run.all()
    count = len(run.rows())

    def other() -> Any:
        return open_catalog(run.catalog_name, run.warehouse.properties()).load_table("default.t")

    deleted: list[str] = []

    def delete(_: Commit) -> None:
        if not deleted:
            deleted.append(next(iter(other().scan().plan_files())).file.file_path)
            delete_row(other(), deleted[0], 0)

    report = compact(Watched(run.warehouse.existing("t"), delete, nothing), run.engine)
    assert report.files_after == 1
    assert len(run.rows()) == count - 1


def test_compaction_skips_files_that_others_replaced_meanwhile(run: Run) -> None:
    """Another process merges the files of one day first."""
    run.all(partition_by=(DAY,), batch_bytes=8_000)
    before = sorted(map(str, run.rows()))
    other = run.warehouse.existing("t")
    count = 0

    def replace_some(_: Commit) -> None:
        nonlocal count
        count += 1
        if count > 1:
            return
        state = other.state()
        task = compaction_tasks(other.files(), TARGET_BYTES, "other")[0]
        done = CompactionJob(other.place(), other.layout, TARGET_BYTES)(task, lambda: "1")
        position = "t", state.topic_id, state.batch_id, state.offsets
        other.commit(Commit("other", state, *position, done.added, done.removed))

    report = compact(Watched(run.warehouse.existing("t"), replace_some, nothing), run.engine)
    assert (report.conflicts, report.files_written, count) == (1, 2, 2)
    assert sorted(map(str, run.rows())) == before


def test_tables_are_queried_with_sql(run: Run) -> None:
    run.all()
    good = [record.row for record in run.log.sent if record.row is not None]
    found = query(run.warehouse, "SELECT count(n) AS c, sum(n)::BIGINT AS s FROM t").to_pylist()
    assert found == [{"c": len(good), "s": sum(row["n"] for row in good)}]
    bad = query(
        run.warehouse,
        'SELECT count(*) AS c FROM "t__dlq" AS d LEFT JOIN t ON t._offset = d.offset AND'
        " t._kafka_partition = d.partition",
    )
    assert bad.to_pylist()[0]["c"] == len(run.rows("t__dlq"))
    with pytest.raises(InvalidTable, match="tables are: "):
        query(run.warehouse, "SELECT * FROM nothing")


@pytest.mark.parametrize("run", ["iceberg"], indirect=True)
def test_tables_with_the_same_name_are_queried_by_namespace(run: Run) -> None:
    catalog = open_catalog(run.catalog_name, run.warehouse.properties())

    def create(name: str) -> None:
        catalog.create_namespace(name.partition(".")[0])
        rows = pa.table({"x": [name]})
        catalog.create_table(name, rows.schema).append(rows)

    def found(name: str) -> list[dict[str, Any]]:
        return query(run.warehouse, f"SELECT x FROM {name}").to_pylist()

    create("sales.orders")
    create("hr.orders")
    create('odd"name.other')
    for name in ("sales.orders", "hr.orders"):
        assert found(name) == [{"x": name}]
    assert found("other") == found('"odd""name".other') == [{"x": 'odd"name.other'}]
    with pytest.raises(InvalidTable, match=r"orders does not exist"):
        found("orders")
    create("default.orders")
    assert found("orders") == [{"x": "default.orders"}]
    assert found("sales.orders") == [{"x": "sales.orders"}]


def test_unusable_warehouses_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidTable, match=r"/file: the directory cannot be created: File exists"):
        Warehouse(kind="iceberg", location=f"{tmp_path}/file").table("t", Layout())
    (tmp_path / "catalog.db").write_text("something else")
    with pytest.raises(InvalidTable, match=r"cannot be opened: .* file is not a database$"):
        Warehouse(kind="iceberg", location=str(tmp_path)).table("t", Layout())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.decimal128(5, 2), pa.decimal128(9, 3)),
        (pa.decimal128(9, 2), pa.decimal128(5, 3)),
        (pa.string(), pa.binary()),
        (pa.map_(pa.string(), pa.decimal128(5, 2)), pa.map_(pa.string(), pa.decimal128(9, 3))),
        (
            pa.list_(pa.field("element", pa.struct([("d", pa.decimal128(5, 2))]))),
            pa.list_(pa.field("element", pa.struct([("d", pa.decimal128(9, 3))]))),
        ),
    ],
)
@pytest.mark.parametrize("run", ["iceberg"], indirect=True)
def test_types_that_would_change_stored_values_are_refused(
    run: Run, before: pa.DataType, after: pa.DataType
) -> None:
    """With another scale, engines would read 1.25 as 0.125."""
    table = run.warehouse.table("t", Layout())
    table.state()
    table.prepare(pa.schema([("x", before)]))
    with pytest.raises(InvalidTable, match=r"another type: Cannot change column type: x"):
        table.prepare(pa.schema([("x", after)]))
    table.prepare(pa.schema([("x", before), ("y", pa.string())]))
    assert table.place().schema.names == ["x", "y"]


def test_null_lists_remain_null_after_a_field_is_added_to_their_structs(run: Run) -> None:
    def schema(*names: str) -> pa.Schema:
        kind = pa.struct([(name, pa.int32()) for name in names])
        return pa.schema(
            [
                (PARTITION, pa.int32()),
                (OFFSET, pa.int64()),
                ("l", pa.list_(pa.field("element", kind))),
                ("m", pa.map_(pa.string(), kind)),
            ]
        )

    origin = {PARTITION: 0, OFFSET: 0}
    rows = [{"l": None, "m": None}, {"l": [], "m": []}, {"l": [{"a": 1}], "m": [("k", None)]}]
    table = run.warehouse.table("t", Layout())
    for number, columns in enumerate((schema("a"), schema("a", "b"))):
        table.state()
        table.prepare(columns)
        state = table.state()
        files = GroupedFiles(table.place(), table.layout, f"f{number}", 1 << 20)
        files.add(pa.Table.from_pylist([origin | row for row in rows[number:]], columns))
        table.commit(Commit(f"c{number}", state, "t", "id", number + 1, {0: 1}, files.close()))
    found = query(run.warehouse, "SELECT l, m FROM t").to_pylist()
    later = [*rows[:2], {"l": [{"a": 1, "b": None}], "m": [("k", None)]}]
    assert sorted(map(str, found)) == sorted(map(str, [*later, *later[1:]]))


def test_export_with_another_mode_or_topic_is_refused(run: Run) -> None:
    run.sync().run_batch()
    with pytest.raises(InvalidTable, match="created with --mode append"):
        run.all(upsert=True)
    table = run.warehouse.existing("t")
    state = table.state()
    table.commit(Commit("other", state, "t", "another-id", state.batch_id, state.offsets))
    with pytest.raises(
        OtherTopic, match=r"'t' was deleted and created again .*another-id.*--table"
    ):
        run.all()
    table.state()
    table.commit(Commit("third", table.state(), "u", "id", state.batch_id, state.offsets))
    with pytest.raises(OtherTopic, match=r"contains topic 'u', not 't'; .*--table") as caught:
        run.all()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_dead_letters_of_an_earlier_topic_are_refused(run: Run) -> None:
    """Otherwise the offsets of the earlier topic would hide dead letters of the current one."""
    rejects = run.warehouse.table("t__dlq", Layout())
    rejects.state()
    rejects.prepare(pa.schema([pa.field("n", pa.int64())]))
    rejects.commit(Commit("first", rejects.state(), "t", "earlier-id", 1, {0: 10_000}))
    with pytest.raises(OtherTopic, match=r"table (default\.)?t__dlq contains .*earlier-id"):
        run.all()
    assert run.warehouse.read("t__dlq", 0).column_names == ["n"], "the other table is unchanged"


def test_lost_records_are_an_error_that_can_be_skipped() -> None:
    with pytest.raises(RecordsLost, match=r"\[3, 5\).*--skip-lost"):
        wanted_ranges("t", {0: 3}, {0: Bounds(5, 9)}, skip_lost=False)
    assert wanted_ranges("t", {0: 3}, {0: Bounds(5, 9)}, skip_lost=True)[0][2:] == (5, 9)


@pytest.mark.parametrize("name", ["t", "t__dlq"])
def test_table_with_offsets_beyond_the_log_end_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """New records at the offsets of lost ones would never be exported."""
    monkeypatch.setattr(sync, "AHEAD_READ_INTERVAL_S", 0.0)
    run.sync().run_batch()
    table = run.warehouse.existing(name)
    state = table.state()
    end = run.ends()[0]
    offsets = dict(state.offsets) | {0: end + 1}
    table.commit(Commit("later", state, "t", state.topic_id, state.batch_id, offsets))
    with pytest.raises(
        TableAhead, match=rf"{name} .*partition 0 up to offset {end + 1}, where .* at {end}\. .*--t"
    ):
        run.all()


def test_log_end_is_read_again_if_the_view_is_outdated(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "AHEAD_READ_INTERVAL_S", 0.0)
    run.all()
    old = [{partition: Bounds(0, 1) for partition in run.ends()}]
    real = TopicSource.bounds

    def bounds(source: TopicSource) -> tuple[str, dict[int, Bounds]]:
        topic_id, found = real(source)
        return topic_id, old.pop() if old else found

    monkeypatch.setattr(TopicSource, "bounds", bounds)
    assert run.sync().run_batch() is None
    assert not old

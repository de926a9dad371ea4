"""Partitioned tables: partition values equal those of Iceberg, each file belongs to one partition,
and a changed spec becomes a new Iceberg partition spec or is refused.
"""

import asyncio
import datetime as dt
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import duckdb
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from penstock.base.partition_spec import PartitionField, parse_partition_by
from penstock.lake.arrow.pyarrow_untyped import Array, pa
from penstock.lake.table import files as table_files
from penstock.lake.table.catalog import open_catalog
from penstock.lake.table.compact import compact
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.files import GroupedFiles
from penstock.lake.table.model import FileEntry, Layout
from penstock.lake.table.partition_values import check_partition_fields, split_rows, unfit_rows
from penstock.lake.table.values import ValueFormat
from penstock.lake.table.warehouse import Warehouse, read_rows
from tests.support.partitioned_rows import (
    AT,
    BEFORE,
    LONG_AGO,
    PARTITIONINGS,
    table_rows,
    write_table,
)
from tests.support.table_log import SCHEMA, Log, write_messages
from tests.support.table_runs import Run


@pytest.fixture(params=["iceberg", "parquet"])
def run(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", request.param)


def native(run: Run) -> Any:
    return open_catalog(run.catalog_name, run.warehouse.properties()).load_table("default.t")


HASHES = [
    (pa.array([34], pa.int32()), 2017239379),
    (pa.array([34], pa.int64()), 2017239379),
    (pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
    (pa.array([Decimal("14.20")], pa.decimal128(38, 2)), -500754589),
    (pa.array([AT.date()]), -653330422),
    (pa.array([AT.time()], pa.time64("us")), -662762989),
    (pa.array([AT.replace(tzinfo=None)], pa.timestamp("us")), -2047944441),
    (pa.array([AT], pa.timestamp("us", tz="UTC")), -2047944441),
    (pa.array(["iceberg"]), 1210000089),
    (pa.array([bytes(range(4))], pa.binary(4)), -188683207),
    (pa.array([bytes(range(4))], pa.binary()), -188683207),
    (pa.array([bytes.fromhex("f79c3e09677c4bbda4793f349cb785e7")], pa.binary(16)), 1488055340),
]
"""The hashes in appendix B of the Iceberg specification."""


@pytest.mark.parametrize(("values", "expected"), HASHES, ids=str)
def test_buckets_use_the_hash_of_iceberg(values: Array, expected: int) -> None:
    fields = (PartitionField("bucket", "c", 1_000),)
    rows = pa.table({"c": pa.chunked_array([values, pa.nulls(1, values.type)])})
    groups = [group for group, _ in split_rows(rows, fields)]
    assert groups == [(None,), ((expected & 0x7FFFFFFF) % 1_000,)]


@pytest.mark.parametrize(
    ("at", "year", "month", "day", "hour"),
    [
        (AT, 47, 574, 17486, 419686),
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0, 0, 0, 0),
        (BEFORE, -1, -1, -1, -1),
        (dt.datetime(1969, 12, 31, 22, 59, 59, tzinfo=dt.UTC), -1, -1, -1, -2),
        (LONG_AGO, -69, -827, -25169, -604056),
    ],
)
def test_times_are_rounded_down_in_utc(
    at: dt.datetime, year: int, month: int, day: int, hour: int
) -> None:
    elsewhere = at.astimezone(dt.timezone(dt.timedelta(hours=14)))
    for kind, value in (
        (pa.timestamp("us", tz="UTC"), elsewhere),
        (pa.timestamp("us"), at.replace(tzinfo=None)),
    ):
        rows = pa.table({"c": pa.array([value], kind)})
        fields = [PartitionField(name, "c") for name in ("year", "month", "day", "hour")]
        ((group, _),) = split_rows(rows, fields)
        assert group == (year, month, day, hour)
    rows = pa.table({"c": pa.array([at.date()])})
    ((group, _),) = split_rows(rows, fields[:3])
    assert group == (year, month, day)


ICEBERG_TYPES = {
    "i": IntegerType(),
    "l": LongType(),
    "s": StringType(),
    "b": BinaryType(),
    "d": DateType(),
    "t": TimestamptzType(),
    "local": TimestampType(),
    "time": TimeType(),
    "dec": DecimalType(20, 2),
}


@pytest.mark.parametrize("partition_by", PARTITIONINGS)
def test_partition_values_equal_those_of_iceberg_transforms(partition_by: str) -> None:
    """Compares with pyiceberg's transforms of single values, and checks that rows keep
    their order.
    """
    fields = parse_partition_by(partition_by)
    rows = table_rows()
    check_partition_fields(fields, rows.schema)
    offsets: list[int] = []
    for group, part in split_rows(rows, fields):
        found = part.column("_offset").to_pylist()
        assert found == sorted(found)
        offsets += found
        for field, value in zip(fields, group, strict=True):
            kind = ICEBERG_TYPES.get(field.column)
            if kind is None:
                continue
            width = f"[{field.width}]" if field.width else ""
            transform: Any = parse_transform(f"{field.transform}{width}").transform(kind)
            column = part.column(field.column)
            if pa.types.is_date(column.type):
                column = column.cast(pa.int32())
            elif pa.types.is_temporal(column.type):
                column = column.cast(pa.int64())
            assert {transform(item) for item in column.to_pylist()} == {value}, field
    assert sorted(offsets) == list(range(rows.num_rows))


@pytest.mark.parametrize(
    ("partition_by", "reason"),
    [
        ("day(nothing)", "nothing is unknown; use one of _topic, _kafka_partition.*o.at.name"),
        ("o.nothing", "o.nothing is unknown"),
        ("tags.element", "tags.element is unknown"),
        ("s.x", "s.x is unknown"),
        ("o", "cannot be partitioned by the type struct.*such as o.id"),
        ("tags", "cannot be partitioned by the type list"),
        ("x", "cannot be partitioned by the type double"),
        ("bucket(4, x)", "cannot be partitioned by the type double"),
        ("hour(d)", "d has the type date32.day.; use year, month, day, bucket, identity"),
        ("day(l)", "l has the type int64; use bucket, truncate, identity"),
        ("truncate(4, t)", "use year, month, day, hour, bucket, identity"),
        ("truncate(1, fixed)", "fixed has the type fixed_size_binary.4.; use bucket$"),
        ("fixed", "use bucket$"),
        ("bucket(2, flag)", "use identity"),
        ("day(time)", "use bucket, identity"),
    ],
)
def test_fields_that_cannot_be_partitioned_by_are_refused(
    tmp_path: Path, partition_by: str, reason: str
) -> None:
    for kind in ("iceberg", "parquet"):
        layout = Layout.of(parse_partition_by(partition_by), upsert=False)
        table = Warehouse(kind=kind, location=str(tmp_path)).table("t", layout)
        table.state()
        with pytest.raises(InvalidTable, match=reason):
            table.prepare(table_rows().schema)


def test_partition_fields_and_columns_have_different_names(tmp_path: Path) -> None:
    schema = table_rows().schema
    taken = pa.schema([*schema, pa.field("T_day", pa.int64()), pa.field("t_day", pa.int64())])
    with pytest.raises(InvalidTable, match="t_day would have the name of a column"):
        check_partition_fields(parse_partition_by("day(t)"), taken)
    for kind in ("iceberg", "parquet"):
        table = Warehouse(kind=kind, location=str(tmp_path)).table(
            "t", Layout.of(parse_partition_by("day(t)"), upsert=False)
        )
        table.state()
        with pytest.raises(InvalidSchema, match="fields T_day"):
            table.prepare(pa.schema([*schema, pa.field("T_day", pa.int64())]))


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
@pytest.mark.parametrize("partition_by", PARTITIONINGS)
def test_rows_of_every_type_are_read_back(kind: str, partition_by: str, tmp_path: Path) -> None:
    table = write_table(kind, tmp_path, "t", partition_by)
    rows = table_rows()
    assert read_rows(table, 1 << 20).sort_by("_offset").to_pylist() == rows.to_pylist()
    found = Warehouse(kind=kind, location=str(tmp_path)).existing("t")
    found.state()
    assert found.layout == table.layout
    assert len(found.layout.fields) == len(parse_partition_by(partition_by))
    groups = [group for group, _ in split_rows(rows, found.layout.fields)]
    if kind == "iceberg":
        assert Counter(file.group for file in found.files()) == Counter(groups)
    assert len({file.group for file in found.files()}) == len(found.files()) == len(groups)


def test_directories_have_readable_names(tmp_path: Path) -> None:
    write_table("parquet", tmp_path, "t", "s, hour(t), month(d), year(local), o.at.name, dec, time")
    paths = [unquote(str(path)) for path in (tmp_path / "t" / "data").rglob("*.parquet")]
    joined = "\n".join(paths)
    for text in (
        "/s=iceberg/t_hour=2017-11-16-22/d_month=2017-11/local_year=2017/o.at.name=a/b/dec=14.20/",
        "/s=a/b=c %?/t_hour=1969-12-31-23/d_month=1969-12/local_year=1969/",
        "/time=22:31:08.000000/",
        "/t_hour=1901-02-03-00/",
        "/s=__HIVE_DEFAULT_PARTITION__/t_hour=__HIVE_DEFAULT_PARTITION__/",
    ):
        assert text in joined
    found: Any = duckdb.sql(
        f"SELECT s, t_hour FROM read_parquet('{tmp_path}/t/data/**/*.parquet',"
        " hive_partitioning = true, hive_types = {'t_hour': VARCHAR}) ORDER BY _offset"
    )
    read = found.fetchall()
    assert read[1] == ("a/b=c %?", "1969-12-31-23")


def test_pyiceberg_prunes_files_by_partition(tmp_path: Path) -> None:
    write_table("iceberg", tmp_path, "t", "hour(t), bucket(16, l), truncate(3, s), flag")
    warehouse = Warehouse(kind="iceberg", location=str(tmp_path))
    table: Any = open_catalog("penstock", warehouse.properties()).load_table("default.t")
    assert re.findall(r"(\S+): (\S+)\(", str(table.spec())) == [
        ("t_hour", "hour"),
        ("l_bucket_16", "bucket[16]"),
        ("s_trunc_3", "truncate[3]"),
        ("flag", "identity"),
    ]
    equal: Any = EqualTo
    null: Any = IsNull
    conditions: list[tuple[Any, int]] = [
        (equal("l", 34), 2),
        (cast("Any", GreaterThanOrEqual)("t", AT.isoformat()), 2),
        (equal("s", "a/b=c %?"), 1),
        (null("flag"), 2),
        (null("t"), 1),
    ]
    for condition, count in conditions:
        scan = table.scan(row_filter=condition)
        assert len(list(scan.plan_files())) == count, condition
        assert scan.to_arrow().num_rows == count, condition


LAYOUT = "truncate(6, name), bucket(4, _key), month(_timestamp)"


@pytest.mark.parametrize("upsert", [False, True])
def test_exports_write_every_record_to_its_partition(run: Run, upsert: bool) -> None:
    fields = parse_partition_by(LAYOUT)
    run.all(upsert=upsert, partition_by=fields)
    table = run.warehouse.existing("t")
    table.state()
    assert len(table.files()) > 20
    for file in table.files():
        rows = table.place().read(file)
        assert len(list(split_rows(rows, table.layout.fields))) == 1
    compact(table, run.engine)
    assert run.sync(upsert=upsert).run_batch() is None
    if upsert:
        assert {(row["_kafka_partition"], row["_key"]): row["_offset"] for row in run.rows()} == {
            key: record.offset for key, record in run.log.of_key().items()
        }
    else:
        run.check()


@pytest.mark.parametrize("upsert", [False, True])
def test_changed_partitioning_is_a_new_spec_of_an_iceberg_table(
    log: Log, tmp_path: Path, upsert: bool
) -> None:
    run = Run(log, tmp_path, "iceberg")
    specs = ["none", "day", "hour(_timestamp),bucket(2, _key)", "none", "day"]
    for spec in specs:
        sync = run.sync(upsert=upsert, partition_by=parse_partition_by(spec), batch_bytes=12_000)
        assert sync.run_batch()
    assert len(native(run).specs()) == 3 + upsert  # its first spec is empty
    run.all(upsert=upsert)
    assert [field.name for field in native(run).spec().fields][upsert:] == ["_timestamp_day"]
    for _ in range(2):
        if upsert:
            assert {
                (row["_kafka_partition"], row["_key"]): row["_offset"] for row in run.rows()
            } == {key: record.offset for key, record in run.log.of_key().items()}
        else:
            run.check()
        compact(run.warehouse.existing("t"), run.engine)
    assert run.state_offsets() == run.ends()


def test_concurrent_runs_with_different_partitionings_are_refused(log: Log, tmp_path: Path) -> None:
    run = Run(log, tmp_path, "iceberg")
    first = run.sync(partition_by=parse_partition_by("day"))
    assert first.run_batch()
    assert run.sync(partition_by=parse_partition_by("hour(_timestamp)")).run_batch()
    with pytest.raises(InvalidTable, match=r"hour.*during the export by day.*--partition-by"):
        first.run_batch()
    run.all()
    run.check()


def test_partitioning_of_a_parquet_table_cannot_change(log: Log, tmp_path: Path) -> None:
    run = Run(log, tmp_path, "parquet")
    assert run.sync(partition_by=parse_partition_by("day")).run_batch()
    with pytest.raises(InvalidTable, match=r"partitioned by day.*cannot change"):
        run.all(partition_by=parse_partition_by("hour(_timestamp)"))
    run.all()
    run.check()


def test_unknown_field_is_refused_before_anything_is_written(run: Run) -> None:
    with pytest.raises(InvalidTable, match="when is unknown; use one of _topic"):
        run.all(partition_by=parse_partition_by("day(when)"))
    assert run.warehouse.tables() == []


def test_column_removed_from_the_schema_still_partitions(run: Run) -> None:
    assert run.sync(partition_by=parse_partition_by("name")).run_batch()
    schema = json.loads(SCHEMA)
    del schema["properties"]["name"]
    narrow = ValueFormat("json", json.dumps(schema).encode())
    assert run.sync(value_format=narrow).run_batch()
    assert None in {row["name"] for row in run.rows()}


@pytest.mark.parametrize("upsert", [False, True])
@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_decimals_whose_partition_value_has_too_many_digits_are_dead_letters(
    tmp_path: Path, kind: str, upsert: bool
) -> None:
    """Iceberg cannot store such a value; without a dead letter, it would stop the export."""
    decimal: Any = {"type": "number", "format": "decimal"}
    schema = json.dumps({"type": "object", "properties": {"c": decimal}}).encode()
    lowest = "-" + "9" * 29 + "." + "9" * 9
    numbers = [lowest, "1.5", lowest.replace(".999999999", ".999999950"), lowest[1:]]
    messages = [(f"k{number}".encode(), f'{{"c": {number}}}'.encode()) for number in numbers]
    log = asyncio.run(write_messages(tmp_path, [*messages, (b"none", b"{}")]))
    run = Run(log, tmp_path, kind)
    json_format = ValueFormat("json", schema)
    run.all(
        value_format=json_format, partition_by=parse_partition_by("truncate(50, c)"), upsert=upsert
    )
    rows = {row["_offset"]: row["c"] for row in run.rows()}
    assert rows == {1: Decimal(numbers[1]), 2: Decimal(numbers[2]), 3: Decimal(numbers[3]), 4: None}
    (letter,) = run.rows("t__dlq")
    assert (letter["offset"], letter["value"]) == (0, messages[0][1])
    assert re.search(r"truncate\(50, c\): -1\S+ has more digits than decimal128", letter["error"])
    schema_of_table, other = pa.schema([("c", pa.decimal128(38, 9))]), pa.table({"other": [1]})
    assert unfit_rows(other, parse_partition_by("truncate(50, c)") or (), schema_of_table) == []


class CountedPlace:
    """A place that counts its files."""

    schema = table_rows().schema

    def __init__(self) -> None:
        self.rows: Counter[Any] = Counter()
        self.files = 0

    def put(self, name: str, data: Any, footer: Any, group: Any, first: Any) -> FileEntry:
        self.rows[group] += footer.num_rows
        self.files += 1
        return FileEntry(name, footer.num_rows, len(data), group, first)

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Any:
        raise NotImplementedError

    def delete(self, files: list[FileEntry]) -> None:
        raise NotImplementedError


def test_memory_is_limited_with_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "WAITING_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES_MAX", 1 << 18)
    place = CountedPlace()
    layout = Layout.of(parse_partition_by("bucket(500, _offset)"), upsert=False)
    files = GroupedFiles(place, layout, "t", 1 << 30)
    rows = table_rows().take(pa.array([0] * 1_000))
    during = 0
    for part in range(10):
        offsets = pa.array(range(part * 1_000, part * 1_000 + 1_000), pa.int64())
        index = rows.schema.get_field_index("_offset")
        files.add(rows.set_column(index, rows.schema.field(index), offsets))
        during = place.files
    found = files.close()
    assert during > 100
    assert sum(place.rows.values()) == 10_000
    assert len(place.rows) == len({file.group for file in found}) == 500
    assert len({file.path for file in found}) == len(found)


@pytest.mark.parametrize("run", ["iceberg"], indirect=True)
def test_upserts_need_the_partition_field_of_the_kafka_partition(run: Run) -> None:
    """Without it, upserts would not find the older rows of their keys."""
    run.sync(upsert=True).run_batch()
    catalog = open_catalog(run.catalog_name, run.warehouse.properties())
    with catalog.load_table("default.t").update_spec() as update:
        update.remove_field("_kafka_partition")
    with pytest.raises(InvalidTable, match="no longer partitioned by _kafka_partition"):
        run.all(upsert=True)

"""Rows with values of every type that tables can be partitioned by, including nulls and times
before 1970, and a table for each partitioning.
"""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.base.partition_spec import parse_partition_by
from penstock.lake.arrow.pyarrow_untyped import Table, pa
from penstock.lake.table.files import GroupedFiles
from penstock.lake.table.model import Commit, Layout
from penstock.lake.table.rows import row_schema
from penstock.lake.table.tables import ExportTable
from penstock.lake.table.warehouse import Warehouse

VALUES = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("fixed", pa.binary(4)),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("time", pa.time64("us")),
        ("dec", pa.decimal128(20, 2)),
        ("flag", pa.bool_()),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("o", pa.struct([("id", pa.int64()), ("at", pa.struct([("name", pa.string())]))])),
    ]
)
AT = dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC)
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(1901, 2, 3, 0, 0, tzinfo=dt.UTC)


def _row(**values: Any) -> dict[str, Any]:
    at = values["t"]
    return values | {"d": at.date(), "local": at.replace(tzinfo=None), "time": at.time()}


ROWS: list[dict[str, Any]] = [
    _row(i=34, l=34, s="iceberg", b=b"\x00\x01\x02\x03", fixed=b"\x00\x01\x02\x03", t=AT,
         dec=Decimal("14.20"), flag=True, x=1.5, tags=["a"], o={"id": 34, "at": {"name": "a/b"}}),
    _row(i=-1, l=-(2**40), s="a/b=c %?", b=b"\xff/", fixed=b"\xff" * 4, t=BEFORE,
         dec=Decimal("-1.28"), flag=False, x=-0.0, tags=[], o={"id": None, "at": None}),
    _row(i=0, l=2**62, s="", b=b"", fixed=b"\x00" * 4, t=LONG_AGO,
         dec=Decimal("0.00"), flag=False, x=None, tags=None, o=None),
    _row(i=34, l=34, s="ice é𝄞" + "x" * 300, b=b"\x00\x01", fixed=b"abcd", t=AT,
         dec=Decimal("99999999999999999.99"), flag=None, x=2.0, tags=["b"],
         o={"id": 34, "at": {"name": "a/c"}}),
    {},
]  # fmt: skip

PARTITIONINGS = (
    "identity(i), l, s, b",
    "d, t, local, time, dec, flag, o.id, o.at.name",
    "bucket(16, i), bucket(16, l), bucket(16, s), bucket(16, b), bucket(16, fixed)",
    "bucket(16, d), bucket(16, t), bucket(16, local), bucket(16, time), bucket(16, dec)",
    "bucket(8, o.id), bucket(8, o.at.name), bucket(4, _key), bucket(4, _offset)",
    "truncate(10, i), truncate(10, l), truncate(3, s), truncate(1, b), truncate(50, dec)",
    "year(d), month(t), day(local), truncate(2, o.at.name)",
    "month(d), year(local), hour(t)",
    "day(d), day(t), hour(local)",
    "day(_timestamp), _topic, _kafka_partition",
)


def table_rows(without: str = "") -> Table:
    """Return the rows with their metadata columns, as if from one Kafka partition."""
    values = pa.schema([field for field in VALUES if field.name != without])
    schema = row_schema(values, headers=False)
    rows = [
        row
        | {
            "_topic": "t",
            "_kafka_partition": 3,
            "_offset": offset,
            "_timestamp": AT if offset % 2 else BEFORE,
            "_key": f"k{offset}".encode(),
        }
        for offset, row in enumerate(ROWS)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def write_table(
    kind: str,
    directory: Path,
    name: str,
    partition_by: str,
    *,
    without: str = "",
    catalog_name: str = "penstock",
) -> ExportTable:
    """Create a table with the rows."""
    rows = table_rows(without)
    layout = Layout.of(parse_partition_by(partition_by), upsert=False)
    warehouse = Warehouse(kind=kind, location=str(directory), catalog_name=catalog_name)
    table = warehouse.table(name, layout)
    table.state()
    table.prepare(rows.schema)
    state = table.state()
    files = GroupedFiles(table.place(), table.layout, name, 1 << 20)
    files.add(rows)
    table.commit(Commit("first", state, "t", "id", 1, {3: rows.num_rows}, files.close()))
    table.state()
    return table

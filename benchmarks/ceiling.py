"""Measure the maximum rate of a Python data source in Spark: `format("ceiling")` sends prepared
Arrow batches.

A worker creates one batch per size and columns and sends it repeatedly, so a task only writes to
the JVM: no GETs, checksums or decoding.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.lake.arrow.columns import DEFAULT, arrow_schema, row_bytes
from penstock.lake.spark.schema import source_schema

_KEY_BYTES: Final = 15


@cache
def batch_of(columns: tuple[str, ...], value_bytes: int, batch_bytes: int) -> Any:  # noqa: ANN401 - pyarrow's RecordBatch
    size = (
        row_bytes(columns, "bench")
        + _KEY_BYTES * ("key" in columns)
        + value_bytes * ("value" in columns)
    )
    rows = min(16_384, max(1, batch_bytes // size))
    rng = Random(7)
    made: dict[str, Any] = {
        "key": [b"key-%011d" % number for number in range(rows)],
        "value": [rng.randbytes(value_bytes) for _ in range(rows)] if "value" in columns else None,
        "topic": ["bench"] * rows, "partition": [0] * rows, "offset": list(range(rows)),
        "timestamp": [1_700_000_000_000_000] * rows, "timestampType": [0] * rows,
    }  # fmt: skip
    schema = arrow_schema(columns)
    return pa.RecordBatch.from_arrays(
        [pa.array(made[field.name], field.type) for field in schema], schema=schema
    )


class CeilingSource(DataSource):
    """A Spark source with the options rows, tasks, value_bytes, batch_bytes, columns."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return source_schema(self._columns, include_headers=False)

    def reader(self, schema: StructType) -> "CeilingReader":
        options = self._options
        numbers = [int(options[name]) for name in ("rows", "tasks", "value_bytes", "batch_bytes")]
        return CeilingReader(self._columns, *numbers)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (
            tuple(name for name in self._options.get("columns", "").split(",") if name) or DEFAULT
        )


class CeilingReader(DataSourceReader):
    def __init__(
        self, columns: tuple[str, ...], rows: int, tasks: int, value_bytes: int, batch_bytes: int
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._tasks = tasks
        self._value_bytes = value_bytes
        self._batch_bytes = batch_bytes

    def partitions(self) -> list[InputPartition]:
        each, more = divmod(self._rows, self._tasks)
        return [InputPartition(each + (number < more)) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        left: int = partition.value
        batch = batch_of(self._columns, self._value_bytes, self._batch_bytes)
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows

"""Buffer rows in memory, one buffer per group of partition values, and write them to Parquet files.

A file is stored completely or not at all, under a name that is unique to the attempt, so nothing is
ever overwritten. The limits below apply to each running task.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.lake.arrow.pyarrow_untyped import Buffer, Schema, pa
from penstock.lake.table.model import OLDER_PARTITION, PARTITION, FileEntry, Group, Layout
from penstock.lake.table.pyarrow_untyped import Footer, Table, pq
from penstock.lake.table.rows import (
    OFFSET,
    TIMESTAMP,
    by_day,
)

ROW_GROUP_BYTES_MAX: Final = 32 << 20
"""Bytes of rows in memory, before they are encoded."""

OPEN_FILES_MAX: Final = 16
"""The number of days written at once. If more are needed, the file that was idle longest is closed,
and its day gets another file if it comes again.
"""

_DELTA: Final = {OFFSET, TIMESTAMP, "offset", "timestamp"}
_DICTIONARY: Final = {"_topic", PARTITION, OLDER_PARTITION, "topic", "partition", "error"}
_BYTES: Final = {"_key", "value", "key"}


class FilePlace(Protocol):
    """The place of a table's files. Travels to executors."""

    @property
    def schema(self) -> Schema:
        """The schema of the table; files have exactly this one."""
        ...

    def put(
        self, name: str, data: Buffer, footer: Footer, group: Group, first: tuple[int, int]
    ) -> FileEntry:
        """Store a new file."""
        ...

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Table:
        """Return the file's rows in the table; columns that were added later are null."""
        ...

    def delete(self, files: list[FileEntry]) -> None:
        """Delete files that no commit refers to. Missing files are ignored."""
        ...


class _OpenFile:
    def __init__(self, schema: Schema, name: str, group: Group) -> None:
        self.name = name
        self.group = group
        self.first = (2**31, 2**63)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, **_encodings(schema))
        self._waiting: list[Table] = []
        self._waiting_bytes = 0

    def add(self, rows: Table, first: tuple[int, int]) -> int:
        """Add rows, and return the bytes of the file so far."""
        self.first = min(self.first, first)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES_MAX:
            self._flush()
        return int(self._sink.tell())

    def close(self) -> tuple[Buffer, Footer]:
        self._flush()
        self._writer.close()
        data = self._sink.getvalue()
        return data, pq.read_metadata(pa.BufferReader(data))

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            self._waiting, self._waiting_bytes = [], 0


class GroupedFiles:
    """The files of one task. `close` returns all of them."""

    def __init__(self, place: FilePlace, layout: Layout, name: str, bytes_max: int) -> None:
        self._place = place
        self._layout = layout
        self._name = name
        self._bytes_max = bytes_max
        self._open: OrderedDict[Group, _OpenFile] = OrderedDict()
        self._count = 0
        self._done: list[FileEntry] = []

    def add(self, rows: Table) -> None:
        """Add rows of one Kafka partition, with the columns of the table's schema; missing ones are
        null.
        """
        if not rows.num_rows:
            return
        column = self._layout.partition_column
        named = column if column in rows.column_names else "partition"  # of a dead letter
        partition = int(rows.column(named)[0].as_py())
        prefix = (partition,) if self._layout.by_partition else ()
        if not self._layout.by_day:
            self._add(prefix, partition, rows)
            return
        for day, part in by_day(rows):
            self._add((*prefix, day), partition, part)

    def add_to(self, group: Group, rows: Table, first: tuple[int, int]) -> None:
        """Add rows of a known group, from any Kafka partitions."""
        if rows.num_rows:
            self._write(group, rows, first)

    def close(self) -> list[FileEntry]:
        """Store all open files, and return all files."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def _add(self, group: Group, partition: int, rows: Table) -> None:
        first = rows.column(OFFSET if OFFSET in rows.column_names else "offset")[0].as_py()
        self._write(group, rows, (partition, first))

    def _write(self, group: Group, rows: Table, first: tuple[int, int]) -> None:
        file = self._open.get(group)
        if file is None:
            if len(self._open) == OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            file = self._open[group] = _OpenFile(
                self._place.schema, f"{self._name}-{self._count:03}.parquet", group
            )
            self._count += 1
        self._open.move_to_end(group)
        if file.add(fitted(rows, self._place.schema), first) >= self._bytes_max:
            self._close(group)

    def _close(self, group: Group) -> None:
        file = self._open.pop(group)
        data, footer = file.close()
        self._done.append(self._place.put(file.name, data, footer, file.group, file.first))


def fitted(rows: Table, schema: Schema) -> Table:
    """Return the same rows with exactly these columns. Raise pa.ArrowInvalid if a value does not
    fit.
    """
    names = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _encodings(schema: Schema) -> dict[str, Any]:
    """Return zstd level 1, delta encoding for increasing numbers, and no dictionary for keys and
    raw values, which rarely repeat.
    """
    flat: Callable[[Any], bool] = lambda kind: not pa.types.is_nested(kind)  # noqa: E731 - a name for the line below
    # Fields of values may have the same names, with types that do not support this encoding.
    delta = {
        field.name
        for field in schema
        if field.name in _DELTA
        and (pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type))
    }
    dictionary = [
        field.name
        for field in schema
        if field.name not in delta | _BYTES and (flat(field.type) or field.name in _DICTIONARY)
    ]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": {
            field.name: "DELTA_BINARY_PACKED" for field in schema if field.name in delta
        },
        "store_schema": False,
    }

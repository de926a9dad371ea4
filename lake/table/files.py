"""Buffer rows in memory, one buffer per group of partition values, and write them to Parquet files.

A file is stored completely or not at all, under a name that is unique to the attempt, so nothing is
ever overwritten. The limits below apply to each running task.
"""

from collections import OrderedDict
from typing import Any, Final, Protocol

from penstock.lake.arrow.pyarrow_untyped import Buffer, Schema, Table, pa
from penstock.lake.table.model import OLDER_PARTITION, PARTITION, FileEntry, Group, Layout
from penstock.lake.table.partition_values import split_rows
from penstock.lake.table.pyarrow_untyped import Footer, pq
from penstock.lake.table.rows import OFFSET, TIMESTAMP

ROW_GROUP_BYTES_MAX: Final = 32 << 20
"""Size of a row group in memory, before it is encoded."""

WAITING_BYTES_MAX: Final = 256 << 20
"""Maximum size of all buffered rows of a task."""

_COLUMN_BYTES: Final = 256
"""Approximate overhead of a column with a few rows."""

OPEN_FILES_MAX: Final = 16
"""Maximum number of files that are encoded concurrently. If more are needed, the file that has been
idle longest is closed; later rows of its group are written to another file.
"""

NOWHERE: Final = (2**31, 2**63)
"""A position after all others."""

_DELTA: Final = {OFFSET, TIMESTAMP, "offset", "timestamp"}
_DICTIONARY: Final = {"_topic", PARTITION, OLDER_PARTITION, "topic", "partition", "error"}
_BYTES: Final = {"_key", "value", "key"}


class FilePlace(Protocol):
    """The location of a table's files. It is sent to executors."""

    @property
    def schema(self) -> Schema:
        """The schema of the table, which is also the exact schema of its files."""
        ...

    def put(
        self, name: str, data: Buffer, footer: Footer, group: Group, first: tuple[int, int]
    ) -> FileEntry:
        """Store the contents of a new file."""
        ...

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Table:
        """Return the file's rows in the table; columns that were added later are null."""
        ...

    def delete(self, files: list[FileEntry]) -> None:
        """Delete files that no commit refers to. Missing files are ignored."""
        ...


class _Writer:
    """A file that is being encoded in memory."""

    def __init__(self, schema: Schema, name: str) -> None:
        self.name = name
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, **_encodings(schema))

    def write(self, rows: Table) -> int:
        """Write a row group, and return the bytes of the file so far."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return int(self._sink.tell())

    def close(self) -> tuple[Buffer, Footer]:
        self._writer.close()
        data = self._sink.getvalue()
        return data, pq.read_metadata(pa.BufferReader(data))


class _GroupRows:
    """Rows of one group that are not encoded yet."""

    def __init__(self) -> None:
        self.first = NOWHERE
        self.size_bytes = 0
        self._tables: list[Table] = []

    def add(self, rows: Table, first: tuple[int, int]) -> None:
        self.first = min(self.first, first)
        self.size_bytes += rows.nbytes + rows.num_columns * _COLUMN_BYTES
        self._tables.append(rows)

    def take(self) -> Table | None:
        rows = pa.concat_tables(self._tables) if self._tables else None
        self._tables, self.size_bytes = [], 0
        return rows


class GroupedFiles:
    """The files of one task. `close` returns all of them.

    Rows are buffered until there are enough to partition in one pass; then each partition is
    buffered until it can fill a row group. Above `WAITING_BYTES_MAX`, the largest groups are
    written.
    """

    def __init__(self, place: FilePlace, layout: Layout, name: str, bytes_max: int) -> None:
        self._place = place
        self._layout = layout
        self._name = name
        self._bytes_max = bytes_max
        self._undivided = _GroupRows()
        self._groups: dict[Group, _GroupRows] = {}
        self._waiting_bytes = 0
        self._writers: OrderedDict[Group, _Writer] = OrderedDict()
        self._count = 0
        self._done: list[FileEntry] = []

    def add(self, rows: Table) -> None:
        """Add rows of one Kafka partition, with the columns of the table's schema; missing columns
        are null.
        """
        if not rows.num_rows:
            return
        rows = fitted(rows, self._place.schema)
        if not self._layout.fields:
            self._write((), rows, self._first(rows))
            return
        self._undivided.add(rows, NOWHERE)
        if self._undivided.size_bytes >= ROW_GROUP_BYTES_MAX:
            self._divide()

    def add_to(self, group: Group, rows: Table, first: tuple[int, int]) -> None:
        """Add rows that belong to the given group, from any Kafka partitions."""
        if rows.num_rows:
            self._write(group, fitted(rows, self._place.schema), first)

    def close(self) -> list[FileEntry]:
        """Store all open files, and return all files."""
        self._divide()
        for group in list(self._groups):
            self._close(group)
        return self._done

    def _divide(self) -> None:
        rows = self._undivided.take()
        if rows is not None:
            for group, part in split_rows(rows, self._layout.fields):
                self._write(group, part, self._first(part))

    def _first(self, rows: Table) -> tuple[int, int]:
        """Return the position of the first row of a table or of dead letters."""
        names = rows.column_names
        column = self._layout.partition_column
        partition = rows.column(column if column in names else "partition")[0].as_py()
        return partition, rows.column(OFFSET if OFFSET in names else "offset")[0].as_py()

    def _write(self, group: Group, rows: Table, first: tuple[int, int]) -> None:
        waiting = self._groups.setdefault(group, _GroupRows())
        before_bytes = waiting.size_bytes
        waiting.add(rows, first)
        self._waiting_bytes += waiting.size_bytes - before_bytes
        if waiting.size_bytes >= ROW_GROUP_BYTES_MAX:
            self._encode(group)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            sizes = {group: waiting.size_bytes for group, waiting in self._groups.items()}
            for largest in sorted(sizes, key=lambda group: -sizes[group]):
                if self._waiting_bytes <= WAITING_BYTES_MAX // 2:
                    break
                self._close(largest)

    def _encode(self, group: Group) -> None:
        """Write the buffered rows of a group as a row group."""
        waiting = self._groups.get(group)
        if waiting is None:
            return  # the file has been closed in favor of another one
        self._waiting_bytes -= waiting.size_bytes
        rows = waiting.take()
        if rows is None:
            return
        writer = self._writers.get(group)
        if writer is None:
            if len(self._writers) == OPEN_FILES_MAX:
                self._close(next(iter(self._writers)))
            name = f"{self._name}-{self._count:03}.parquet"
            writer = self._writers[group] = _Writer(self._place.schema, name)
            self._count += 1
        self._writers.move_to_end(group)
        if writer.write(rows) >= self._bytes_max:
            self._close(group)

    def _close(self, group: Group) -> None:
        """Store the file of a group. Later rows of the group are written to a new file."""
        self._encode(group)
        waiting, writer = self._groups.pop(group, None), self._writers.pop(group, None)
        if waiting is not None and writer is not None:
            data, footer = writer.close()
            self._done.append(self._place.put(writer.name, data, footer, group, waiting.first))


def fitted(rows: Table, schema: Schema) -> Table:
    """Return the rows with exactly these columns. Raise pa.ArrowInvalid if a value does not fit its
    column.
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
        if field.name not in delta | _BYTES
        and (not pa.types.is_nested(field.type) or field.name in _DICTIONARY)
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

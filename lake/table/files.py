"""Rows to Parquet files: in memory, one for each group of partition values, handed over whole when
it is large enough.

Invariants: all rows of a file have the same partition values; a file appears whole or not at all,
and under a name that no other attempt
uses: nothing is ever overwritten. Memory: the limits below, for each task at work.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from lake.arrow.pyarrow_untyped import Buffer, Schema, pa
from lake.table.model import FileEntry, Group, Layout
from lake.table.pyarrow_untyped import Footer, Table, pq
from lake.table.rows import (
    OFFSET,
    PARTITION,
    TIMESTAMP,
    by_day,
)

ROW_GROUP_BYTES_MAX: Final = 32 << 20
"""Of rows in memory, before they are encoded."""

OPEN_FILES_MAX: Final = 16
"""Days written at once; the one that was idle longest is closed when more are needed, and gets a
second file if it comes again.
"""

_DELTA: Final = {OFFSET, TIMESTAMP, "offset", "timestamp"}
_DICTIONARY: Final = {"_topic", PARTITION, "topic", "partition", "error"}
_BYTES: Final = {"_key", "value", "key"}


class FilePlace(Protocol):
    """Where the files of a table lie. Travels to executors."""

    @property
    def schema(self) -> Schema:
        """Of the table: files have exactly this."""
        ...

    def put(
        self, name: str, data: Buffer, footer: Footer, group: Group, first: tuple[int, int]
    ) -> FileEntry:
        """A new file."""
        ...

    def read(self, file: FileEntry, columns: list[str] | None = None) -> Table:
        """The rows that the table has in it; columns that came later are null."""
        ...

    def delete(self, files: list[FileEntry]) -> None:
        """Files that no commit has named; those that are gone are fine."""
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
        """-> bytes of the file so far."""
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
    """Files of one task. Call `close` at the end: it gives them all."""

    def __init__(self, place: FilePlace, layout: Layout, name: str, bytes_max: int) -> None:
        self._place = place
        self._layout = layout
        self._name = name
        self._bytes_max = bytes_max
        self._open: OrderedDict[Group, _OpenFile] = OrderedDict()
        self._count = 0
        self._done: list[FileEntry] = []

    def add(self, rows: Table) -> None:
        """rows: of one Kafka partition, by names as in the table's schema; columns that it lacks
        are null.
        """
        if not rows.num_rows:
            return
        named = PARTITION if PARTITION in rows.column_names else "partition"
        partition = int(rows.column(named)[0].as_py())
        prefix = (partition,) if self._layout.by_partition else ()
        if not self._layout.by_day:
            self._add(prefix, partition, rows)
            return
        for day, part in by_day(rows):
            self._add((*prefix, day), partition, part)

    def add_to(self, group: Group, rows: Table, first: tuple[int, int]) -> None:
        """rows: of a group that is known, from any Kafka partitions."""
        if rows.num_rows:
            self._write(group, rows, first)

    def close(self) -> list[FileEntry]:
        """All files, each in its place."""
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
    """The same rows with exactly these columns. Raises pa.ArrowInvalid where a value does not
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
    """zstd:1; numbers that grow as differences; no dictionary for keys and raw values, which rarely
    come again.
    """
    flat: Callable[[Any], bool] = lambda kind: not pa.types.is_nested(kind)  # noqa: E731 - a name for the line below
    dictionary = [
        field.name
        for field in schema
        if field.name not in _DELTA | _BYTES and (flat(field.type) or field.name in _DICTIONARY)
    ]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": {
            field.name: "DELTA_BINARY_PACKED" for field in schema if field.name in _DELTA
        },
        "store_schema": False,
    }

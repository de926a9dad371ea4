"""A topic as a DuckDB table: an Arrow dataset that reads only the columns and records that a
statement needs.

DuckDB passes columns and filters for each occurrence of the table. All readers of one statement see
the same offsets. Partitions, offsets and times that the filter excludes are not requested from the
store; filters are still applied to all rows.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from threading import Lock
from typing import Any, Final

from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    DataType,
    RecordBatch,
    RecordBatchReader,
    Schema,
    Table,
    pa,
    pc,
)
from penstock.lake.arrow.topic_scan import Scan
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.times import ALL_TIMES
from penstock.lake.sql.json_values import JsonColumn, JsonDecoder
from penstock.lake.sql.parse_ahead import parse_ahead
from penstock.lake.sql.pruning import PARTITION, prune_offsets, prune_times
from penstock.lake.sql.pyarrow_untyped import Expression, ds
from penstock.lake.sql.statement import MisfitReport, Statement
from penstock.lake.sql.topic_schema import KEY, SOURCES, VALUE, TopicSchema
from penstock.lake.table.registry import decoder_of
from penstock.lake.table.values import ValueDecoder

ROWS_MAX: Final = 65_536
BATCH_BYTES_MAX: Final = 16 << 20
"""Batch size at which the 2 to 4 ms of CPU for each of the two statements per batch matter little.
With half of this size, reading all rows takes a quarter more CPU time, but `SELECT * LIMIT 1` takes
70 ms less; twice this size saves nothing.
"""

PARSERS: Final = min(4, os.cpu_count() or 1)
"""Number of threads that each parse a batch. With two of them, the reading thread needs half a
core.
"""

COUNTED_PARTITIONS_MAX: Final = 256
"""Statements that need only the partition of each record use counts from the metadata, unless the
topic has more partitions than this.
"""

_BINARY: Final[Any] = pa.binary()
_TEXT: Final[Any] = pa.string()


class Reader:
    """Implements the scanner interface that DuckDB expects."""

    def __init__(self, schema: Schema, batches: Iterator[RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """The dataset of one topic. It is registered once and read again for each statement."""

    def __init__(
        self, name: str, topic_schema: TopicSchema, schema: Schema, current: Callable[[], Statement]
    ) -> None:
        """`current` returns the running statement. `schema` includes requested hidden columns."""
        self._name = name
        self._topic_schema = topic_schema
        self._schema = schema
        self._current = current

    @property
    def schema(self) -> Schema:
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,  # noqa: A002 - the name that Arrow gives it
        **_: object,
    ) -> Reader:
        """Return a reader for the matching rows, with these columns. DuckDB calls it."""
        wanted = list(self._schema.names if columns is None else columns)
        # Columns that only the filter may use are those whose names occur in its text.
        text = "" if filter is None else str(filter)
        needed = [name for name in self._schema.names if name not in wanted and name in text]
        statement = self._current()
        result = pa.schema([self._schema.field(name) for name in wanted])
        batches = statement.watched(self._read(statement, wanted + needed, filter))
        return Reader(result, _chosen(batches, result, filter))

    def _read(
        self, statement: Statement, needed: Sequence[str], filter_: Expression | None
    ) -> Generator[RecordBatch, None, None]:
        scan = statement.scan_of(self._name)
        offsets, times = scan.offsets, ALL_TIMES
        if filter_ is not None:
            offsets = dict(prune_offsets(filter_, self._schema, offsets))
            times = prune_times(filter_, self._schema)
        schema = pa.schema([self._schema.field(name) for name in needed])
        if (
            needed == [PARTITION]
            and len(offsets) <= COUNTED_PARTITIONS_MAX
            and not times.is_bounded
        ):
            counted = scan.narrowed(offsets, ("partition",), on_unreadable=statement.leave_out)
            yield from _counted(counted, schema)
            return
        columns = _Columns(self._name, self._topic_schema, schema, statement)
        part = scan.narrowed(
            offsets,
            columns.sources,
            times,
            config=columns.config,
            on_unreadable=statement.leave_out,
        )
        statement.plan(sum(end - start for start, end in offsets.values()))
        parsed = parse_ahead(part.batches(), columns.of, PARSERS)
        with closing(columns), closing(parsed):
            for batch in parsed:
                statement.advance(batch.num_rows)
                yield batch


class _Columns:
    """Converts batches of the scan to the columns of a table. Any number of threads may use it."""

    def __init__(
        self, topic: str, topic_schema: TopicSchema, schema: Schema, statement: Statement
    ) -> None:
        self._topic = topic
        self._schema = schema
        self._statement = statement
        self._json: list[JsonColumn] = [
            topic_schema.json[name] for name in schema.names if name in topic_schema.json
        ]
        others = [
            name for name in schema.names if name not in SOURCES and name not in topic_schema.json
        ]
        self._decoder = decoder_of(topic_schema.value_format) if others else None
        self._decoding = Lock()
        """Serializes the use of the value decoder."""
        self._parser = JsonDecoder(self._json) if self._json else None
        needs_value = bool(self._json or others)
        sources = ["partition", "offset", *(["value"] if needs_value else [])]
        self._has_headers = bool(others) and topic_schema.value_format.framed
        """Whether headers may contain the schemas of values."""
        sources += ["headers"] if self._has_headers else []
        sources += [SOURCES[name] for name in schema.names if name in SOURCES]
        self.sources: tuple[str, ...] = tuple(dict.fromkeys(sources))
        # Views save a copy of each value, but only the JSON parser supports them.
        self.config = ReadConfig(
            rows_max=ROWS_MAX,
            batch_bytes_max=BATCH_BYTES_MAX,
            views=self._parser is not None and not {KEY, VALUE} & set(schema.names),
        )

    def close(self) -> None:
        if self._parser is not None:
            self._parser.close()

    def of(self, batch: RecordBatch) -> RecordBatch:
        """Return the rows of a batch of the scan."""
        arrays: dict[str, Array] = {}
        if self._parser is not None:
            arrays |= self._parsed(self._parser, batch)
        if self._decoder is not None:
            with self._decoding:
                arrays |= self._decoded(self._decoder, batch)
        for field in self._schema:
            if field.name in SOURCES:
                array = batch.column(SOURCES[field.name])
                arrays[field.name] = self._fitted(field, array, batch)
        return pa.RecordBatch.from_arrays(
            [arrays[field.name] for field in self._schema], schema=self._schema
        )

    def _parsed(self, parser: JsonDecoder, batch: RecordBatch) -> dict[str, Array]:
        value = batch.column("value")
        text = value.view(pa.string_view()) if self.config.views else value.view(pa.string())
        found = parser.parse(text)
        for column, rows in found.misfits:
            self._report(column, rows, batch)
        return {
            column.name: array.cast(self._schema.field(column.name).type)
            for column, array in zip(self._json, found.arrays, strict=True)
        }

    def _decoded(self, decoder: ValueDecoder, batch: RecordBatch) -> dict[str, Array]:
        """Decode values with a schema, or return them unchanged."""
        headers = batch.column("headers") if self._has_headers else None
        found = decoder.decode(batch.column("value"), headers)
        if found.errors:
            self._report(VALUE, [row for row, _ in found.errors], batch, found.errors[0][1])
        columns = found.in_place(batch.num_rows)
        return {
            field.name: self._fitted(field, columns[field.name], batch)
            for field in self._schema
            if field.name in columns and field.name not in SOURCES
        }

    def _fitted(self, field: Any, array: Array, batch: RecordBatch) -> Array:  # noqa: ANN401 - pyarrow is untyped
        """Return bytes as text if the field is text. Values that are not UTF-8 become NULL."""
        if field.type != _TEXT or array.type != _BINARY:
            return array
        try:
            return array.cast(_TEXT)
        except pa.ArrowInvalid:
            texts = [_text_or_none(item) for item in array.to_pylist()]
        found = pa.array(texts, _TEXT)
        lost = pc.and_(pc.is_null(found), pc.is_valid(array))
        self._report(field.name, pc.indices_nonzero(lost).to_pylist(), batch)
        return found

    def _report(
        self, column: str, rows: Sequence[int], batch: RecordBatch, reason: str = ""
    ) -> None:
        partition = batch.column("partition")[rows[0]].as_py()
        offset = batch.column("offset")[rows[0]].as_py()
        kind = "" if column == VALUE else _sql_type(self._schema.field(column).type)
        self._statement.report(
            MisfitReport(self._topic, column, kind, len(rows), (partition, offset), reason)
        )


def _counted(scan: Scan, schema: Schema) -> Iterator[RecordBatch]:
    """Yield as many rows as partitions have records, counted from metadata if possible."""
    for partition, count in scan.counts().items():
        for at in range(0, count, 1 << 20):
            rows = min(count - at, 1 << 20)
            yield pa.RecordBatch.from_arrays(
                [pa.repeat(pa.scalar(partition, pa.int32()), rows)], schema=schema
            )


def _chosen(
    batches: Iterator[RecordBatch], result: Schema, filter_: Expression | None
) -> Iterator[RecordBatch]:
    """Yield the rows that match the filter, with the columns of the result."""
    for batch in batches:
        table: Table = pa.Table.from_batches([batch])
        if filter_ is not None:
            table = table.filter(filter_)
        yield from table.select(result.names).to_batches()


def _sql_type(kind: DataType) -> str:
    """Return DuckDB's name for an Arrow type."""
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_nested(kind):
        return "STRUCT" if pa.types.is_struct(kind) else "list"
    names = {"bool": "BOOLEAN", "int64": "BIGINT", "string": "VARCHAR"}
    return names.get(str(kind), str(kind).upper())


def _text_or_none(item: bytes | None) -> str | None:
    try:
        return None if item is None else item.decode()
    except UnicodeDecodeError:
        return None

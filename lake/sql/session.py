"""Run SQL on the topics of a store: register the topics of a statement with DuckDB and run it.

A statement can access only these topics: DuckDB does not read files or load extensions, writes only
temporary files, and its configuration is locked. A session runs one statement at a time; a new
statement closes the previous one.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal, Self
from uuid import UUID

import duckdb

from penstock.lake.arrow.cluster import StoreCluster, check_tail
from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.arrow.topic_scan import Scan, scan
from penstock.lake.fetch.unreadable import check_on_error
from penstock.lake.manifest.errors import UnknownPartition
from penstock.lake.sql.errors import SqlError, read_only, shortened, unknown_topic
from penstock.lake.sql.result import SqlResult
from penstock.lake.sql.running_statement import RunningStatement
from penstock.lake.sql.statement import OnProgress, Statement
from penstock.lake.sql.tokens import (
    TableRef,
    changed_name,
    names_in,
    quoted,
    replace_as_of,
    statements_of,
    table_names,
    text_literal,
    tokens_of,
)
from penstock.lake.sql.topic_schema import HIDDEN, TopicSchema, schema_of
from penstock.lake.sql.topic_table import TopicTable
from penstock.lake.table.values import ValueFormat
from penstock.protocol.registry.settings import RegistrySettings
from penstock.stream.format.manifest.model import split_name

_PLAIN: Final = str.isidentifier
_NO_TABLE: Final = re.compile(r'Table with name "?(.+?)"? does not exist')
"""DuckDB's message for an unknown table."""
_NO_COLUMN: Final = re.compile(
    r'(?:Referenced column|does not have a column named) "(.+?)"(?: (?:was )?not found|$)',
    re.MULTILINE,
)
"""DuckDB's messages for an unknown column, without and with a table name."""

_UNIT_BYTES: Final = {
    "bytes": 1,
    **{f"{prefix}iB": 1 << (10 * power) for power, prefix in enumerate("KMGTPE", 1)},
}
_SchemaKey = tuple[str, str, UUID | None]
"""Topic, its lowercase name in statements, and its topic id."""
_WRITES_FILE: Final = re.compile(r"\s*(copy|export)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """as_of: read only records before the first one with this or a newer timestamp. snapshot: read
    topics from this snapshot.

    on_error: how to handle unreadable records. formats: the formats of topics whose values are not
    JSON. memory_limit: DuckDB's memory limit, such as `2GB`; by default DuckDB's own default.
    temp_directory: directory in which DuckDB may spill; by default the system's temporary
    directory. temp_limit: maximum size of spilled data, such as `10GB`; by default 90 % of the free
    space.
    """

    cluster_id: str = ""
    wal_store: str = ""
    """URL of the WAL store; empty if the WALs are in the main store."""
    tail: Literal["all", "uploaded"] = "all"
    as_of: datetime | None = None
    snapshot: str = ""
    formats: Mapping[str, ValueFormat] = field(default_factory=dict[str, ValueFormat])
    registry: RegistrySettings | None = None
    """Used for topics without a format whose values begin with schema ids."""
    strict: bool = False
    on_error: Literal["raise", "skip"] = "raise"
    memory_limit: str = ""
    temp_directory: str = ""
    temp_limit: str = ""


class Session:
    """Statements on one store, with their views. Use it in a `with` block."""

    def __init__(self, store: str, options: SessionOptions | None = None) -> None:
        """Raise SqlError for an invalid option. The store is not contacted yet."""
        self._options = options or SessionOptions()
        check_on_error(self._options.on_error)
        self._store = store
        wal_store = self._options.wal_store
        tail = check_tail(self._options.tail, wal_store)
        self._cluster = StoreCluster(store, self._options.cluster_id, wal_store, tail)
        self._temp = temporary_directory(self._options.temp_directory)
        self._topic_ids: dict[tuple[str, str], UUID] = {}
        """Topic ids by topic and snapshot, as of the last refresh."""
        self._schemas: dict[_SchemaKey, TopicSchema] = {}
        self._tables: dict[str, TableRef] = {}
        self._schemas_of_tables: dict[str, TopicSchema] = {}
        self._hidden: dict[str, frozenset[str]] = {}
        self._running: RunningStatement | None = None
        self._statement: Statement | None = None
        try:
            self._connection: Any = _connect(self._temp, self._options)
        except BaseException:
            shutil.rmtree(self._temp, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop()
        self._connection.close()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the temporary files, including the files of a statement that cannot be stopped."""
        shutil.rmtree(self._temp, ignore_errors=True)

    def interrupt(self) -> None:
        """Stop the running statement, from any thread."""
        statement = self._statement
        if statement is not None and statement.cancel is not None:
            statement.cancel.set()
            self._connection.interrupt()

    def memory_limit_bytes(self) -> int:
        """Return the memory limit of DuckDB, rounded."""
        found = self._connection.execute("SELECT current_setting('memory_limit')").fetchone()[0]
        number, unit = found.split()
        return int(float(number) * _UNIT_BYTES[unit])

    def topics(self) -> dict[str, int]:
        """Return the topics and their partition counts, without internal topics; with a snapshot,
        return the topics in it. Raise ManifestNotFound, SeveralClusters or ObjectStoreError.
        """
        found: dict[str, int] = {}
        self._topic_ids.clear()
        for topic in self._cluster.newest_root().topics:
            name, snapshot = split_name(topic.name)
            self._topic_ids[name, snapshot] = topic.topic_id
            if snapshot == self._options.snapshot and not topic.is_internal:
                found[name] = topic.partition_count
        return dict(sorted(found.items()))

    def columns(self, topic: str) -> list[str]:
        """Return the columns of a topic. Reads a sample of it if no statement has done so yet."""
        return [*self._schema_of(TableRef(topic, topic)).schema.names, *HIDDEN]

    def run(
        self,
        sql: str,
        *,
        max_rows: int | None = None,
        max_seconds: float | None = None,
        cancel: Event | None = None,
        on_progress: OnProgress | None = None,
    ) -> SqlResult:
        """Run one statement, and return its result. Raise SqlError, SqlStopped, or the errors of
        reading topics.
        """
        self._stop()
        given = statements_of(sql)
        if len(given) != 1:
            raise SqlError(
                f"give one statement; there are {len(given)}" if given else "the statement is empty"
            )
        text, as_of = replace_as_of(given[0])
        tokens = tokens_of(text)
        statement = Statement(
            self._open,
            self._options.strict,
            cancel or Event(),
            None if max_seconds is None else time.monotonic() + max_seconds,
            on_progress,
            on_error=self._options.on_error,
        )
        self._statement = statement
        if [token.word for token in tokens] == ["SHOW", "TABLES"]:
            text = self._show_tables()
        tables = {table.known_as.lower(): table for table in as_of}
        named = [tables.get(item.known_as.lower(), item) for item in table_names(tokens)]
        changed = changed_name(tokens)
        known = self.topics() if named or changed else {}
        topic = self._topic_of(TableRef(changed, changed), known) if changed else None
        if topic is not None and changed.lower() not in self._views():
            raise read_only(topic)
        self._register(named, known, names_in(tokens))

        def explained(error: duckdb.Error) -> SqlError:
            return self._explained(error, text, named, known)

        self._running = RunningStatement(self._connection, text, statement, explained, max_seconds)
        return SqlResult(self._running, max_rows)

    # --- tables -----------------------------------------------------------------------------------

    def _register(
        self, named: Sequence[TableRef], known: Mapping[str, int], words: frozenset[str]
    ) -> None:
        """Create tables for the topics of a statement, with the hidden columns that it mentions."""
        views = self._views()
        by_name: dict[str, str] = {}
        for table in named:
            topic = self._topic_of(table, known)
            if topic is None or table.known_as.lower() in views:
                continue
            other = by_name.setdefault(table.known_as.lower(), topic)
            if other != topic:
                raise SqlError(
                    f"{other} and {topic} differ only in case, which SQL ignores: use only one of"
                    " them in a statement"
                )
            self._register_one(table._replace(topic=topic), words)

    def _register_one(self, table: TableRef, words: frozenset[str]) -> None:
        key = table.known_as.lower()
        hidden = self._hidden.get(key, frozenset()) | (words & set(HIDDEN))
        is_known = self._tables.get(key) == table and self._hidden.get(key) == hidden
        self._tables[key], self._hidden[key] = table, hidden
        topic_schema = self._schema_of(table)
        if is_known and self._schemas_of_tables[key] is topic_schema:
            return
        self._schemas_of_tables[key] = topic_schema
        self._connection.register(
            table.known_as,
            TopicTable(key, topic_schema, topic_schema.with_hidden(sorted(hidden)), self._current),
        )

    def _current(self) -> Statement:
        assert self._statement is not None, "tables are read by statements"
        return self._statement

    def _topic_of(self, table: TableRef, known: Mapping[str, int]) -> str | None:
        """Return the topic with a name, or the only one whose name differs only in case."""
        if table.topic in known or table.snapshot:
            return table.topic
        near = [name for name in known if name.lower() == table.topic.lower()]
        return near[0] if len(near) == 1 else None

    def _schema_of(self, table: TableRef) -> TopicSchema:
        key = self._schema_key(table, table.topic)
        topic_schema = self._schemas.get(key)
        if topic_schema is None:
            formats, registry = self._options.formats, self._options.registry
            framed_format = None
            if registry is not None:
                framed_format = ValueFormat.registered(registry, f"{table.topic}-value")
            topic_schema = schema_of(self._scan(table), formats.get(table.topic), framed_format)
            self._schemas[key] = topic_schema
        return topic_schema

    def _schema_key(self, table: TableRef, topic: str | None) -> _SchemaKey:
        """Return the key of a table's columns, which differs for a recreated topic."""
        topic_id = self._topic_ids.get((topic or "", table.snapshot or self._options.snapshot))
        return topic or "", table.known_as.lower(), topic_id

    def _open(self, name: str) -> Scan:
        return self._scan(self._tables[name])

    def _scan(self, table: TableRef) -> Scan:
        as_of = table.as_of or (None if table.snapshot else self._options.as_of)
        try:
            return scan(
                self._store,
                table.topic,
                end="latest" if as_of is None else as_of,
                columns=("offset",),
                isolation_level="read_committed",
                snapshot=table.snapshot or self._options.snapshot,
                on_error=self._options.on_error,
                cluster_id=self._options.cluster_id,
                wal_store=self._options.wal_store,
                tail=self._options.tail,
            )
        except UnknownPartition as error:
            raise SqlError(f"{error}; `penstock snapshots list` lists snapshots") from None

    def _views(self) -> dict[str, str]:
        """Return the views and tables created by statements, by lowercase name."""
        rows = self._connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal"
            " UNION ALL SELECT table_name FROM duckdb_tables() WHERE NOT internal"
        ).fetchall()
        return {name.lower(): name for (name,) in rows if name.lower() not in self._tables}

    def _show_tables(self) -> str:
        """Return a statement that lists topics and views."""
        rows: list[tuple[str, str, int | None]] = [
            (name, "topic", count) for name, count in self.topics().items()
        ]
        rows += [(name, "view", None) for name in self._views().values()]
        names, kinds, counts = zip(*rows, strict=True) if rows else ((), (), ())
        self._connection.register(
            "penstock tables",
            pa.table(
                {
                    "name": pa.array(names, pa.string()),
                    "kind": pa.array(kinds, pa.string()),
                    "partitions": pa.array(counts, pa.int32()),
                }
            ),
        )
        return 'SELECT * FROM "penstock tables"'

    # --- errors -----------------------------------------------------------------------------------

    def _explained(
        self,
        error: duckdb.Error,
        text: str,
        named: Sequence[TableRef],
        known: Mapping[str, int],
    ) -> SqlError:
        """Return DuckDB's error with the existing names and a remedy."""
        message = str(error).partition("\n\n")[0].strip()
        if isinstance(error, duckdb.OutOfMemoryException):
            return SqlError(f"{message.partition(chr(10))[0]}; raise memory_limit")
        known = known or self.topics()
        unquoted = [
            name for name in known if not _PLAIN(name) and name in text and quoted(name) not in text
        ]
        if unquoted:
            return SqlError(
                f"{message}; names with dots or dashes need quotes:"
                f" {', '.join(quoted(name) for name in unquoted)}"
            )
        if _WRITES_FILE.match(text):
            return SqlError(
                "statements neither read nor write files: use SELECT, and --csv, --json or"
                " --parquet FILE of penstock sql, or a method of the result of penstock.sql"
            )
        if missing := _NO_TABLE.search(message):
            topics = {table.known_as.lower(): table.topic for table in named}
            name = topics.get(missing[1].lower(), missing[1])
            if self._options.snapshot and not known:
                return SqlError(
                    f"no topic has a snapshot {self._options.snapshot!r}; `penstock snapshots list`"
                    " lists snapshots"
                )
            return unknown_topic(name, [*known, *self._views().values()])
        if isinstance(error, duckdb.BinderException):
            found = {
                table.topic: self._schemas[key]
                for table in named
                for key in [self._schema_key(table, self._topic_of(table, known))]
                if key in self._schemas
            }
            parts = [message.partition("\n")[0].rstrip("!")]
            parts += [
                f"columns of {topic}: {shortened(topic_schema.schema.names)}"
                for topic, topic_schema in found.items()
            ]
            missing = _NO_COLUMN.search(message)
            if missing and any(topic_schema.json for topic_schema in found.values()):
                parts.append(_unlisted_field(missing[1]))
            return SqlError("; ".join(parts))
        return SqlError(message)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _unlisted_field(name: str) -> str:
    """Return a hint about reading a field of JSON values that is not a column."""
    path = f"$.{name}" if name.isidentifier() and name.isascii() else f'$."{name}"'
    return f"a field that is not a column: decode(_value)->>{text_literal(path)}"


def temporary_directory(directory: str) -> Path:
    """Create a directory below `directory`, by default that of the system. Raise SqlError."""
    try:
        return Path(tempfile.mkdtemp(prefix="penstock-sql-", dir=directory or None))
    except OSError as error:
        where = repr(directory or tempfile.gettempdir())
        raise SqlError(f"temp_directory {where} cannot be used: {error.strerror}") from None


def _connect(temp: Path, options: SessionOptions) -> Any:  # noqa: ANN401 - DuckDB's connection
    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(temp),
    }
    if options.memory_limit:
        config["memory_limit"] = options.memory_limit
    if options.temp_limit:
        config["max_temp_directory_size"] = options.temp_limit
    try:
        connection: Any = duckdb.connect(config=config)
    except duckdb.Error as error:
        given = f"memory_limit {options.memory_limit!r}, temp_limit {options.temp_limit!r}"
        raise SqlError(f"{given}: {error}; use sizes such as 2GB") from None
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection

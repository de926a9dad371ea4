"""Implement `penstock.sql`."""

from collections.abc import Mapping
from datetime import datetime
from threading import Event
from typing import Literal

from penstock.lake.sql.process import StatementLimits, StatementProcess
from penstock.lake.sql.result import SqlResult
from penstock.lake.sql.session import Session, SessionOptions
from penstock.lake.table.values import ValueFormat
from penstock.protocol.registry.settings import given_registry


def sql(
    query: str,
    *,
    store: str,
    as_of: datetime | None = None,
    snapshot: str = "",
    strict: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    max_rows: int | None = None,
    max_seconds: float | None = None,
    max_bytes: int | None = None,
    cancel: Event | None = None,
    formats: Mapping[str, ValueFormat] | None = None,
    memory_limit: str = "",
    temp_directory: str = "",
    temp_limit: str = "",
    cluster_id: str = "",
    wal_store: str = "",
    schema_registry: str | Mapping[str, str] = "",
    tail: Literal["all", "uploaded"] = "all",
) -> SqlResult:
    """Run one SQL statement on the topics of a store. No broker is contacted.

    Topics are tables. Fields of JSON values, `_partition`, `_offset`, `_timestamp` and `_key` are
    columns, as are `_headers` and `_value` if mentioned. Only committed records are read, no files.

    With `max_seconds`, `max_bytes`, `cancel` or `memory_limit`, it runs in a separate process.

    Args:
        query: One statement of DuckDB's SQL. `FROM orders AS OF TIMESTAMP '2026-03-01'` and
            `FROM orders AS OF SNAPSHOT 'nightly'` read earlier states. `SHOW TABLES` lists topics.
        store: The URL of the object store, as in `s3://BUCKET` or `file:DIR`.
        as_of: Read all topics up to their first record that is not older than this time.
        snapshot: Read all topics from this snapshot.
        strict: Fail if a value does not fit its column, instead of returning NULL and a warning.
        on_error: For unreadable records: `raise` a ReadError, or `skip` them with a warning.
        max_rows: Maximum number of rows; `SqlResult.is_truncated` shows whether there were more.
        max_seconds: Stop after this time, measured from the call.
        max_bytes: Maximum size of the rows in Arrow; an error if the first rows are larger.
        cancel: Stop soon after this event is set, from any thread.
        formats: How to decode values of topics that are not JSON, by topic.
        memory_limit: Memory of DuckDB, such as `2GB`; the process may use 512 MiB more.
        temp_directory: Directory for spilled data; by default the system's temporary directory.
        temp_limit: Maximum size of spilled data, such as `10GB`; by default 90 % of the free space.
        cluster_id: The cluster; required only if the store contains several.
        wal_store: The URL of the WAL store, for clusters with the `wal.store` setting.
        tail: `uploaded`: end before the first record that is only in the WAL store, and ignore it.
        schema_registry: URL or properties of a registry, for values that begin with schema ids.

    Returns:
        A `SqlResult`: call `rows`, `arrow`, `pandas`, `polars`, or iterate `batches`.

    Raises:
        ValueError: `as_of` has no zone, or `max_rows`, `on_error` or `schema_registry` is invalid.
        SqlError: The statement is invalid, or refers to unknown topics or columns.
        SqlStopped: The statement was canceled or took longer than `max_seconds`.
        ManifestNotFound, SeveralClusters, ObjectStoreError, StreamError: As for `scan`.

    Example:
        >>> penstock.sql("SELECT avg(dep_delay) FROM flights", store="s3://my-bucket").rows()
        [(12.1,)]
    """
    options = SessionOptions(
        cluster_id=cluster_id,
        wal_store=wal_store,
        tail=tail,
        registry=given_registry(schema_registry),
        as_of=as_of,
        snapshot=snapshot,
        formats=formats or {},
        strict=strict,
        on_error=on_error,
        memory_limit=memory_limit,
        temp_directory=temp_directory,
        temp_limit=temp_limit,
    )
    limits = StatementLimits(
        max_rows=max_rows, max_seconds=max_seconds, max_bytes=max_bytes, cancel=cancel
    )
    return _run(store, query, options, limits)


def _run(store: str, query: str, options: SessionOptions, limits: StatementLimits) -> SqlResult:
    if limits.max_rows is not None and limits.max_rows < 0:
        raise ValueError(f"max_rows must not be negative, got {limits.max_rows}")
    needs_process = (limits.max_seconds, limits.max_bytes, limits.cancel) != (None, None, None)
    if options.memory_limit or needs_process:
        process = StatementProcess(store, query, options, limits)
        result = SqlResult(process, None)
        result.owns(process.close)
        return result
    session = Session(store, options)
    try:
        result = session.run(query, max_rows=limits.max_rows)
    except BaseException:
        session.close()
        raise
    result.owns(session.close)
    return result

"""The classes that Spark calls to write. Executors run `write`, the driver `commit` or `abort`.

Source: `pyspark.sql.datasource` of 4.3; docs/design/spark.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.base.log import get_logger
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.sink.columns import check_columns
from penstock.lake.spark.sink.errors import TransactionFailed
from penstock.lake.spark.sink.options import WriteOptions, parse_write, write_warnings
from penstock.lake.spark.sink.producer import RecordProducer, check_settings
from penstock.lake.spark.sink.staging import Staging
from penstock.lake.spark.sink.transaction import Transaction, WriteId
from penstock.objectstore.errors import InvalidStoreUrl, ObjectStoreError
from penstock.objectstore.url import parse_store_url

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    # Spark 4.0 passes record batches only to subclasses of the batch writer.
    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, DataSourceArrowWriter): ...


_log = get_logger(__name__)
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """The result of a task: rows that were acknowledged, or staged under `keys`. `query_id`: the id
    of the streaming query, or empty.
    """

    row_count: int
    keys: tuple[str, ...] = ()
    query_id: str = ""


def _checked(
    options: Mapping[str, str], schema: StructType, *, streaming: bool, overwrite: bool
) -> WriteOptions:
    found = parse_write(options, streaming=streaming, overwrite=overwrite)
    check_columns(schema, found.topic)
    if found.exactly_once:
        try:
            parse_store_url(found.store)
        except InvalidStoreUrl as error:
            raise InvalidOption(f"option 'store': {error}") from None
    check_settings(found)
    for note in write_warnings(options):
        _log.warning("option", note=note)
    return found


# Invariants: without `exactlyOnce` a task returns only after every record is acknowledged: at least
# once, because a repeated task repeats its records. With `exactlyOnce`, tasks only stage rows, and
# the driver writes the whole batch in one transaction before Spark completes the micro-batch. Spark
# pickles these objects and creates new ones for every micro-batch, so they have no state.
class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = _checked(options, schema, streaming=False, overwrite=overwrite)
        self._staging = Staging(self._options.store, str(uuid4()))

    def write(self, iterator: Iterator[RecordBatch]) -> TaskDone:
        return _write(self._options, iterator, self._staging, 0)

    def commit(self, messages: _Messages) -> None:
        options = self._options
        done = _Done.of(messages)
        wanted = WriteId(
            options.write_name or self._staging.write_id, options.write_version, done.query_id
        )
        _commit(
            Transaction(options, wanted, marked=bool(options.write_name)), done, self._staging, 0
        )

    def abort(self, messages: _Messages) -> None:
        _forget(self._staging, _Done.of(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = _checked(options, schema, streaming=True, overwrite=overwrite)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskDone:
        query_id, batch_id = _property(_QUERY_ID), _property(_BATCH_ID)
        if self._options.exactly_once and not (query_id and batch_id):
            raise TransactionFailed(
                f"this version of Spark does not pass {_QUERY_ID} and {_BATCH_ID} to its "
                "tasks, so exactlyOnce cannot identify the batch"
            )
        return _write(self._options, iterator, self._staging(query_id), int(batch_id or 0))

    def commit(self, messages: _Messages, batchId: int) -> None:
        done = _Done.of(messages)
        wanted = WriteId(done.query_id, batchId, done.query_id)
        _commit(Transaction(self._options, wanted), done, self._staging(done.query_id), batchId)

    def abort(self, messages: _Messages, batchId: int) -> None:
        done = _Done.of(messages)
        _forget(self._staging(done.query_id), done)

    def _staging(self, query_id: str) -> Staging:
        return Staging(self._options.store, query_id)


class _Done(NamedTuple):
    """The combined results of all tasks. A failed task has not sent a message."""

    row_count: int
    keys: list[str]
    query_id: str

    @classmethod
    def of(cls, messages: _Messages) -> Self:
        tasks = [item for item in messages if isinstance(item, TaskDone)]
        query_id = next((item.query_id for item in tasks if item.query_id), "")
        return cls(
            sum(item.row_count for item in tasks),
            [key for item in tasks for key in item.keys],
            query_id,
        )


def _property(name: str) -> str:
    """Return a local property, which Spark passes from the driver to its tasks."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context else None) or ""


def _write(
    options: WriteOptions, batches: Iterator[RecordBatch], staging: Staging, batch_id: int
) -> TaskDone:
    if options.exactly_once:
        context = TaskContext.get()
        row_count, keys = staging.put(
            batches, options.topic, batch_id, context.partitionId() if context else 0
        )
        return TaskDone(row_count, tuple(keys), _property(_QUERY_ID))
    producer: RecordProducer | None = None
    with ExitStack() as closing:
        for batch in batches:
            if producer is None:  # a task without rows does not open a connection
                producer = closing.enter_context(RecordProducer(options))
            producer.send(batch)
        if producer is not None:
            producer.finish()
    return TaskDone(producer.sent_count if producer else 0)


def _commit(transaction: Transaction, done: _Done, staging: Staging, batch_id: int) -> None:
    """Commit a batch. A batch without rows is ignored."""
    if transaction.options.exactly_once and done.keys:
        wrote = transaction.commit(lambda: staging.read(done.keys))
        try:
            staging.delete_through(batch_id)
        except (ObjectStoreError, TimeoutError) as error:
            _log.warning("staged_rows_not_deleted", write_id=staging.write_id, error=str(error))
    else:
        wrote = bool(done.row_count)
    _log.info("written", row_count=done.row_count, batch_id=batch_id, wrote=wrote)


def _forget(staging: Staging, done: _Done) -> None:
    """Delete staged rows. Log a failure instead of raising it, because Spark already reports
    another error.
    """
    try:
        staging.delete(done.keys)
    except (ObjectStoreError, TimeoutError) as error:
        _log.warning("staged_rows_not_deleted", write_id=staging.write_id, error=str(error))

"""Errors of table exports. Each message contains a remedy. They must survive pickling, because
executors raise them and drivers display them.
"""

from penstock.base.errors import StreamError


class TableError(StreamError):
    """Base class of table export errors."""


class InvalidTable(TableError):
    """An option is not valid, or the table cannot store these rows."""


class InvalidSchema(TableError):
    """The file is not a schema, or has a type that no column supports."""


class ValueNotDecoded(TableError):
    """A value is not in the format of its column."""


class OtherTopic(TableError):
    """The table contains another topic, possibly a deleted one with the same name."""

    def __init__(
        self, table: str, topic: str, topic_id: str, other_topic: str, other_id: str
    ) -> None:
        """`other_topic` and `other_id`: the topic whose records the table contains."""
        was = (
            f"topic {topic!r} was deleted and created again (id {topic_id}): table {table} contains"
            f" records of the earlier topic (id {other_id})"
            if other_topic == topic
            else f"table {table} contains topic {other_topic!r}, not {topic!r}"
        )
        super().__init__(
            f"{was}; to export {topic!r}, choose another table with `--table NAME` or the config"
            " penstock.table.name, or drop the table and its dead letter table"
        )
        self._arguments = (table, topic, topic_id, other_topic, other_id)

    def __reduce__(self) -> tuple[type["OtherTopic"], tuple[str, str, str, str, str]]:
        return OtherTopic, self._arguments


class RecordsLost(TableError):
    """Retention removed records before the export read them."""


class TableAhead(TableError):
    """The table contains offsets that are not in the log, so the log has lost records."""


class BatchExpired(TableError):
    """The files of a batch are so old that they may have been deleted."""

    retriable = True


class CommitConflict(TableError):
    """Another writer committed first. This commit has not happened and never will."""

    retriable = True


class CommitUnknown(TableError):
    """The commit may have happened, or may still happen."""

    retriable = True


class CatalogRefused(InvalidTable):
    """The catalog denies this principal the operation, or rejects the request as invalid."""


class CatalogUnavailable(TableError):
    """The catalog does not respond, or has failed."""

    retriable = True


class EngineLost(TableError):
    """The Spark application has ended. Only another process can start a new one."""


class WarehouseFailed(TableError):
    """The store of the tables cannot be read or written."""

    retriable = True

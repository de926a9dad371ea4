"""Errors of table exports. Each message says what to do. Must survive pickling: executors raise
them, drivers show them.
"""

from penstock.base.errors import StreamError


class TableError(StreamError):
    """Base of the errors of table export."""


class InvalidTable(TableError):
    """An option is not valid, or the table cannot take these rows."""


class InvalidSchema(TableError):
    """The file is not a schema, or has a type that no column supports."""


class OtherTopic(TableError):
    """The table continues another topic, perhaps a deleted one of the same name."""


class RecordsLost(TableError):
    """Retention removed records before the export read them."""


class CommitConflict(TableError):
    """Another writer committed first. This commit did not and will not happen."""

    retriable = True


class CommitUnknown(TableError):
    """The commit may have happened, or may still."""

    retriable = True


class CatalogRefused(InvalidTable):
    """The catalog lets this principal not do this, or finds the request invalid."""


class CatalogUnavailable(TableError):
    """The catalog does not answer, or fails by itself."""

    retriable = True


class WarehouseFailed(TableError):
    """The store of the tables cannot be read or written."""

    retriable = True

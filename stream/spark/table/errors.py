"""What can go wrong in a table export. Each message says what to do. Must survive pickling: executors raise, drivers show."""

from stream.errors import StreamError


class TableError(StreamError):
    """Base; also what needs no more than its text."""


class InvalidTable(TableError):
    """An option, or a table that can not take these rows."""


class InvalidSchema(TableError):
    """The schema of the values is none, or has a type that no column has."""


class OtherTopic(TableError):
    """The table goes on from offsets of another topic, perhaps one of the same name that was deleted."""


class RecordsLost(TableError):
    """Retention was faster than the export."""


class CommitConflict(TableError):
    """Somebody else committed first. This commit did not and will not happen."""

    retriable = True


class CommitUnknown(TableError):
    """The commit may have happened, or may still."""

    retriable = True

"""Base classes of errors that several packages share."""

from typing import ClassVar


class ExpectedError(Exception):
    """Base class of errors whose message is sufficient for users: programs print it as one `error:`
    line instead of a traceback, and exit with the error's code.
    """

    exit_code: ClassVar[int] = 1


class StreamError(Exception):
    """Base class of errors in streams, record batches, objects and readers.

    `retriable`: whether the same call may succeed later without intervention.
    """

    retriable = False

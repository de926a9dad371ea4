"""Base classes of the errors of several packages."""

from typing import ClassVar


class ExpectedError(Exception):
    """Base of failures whose message is all that a user needs: programs print it as one `error:`
    line instead of a traceback, and exit with the code.
    """

    exit_code: ClassVar[int] = 1


class StreamError(Exception):
    """Base of the errors of streams, record batches, objects and readers.

    `retriable`: whether the same call may succeed later without any intervention.
    """

    retriable = False

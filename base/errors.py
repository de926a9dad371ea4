"""Define the base of errors that the data in a stream can cause."""


class StreamError(Exception):
    """Base of the errors of streams, record batches, objects and readers.

    `retriable`: whether the same call may succeed later without any intervention.
    """

    retriable = False

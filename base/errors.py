"""The base class of errors caused by the data in a stream."""


class StreamError(Exception):
    """Base of the errors of streams, record batches, objects and readers.

    `retriable`: whether the same call may succeed later without any intervention.
    """

    retriable = False

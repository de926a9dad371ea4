"""Errors raised by jobs that write, except for invalid options.

They must survive pickling, because executors raise them and drivers display them.
"""

from penstock.base.errors import StreamError


class WriteFailed(StreamError):
    """A record was not, or may not have been, acknowledged. `partition` is negative if none has
    been chosen yet.
    """

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        where = f"topic {topic} partition {partition}" if partition >= 0 else f"topic {topic}"
        super().__init__(f"{where}: {reason}")
        self.topic = topic
        self.partition = partition
        self.reason = reason

    def __reduce__(self) -> tuple[type["WriteFailed"], tuple[str, int, str]]:
        return WriteFailed, (self.topic, self.partition, self.reason)


class ProducerFailed(StreamError):
    """The producer cannot continue, for example because it was fenced or records were not
    acknowledged in time.
    """


class TransactionFailed(StreamError):
    """The transaction was rejected, or its outcome is unknown."""


class InvalidRow(StreamError, ValueError):
    """A row cannot be converted to a record."""


class StaleWrite(StreamError):
    """The write is older than the last one, or belongs to another query. Writing it could repeat
    records; skipping it could lose some.
    """

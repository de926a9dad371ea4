"""Errors of Spark jobs, with the messages of Spark's Kafka source (`kafka-error-conditions.json`,
`KafkaSourceProvider`) if it reports the same error.

They must survive pickling, because executors raise them and drivers display them.
"""

from penstock.base.errors import StreamError

_LOSS = (
    "Some data may have been lost because they are not available in Kafka any more; either the data"
    " was aged out by Kafka or the topic may have been deleted before all the data in the topic was"
    " processed. If you don't want your streaming query to fail on such cases, set the source"
    " option failOnDataLoss to false. Reason: "
)


class InvalidOption(StreamError, ValueError):
    """An option, or a combination of options, is not valid."""


class OffsetsMismatch(StreamError):
    """Offsets are inconsistent with each other or with the existing partitions."""


class DataLoss(StreamError):
    """Offsets of the query can no longer be read, and `failOnDataLoss` is true."""

    def __init__(self, reason: str) -> None:
        super().__init__(_LOSS + reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type["DataLoss"], tuple[str]]:
        return DataLoss, (self.reason,)

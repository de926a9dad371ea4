"""Errors of record batches."""

from penstock.base.errors import StreamError


class BatchCorrupt(StreamError):
    """A Kafka record batch has an invalid header, length, checksum or record."""


class BatchTooLarge(BatchCorrupt):
    """The records of a batch decompress to more bytes than the caller allows. The batch may be
    valid.
    """

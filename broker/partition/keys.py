"""Check that each record for a compacted topic has a key, because compaction keeps the last record
of each key.

Invariant: what is checked here is short. Longer batches go to a process of their own
(`broker.handlers.record_checks`): a kilobyte may decompress to a gigabyte, or to a million records.
Source: Kafka `LogValidator.validateKey`.
"""

from typing import Final

from penstock.broker.partition.validation import Refusal, TopicRules
from penstock.broker.schemas.rules import KEYLESS
from penstock.broker.wire.error_codes import ErrorCode
from penstock.stream.batch.header import parse_header
from penstock.stream.batch.records import RECORDS_SEARCHED_MAX, keyless_records
from penstock.stream.errors import BatchCorrupt, BatchTooLarge

RECORDS_AT_ONCE_MAX: Final = 500
"""Records of one request that the event loop decodes: 1 ms, and 10 ms with a batch for each."""

BYTES_AT_ONCE_MAX: Final = 64 << 10
"""Bytes to which the event loop decompresses a batch: 20 us."""


class TakesLong(Exception):
    """Raised for a batch whose check would stop the event loop."""


class KeyCheck:
    """The check of the batches of one request."""

    __slots__ = ("_left_count",)

    def __init__(self) -> None:
        self._left_count = RECORDS_AT_ONCE_MAX

    def problem(self, records: memoryview | None, rules: TopicRules) -> Refusal | None:
        """Return why a batch may not enter its topic. Raises TakesLong.

        MESSAGE_TOO_LARGE makes Java's producer split a compressed batch and send the parts.
        """
        if records is None or len(records) > rules.message_bytes_max:
            return None  # it is refused for that
        try:
            count = parse_header(records).record_count
            if count > RECORDS_SEARCHED_MAX:
                message = (
                    f"the batch has {count} records; a compacted topic accepts at most"
                    f" {RECORDS_SEARCHED_MAX} in one batch: lower batch.size of the producer"
                )
                return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
            if count > self._left_count:
                raise TakesLong
            self._left_count -= count
            keyless = keyless_records(records, BYTES_AT_ONCE_MAX)
        except BatchTooLarge:
            raise TakesLong from None
        except BatchCorrupt as error:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        if not keyless:
            return None
        errors = tuple((at, KEYLESS) for at in keyless)
        return Refusal(ErrorCode.INVALID_RECORD, KEYLESS, errors)

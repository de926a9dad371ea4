"""The timestamps that a reader wants, compared with the bounds of blocks and batches.

Invariant: a block or batch is skipped only if none of its records can be wanted, and accepted
without checking its records only if all of them are. An unknown lower bound allows neither. Must
not import more than the standard library and `protocol.batch.header`.
"""

from typing import Final, NamedTuple

from penstock.protocol.batch.header import NEWEST_UNKNOWN, OLDEST_UNKNOWN
from penstock.stream.format.layout import BlockEntry

_NEWEST: Final = (1 << 63) - 1


class TimeBounds(NamedTuple):
    """Timestamps from `from_ms` to `to_ms`, both inclusive; by default all timestamps."""

    from_ms: int = OLDEST_UNKNOWN
    to_ms: int = _NEWEST

    @property
    def is_bounded(self) -> bool:
        return self != ALL_TIMES

    @property
    def oldest_ms(self) -> int | None:
        """Return `from_ms`, or None if no timestamp is too old."""
        return None if self.from_ms == OLDEST_UNKNOWN else self.from_ms

    def excludes(self, oldest_ms: int, newest_ms: int) -> bool:
        """Return True if no timestamp between `oldest_ms` and `newest_ms` is wanted."""
        return newest_ms < self.from_ms or oldest_ms > self.to_ms

    def excludes_block(self, block: BlockEntry) -> bool:
        """Return whether the index shows that no record of a block is wanted."""
        is_unknown = block.max_timestamp_ms < 0 and block.record_count > 0
        newest_ms = NEWEST_UNKNOWN if is_unknown else block.max_timestamp_ms
        return self.excludes(block.min_timestamp_ms, newest_ms)

    def includes_block(self, block: BlockEntry) -> bool:
        """Return whether the index shows that all records of a block are wanted."""
        is_known = block.max_timestamp_ms >= 0 or not block.record_count
        return not self.is_bounded or (
            is_known and self.includes(block.min_timestamp_ms, block.max_timestamp_ms)
        )

    def includes(self, oldest_ms: int, newest_ms: int) -> bool:
        """Return whether all timestamps between these two are wanted."""
        return self.from_ms <= oldest_ms and newest_ms <= self.to_ms


ALL_TIMES: Final = TimeBounds()

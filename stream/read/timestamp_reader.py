"""Search batches for the first record at or after a timestamp, or for the newest one.

Batches above SHORT_RECORDS_MAX or SHORT_BYTES_MAX, which take 1 ms, are decoded in a thread:
100,000 records or 64 MiB may compress to a few kilobytes and take 0.2 s.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from penstock.base.buffers import Buffer
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge
from penstock.protocol.batch.header import NEWEST_UNKNOWN, BatchHeader, check_crc, parse_header
from penstock.protocol.batch.records import (
    RECORDS_SEARCHED_MAX,
    first_record_at_or_after,
    newest_timestamp,
)

SHORT_RECORDS_MAX: Final = 500
SHORT_BYTES_MAX: Final = 64 << 10

_T = TypeVar("_T")


class TimestampReader:
    """Reads record timestamps. decompressed_bytes_max: maximum decompressed size of one batch."""

    def __init__(self, decompressed_bytes_max: int) -> None:
        self._decompressed_bytes_max = decompressed_bytes_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="timestamps")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def first_record(
        self, batch: Buffer, timestamp_ms: int, from_offset: int = 0
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at `from_offset` or later with at least
        `timestamp_ms`, or None. Raises BatchCorrupt.

        A batch is not searched if it has more than RECORDS_SEARCHED_MAX records or
        `decompressed_bytes_max` bytes, or if its records are unreadable. The result is then the
        batch's first offset and newest timestamp, so that a reader that starts there misses no
        record.
        """
        header = parse_header(batch)
        if header.newest_timestamp_ms < timestamp_ms:
            return None
        search = partial(first_record_at_or_after, batch, timestamp_ms, from_offset=from_offset)
        try:
            return await self._searched(header, search)
        except BatchCorrupt:
            if not check_crc(batch):
                raise
            return max(header.base_offset, from_offset), header.max_timestamp_ms

    async def newest(self, batch: Buffer, start_offset: int, end_offset: int) -> int:
        """Return the newest timestamp of the records of [start_offset, end_offset), -1 if there are
        none. Raises BatchCorrupt.

        For a batch that is not searched, or whose records are unreadable, this is its max
        timestamp.
        """
        header = parse_header(batch)
        is_inside = start_offset <= header.base_offset and header.next_offset <= end_offset
        if not header.record_count or (is_inside and header.newest_timestamp_ms != NEWEST_UNKNOWN):
            return header.max_timestamp_ms if header.record_count else -1
        try:
            return await self._searched(
                header, partial(newest_timestamp, batch, start_offset, end_offset)
            )
        except BatchCorrupt:
            if not check_crc(batch):
                raise
            return header.max_timestamp_ms

    async def _searched(self, header: BatchHeader, search: Callable[..., _T]) -> _T:
        """Raises BatchCorrupt, BatchTooLarge."""
        if header.record_count <= SHORT_RECORDS_MAX and header.size_bytes <= SHORT_BYTES_MAX:
            with suppress(BatchTooLarge):
                return search(
                    decompressed_bytes_max=min(SHORT_BYTES_MAX, self._decompressed_bytes_max)
                )
        if header.record_count > RECORDS_SEARCHED_MAX:
            raise BatchTooLarge(f"{header.record_count} records are too many to search")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread,
            partial(search, decompressed_bytes_max=self._decompressed_bytes_max, in_thread=True),
        )

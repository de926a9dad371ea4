"""The batches read by a share fetch, indexed by offset."""

from bisect import bisect_right
from collections.abc import Sequence

from penstock.base.buffers import Buffer
from penstock.broker.groups.share.partitions.window import Bounds
from penstock.protocol.batch.header import batch_span, iter_headers
from penstock.stream.format.transaction_log import AbortedTransaction


class FetchedBatches:
    """Batches in log order, up to the one that contains the last requested offset."""

    __slots__ = ("_chunks", "_places", "aborted", "bounds", "size_bytes")

    def __init__(self, chunks: Sequence[Buffer], wanted_end: int) -> None:
        self._chunks = chunks
        self.bounds: list[Bounds] = []
        self._places: list[tuple[int, int, int]] = []
        """(chunk, start byte, end byte) of each batch."""
        self.aborted: list[Bounds] | None = None
        """Batches of aborted transactions; None if not determined yet."""
        self.size_bytes = 0
        for number, chunk in enumerate(chunks):
            at, size = 0, len(chunk)
            while at < size:
                span = batch_span(chunk, at)
                if self.bounds and span.base_offset >= wanted_end:
                    return
                self.bounds.append(Bounds(span.base_offset, span.next_offset))
                self._places.append((number, at, at + span.size_bytes))
                at += span.size_bytes
                self.size_bytes += span.size_bytes

    @property
    def end_offset(self) -> int:
        return self.bounds[-1].end

    def find_aborted(self, transactions: Sequence[AbortedTransaction] | None) -> None:
        """Find the batches of aborted transactions. None if the transactions have not been read
        yet.
        """
        if transactions is None:
            return
        self.aborted = []
        if not transactions:
            return
        waiting = sorted(transactions, key=lambda item: item.first_offset, reverse=True)
        producer_ids: set[int] = set()
        for bounds, (number, start, end) in zip(self.bounds, self._places, strict=True):
            batch = memoryview(self._chunks[number])[start:end]
            _, header = next(iter_headers(batch))
            while waiting and waiting[-1].first_offset < bounds.end:
                producer_ids.add(waiting.pop().producer_id)
            if header.is_control:
                producer_ids.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in producer_ids:
                self.aborted.append(bounds)

    def within(self, first_offset: int, last_offset: int) -> Sequence[Buffer]:
        """Return the complete batches that contain these offsets, as views."""
        first = max(0, bisect_right(self.bounds, first_offset, key=_base) - 1)
        if self.bounds[first].end <= first_offset and first + 1 < len(self.bounds):
            first += 1
        last = max(first, bisect_right(self.bounds, last_offset, key=_base) - 1)
        start_chunk, start, _ = self._places[first]
        end_chunk, _, end = self._places[last]
        if start_chunk == end_chunk:
            return [_part(self._chunks[start_chunk], start, end)]
        return [
            _part(self._chunks[start_chunk], start, len(self._chunks[start_chunk])),
            *self._chunks[start_chunk + 1 : end_chunk],
            _part(self._chunks[end_chunk], 0, end),
        ]


def _base(item: Bounds) -> int:
    return item.base


def _part(chunk: Buffer, start: int, end: int) -> Buffer:
    return chunk if start == 0 and end == len(chunk) else memoryview(chunk)[start:end]

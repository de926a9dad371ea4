"""Log compaction of transactional batches, like Kafka's `CleanedTransactionMetadata` (KIP-98).

Records of aborted transactions are removed, but abort markers are kept: readers find the
transaction in the txn stream and skip the producer's batches up to the marker. A commit marker is
removed once no records of its transaction remain before it.
"""

from bisect import bisect_right
from collections.abc import Iterable

from penstock.protocol.batch.header import BatchHeader
from penstock.stream.format.transaction_log import AbortedTransaction


class CleanedTransactions:
    """The transactions of one pass. All of them have ended, because cleaning stops at the last
    stable offset.

    aborted: the aborted transactions that overlap the cleaned part of the log.
    """

    __slots__ = ("_aborted", "_with_records")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for item in aborted:
            self._aborted.setdefault(item.producer_id, []).append(
                (item.first_offset, item.last_offset)
            )
        for spans in self._aborted.values():
            spans.sort()
        self._with_records: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the batch belongs to an aborted transaction."""
        if not self._aborted or not header.is_transactional or header.is_control:
            return False
        spans = self._aborted.get(header.producer_id)
        if spans is None:
            return False
        at = bisect_right(spans, header.base_offset, key=_first)
        return at > 0 and header.base_offset <= spans[at - 1][1]

    def on_records(self, header: BatchHeader) -> None:
        """Record a batch with remaining records. Call this before `on_commit`."""
        if header.is_transactional:
            self._with_records.add(header.producer_id)

    def on_commit(self, producer_id: int) -> bool:
        """Record a commit marker. Return whether no record of its transaction remains."""
        if producer_id in self._with_records:
            self._with_records.discard(producer_id)
            return False
        return True


def _first(span: tuple[int, int]) -> int:
    return span[0]

"""Track the transactions of one partition: the open ones, the last stable offset, and recently
aborted ones. Offsets must be passed in log order.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.base.ids import Offset
from penstock.protocol.batch.control import Marker
from penstock.stream.format.transaction_log import NO_OFFSET, AbortedTransaction, TransactionEvent

ABORTED_COUNT_MAX: Final = 1_000
"""Maximum number of aborted transactions kept in memory, each using 100 bytes. If a consumer is
further behind, each of its fetches reads the txn stream.
"""


class AbortedTail(NamedTuple):
    """All transactions with an abort marker at `offset` or later."""

    offset: Offset
    transactions: Sequence[AbortedTransaction]


class Transactions:
    __slots__ = ("_aborted", "_aborted_count_max", "_aborted_from", "_ended", "_open")

    def __init__(self, decided_from: Offset, aborted_count_max: int = ABORTED_COUNT_MAX) -> None:
        """decided_from: transactions with markers below this offset are only in the txn stream."""
        self._open: dict[int, Offset] = {}
        """First offset by producer id, in offset order."""
        self._ended: deque[tuple[Offset, Offset]] = deque()
        """(first offset, marker offset) of transactions whose marker is not durable yet."""
        self._aborted: deque[AbortedTransaction] = deque()
        """In marker order."""
        self._aborted_from = decided_from
        self._aborted_count_max = aborted_count_max

    def __len__(self) -> int:
        """Return the number of open transactions."""
        return len(self._open)

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    @property
    def first_unstable_offset(self) -> Offset:
        """Return the first offset of the earliest open transaction, or -1."""
        return next(iter(self._open.values()), NO_OFFSET)

    def unsettled(self) -> frozenset[Offset]:
        """Return the first offsets of transactions that are open or whose marker is not durable
        yet.
        """
        return frozenset([*self._open.values(), *(first for first, _ in self._ended)])

    def restore(self, opened: Iterable[tuple[int, Offset]]) -> None:
        self._open = dict(sorted(opened, key=lambda item: item[1]))

    # --- events for readers -----------------------------------------------------------------------

    def begin_event(self, producer_id: int, first_offset: Offset) -> TransactionEvent | None:
        """Return the event for readers that must accompany this producer's transactional batch at
        `first_offset`, or None.
        """
        return None if self._open or producer_id in self._open else TransactionEvent(first_offset)

    def end_event(self, marker: Marker, offset: Offset) -> TransactionEvent | None:
        """Return the event for readers that must accompany this marker at `offset`.

        A marker without a transaction has no effect here, but readers that count records must know
        that the partition contains markers.
        """
        first_offset = self._open.get(marker.producer_id)
        if first_offset is None:
            return None if self._open else TransactionEvent(NO_OFFSET)
        is_earliest = first_offset == self.first_unstable_offset
        unstable = (
            next((item for item in self._open.values() if item != first_offset), NO_OFFSET)
            if is_earliest
            else None
        )
        if marker.committed:
            return None if unstable is None else TransactionEvent(unstable)
        aborted = AbortedTransaction(marker.producer_id, first_offset, offset)
        return TransactionEvent(
            self.first_unstable_offset if unstable is None else unstable, aborted
        )

    # --- appends ----------------------------------------------------------------------------------

    def begin(self, producer_id: int, first_offset: Offset) -> None:
        """Open a transaction, unless it is already open."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, marker: Marker, offset: Offset) -> None:
        """End the marker's transaction, if it is open."""
        first_offset = self._open.pop(marker.producer_id, None)
        if first_offset is None:
            return
        self._ended.append((first_offset, offset))
        if not marker.committed:
            self._aborted.append(AbortedTransaction(marker.producer_id, first_offset, offset))
            if len(self._aborted) > self._aborted_count_max:
                self._aborted_from = Offset(self._aborted.popleft().last_offset + 1)

    def confirm(self, high_watermark: Offset) -> Offset:
        """Record that markers below `high_watermark` are durable. Return the last stable offset."""
        if not self._open and not self._ended:
            return high_watermark
        while self._ended and self._ended[0][1] < high_watermark:
            self._ended.popleft()
        return self.last_stable(high_watermark)

    # --- visibility -------------------------------------------------------------------------------

    def last_stable(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset: everything below it is durable and outside of open
        transactions. It never decreases.
        """
        if not self._open and not self._ended:
            return high_watermark
        firsts = [first for first, _ in self._ended]
        if self._open:
            firsts.append(self.first_unstable_offset)
        return min(high_watermark, *firsts)

    def aborted_within(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that overlap [start, end), by first offset. Return None
        if some of them may be only in the txn stream.
        """
        if start_offset < self._aborted_from:
            return None
        found = [
            item
            for item in self._aborted
            if item.last_offset >= start_offset and item.first_offset < end_offset
        ]
        return sorted(found, key=_first_offset)

    def aborted_since(self, offset: Offset, end_offset: Offset) -> AbortedTail:
        """Return the aborted transactions whose marker is in [offset, end), if they are still in
        memory.
        """
        start = max(offset, self._aborted_from)
        found = [item for item in self._aborted if start <= item.last_offset < end_offset]
        return AbortedTail(start, found)

    def check_invariants(self) -> None:
        firsts = list(self._open.values())
        assert firsts == sorted(set(firsts)), f"open transactions begin at {firsts}"
        markers = [offset for _, offset in self._ended]
        assert markers == sorted(set(markers)), f"markers lie at {markers}"
        assert len(self._aborted) <= self._aborted_count_max


def _first_offset(item: AbortedTransaction) -> int:
    return item.first_offset

"""The transactions of one partition: which are open, up to where everything is decided, and which
were aborted of late.

Invariants: offsets come in the order of the log; the last stable offset never goes back and never
passes a transaction whose end is not durable; the events that `begin_event` and `end_event`
foretell say the same to readers of the txn stream as `last_stable` says here.
Limits: open transactions are counted by the caller; of aborted ones the newest `aborted_count_max`
are kept, older ones are in the txn stream: `aborted_within` then says None. Must not: know
producers' epochs or sequences (`producer_state`), or do I/O.
Source: Kafka `ProducerStateManager` (ongoing and unreplicated transactions, `firstUnstableOffset`),
`TransactionIndex`; KIP-98.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from base.ids import Offset
from stream.batch.control import Marker
from stream.format.transaction_log import NO_OFFSET, AbortedTransaction, TransactionEvent

ABORTED_COUNT_MAX: Final = 1_000
"""Kept in memory, 100 bytes each. Consumers that lag behind more of them cost a read of the txn
stream for each fetch.
"""


class Transactions:
    __slots__ = ("_aborted", "_aborted_count_max", "_aborted_from", "_ended", "_open")

    def __init__(self, decided_from: Offset, aborted_count_max: int = ABORTED_COUNT_MAX) -> None:
        """decided_from: markers below it are in the txn stream only."""
        self._open: dict[int, Offset] = {}
        """Producer id to first offset, earliest first: offsets only grow."""
        self._ended: deque[tuple[Offset, Offset]] = deque()
        """(first offset, offset of the marker) of those whose marker is not durable yet."""
        self._aborted: deque[AbortedTransaction] = deque()
        """In the order of their markers."""
        self._aborted_from = decided_from
        self._aborted_count_max = aborted_count_max

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    @property
    def first_unstable_offset(self) -> Offset:
        """Of everything appended; -1: nothing is open."""
        return next(iter(self._open.values()), NO_OFFSET)

    def restore(self, opened: Iterable[tuple[int, Offset]]) -> None:
        self._open = dict(sorted(opened, key=lambda item: item[1]))

    # --- what an append would mean ----------------------------------------------------------------

    def begin_event(self, producer_id: int, first_offset: Offset) -> TransactionEvent | None:
        """What readers have to be told if a transactional batch of this producer goes to
        `first_offset`.
        """
        return None if self._open or producer_id in self._open else TransactionEvent(first_offset)

    def end_event(self, marker: Marker, offset: Offset) -> TransactionEvent | None:
        """What readers have to be told if this marker goes to `offset`."""
        first_offset = self._open.get(marker.producer_id)
        if first_offset is None:
            return None
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

    # --- what was appended ------------------------------------------------------------------------

    def begin(self, producer_id: int, first_offset: Offset) -> None:
        """Unless it is open already."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, marker: Marker, offset: Offset) -> None:
        """A marker without a transaction changes nothing."""
        first_offset = self._open.pop(marker.producer_id, None)
        if first_offset is None:
            return
        self._ended.append((first_offset, offset))
        if not marker.committed:
            self._aborted.append(AbortedTransaction(marker.producer_id, first_offset, offset))
            if len(self._aborted) > self._aborted_count_max:
                self._aborted_from = Offset(self._aborted.popleft().last_offset + 1)

    def confirm(self, high_watermark: Offset) -> Offset:
        """Markers below it are durable. -> the last stable offset."""
        if not self._open and not self._ended:
            return high_watermark
        while self._ended and self._ended[0][1] < high_watermark:
            self._ended.popleft()
        return self.last_stable(high_watermark)

    # --- what readers may see ---------------------------------------------------------------------

    def last_stable(self, high_watermark: Offset) -> Offset:
        """Below it everything is durable and decided."""
        if not self._open and not self._ended:
            return high_watermark
        firsts = [first for first, _ in self._ended]
        if self._open:
            firsts.append(self.first_unstable_offset)
        return min(high_watermark, *firsts)

    def aborted_within(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction] | None:
        """Those that overlap [start, end), by first offset. None: some of them may be in the txn
        stream only.
        """
        if start_offset < self._aborted_from:
            return None
        found = [
            item
            for item in self._aborted
            if item.last_offset >= start_offset and item.first_offset < end_offset
        ]
        return sorted(found, key=_first_offset)

    def check_invariants(self) -> None:
        firsts = list(self._open.values())
        assert firsts == sorted(set(firsts)), f"open transactions begin at {firsts}"
        markers = [offset for _, offset in self._ended]
        assert markers == sorted(set(markers)), f"markers lie at {markers}"
        assert len(self._aborted) <= self._aborted_count_max


def _first_offset(item: AbortedTransaction) -> int:
    return item.first_offset

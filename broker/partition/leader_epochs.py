"""The start offset of each leader epoch of a partition, which clients use to detect truncation
after a leader change (KIP-101, KIP-320).

Epochs and start offsets are strictly increasing. Logs are never truncated, so entries are added
only at the end, and removed only at the start when the log start advances.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.base.ids import Offset, StreamEpoch

_NO_EPOCH: Final = -1


class LeaderEpochs:
    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[StreamEpoch, Offset]] = ()) -> None:
        self._entries: list[tuple[StreamEpoch, Offset]] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> Sequence[tuple[StreamEpoch, Offset]]:
        return self._entries

    def assign(self, epoch: StreamEpoch, start_offset: Offset) -> None:
        """Assign `epoch` to the records from `start_offset` on. This replaces an epoch without
        records that starts at the same offset. Batches without records have no epoch (-1).
        """
        if epoch < 0 or (self._entries and self._entries[-1][0] >= epoch):
            return
        while self._entries and self._entries[-1][1] >= start_offset:
            del self._entries[-1]
        self._entries.append((epoch, start_offset))

    def trim(self, log_start_offset: Offset) -> None:
        """Remove epochs that end at or below the log start. The epoch that contains the log start
        now starts there.
        """
        dropped_count = 0
        while (
            dropped_count + 1 < len(self._entries)
            and self._entries[dropped_count + 1][1] <= log_start_offset
        ):
            dropped_count += 1
        del self._entries[:dropped_count]
        if self._entries and self._entries[0][1] < log_start_offset:
            self._entries[0] = (self._entries[0][0], log_start_offset)

    def end_offset(self, epoch: int, log_end_offset: Offset) -> tuple[int, int]:
        """Return the greatest epoch <= `epoch` and its end offset. Return (-1, -1) if `epoch` is -1
        or newer than all known epochs. Other negative epochs are older than all known ones.
        """
        if not self._entries or epoch > self._entries[-1][0] or epoch == _NO_EPOCH:
            return _NO_EPOCH, -1
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        if epoch < self._entries[0][0]:
            return epoch, self._entries[0][1]
        for at in range(len(self._entries) - 1, -1, -1):
            if self._entries[at][0] <= epoch:
                return self._entries[at][0], self._entries[at + 1][1]
        raise AssertionError("the chain covers every epoch between its ends")

    def epoch_at(self, offset: Offset) -> int:
        """Return the epoch of the record at `offset`, or -1 if the first epoch starts after it."""
        for epoch, start_offset in reversed(self._entries):
            if start_offset <= offset:
                return epoch
        return -1

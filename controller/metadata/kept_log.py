"""Retained records that DeleteRecords removed from the start of a log, which can be restored as a
fork.
"""

from bisect import bisect_left, insort

import msgspec

from penstock.base.ids import Offset
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.records import TrimGrace

TRIMS_MAX = 16
"""Maximum number of trims within one grace period. Additional trims are merged with the last one,
so their records are retained for up to twice the grace period.
"""


class KeptTrim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A trim within its grace period. end_offset: the log start after the trim."""

    end_offset: Offset
    grace: TrimGrace


class KeptLog(msgspec.Struct, frozen=True, gc=False):
    """The part [start_offset, log start) of a stream. Its entries and the entries of the log
    together cover everything from `start_offset` on. Readers, compaction and accounting of the log
    ignore them.

    trims: at least one, in order; the last one set the log start. entries: changed only while a
    snapshot is loaded.
    """

    start_offset: Offset
    trims: tuple[KeptTrim, ...]
    entries: list[LogEntry] = msgspec.field(default_factory=list[LogEntry])

    def trimmed(self, trim: KeptTrim, entries: list[LogEntry]) -> "KeptLog":
        """Return the log after another trim, which removed `entries`. These replace all overlapping
        entries, which were sources of a compaction.
        """
        trims = (*self.trims[: TRIMS_MAX - 1], trim)
        below = self._below(entries[0].start_offset) if entries else len(self.entries)
        return KeptLog(self.start_offset, trims, [*self.entries[:below], *entries])

    def load(self, entry: LogEntry) -> None:
        """Add an entry of a snapshot that is being loaded. Copying the log for each entry would
        take minutes for 100,000 entries.
        """
        insort(self.entries, entry, key=_start)

    def without(self, end_offset: Offset) -> "KeptLog | None":
        """Return the log without the trims up to `end_offset`, or None if no trims are left."""
        trims = tuple(trim for trim in self.trims if trim.end_offset > end_offset)
        if not trims:
            return None
        entries = [entry for entry in self.entries if entry.end_offset > end_offset]
        return KeptLog(max(self.start_offset, end_offset), trims, entries)

    def _below(self, offset: Offset) -> int:
        """Return the number of entries that start below `offset`."""
        return bisect_left(self.entries, offset, key=_start)


def _start(entry: LogEntry) -> Offset:
    return entry.start_offset

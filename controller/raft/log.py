"""The in-memory log of one voter: the entries after a base, and which of them are on disk. See Raft
5.3 and 7, and etcd/raft `log.go`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from penstock.controller.raft.messages import Base, Entry, Members


class RaftLog:
    """Indexes and record offsets are contiguous from the base. stable <= written <= last_index.
    Entries up to `stable` are on disk. Only one write is in progress at a time. If entries are
    truncated during the write, `written` decreases, so that the completed write does not
    acknowledge the entries that replaced them (etcd's "append ABA race").
    """

    def __init__(self, base: Base, entries: Sequence[Entry]) -> None:
        """entries: the entries recovered from disk."""
        self.base = base
        self._entries = list(entries)
        assert not entries or entries[0].index == base.index + 1, (
            f"entries from {entries[0].index} after base {base.index}"
        )
        self.stable = self.last_index
        self.written = self.last_index
        self._members = [
            (entry.index, entry.members) for entry in entries if entry.members is not None
        ]

    @property
    def last_index(self) -> int:
        return self.base.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base.term

    @property
    def end_offset(self) -> int:
        return self._entries[-1].end_offset if self._entries else self.base.offset

    @property
    def members(self) -> Members:
        """The newest members in the log, whether committed or not (Raft section 6)."""
        return self._members[-1][1] if self._members else self.base.members

    @property
    def members_index(self) -> int:
        """Index of the entry that contains the newest members, or 0 if the base contains them."""
        return self._members[-1][0] if self._members else 0

    def members_at(self, index: int) -> Members:
        """Return the newest member list at or before `index`, for a snapshot at this index."""
        for at, members in reversed(self._members):
            if at <= index:
                return members
        return self.base.members

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, or None if the entry was compacted or is not in the log
        yet.
        """
        if index == self.base.index:
            return self.base.term
        at = index - self.base.index - 1
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def offset_at(self, index: int) -> int:
        """Return the end offset of the records up to `index`. The log must contain this index."""
        at = index - self.base.index
        assert 0 <= at <= len(self._entries), (
            f"index {index} outside [{self.base.index}, {self.last_index}]"
        )
        return self._entries[at - 1].end_offset if at else self.base.offset

    def index_at(self, offset: int) -> int:
        """Return the last index whose records all have offsets below `offset`."""
        return self.base.index + bisect_right(
            self._entries, offset, key=lambda entry: entry.end_offset
        )

    def covered_index(self, offset: int) -> int:
        """Return the last index that every snapshot at `offset` covers. Entries without records do
        not change the offset, so snapshots at the same offset may have different indexes.
        """
        at = bisect_left(self._entries, offset, key=lambda entry: entry.end_offset)
        ends_here = (
            offset > self.base.offset
            and at < len(self._entries)
            and self._entries[at].end_offset == offset
        )
        return self.base.index + at + ends_here

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def last_agreeing(self, index: int, term: int) -> tuple[int, int]:
        """Return the last (index, term) at or before `index` whose term is at most `term`. The log
        cannot agree with the other log at a later position.
        """
        at = min(index, self.last_index)
        while at > self.base.index and self._entries[at - self.base.index - 1].term > term:
            at -= 1
        return at, self.term_at(at) or 0

    def slice(
        self, start: int, count_max: int, bytes_max: int, stop: int | None = None
    ) -> list[Entry]:
        """Return the entries from `start` on within the limits, but at least one if there is
        one.
        """
        end = self.last_index if stop is None else stop
        found: list[Entry] = []
        size_bytes = 0
        for at in range(
            start - self.base.index - 1,
            min(end - self.base.index, start - self.base.index - 1 + count_max),
        ):
            entry = self._entries[at]
            size_bytes += entry.size_bytes
            if found and size_bytes > bytes_max:
                break
            found.append(entry)
        return found

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, (
            f"append of {entry.index} after {self.last_index}"
        )
        self._entries.append(entry)
        if entry.members is not None:
            self._members.append((entry.index, entry.members))

    def accept(self, entries: Sequence[Entry]) -> None:
        """Add the leader's entries after a matching one. The log is truncated only at a conflict,
        so a delayed old message does not remove entries.
        """
        for entry in entries:
            if entry.index <= self.base.index or self.matches(entry.index, entry.term):
                continue
            self.truncate(entry.index)
            self.append(entry)

    def truncate(self, index: int) -> None:
        """Remove all entries from `index` on."""
        del self._entries[index - self.base.index - 1 :]
        self.written = min(self.written, index - 1)
        self.stable = min(self.stable, index - 1)
        while self._members and self._members[-1][0] >= index:
            self._members.pop()

    def unwritten(self) -> list[Entry]:
        return self._entries[self.written - self.base.index :]

    def handed_over(self) -> None:
        """Record that all entries were passed to the disk for writing."""
        self.written = self.last_index

    def persisted(self, last_index: int) -> None:
        """Record that the write up to `last_index` is durable."""
        self.stable = max(self.stable, min(last_index, self.written))

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which a snapshot contains. They must be on disk."""
        assert index <= self.stable, f"compact at {index}, the disk has entries up to {self.stable}"
        term = self.term_at(index)
        if index <= self.base.index or term is None:
            return
        members = self.base.members
        while self._members and self._members[0][0] <= index:
            members = self._members.pop(0)[1]
        base = Base(index, term, self.offset_at(index), members)
        del self._entries[: index - self.base.index]
        self.base = base

    def reset(self, base: Base) -> None:
        """Replace the log with a snapshot. Entries that continue the snapshot are kept."""
        if self.matches(base.index, base.term):
            if base.index <= self.stable:
                self.compact(base.index)
                return
            self._entries = self._entries[base.index - self.base.index :]
        else:
            self._entries = []
        self._members = [
            (index, members)
            for index, members in self._members
            if base.index < index <= base.index + len(self._entries)
        ]
        self.base = base
        self.stable = base.index
        self.written = base.index

"""Outcomes of the transactions of one transactional id, and what readers may see of them. Pure.

Transactions have serial numbers, which they also commit as their offset. No reader sees an aborted
transaction, or one whose commit was never requested; committed offsets never decrease. At the end,
committed transactions are complete, and unknown ones complete or invisible.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.sim.checkers import Part


class Fate(Enum):
    OPEN = "it has no request to commit it"
    COMMITTING = "asked to be committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Entry:
    serial: int
    fate: Fate = Fate.OPEN
    has_offset: bool = False
    written: dict[Part, list[bytes]] = field(default_factory=dict[Part, list[bytes]])


class Ledger:
    def __init__(self, name: str, fail: Callable[[str], None]) -> None:
        self.name = name
        self._fail = fail
        self._entries: list[Entry] = []
        self.applied_offset = -1
        """The lowest offset that the group may have. One that was committed counts when its marker
        is written, which is later than the response to EndTxn.
        """

    def begin(self) -> Entry:
        self._entries.append(Entry(len(self._entries) + 1))
        return self._entries[-1]

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def committed_count(self) -> int:
        return sum(entry.fate is Fate.COMMITTED for entry in self._entries)

    @property
    def committed_offset(self) -> int:
        """Return the lowest offset that may be committed."""
        return max(
            (
                entry.serial
                for entry in self._entries
                if entry.fate is Fate.COMMITTED and entry.has_offset
            ),
            default=-1,
        )

    def began(self, entry: Entry) -> None:
        """Record that the coordinator accepts the transaction: all earlier markers are written."""
        for before in self._entries[: entry.serial - 1]:
            if before.fate is Fate.COMMITTED and before.has_offset:
                self.applied_offset = max(self.applied_offset, before.serial)

    def values(self, entry: Entry, part: Part, count: int) -> list[bytes]:
        """Return new records of the transaction."""
        first = len(entry.written.setdefault(part, []))
        added = [
            f"{self.name}/{entry.serial}/{part[1]}/{number}".encode()
            for number in range(first, first + count)
        ]
        entry.written[part] += added
        return added

    def settle(self, entry: Entry, fate: Fate) -> None:
        if entry.fate not in {Fate.OPEN, Fate.COMMITTING, fate}:
            self._fail(
                f"{self.name}: transaction {entry.serial} is {fate.value}, it was"
                f" {entry.fate.value}"
            )
        entry.fate = fate

    def saw_record(self, part: Part, serial: int) -> None:
        entry = self._entries[serial - 1]
        if entry.fate in {Fate.OPEN, Fate.ABORTED}:
            self._fail(
                f"{part}: a record of transaction {serial} of {self.name} is visible, it is:"
                f" {entry.fate.value}"
            )

    def saw_offset(self, offset: int, at_least: int, begun_before: int) -> None:
        """Check the group's offset. at_least: committed before the request. begun_before: the
        number of transactions begun when the reader requested its epoch, which are decided
        therefore.
        """
        if offset < at_least:
            self._fail(
                f"{self.name}: the group's offset is {offset}, transaction {at_least} committed"
                " its own"
            )
        self.applied_offset = max(self.applied_offset, offset)
        if offset > 0:
            entry = self._entries[offset - 1]
            if not entry.has_offset or entry.fate in {Fate.OPEN, Fate.ABORTED}:
                self._fail(
                    f"{self.name}: the group's offset is that of transaction {offset}, it is:"
                    f" {entry.fate.value}"
                )
            self.settle(entry, Fate.COMMITTED)
        for entry in self._entries[max(0, offset) : begun_before]:
            if entry.has_offset and entry.fate is Fate.COMMITTING:
                self.settle(entry, Fate.ABORTED)

    def check(self, seen: Mapping[Part, Sequence[tuple[int, int]]], offset: int) -> None:
        """Check the records of this id that readers get, partition by partition, as (serial,
        number).
        """
        for part, found in seen.items():
            if list(found) != sorted(set(found)):
                self._fail(
                    f"{part}: records of {self.name} come twice or out of order: {found[-50:]}"
                )
        counts: dict[int, dict[Part, int]] = {}
        for part, found in seen.items():
            for serial, _ in found:
                counts.setdefault(serial, {}).setdefault(part, 0)
                counts[serial][part] += 1
        last = -1
        for entry in self._entries:
            requested = {part: len(values) for part, values in entry.written.items()}
            is_there = self._is_there(entry, requested, counts.get(entry.serial, {}))
            if is_there and entry.has_offset:
                last = entry.serial
        if offset != last:
            self._fail(
                f"{self.name}: the group's offset is {offset}, transaction {last} is the last one"
                " that committed one"
            )

    def _is_there(
        self, entry: Entry, expected: Mapping[Part, int], found: Mapping[Part, int]
    ) -> bool:
        what = (
            f"{self.name}: transaction {entry.serial} ({entry.fate.value}, offset"
            f" {entry.has_offset}) wrote {expected}, readers get {found}"
        )
        if found != expected and (found or entry.fate is Fate.COMMITTED):
            self._fail(what)
        if found and entry.fate in {Fate.OPEN, Fate.ABORTED}:
            self._fail(what)
        return bool(found)

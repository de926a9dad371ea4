"""The records of one step of a consumer, share or streams group. A step can be undone."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.broker.groups.common.deadlines import Deadlines
from penstock.broker.groups.common.records import (
    ConsumerRecord,
    ConsumerRecordKey,
    ConsumerRecordKind,
    ConsumerValue,
)


class RecordedGroup(Protocol):
    """A group whose state is a function of its records."""

    @property
    def group_id(self) -> str: ...

    @property
    def deadlines(self) -> Deadlines: ...

    def value(self, key: ConsumerRecordKey) -> ConsumerValue | None:
        """Return the current value of the key, or None."""
        ...

    def apply(self, key: ConsumerRecordKey, value: ConsumerValue | None) -> None:
        """Apply one record. A value of None is a tombstone."""
        ...

    def reset(self, deadlines: Deadlines) -> None:
        """Restore the deadlines to an earlier copy."""
        ...


def apply_in_order(
    group: RecordedGroup,
    records: Iterable[tuple[ConsumerRecordKey, ConsumerValue]],
    kinds: Sequence[ConsumerRecordKind],
) -> None:
    """Apply records sorted by kind, regardless of their order in the log."""
    by_kind: dict[ConsumerRecordKind, list[tuple[ConsumerRecordKey, ConsumerValue]]] = {}
    for key, value in records:
        by_kind.setdefault(key.kind, []).append((key, value))
    for kind in kinds:
        for key, value in by_kind.get(kind, ()):
            group.apply(key, value)


class GroupChanges:
    """The records of one step. Each is applied to the group as it is added."""

    def __init__(self, group: RecordedGroup) -> None:
        self._group = group
        self._before: list[tuple[ConsumerRecordKey, ConsumerValue | None]] = []
        self._deadlines: Deadlines | None = None
        """The deadlines before the first record of the step. They are copied when that record is
        added, because most heartbeats produce no record.
        """
        self._undone: list[Callable[[], object]] = []
        self.records: list[ConsumerRecord] = []

    def on_undo(self, call: Callable[[], object]) -> None:
        """Register how to undo a change that is not in a record, in case the step cannot be
        written.
        """
        self._undone.append(call)

    def put(self, kind: ConsumerRecordKind, value: ConsumerValue | None, name: str = "") -> None:
        if self._deadlines is None:
            self._deadlines = self._group.deadlines.copy()
        key = ConsumerRecordKey(kind, self._group.group_id, name)
        self._before.append((key, self._group.value(key)))
        self._group.apply(key, value)
        self.records.append((key, value))

    def undo(self) -> None:
        """Undo the added records, because they could not be written."""
        for key, value in reversed(self._before):
            self._group.apply(key, value)
        if self._deadlines is not None:
            self._group.reset(self._deadlines)
        for call in self._undone:
            call()
        self._deadlines = None
        self._before.clear()
        self._undone.clear()
        self.records.clear()

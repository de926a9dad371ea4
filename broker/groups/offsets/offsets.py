"""The committed offsets of one group, and the pending offsets of its transactions (KIP-98,
KIP-447).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from penstock.broker.groups.offsets.records import CommittedOffset

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(slots=True, eq=False)
class PendingOffsets:
    """The offsets in one commit request of a transaction."""

    producer_id: int
    offsets: dict[TopicPartition, CommittedOffset]
    is_durable: bool = False


class GroupOffsets:
    __slots__ = ("_appending", "_pending", "committed")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._appending: dict[TopicPartition, CommittedOffset] = {}
        """The newest offsets that are being appended outside of transactions."""
        self._pending: list[PendingOffsets] = []
        """In log order."""

    def __len__(self) -> int:
        """Return the number of offsets, including pending ones."""
        return len(self.committed) + sum(len(pending.offsets) for pending in self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def known(self) -> list[TopicPartition]:
        """Return the partitions with an offset, committed or pending."""
        pending = (key for staged in self._pending for key in staged.offsets)
        return list(dict.fromkeys([*self.committed, *pending]))

    def is_known(self, key: TopicPartition) -> bool:
        """Return True if the partition has an offset, committed or pending."""
        return key in self.committed or self.is_pending(key)

    def is_pending(self, key: TopicPartition) -> bool:
        """Return True if an open transaction may still change the offset of the partition."""
        return any(key in pending.offsets for pending in self._pending)

    def of_topic(self, key: TopicPartition, topic_id: UUID | None) -> CommittedOffset | None:
        """Return the partition's offset if it was committed for this topic id."""
        found = self.committed.get(key)
        return found if found is not None and found.topic_id == topic_id else None

    def under_names(self, name_of: Callable[[UUID], str | None]) -> "GroupOffsets":
        """Return the offsets of existing topics under their current names. name_of: returns the
        name of a topic, or None if it was deleted.
        """
        found = GroupOffsets()
        found.committed = _under_names(self.committed, name_of)
        found._pending = [
            replace(pending, offsets=_under_names(pending.offsets, name_of))
            for pending in self._pending
        ]
        return found

    def is_unstable(self, key: TopicPartition, topic_id: UUID | None) -> bool:
        """Return True if an open transaction may still change the partition's offset for this topic
        id.
        """
        return any(
            key in pending.offsets and pending.offsets[key].topic_id == topic_id
            for pending in self._pending
        )

    def assign_topics(self, owner: Callable[[str], UUID | None]) -> None:
        """Set the topic id of every offset whose record does not contain one."""
        for offsets in (self.committed, *(pending.offsets for pending in self._pending)):
            for key, value in offsets.items():
                if value.topic_id is None:
                    offsets[key] = replace(value, topic_id=owner(key[0]))

    def compare(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> tuple[bool, bool]:
        """Return whether these offsets only advance known offsets, and whether they move any offset
        back. Offsets that are being appended are included in the comparison.
        """
        advances, moves_back = True, False
        for key, value in offsets.items():
            known, appending = self.committed.get(key), self._appending.get(key)
            advances &= known is not None
            for before in (known, appending):
                if before is not None:
                    advances &= _is_advanced_by(before, value)
                    moves_back |= before.offset > value.offset
        return advances, moves_back

    def begin_append(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Record that these offsets are being appended. The caller must call `end_append` when the
        append ends.
        """
        self._appending.update(offsets)

    def end_append(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        for key, value in offsets.items():
            if self._appending.get(key) is value:
                del self._appending[key]

    def put(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Apply a durable commit outside of transactions. It overrides everything that is already
        durable.
        """
        self.committed.update(offsets)
        self._supersede(offsets, [pending for pending in self._pending if pending.is_durable])

    def drop(self, keys: Iterable[TopicPartition]) -> None:
        """Apply durable tombstones. They override everything that is already durable, so pending
        offsets of these partitions are dropped even if their transactions commit.
        """
        dropped = list(keys)
        for key in dropped:
            self.committed.pop(key, None)
        self._supersede(dropped, [pending for pending in self._pending if pending.is_durable])

    def stage(
        self, producer_id: int, offsets: dict[TopicPartition, CommittedOffset]
    ) -> PendingOffsets:
        """Add offsets of a transaction that are being appended. Their partitions become unstable.
        The caller must then either set `is_durable` or call `unstage`.
        """
        pending = PendingOffsets(producer_id, dict(offsets))
        self._pending.append(pending)
        return pending

    def unstage(self, pending: PendingOffsets) -> None:
        """Remove pending offsets that did not become durable."""
        if pending in self._pending:
            self._pending.remove(pending)

    def complete(self, producer_id: int, *, committed: bool) -> bool:
        """End the producer's transaction after its marker has become durable. Return False if it
        has no pending offsets.

        Each partition then has the offset that was appended last, inside or outside of a
        transaction.
        """
        ended = [
            pending
            for pending in self._pending
            if pending.producer_id == producer_id and pending.is_durable
        ]
        if committed:
            for pending in ended:
                self.committed.update(pending.offsets)
                self._supersede(pending.offsets, self._pending[: self._pending.index(pending)])
        self._pending = [pending for pending in self._pending if pending not in ended]
        return any(pending.producer_id == producer_id for pending in self._pending)

    def _supersede(self, keys: Iterable[TopicPartition], older: Iterable[PendingOffsets]) -> None:
        for pending in older:
            for key in keys:
                pending.offsets.pop(key, None)


def _is_advanced_by(known: CommittedOffset, value: CommittedOffset) -> bool:
    """Return True unless the commit moves a known offset back."""
    if known.topic_id != value.topic_id:
        return False
    is_same = (known.leader_epoch, known.metadata) == (value.leader_epoch, value.metadata)
    return known.offset < value.offset or (known.offset == value.offset and is_same)


def _under_names(
    offsets: Mapping[TopicPartition, CommittedOffset], name_of: Callable[[UUID], str | None]
) -> dict[TopicPartition, CommittedOffset]:
    """See `GroupOffsets.under_names`. An offset stored under the current name takes precedence."""
    found: dict[TopicPartition, CommittedOffset] = {}
    for (stored_name, partition), value in offsets.items():
        name = None if value.topic_id is None else name_of(value.topic_id)
        if name is not None and (name == stored_name or (name, partition) not in found):
            found[name, partition] = value
    return found

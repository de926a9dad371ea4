"""The committed offsets of one group, and those that wait for the end of a transaction.

Offsets of a transaction are appended like others, and count once its marker is in the same log:
then each partition has the offset that was appended last, be it by a transaction or not.
Invariants: calls come in the order of the log, so what is durable here is older than what is not; a
marker ends only what was durable before it; what is appended and not durable yet makes a partition
unstable already, for its transaction may be committed next.
Source: Kafka GroupMetadata (pendingTransactionalOffsetCommits), KIP-98, KIP-447.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from broker.groups.records import CommittedOffset

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(slots=True, eq=False)
class PendingOffsets:
    """What one request of a transaction appended."""

    producer_id: int
    offsets: dict[TopicPartition, CommittedOffset]
    is_durable: bool = False


class GroupOffsets:
    __slots__ = ("_pending", "committed")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._pending: list[PendingOffsets] = []
        """In the order of the log."""

    def __len__(self) -> int:
        """Offsets held, pending ones too."""
        return len(self.committed) + sum(len(pending.offsets) for pending in self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def is_pending(self, key: TopicPartition) -> bool:
        """A transaction may still change the offset of this partition."""
        return any(key in pending.offsets for pending in self._pending)

    def put(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """A commit outside of transactions is durable: newer than everything that is."""
        self.committed.update(offsets)
        self._supersede(offsets, [pending for pending in self._pending if pending.is_durable])

    def drop(self, keys: Iterable[TopicPartition]) -> None:
        """Tombstones are durable. What is pending is not touched: nobody deletes an offset that a
        transaction may change.
        """
        for key in keys:
            self.committed.pop(key, None)

    def stage(
        self, producer_id: int, offsets: dict[TopicPartition, CommittedOffset]
    ) -> PendingOffsets:
        """Offsets of a transaction are being appended. Afterwards: set `is_durable`, or
        `unstage`.
        """
        pending = PendingOffsets(producer_id, dict(offsets))
        self._pending.append(pending)
        return pending

    def unstage(self, pending: PendingOffsets) -> None:
        """They did not become durable."""
        if pending in self._pending:
            self._pending.remove(pending)

    def complete(self, producer_id: int, *, committed: bool) -> bool:
        """The producer's transaction ended by a marker that is durable. False: nothing of it is
        pending any more.
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

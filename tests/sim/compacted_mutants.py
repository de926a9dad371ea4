"""Planted bugs in log compaction, for `tests.sim.mutants`.

Unit tests cover two more, which 200 seeds do not find: rewrites of a job that do not wait for
earlier ones (test_controller_rewrites.py), and object compaction that takes a cleaned range from
the log cache (test_log_cleaning.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.base.ids import Offset
from penstock.base.suspensions import Suspensions
from penstock.broker.background.cleaner import CleanerDuty
from penstock.broker.partition.opener import PartitionOpener
from penstock.broker.partition.partition import Partition
from penstock.controller.managers import log_replacement
from penstock.protocol.batch.control import decode_marker
from penstock.stream.cleaning.cleaner import LogCleaner, _Rewriter
from penstock.stream.cleaning.key_map import KeyMap
from penstock.stream.cleaning.transactions import CleanedTransactions

Patch = tuple[Any, str, Any]


def _tombstones_dropped_at_once() -> list[Patch]:
    """A reader that has read a value never learns of its deletion."""
    real = _Rewriter._kept

    async def kept(self: _Rewriter, plain: bytes, header: Any) -> Any:
        return [span for span in await real(self, plain, header) if not span.is_tombstone]

    return [(_Rewriter, "_kept", kept)]


def _tombstones_may_go_before_deleted_records() -> list[Patch]:
    return [(log_replacement, "_check_tombstones", lambda stream, kept_ms: None)]


def _full_map_ignored() -> list[Patch]:
    """Keys that do not fit into the map count as mapped, so their records are removed."""
    real = KeyMap.put

    def put(
        self: KeyMap, keys: Sequence[bytes], offsets: Sequence[int], longest_bytes: int
    ) -> bool:
        real(self, keys, offsets, longest_bytes)
        return True

    return [(KeyMap, "put", put)]


def _oldest_record_kept() -> list[Patch]:
    def put(
        self: KeyMap, keys: Sequence[bytes], offsets: Sequence[int], longest_bytes: int
    ) -> bool:
        del longest_bytes  # the simulator's keys are short
        for key, offset in zip(keys, offsets, strict=True):
            self._offsets.setdefault(key, offset)
        return True

    return [(KeyMap, "put", put)]


def _last_sequence_lost() -> list[Patch]:
    """A pass without checkpoints: a producer whose records are all removed is forgotten."""

    async def checkpoint_durably(self: PartitionOpener, partition: Partition) -> None:
        del self, partition

    return [(PartitionOpener, "checkpoint_durably", checkpoint_durably)]


def _aborted_records_mapped() -> list[Patch]:
    """An aborted record replaces its key, so the newest committed value is lost."""
    real = LogCleaner._map_keys

    async def map_keys(
        self: LogCleaner, task: Any, keys: Any, dense: Any, transactions: Any, report: Any
    ) -> Any:
        del transactions
        return await real(self, task, keys, dense, CleanedTransactions(()), report)

    return [(LogCleaner, "_map_keys", map_keys)]


def _cleaned_past_the_last_stable_offset() -> list[Patch]:
    """Records of open transactions replace committed ones, which remain the newest if the
    transaction aborts.
    """
    real = CleanerDuty._pass

    async def clean(self: CleanerDuty, partition: Partition, policy: Any) -> Any:
        return await real(self, _WithoutTransactions(partition), policy)

    return [(CleanerDuty, "_pass", clean)]


class _WithoutTransactions:
    """All transactions of a partition count as ended."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def last_stable_offset(self) -> Offset:
        return self._partition.high_watermark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


def _abort_markers_dropped() -> list[Patch]:
    """Readers drop all later records of the producer as aborted, up to its next abort."""
    real = _Rewriter._clean_marker

    def clean_marker(self: _Rewriter, batch: memoryview, header: Any) -> Any:
        marker = decode_marker(batch, header.producer_id, header.producer_epoch)
        return real(self, batch, header) if marker.committed else None

    return [(_Rewriter, "_clean_marker", clean_marker)]


def _aborted_records_kept() -> list[Patch]:
    """The newest record of a key is kept forever, although its transaction was aborted."""
    real = _Rewriter._clean_batch

    async def clean_batch(self: _Rewriter, batch: memoryview, header: Any) -> Any:
        return batch if self._transactions.is_aborted(header) else await real(self, batch, header)

    return [(_Rewriter, "_clean_batch", clean_batch)]


def _suspended_for_ever() -> list[Patch]:
    """One damaged response stops the compaction of a log until the broker restarts."""
    real = Suspensions.add

    def add(self: Suspensions[Any], item: Any) -> float:
        for _ in range(1_000):
            real(self, item)
        return real(self, item)

    return [(Suspensions, "add", add)]


COMPACTED_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "tombstones_may_go_before_deleted_records": _tombstones_may_go_before_deleted_records,
    "tombstones_dropped_at_once": _tombstones_dropped_at_once,
    "full_map_ignored": _full_map_ignored,
    "oldest_record_kept": _oldest_record_kept,
    "last_sequence_lost": _last_sequence_lost,
    "aborted_records_mapped": _aborted_records_mapped,
    "cleaned_past_the_last_stable_offset": _cleaned_past_the_last_stable_offset,
    "abort_markers_dropped": _abort_markers_dropped,
    "aborted_records_kept": _aborted_records_kept,
    "suspended_for_ever": _suspended_for_ever,
}

"""Planted bugs of log compaction, for `tests.sim.mutants`.

Not planted: exchanges of a job that do not wait for the ones before them (found by none of 200
seeds: a tombstone has to go after a conflict; tests/unit/controller/test_controller_rewrites.py
finds it). Nor object compaction that takes a cleaned range from the log cache: it brings back
records together with their tombstones. tests/unit/broker/test_log_cleaning.py finds it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from broker.partition.opener import PartitionOpener
from broker.partition.partition import Partition
from stream.cleaning.cleaner import _Rewriter
from stream.cleaning.key_map import KeyMap

Patch = tuple[Any, str, Any]


def _tombstones_dropped_at_once() -> list[Patch]:
    """A reader that has read the value never learns that it was deleted."""
    real = _Rewriter._kept

    async def kept(self: _Rewriter, plain: bytes, header: Any) -> Any:
        return [span for span in await real(self, plain, header) if not span.is_tombstone]

    return [(_Rewriter, "_kept", kept)]


def _full_map_ignored() -> list[Patch]:
    """Keys that do not fit count as clean: their tombstones go, and older values stay."""
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
    """A pass without checkpoints: a producer of which it removes all records is forgotten."""

    async def checkpoint_durably(self: PartitionOpener, partition: Partition) -> None:
        del self, partition

    return [(PartitionOpener, "checkpoint_durably", checkpoint_durably)]


COMPACTED_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "tombstones_dropped_at_once": _tombstones_dropped_at_once,
    "full_map_ignored": _full_map_ignored,
    "oldest_record_kept": _oldest_record_kept,
    "last_sequence_lost": _last_sequence_lost,
}

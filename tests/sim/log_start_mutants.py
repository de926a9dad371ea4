"""Planted bugs in retention and DeleteRecords, for `tests.sim.mutants`.

Not planted: a broker that ignores a trim whose response was lost. The log cache serves the records
below the new start until the run ends; tests/unit/broker/test_retention.py finds it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

import penstock.broker.partition.retention as retention
from penstock.broker.partition.opener import PartitionOpener
from penstock.broker.partition.partition import Partition
from penstock.controller.managers import deleted_records, forks
from penstock.controller.metadata import invariants
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase, ObjectsImage
from penstock.controller.metadata.records import StreamTrimmed
from penstock.stream.storage import Storage

Patch = tuple[Any, str, Any]


def _trimmed_without_a_checkpoint() -> list[Patch]:
    """Trimming loses the last writes of producers, and their state."""

    async def trim_all(
        self: PartitionOpener, starts: Any, *, keep: bool = False
    ) -> list[Exception | None]:
        if keep:
            await self._storage.upload()
        for partition, start in starts:
            if start > partition.log_start_offset:
                await self._storage.trim(partition.log.data, start, keep=keep)
        return [None] * len(starts)

    return [(PartitionOpener, "trim_all", trim_all)]


def _log_start_named_before_it_is_committed() -> list[Patch]:
    real = Storage.trim

    async def trim(self: Storage, handle: Any, start_offset: Any, *, keep: bool = False) -> None:
        handle.start_offset = max(handle.start_offset, start_offset)
        await real(self, handle, start_offset, keep=keep)

    return [(Storage, "trim", trim)]


def _log_start_forgotten_at_open() -> list[Patch]:
    """A log always starts where its first leader found it."""
    return [
        (Partition, "log_start_offset", property(lambda self: min(self.log.data.start_offset, 0)))
    ]


def _everything_is_old() -> list[Patch]:
    return [
        (retention, "_is_expired", lambda _entry, limits, _now_ms, _committed: limits.age_ms >= 0)
    ]


def _size_is_exceeded_by_the_last_range() -> list[Patch]:
    """A range is deleted although the remaining log is smaller than retention requires."""
    real = retention.retained_from

    def retained_from(entries: Any, limits: Any, now_ms: Any, committed_ms: Any) -> Any:
        start = real(entries, limits, now_ms, committed_ms)
        if limits.size_bytes < 0 or start is None:
            return start
        return next((item.end_offset for item in entries if item.end_offset > start), start)

    import penstock.broker.background.retention as duty

    return [(duty, "retained_from", retained_from)]


def _kept_records_dropped_at_once() -> list[Patch]:
    real = deleted_records._due
    return [(deleted_records, "_due", lambda image, stream, _: real(image, stream, lambda _: 1e9))]


def _forks_begin_at_the_log_start() -> list[Patch]:
    real = forks._forks

    def planned(image: Any, source: Any, requested: Any) -> Any:
        return real(image, source, msgspec.structs.replace(requested, with_kept=False))

    return [(forks, "_forks", planned)]


def _kept_records_do_not_hold_their_objects() -> list[Patch]:
    """An object is destroyed when DeleteRecords removes its last range, although records can still
    be restored.
    """
    real_trim, real_release = MetadataImage._stream_trimmed, ObjectsImage.release

    def trimmed(self: MetadataImage, record: StreamTrimmed) -> None:
        before = set(_kept(self, record))
        real_trim(self, record)
        for object_id in set(_kept(self, record)) - before:
            self.objects.release(object_id, record.stream_id, record.start_offset)

    def release(self: ObjectsImage, object_id: Any, stream_id: Any, start: Any) -> None:
        state = self._objects.get(object_id)
        if state is not None and state.refs > 0:
            real_release(self, object_id, stream_id, start)

    def refer(self: ObjectsImage, object_id: Any, stream_id: Any, start: Any) -> None:
        state = self._objects.get(object_id)
        if state is not None and state.phase == ObjectPhase.COMMITTED:
            real_refer(self, object_id, stream_id, start)

    real_refer = ObjectsImage.refer
    return [
        (MetadataImage, "_stream_trimmed", trimmed),
        (ObjectsImage, "release", release),
        (ObjectsImage, "refer", refer),
        (invariants, "_check_objects", lambda *_: None),
    ]


def _kept(image: MetadataImage, record: StreamTrimmed) -> list[Any]:
    return [entry.object_id for entry in image.streams.known(record.stream_id).kept_entries]


LOG_START_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "trimmed_without_a_checkpoint": _trimmed_without_a_checkpoint,
    "log_start_named_before_it_is_committed": _log_start_named_before_it_is_committed,
    "log_start_forgotten_at_open": _log_start_forgotten_at_open,
    "everything_is_old": _everything_is_old,
    "kept_records_dropped_at_once": _kept_records_dropped_at_once,
    "forks_begin_at_the_log_start": _forks_begin_at_the_log_start,
    "kept_records_do_not_hold_their_objects": _kept_records_do_not_hold_their_objects,
    "size_is_exceeded_by_the_last_range": _size_is_exceeded_by_the_last_range,
}

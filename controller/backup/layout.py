"""Define the objects of the metadata log's backup: runs of committed records, and the fence that
ends a history. Bytes and arithmetic only.

Invariants: `unpack(pack(x)) == x`, and damaged bytes raise BackupCorrupt. The keys of one history
form a chain: each object begins where the one before ends, so there is one next key at any time.
The object put there decides what follows: more records, or a fence. Histories lie `HISTORY_GAP`
apart. A fence is never dropped, because without it a controller of the old history that wakes up
late could continue.
Must not do I/O.
Source: docs/design/disaster-recovery.md; SlateDB's numbered manifests; the WAL's slots and fences
(`stream.wal`).

Object: a header with magic "PNSTMLOG", then msgpack [first offset, [index, term, offset,
members], created ms, cluster id, is fence, [record, ...]].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.controller.api.errors import BackupCorrupt, RecoveryRefused
from penstock.controller.backup.format import MetadataFormat, Unusable
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.raft.messages import Base

_FORMAT = MetadataFormat(b"PNSTMLOG", version=1)
HISTORY_GAP = 1 << 32
"""Number of metadata offsets between the end of one history and the first of the next.

No history is as long.
"""


class LogObject(msgspec.Struct, frozen=True, array_like=True):
    """One object of the backup.

    `base` is the place in the Raft log that the records reach; in a fence, it is where the next
    history begins.
    """

    first_offset: int
    base: Base
    created_ms: int
    cluster_id: str
    is_fence: bool
    records: list[msgspec.Raw]

    @property
    def end_offset(self) -> MetadataOffset:
        """Return where the log continues after this object."""
        return MetadataOffset(
            self.base.offset if self.is_fence else self.first_offset + len(self.records)
        )


@dataclass(frozen=True, slots=True)
class LogTail:
    """The records that follow a snapshot.

    `base` is that of the last object, None if there is none. `fence` is the object that ends the
    history, if there is one.
    """

    records: list[msgspec.Raw]
    end: MetadataOffset
    base: Base | None
    fence: LogObject | None


def pack(item: LogObject) -> list[bytes]:
    return _FORMAT.pack(msgspec.msgpack.encode(item))


def unpack(key: str, first_offset: int, cluster_id: str, data: bytes) -> LogObject:
    """Decode an object. Raises BackupCorrupt unless it is the whole object that belongs under
    `key`, and FormatUnknown if it is newer than this software.
    """
    try:
        payload = _FORMAT.unpack(key, data)
    except Unusable as error:
        raise BackupCorrupt(key, str(error)) from None
    try:
        item = msgspec.msgpack.decode(payload, type=LogObject)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupCorrupt(key, f"its contents cannot be decoded: {error}") from None
    if item.first_offset != first_offset or item.cluster_id != cluster_id:
        raise BackupCorrupt(
            key, f"it holds records from {item.first_offset} of cluster {item.cluster_id!r}"
        )
    return item


def needed_objects(first_offsets: Sequence[int], start: int) -> list[int]:
    """Return those of the sorted objects that may hold records at or behind `start`.

    They begin with the last object that starts at or before it.
    """
    return [
        first
        for at, first in enumerate(first_offsets)
        if at + 1 == len(first_offsets) or first_offsets[at + 1] > start
    ]


def droppable(first_offsets: Sequence[int], needed_from: int) -> list[int]:
    """Return those of the sorted objects that hold nothing at or behind `needed_from`.

    The last object and fences are never among them.
    """
    return [
        first
        for first, following in pairwise(first_offsets)
        if following <= needed_from and following - first < HISTORY_GAP
    ]


def splice(objects: Iterable[LogObject], start: int) -> LogTail:
    """Join the records from `start` up to the end or the fence.

    The objects come in key order; a late copy of an old one may overlap others. Raises
    RecoveryRefused where records are missing.
    """
    cursor = start
    records: list[msgspec.Raw] = []
    base: Base | None = None
    for item in objects:
        if item.is_fence and item.first_offset < start:
            continue
        if not item.is_fence and item.end_offset <= cursor:
            continue
        if item.first_offset > cursor:
            raise RecoveryRefused(
                f"the backup has no records [{cursor}, {item.first_offset}): an object of it was"
                " lost or deleted"
            )
        if item.is_fence:
            return LogTail(records, MetadataOffset(cursor), base, item)
        records += item.records[cursor - item.first_offset :]
        cursor, base = item.end_offset, item.base
    return LogTail(records, MetadataOffset(cursor), base, None)

"""Objects of the metadata log's backup: runs of committed records, and the fence that ends a
history. See docs/design/disaster-recovery.md.

Object: a header with magic "PNSTMLOG", then msgpack [first offset, [index, term, offset, members],
created ms, cluster id, is fence, [record, ...]].
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
"""Number of metadata offsets between the end of one history and the start of the next. No history
uses that many.
"""


class LogObject(msgspec.Struct, frozen=True, array_like=True):
    """One object of the backup. The objects of one history form a chain: each object starts where
    the previous one ends. The object at the next key is either a run of records or a fence. A fence
    is never deleted, because otherwise a paused controller of the old history could continue
    writing.

    `base` is the position in the Raft log after the records. In a fence, it is the start of the
    next history.
    """

    first_offset: int
    base: Base
    created_ms: int
    cluster_id: str
    is_fence: bool
    records: list[msgspec.Raw]

    @property
    def end_offset(self) -> MetadataOffset:
        """Return the offset after the last record of this object."""
        return MetadataOffset(
            self.base.offset if self.is_fence else self.first_offset + len(self.records)
        )


@dataclass(frozen=True, slots=True)
class LogTail:
    """The records after a snapshot.

    `base` is the `base` of the last object, or None. `fence` is the object that ends the history,
    if there is one.
    """

    records: list[msgspec.Raw]
    end: MetadataOffset
    base: Base | None
    fence: LogObject | None


def pack(item: LogObject) -> list[bytes]:
    return _FORMAT.pack(msgspec.msgpack.encode(item))


def unpack(key: str, first_offset: int, cluster_id: str, data: bytes) -> LogObject:
    """Decode an object. Raises BackupCorrupt unless it is complete and belongs to `key`, and
    FormatUnknown if its format is newer.
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
    """Return the objects that may contain records at or after `start`. `objects` must be sorted.

    The first of them is the last object that starts at or before `start`.
    """
    return [
        first
        for at, first in enumerate(first_offsets)
        if at + 1 == len(first_offsets) or first_offsets[at + 1] > start
    ]


def droppable(first_offsets: Sequence[int], needed_from: int) -> list[int]:
    """Return the objects that contain no records at or after `needed_from`. `objects` must be
    sorted.

    The last object and fences are never included.
    """
    return [
        first
        for first, following in pairwise(first_offsets)
        if following <= needed_from and following - first < HISTORY_GAP
    ]


def splice(objects: Iterable[LogObject], start: int) -> LogTail:
    """Join the records from `start` up to the end or the fence.

    The objects must be in key order. They may overlap, because a late PUT may write a copy of an
    old object. Raises RecoveryRefused if records are missing.
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
                f"the backup has no records [{cursor}, {item.first_offset}): one of its objects"
                " was lost or deleted"
            )
        if item.is_fence:
            return LogTail(records, MetadataOffset(cursor), base, item)
        records += item.records[cursor - item.first_offset :]
        cursor, base = item.end_offset, item.base
    return LogTail(records, MetadataOffset(cursor), base, None)

"""Stores the chain of backup objects."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.controller.backup.layout import (
    LogObject,
    LogTail,
    droppable,
    needed_objects,
    pack,
    splice,
    unpack,
)
from penstock.controller.metadata.records import MetadataOffset
from penstock.objectstore.ports import DELETE_BATCH_COUNT, ObjectStore
from penstock.stream.format.keys import backup_key, backup_prefix, parse_backup_key

_READS_MAX = 16
"""Maximum number of concurrent GETs. With this limit, a recovery of a thousand objects takes
seconds instead of minutes.
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects found in the store.

    `first_offsets` is sorted and contains all objects. `newest_ms` is the time of the last write
    according to the store's clock, or 0 if there are no objects.
    """

    first_offsets: list[int]
    newest_ms: int


class BackupLog:
    """The backup of one cluster. Objects are never changed: each is written with put_if_absent
    under a key derived from the end of the previous object.
    """

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self.cluster_id = cluster_id

    async def listed(self) -> Listed:
        first_offsets: list[int] = []
        newest_ms = 0
        async for info in self._store.list(backup_prefix(self.cluster_id)):
            first = parse_backup_key(self.cluster_id, info.key)
            if first is not None:
                first_offsets.append(first)
                newest_ms = max(newest_ms, info.modified_ms)
        return Listed(first_offsets, newest_ms)

    async def end(self) -> MetadataOffset:
        """Return the end of the backup, where the next object starts; after a fence, the start of
        the next history.

        Return 0 if there is no backup. This takes one LIST (per 1,000 objects) and one GET.
        """
        listed = await self.listed()
        return (
            (await self.read(listed.first_offsets[-1])).end_offset
            if listed.first_offsets
            else MetadataOffset(0)
        )

    async def read(self, first_offset: int) -> LogObject:
        """Read one object. Raises ObjectNotFound, BackupCorrupt."""
        key = backup_key(self.cluster_id, first_offset)
        return unpack(key, first_offset, self.cluster_id, await self._store.get(key))

    async def put(self, item: LogObject) -> None:
        """Write one object.

        Raises PreconditionFailed if the key exists. The existing object may result from our own
        earlier PUT whose response was lost, so read it.
        """
        await self._store.put_if_absent(backup_key(self.cluster_id, item.first_offset), pack(item))

    async def tail(self, first_offsets: Sequence[int], start: int) -> LogTail:
        """Return everything from `start` on. Raises RecoveryRefused if records are missing, and
        BackupCorrupt.
        """
        wanted = needed_objects(first_offsets, start)
        objects: list[LogObject] = []
        for at in range(0, len(wanted), _READS_MAX):
            objects += await asyncio.gather(
                *(self.read(first) for first in wanted[at : at + _READS_MAX])
            )
        return splice(objects, start)

    async def drop_below(self, offset: MetadataOffset) -> None:
        """Delete objects that end at or before `offset`. The caller ensures that two snapshots
        include their records. The last object and all fences are kept.
        """
        stale = droppable((await self.listed()).first_offsets, offset)
        for at in range(0, len(stale), DELETE_BATCH_COUNT):
            await self._store.delete(
                [
                    backup_key(self.cluster_id, first)
                    for first in stale[at : at + DELETE_BATCH_COUNT]
                ]
            )

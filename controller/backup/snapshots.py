"""Snapshots of the image in the object store. A starting controller loads the newest one and then
only the records after it from its journal.

Object: a header with magic "PNSTSNAP", then msgpack [[index, term, offset, members], cluster id,
[record, ...]].
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from penstock.controller.api.errors import SnapshotCorrupt
from penstock.controller.backup.format import MetadataFormat, Unusable
from penstock.controller.metadata.codec import decode_record, encode_raw
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.messages import Base
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.stream.format.keys import parse_snapshot_key, snapshot_key, snapshot_prefix

_log = structlog.get_logger(__name__)
_FORMAT = MetadataFormat(b"PNSTSNAP", version=2)
_CHUNK_RECORDS = 2_000
"""Number of records that are encoded, or decoded and applied, before yielding to the event loop.
They take 2 to 10 ms.
"""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    base: Base
    cluster_id: str
    records: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A loaded snapshot.

    `base` is the log position of the snapshot. `passed_over` is the error of the newest snapshot if
    it was damaged and an older one was loaded instead.
    """

    base: Base
    image: MetadataImage
    passed_over: SnapshotCorrupt | None = None

    @property
    def offset(self) -> MetadataOffset:
        return MetadataOffset(self.base.offset)


def copy_image(image: MetadataImage) -> tuple[ImageCopy, MetadataOffset]:
    """Return a copy of the image and the end offset of the image.

    The copy may be encoded while the image changes. Pass this function to
    `Runtime.with_committed_image`.
    """
    return ImageCopy.of(image), image.end_offset


async def encode_copy(copied: ImageCopy) -> list[msgspec.Raw]:
    """Return the encoded records of the copy. Yields to the event loop."""
    encoded: list[msgspec.Raw] = []
    for chunk in copied.chunks(_CHUNK_RECORDS):
        encoded += encode_raw(chunk)
        await asyncio.sleep(0)
    return encoded


async def load_image(records: Sequence[msgspec.Raw], end_offset: MetadataOffset) -> MetadataImage:
    """Return the image built from these records.

    Yields to the event loop, because the process has to respond to other voters and to brokers in
    the meantime.
    """
    image = MetadataImage()
    for at in range(0, len(records), _CHUNK_RECORDS):
        image.load(map(decode_record, records[at : at + _CHUNK_RECORDS]))
        await asyncio.sleep(0)
    image.loaded(end_offset)
    return image


def _pack(body: _Body) -> list[bytes]:
    return _FORMAT.pack(msgspec.msgpack.encode(body))


def _unpack(key: str, data: bytes) -> _Body:
    """Decode a snapshot. Raises SnapshotCorrupt, FormatUnknown."""
    try:
        payload = _FORMAT.unpack(key, data)
    except Unusable as error:
        raise SnapshotCorrupt(key, str(error)) from None
    try:
        return msgspec.msgpack.decode(payload, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotCorrupt(key, f"its contents cannot be decoded: {error}") from None


class SnapshotStore:
    """The snapshots of one cluster. Each is written in one PUT with put_if_absent and never
    changed. A snapshot only contains records that are already in the backup, because a later leader
    may no longer have the log before the snapshot. Old snapshots are deleted only after a newer one
    exists.
    """

    def __init__(self, store: ObjectStore, cluster_id: str, *, kept: int) -> None:
        assert kept >= 2, f"{kept} snapshots are kept"
        self._store = store
        self._cluster_id = cluster_id
        self._kept = kept

    async def load_newest(self) -> LoadedSnapshot | None:
        """Return the newest intact snapshot. Damaged ones are skipped and logged. This takes about
        0.5 s per 200,000 records.

        Raises SnapshotCorrupt if there are snapshots but none is intact, so that the controller
        does not start an empty cluster. Raises FormatUnknown if the newest intact snapshot has a
        newer format, because an older one would lack its records.
        """
        damaged: SnapshotCorrupt | None = None
        for key in reversed(await self._keys()):
            try:
                body = await self._read(key)
            except SnapshotCorrupt as error:
                _log.error("snapshot_skipped", key=key, reason=str(error))
                damaged = damaged or error
                continue
            return LoadedSnapshot(
                body.base, await load_image(body.records, MetadataOffset(body.base.offset)), damaged
            )
        if damaged is not None:
            raise damaged
        return None

    async def _read(self, key: str) -> _Body:
        """Read one snapshot. If the checksum does not match, read the snapshot again.

        The bytes may have been damaged in transit, and an older snapshot is no replacement if the
        journal is empty.
        """
        try:
            return _unpack(key, await self._store.get(key))
        except SnapshotCorrupt as error:
            _log.warning("snapshot_reread", key=key, reason=str(error))
            return _unpack(key, await self._store.get(key))

    async def save(self, copied: ImageCopy, base: Base) -> int:
        """Write the snapshot as of `base` and return the number of its records.

        Repeated writes for the same offset and term succeed, because the contents are identical.
        """
        encoded = await encode_copy(copied)
        # This joins the encoded parts, which takes 1 ms per 3 MB.
        parts = _pack(_Body(base, self._cluster_id, encoded))
        try:
            await self._store.put_if_absent(
                snapshot_key(self._cluster_id, base.offset, base.term), parts
            )
        except PreconditionFailed:
            _log.info("snapshot_exists", offset=base.offset, epoch=base.term)
        return len(encoded)

    async def drop_old(self) -> MetadataOffset:
        """Delete all but the newest few snapshots. Return the offset of the second newest one, from
        which the journal must be kept.
        """
        keys = await self._keys()
        stale = keys[: -self._kept]
        if stale:
            await self._store.delete(stale)
        return self._second_newest(keys)

    async def newest_offset(self) -> MetadataOffset | None:
        """Return the offset of the newest snapshot, whether intact or not, or None."""
        keys = await self._keys()
        newest = parse_snapshot_key(self._cluster_id, keys[-1]) if keys else None
        return None if newest is None else MetadataOffset(newest[0])

    async def needed_from(self) -> MetadataOffset:
        """Return the offset of the second newest snapshot, from which all logs must be kept."""
        return self._second_newest(await self._keys())

    def _second_newest(self, keys: Sequence[str]) -> MetadataOffset:
        previous = parse_snapshot_key(self._cluster_id, keys[-2]) if len(keys) > 1 else None
        return MetadataOffset(0 if previous is None else previous[0])

    async def _keys(self) -> list[str]:
        found = [info.key async for info in self._store.list(snapshot_prefix(self._cluster_id))]
        return [key for key in found if parse_snapshot_key(self._cluster_id, key) is not None]

"""The metadata that the bucket is compared with: of the running controllers, or of their backup in
the store.

Invariant: `refresh` makes the image at least as new as what was committed when it was called, so
what is unknown in it afterwards was not known to anybody then. A backup is as new as the store has
it; whatever it refers to has not been deleted (ADR 0013).
"""

import asyncio
from typing import Final, Protocol

from controller.api.client import ControllerClient
from controller.api.follower import MetadataFollower
from controller.backup.log import BackupLog
from controller.backup.snapshots import SnapshotStore
from controller.metadata.codec import decode_record
from controller.metadata.image import MetadataImage
from controller.metadata.records import MetadataOffset
from objectstore.ports import ObjectStore

START_S: Final = 10.0
REFRESH_S: Final = 15.0
_REPLAY_COUNT: Final = 5_000


class Metadata(Protocol):
    """is_live: the controllers' own."""

    is_live: bool

    @property
    def image(self) -> MetadataImage: ...

    async def refresh(self) -> None:
        """Raises TimeoutError, ControllerError, ObjectStoreError."""
        ...

    async def close(self) -> None: ...


class LiveMetadata:
    """An observer of the controllers: it has no session, so looking changes nothing."""

    is_live = True

    def __init__(self, addresses: str) -> None:
        self._client = ControllerClient(addresses.split(","))
        self._follower = MetadataFollower(self._client)

    @property
    def image(self) -> MetadataImage:
        return self._follower.image

    async def start(self) -> None:
        """Raises TimeoutError: nobody answers."""
        await self._follower.start(START_S)

    async def refresh(self) -> None:
        """Up to what the leader has committed by now."""
        quorum = await self._client.describe_quorum(timeout_s=REFRESH_S)
        deadline = asyncio.get_running_loop().time() + REFRESH_S
        await self._follower.reached(quorum.committed_offset, deadline)

    async def close(self) -> None:
        await self._follower.stop()
        await self._client.close()


class StoredMetadata:
    """The newest snapshot and the backup behind it. `refresh` first. Memory: the records behind the
    snapshot twice.
    """

    is_live = False

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._snapshots = SnapshotStore(store, cluster_id, kept=2)
        self._log = BackupLog(store, cluster_id)
        self._image = MetadataImage()

    @property
    def image(self) -> MetadataImage:
        return self._image

    async def refresh(self) -> None:
        """Raises SnapshotCorrupt, BackupCorrupt, RecoveryRefused (a gap), ObjectStoreError."""
        snapshot = await self._snapshots.load_newest()
        start = snapshot.offset if snapshot else MetadataOffset(0)
        tail = await self._log.tail((await self._log.listed()).first_offsets, start)
        image = snapshot.image if snapshot else MetadataImage()
        for at in range(0, len(tail.records), _REPLAY_COUNT):
            image.apply_all(decode_record(raw) for raw in tail.records[at : at + _REPLAY_COUNT])
            await asyncio.sleep(0)
        self._image = image

    async def close(self) -> None:
        """Nothing is open."""

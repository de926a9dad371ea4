"""Read the metadata, from the running controllers or from their backup in the store.

Invariant: after `refresh`, the image contains everything that was committed before the call, so an
object that is still unknown after that was unknown to every node. A backup may be older, but the
objects that it references have not been deleted (docs/design/disaster-recovery.md).
"""

import asyncio
from typing import Final, Protocol

from penstock.controller.api.follower import MetadataFollower
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset
from penstock.deploy.clients.controllers import connect
from penstock.objectstore.ports import ObjectStore

START_S: Final = 10.0
REFRESH_S: Final = 15.0
_REPLAY_COUNT: Final = 5_000


class Metadata(Protocol):
    """Metadata of one cluster. is_live: whether it comes from the running controllers."""

    is_live: bool

    @property
    def image(self) -> MetadataImage: ...

    async def refresh(self) -> None:
        """Raises TimeoutError, ControllerError, ObjectStoreError."""
        ...

    async def close(self) -> None: ...


class LiveMetadata:
    """Follows the controllers as an observer. It has no session, so it changes nothing."""

    is_live = True

    def __init__(self, addresses: str) -> None:
        self._client = connect(addresses)
        self._follower = MetadataFollower(self._client)

    @property
    def image(self) -> MetadataImage:
        return self._follower.image

    async def start(self) -> None:
        """Read the metadata. Raises TimeoutError if no controller responds."""
        await self._follower.start(START_S)

    async def refresh(self) -> None:
        """Read up to the committed end of the leader."""
        quorum = await self._client.describe_quorum(timeout_s=REFRESH_S)
        deadline = asyncio.get_running_loop().time() + REFRESH_S
        await self._follower.reached(quorum.committed_offset, deadline)

    async def close(self) -> None:
        await self._follower.stop()
        await self._client.close()


class StoredMetadata:
    """Read the newest snapshot and the backup log after it. Call `refresh` first. Memory: twice the
    records after the snapshot.
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
        """Read the backup. Raises SnapshotCorrupt, BackupCorrupt, RecoveryRefused (a gap),
        ObjectStoreError.
        """
        snapshot = await self._snapshots.load_newest()
        start = snapshot.offset if snapshot else MetadataOffset(0)
        tail = await self._log.tail((await self._log.listed()).first_offsets, start)
        image = snapshot.image if snapshot else MetadataImage()
        for at in range(0, len(tail.records), _REPLAY_COUNT):
            image.apply_all(decode_record(raw) for raw in tail.records[at : at + _REPLAY_COUNT])
            await asyncio.sleep(0)
        self._image = image

    async def close(self) -> None:
        """Do nothing, because no resources are open."""

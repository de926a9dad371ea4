"""Keeps the image of a controller that does not lead up to date, so that it can take over quickly.

A new leader's writer takes over the image. After that, if the writer's image may contain records
that were never committed, the image is loaded again from the snapshot and the log.
"""

import asyncio

import structlog

from penstock.controller.backup.snapshots import LoadedSnapshot, SnapshotStore
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.objectstore.errors import ObjectStoreError

_log = structlog.get_logger(__name__)
_REPLAY_BYTES = 128 << 10
"""Bytes of records that are replayed before yielding to the event loop, which also handles the
heartbeats of the quorum. Replaying them takes 10 to 20 ms.
"""

_RETRY_S = 0.2


class Standby:
    def __init__(
        self, config: ControllerConfig, quorum: RaftQuorum, snapshots: SnapshotStore
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._snapshots = snapshots
        self.image = MetadataImage()
        self.since: MetadataOffset | None = None
        """Offset of the newest known snapshot, or None."""
        self._trim_at = 2 * config.snapshot_records
        self._is_handed_over = False

    @property
    def committed_image(self) -> MetadataImage | None:
        """The image if it contains only committed records. None from `hand_over` until `take_back`
        or the end of `rebuild`.
        """
        return None if self._is_handed_over else self.image

    def hand_over(self) -> MetadataImage:
        """Pass the image to the writer, which applies records before they are committed."""
        self._is_handed_over = True
        return self.image

    async def load(self) -> LoadedSnapshot | None:
        """Load the newest snapshot, or start with an empty image. Raises SnapshotCorrupt,
        ObjectStoreError.
        """
        loaded = await self._snapshots.load_newest()
        self.image = loaded.image if loaded else MetadataImage()
        self.since = loaded.offset if loaded else self.since
        return loaded

    def take_back(self, since: MetadataOffset) -> None:
        """Continue with the writer's image, which contains only committed records. since: see
        `since`.
        """
        self.since, self._is_handed_over = since, False

    async def rebuild(self) -> None:
        """Drop the image after leadership was lost, and load it again. This waits for the store
        without a timeout.
        """
        while True:
            try:
                await self.load()
                self._is_handed_over = False
                return
            except ObjectStoreError as error:
                _log.warning("standby_load_failed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def catch_up(self) -> None:
        """Apply committed records. If the log starts after the end of the image, load a snapshot
        from the store. If the loaded snapshot is ahead of the committed records, wait until they
        have reached it.
        """
        quorum = self._quorum
        if quorum.needs_snapshot or self.image.end_offset < quorum.first_offset:
            await self._install()
        while quorum.first_offset <= self.image.end_offset < quorum.committed_offset:
            committed = quorum.read(self.image.end_offset, _REPLAY_BYTES)
            self.image.apply_all(decode_record(record) for record in committed.records)
            await asyncio.sleep(0)
        if self.image.end_offset > quorum.committed_offset:
            await quorum.wait_changed()
        if (
            quorum.committed_offset - quorum.first_offset > self._trim_at
            and not quorum.leadership.active
        ):
            await self._trim()

    async def _install(self) -> None:
        try:
            loaded = await self._snapshots.load_newest()
        except ObjectStoreError as error:
            _log.warning("snapshot_load_failed", error=str(error))
            loaded = None
        if loaded is None or loaded.offset <= self.image.end_offset:
            await asyncio.sleep(_RETRY_S)
            return
        self.image, self.since = loaded.image, loaded.offset
        self._quorum.installed(loaded.base)
        _log.info("snapshot_installed", offset=loaded.offset, index=loaded.base.index)

    async def _trim(self) -> None:
        """Drop the part of the log that two snapshots contain. The leader creates the snapshots."""
        quorum = self._quorum
        try:
            needed_from = await self._snapshots.needed_from()
        except ObjectStoreError as error:
            _log.warning("log_trim_failed", error=str(error))
        else:
            await quorum.drop_before(MetadataOffset(min(needed_from, self.image.end_offset)))
        self._trim_at = (
            quorum.committed_offset - quorum.first_offset + self._config.snapshot_records
        )

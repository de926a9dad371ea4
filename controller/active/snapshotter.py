"""Take snapshots of the metadata image while this controller is active."""

import asyncio

import structlog

from penstock.controller.active.writer import Runtime
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore, copy_image
from penstock.controller.backup.writer import Backup
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.records import MetadataOffset
from penstock.controller.raft.replicated_log import Quorum
from penstock.objectstore.errors import ObjectStoreError

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_S = 1.0


class Snapshotter:
    """Takes a snapshot when the log has grown enough, and then drops the part of the log that two
    snapshots cover.
    """

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        runtime: Runtime,
        snapshots: SnapshotStore,
        log: BackupLog,
        *,
        backup: Backup,
        since: MetadataOffset | None,
    ) -> None:
        """since: the offset of the newest snapshot, or None if there is none."""
        self._config = config
        self._quorum = quorum
        self._runtime = runtime
        self._snapshots = snapshots
        self._log = log
        self._backup = backup
        self._objects_since = 0
        self._since = MetadataOffset(0) if since is None else since
        self._bytes_since = runtime.counters.bytes

    async def run(self) -> None:
        """Run until cancelled or until the runtime ends.

        After a store failure, the snapshot is retried; the journal keeps growing until one
        succeeds.
        """
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            records = self._quorum.committed_offset - self._since
            size_bytes = self._runtime.counters.bytes - self._bytes_since
            objects = self._backup.object_count - self._objects_since
            config = self._config
            if (
                records >= config.snapshot_records
                or size_bytes >= config.snapshot_bytes
                or objects >= config.backup_objects
            ):
                try:
                    await self.take()
                except (ObjectStoreError, TimeoutError) as error:
                    _log.warning("snapshot_failed", error=str(error), records_since_last=records)

    @property
    def since(self) -> MetadataOffset:
        """Return the end offset of the newest snapshot."""
        return self._since

    async def take(self) -> MetadataOffset:
        """Take one snapshot now and return its offset."""
        copied, offset = await self._runtime.with_committed_image(copy_image)
        size_bytes = self._runtime.counters.bytes
        async with asyncio.timeout(self._config.request_timeout_ms / 1_000):
            await self._backup.covered(offset)
        objects = self._backup.object_count
        record_count = await self._snapshots.save(copied, self._quorum.point_at(offset))
        self._since, self._bytes_since, self._objects_since = offset, size_bytes, objects
        previous = await self._snapshots.drop_old()
        await self._log.drop_below(previous)
        await self._quorum.drop_before(previous)
        _log.info(
            "snapshot_taken",
            offset=offset,
            records=record_count,
            log_starts_at=self._quorum.first_offset,
        )
        return offset

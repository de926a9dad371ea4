"""Copies committed metadata records to the store while this controller leads, and reports the end
of the copy. See docs/design/disaster-recovery.md.
"""

import asyncio
from contextlib import suppress

import msgspec
import structlog

from penstock.base.clock import WallClock
from penstock.controller.api.errors import (
    BackupCorrupt,
    BackupFenced,
    BackupGap,
    LogBehindBackup,
    QuorumClosed,
)
from penstock.controller.backup.layout import LogObject
from penstock.controller.backup.log import BackupLog
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.records import ControllerEpoch, MetadataOffset
from penstock.controller.raft.replicated_log import Quorum
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError, PreconditionFailed

_log = structlog.get_logger(__name__)
_ATTEMPT_S = 30.0
_ABANDONED_COUNT = 256
"""Number of waiters above which abandoned ones are removed."""

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0


class Backup:
    """The backup task of the active controller. Call `open` once, then `run`.

    Only the leader of the epoch writes, and only committed, contiguous records. `offset` advances
    only after the object exists and a majority has then confirmed that this controller still leads,
    so any later recovery finds everything below it. If a key already exists, its object is read. If
    it contains our records (from our own write whose response was lost, or from an earlier leader),
    the write has succeeded. If it contains a fence or different records, this history is over
    (BackupFenced). A failing store only delays callers of `covered`.
    """

    def __init__(
        self,
        config: ControllerConfig,
        quorum: Quorum,
        log: BackupLog,
        epoch: ControllerEpoch,
        now_ms: WallClock,
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._log = log
        self._epoch = epoch
        self._now_ms = now_ms
        self._now = asyncio.get_running_loop().time
        self._opened = False
        self._offset = MetadataOffset(0)
        self._covered_at = self._now()
        """The store contains everything that was committed at this time."""
        self._wanted = MetadataOffset(0)
        self._wake = asyncio.Event()
        self._waiters: list[tuple[MetadataOffset, asyncio.Future[None]]] = []
        self._over: Exception | None = None
        self.object_count = 0
        """Number of objects written since this controller became active. A high number triggers a
        snapshot.
        """

    @property
    def offset(self) -> MetadataOffset:
        """Return the offset below which everything is stored permanently, or 0 if it is not known
        yet.
        """
        return self._offset

    @property
    def behind_s(self) -> float:
        """Return an upper bound for the age of the oldest committed record that is not in the store
        yet, or 0 if there is no such record.
        """
        return (
            0.0
            if self._offset >= self._quorum.committed_offset
            else max(0.0, self._now() - self._covered_at)
        )

    async def open(self) -> None:
        """Determine the end of the backup.

        Raises LogBehindBackup (this controller must not lead), BackupGap, ObjectStoreError,
        BackupCorrupt, NotLeader. If the backup is ahead of the log, a later leader may have written
        it. LogBehindBackup is therefore raised only after a majority has confirmed that this
        controller still leads.
        """
        end = await self._log.end()
        await self._quorum.confirm(self._epoch)
        committed = self._quorum.committed_offset
        if end > committed:
            _log.critical("log_behind_backup", committed=committed, backup=end)
            raise LogBehindBackup(committed, end)
        if end < self._quorum.first_offset:
            raise BackupGap(end, self._quorum.first_offset)
        self._opened = True
        self._advance(end)

    async def run(self) -> None:
        """Run until cancelled or until the epoch ends (NotLeader).

        Raises LogBehindBackup and BackupFenced, after which the process must stop.
        """
        retry_s = _RETRY_FIRST_S
        try:
            while True:
                try:
                    async with asyncio.timeout(_ATTEMPT_S) as limit:
                        if not self._opened:
                            await self.open()
                        limit.reschedule(None)
                        await self._due()
                        limit.reschedule(self._now() + _ATTEMPT_S)
                        await self._append()
                except (ObjectStoreError, BackupCorrupt, TimeoutError) as error:
                    _log.warning(
                        "backup_failed",
                        error=str(error),
                        behind_count=self._quorum.committed_offset - self._offset,
                    )
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, _RETRY_MAX_S)
                else:
                    retry_s = _RETRY_FIRST_S
        except BaseException as error:
            self._end(error)
            raise

    async def covered(self, offset: MetadataOffset) -> None:
        """Wait until the store contains everything below `offset`. The missing records are written
        immediately instead of at the next interval.

        Raises QuorumClosed or NotLeader if the epoch ends; the outcome is then unknown. The caller
        sets the timeout.
        """
        if self._offset >= offset:
            return
        if self._over is not None:
            raise self._over
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiters) % _ABANDONED_COUNT == 0:
            self._waiters = [waiting for waiting in self._waiters if not waiting[1].done()]
        self._waiters.append((offset, waiter))
        self._wanted = max(self._wanted, offset)
        self._wake.set()
        await waiter

    async def _due(self) -> None:
        """Wait until the store lacks a committed record and a write is due.

        A write is due when the interval has passed or a caller of `covered` is waiting.
        """
        if self._offset >= self._quorum.committed_offset:
            await self._quorum.wait_committed(self._offset)
            self._covered_at = self._now()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.backup_interval_ms / 1_000):
                while self._wanted <= self._offset:
                    self._wake.clear()
                    await self._wake.wait()

    async def _append(self) -> None:
        """Write objects until the store contains everything that was committed at the time of the
        call.
        """
        began, target = self._now(), self._quorum.committed_offset
        while self._offset < target:
            committed = self._quorum.read(self._offset, self._config.backup_bytes_max)
            end = committed.end_offset
            records = [msgspec.Raw(record) for record in committed.records]
            item = LogObject(
                self._offset,
                self._quorum.point_at(end),
                self._now_ms(),
                self._log.cluster_id,
                False,
                records,
            )
            try:
                await self._log.put(item)
            except PreconditionFailed:
                end = await self._take_over()
            await self._quorum.confirm(self._epoch)
            self.object_count += 1
            self._advance(end)
        self._covered_at = began

    async def _take_over(self) -> MetadataOffset:
        """Return the end of the object at our next key if it contains our records.

        Raises BackupFenced otherwise.
        """
        try:
            found = await self._log.read(self._offset)
        except ObjectNotFound:
            raise BackupFenced(
                self._offset, "the object at this offset was deleted by another process"
            ) from None
        if found.is_fence:
            raise BackupFenced(
                self._offset,
                f"a recovery fenced this log; the cluster continues at offset {found.base.offset}",
            )
        await self._quorum.confirm(self._epoch)
        if found.end_offset > self._quorum.committed_offset:
            raise LogBehindBackup(self._quorum.committed_offset, found.end_offset)
        ours: list[bytes] = []
        while len(ours) < len(found.records):
            ours += self._quorum.read(
                MetadataOffset(self._offset + len(ours)), self._config.backup_bytes_max
            ).records
        if any(bytes(theirs) != mine for theirs, mine in zip(found.records, ours, strict=False)):
            raise BackupFenced(
                self._offset, "another history of this cluster id is backed up there"
            )
        return found.end_offset

    def _advance(self, offset: MetadataOffset) -> None:
        self._offset = offset
        waiting, self._waiters = self._waiters, []
        for wanted, waiter in waiting:
            if waiter.done():
                continue
            if wanted <= offset:
                waiter.set_result(None)
            else:
                self._waiters.append((wanted, waiter))

    def _end(self, error: BaseException) -> None:
        self._over = (
            error
            if isinstance(error, Exception)
            else QuorumClosed("the controller stopped before the backup; the outcome is unknown")
        )
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._over)
                waiter.exception()
        self._waiters.clear()

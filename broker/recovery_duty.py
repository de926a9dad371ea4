"""Recovers the WALs of dead brokers when the controller asks this one to.

Level, not edge: whatever the image says that (this node, this epoch) shall recover is being recovered, with retries, until the image says
otherwise (done, or somebody else was asked). A lost reply or a failed attempt therefore needs no special case.
Must not decide who recovers what, or run two recoveries of one WAL at once.
Source: DESIGN.md section 5; AutoMQ `DefaultS3FailoverControlManager`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import structlog

from controller.metadata.delta import MetadataDelta
from controller.metadata.image import MetadataImage
from stream.ids import WalSequence
from stream.ports import WalIdentity

log = structlog.get_logger()

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 1.0
"""Partitions are without a leader all this time; a walk costs some dozen GETs."""


class RecoveryDuty:
    """recover: reads one WAL from a slot on, commits it and logs that; raises when it has to be tried again."""

    def __init__(
        self,
        me: WalIdentity,
        image: Callable[[], MetadataImage],
        recover: Callable[[WalIdentity, WalSequence], Awaitable[object]],
        rng: Random,
    ) -> None:
        self._me = me
        self._image = image
        self._recover = recover
        self._rng = rng
        self._running: dict[WalIdentity, asyncio.Task[None]] = {}

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not delta.everything and not delta.wals:
            return
        for wal in image.nodes.running_wals():
            if wal.recoverer == self._me and wal.writer not in self._running:
                self._running[wal.writer] = asyncio.get_running_loop().create_task(self._run(wal.writer))

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_slot(self, writer: WalIdentity) -> WalSequence | None:
        """Where to begin, if it is (still) our duty."""
        wal = self._image().nodes.wal(writer)
        return wal.committed if wal is not None and not wal.ended and wal.recoverer == self._me else None

    async def _run(self, writer: WalIdentity) -> None:
        delay_s = RETRY_FIRST_S
        try:
            while (start := self._start_slot(writer)) is not None:
                log.info("wal_recovery_began", node_id=writer.node_id, node_epoch=writer.node_epoch, start=start)
                try:
                    await self._recover(writer, start)
                except Exception as error:  # noqa: BLE001 - whatever went wrong, the duty stays: logged and tried again
                    log.warning("wal_recovery_failed", writer=writer, start=start, retry_in_s=round(delay_s, 2), error=repr(error))
                else:
                    delay_s = RETRY_FIRST_S
                if self._start_slot(writer) is not None:
                    await asyncio.sleep(delay_s * (0.5 + self._rng.random()))
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self._running.pop(writer, None)

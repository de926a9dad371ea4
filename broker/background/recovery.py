"""Recover the WALs of dead brokers that the controller assigns to this broker."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.ids import WalSequence
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.wal_losses import acceptance_key
from penstock.stream.errors import WalDamaged
from penstock.stream.ports import BrokerIncarnation

log = structlog.get_logger(__name__)

RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 1_000
"""Maximum delay between attempts. It is short because the partitions have no leader until the
recovery succeeds. An attempt costs a few dozen GETs.
"""

SLOTS_LOGGED_MAX: Final = 10

DAMAGED_ATTEMPTS_COUNT: Final = 2
"""Consecutive attempts that must find damage before the broker reports it, because a store may
return wrong data temporarily.
"""

DAMAGED_RETRY_S: Final = 30.0
"""Pause between attempts on a WAL with lost or damaged slots, which only an operator can repair."""


class RecoveryDuty:
    """Runs the recoveries that the image assigns to this broker.

    Level-triggered: each assigned WAL is recovered, with retries, until the image no longer assigns
    it here, so a lost response or a failed attempt needs no special case. A WAL with lost or
    damaged slots is retried when an operator accepts the loss, and periodically in case the slots
    were restored.

    recover: reads one WAL from the given slot on, commits it and logs the result. It raises if the
    recovery must be retried.
    """

    def __init__(
        self,
        me: BrokerIncarnation,
        image: Callable[[], MetadataImage],
        recover: Callable[[BrokerIncarnation, WalSequence], Awaitable[object]],
        rng: Random,
    ) -> None:
        self._me = me
        self._image = image
        self._recover = recover
        self._rng = rng
        self._running: dict[BrokerIncarnation, asyncio.Task[None]] = {}
        self._retry_events: dict[BrokerIncarnation, asyncio.Event] = {}
        """Events that are set when an operator may have accepted a loss."""
        self.damaged: dict[BrokerIncarnation, WalDamaged] = {}
        """WALs that this broker cannot recover completely, with the reason."""

    def on_batch(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for writer, event in self._retry_events.items():
            if delta.everything or acceptance_key(writer) in delta.keys or writer in delta.wals:
                event.set()
        if not delta.everything and not delta.wals:
            return
        for wal in image.nodes.running_wals():
            if wal.recoverer == self._me and wal.writer not in self._running:
                self._running[wal.writer] = asyncio.get_running_loop().create_task(
                    self._run(wal.writer)
                )

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_slot(self, writer: BrokerIncarnation) -> WalSequence | None:
        """Return the first slot to recover, or None if the WAL is not (or no longer) assigned to
        this broker.
        """
        wal = self._image().nodes.wal(writer)
        return (
            wal.committed
            if wal is not None and not wal.ended and wal.recoverer == self._me
            else None
        )

    async def _run(self, writer: BrokerIncarnation) -> None:
        try:
            await self._recover_with_retries(writer)
        finally:
            self._running.pop(writer, None)
            self.damaged.pop(writer, None)

    async def _recover_with_retries(self, writer: BrokerIncarnation) -> None:
        backoff = Backoff(RETRY_FIRST_MS, RETRY_MAX_MS, self._rng)
        damaged_count = 0
        while (start := self._start_slot(writer)) is not None:
            log.info(
                "wal_recovery_started",
                node_id=writer.node_id,
                node_epoch=writer.node_epoch,
                start=start,
            )
            try:
                await self._recover(writer, start)
            except WalDamaged as error:
                damaged_count += 1
                if damaged_count >= DAMAGED_ATTEMPTS_COUNT:
                    await self._wait_for_operator(writer, start, error)
                    continue
                log.warning("wal_recovery_blocked", writer=writer, start=start, error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the WAL stays assigned: log and retry
                log.warning("wal_recovery_failed", writer=writer, start=start, error=repr(error))
            else:
                backoff = Backoff(RETRY_FIRST_MS, RETRY_MAX_MS, self._rng)
            if self._start_slot(writer) is not None:
                await asyncio.sleep(backoff.next_s())

    async def _wait_for_operator(
        self, writer: BrokerIncarnation, start: WalSequence, error: WalDamaged
    ) -> None:
        """Log the lost slots, and return when another attempt may succeed."""
        log.error(
            "wal_slots_lost",
            node_id=writer.node_id,
            node_epoch=writer.node_epoch,
            start=start,
            slots=list(error.keys[:SLOTS_LOGGED_MAX]),
            slot_count=len(error.keys),
            waiting_partition_count=error.stream_count,
            remedy="restore the objects, or `penstock wal repair`",
        )
        self.damaged[writer] = error
        event = self._retry_events.setdefault(writer, asyncio.Event())
        try:
            async with asyncio.timeout(DAMAGED_RETRY_S):
                await event.wait()
        except TimeoutError:
            return
        finally:
            del self._retry_events[writer]

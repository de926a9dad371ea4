"""Move a broker's WAL out of a WAL store that is down, replaced or being drained, and move it back
when the store works again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from penstock.base.clock import MonotonicClock
from penstock.base.errors import StreamError
from penstock.broker.wal_store import BrokerStores
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.errors import WalStoreWrong
from penstock.stream.ports import WalStoreIdentity
from penstock.stream.storage import Storage
from penstock.stream.wal.wal_store import check_identity

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 1.0
CHECK_INTERVAL_S: Final = 5.0
"""Interval between two checks of the WAL store's identity, or between two probes while the WAL is
in another store.
"""
PROBE_TIMEOUT_S: Final = 5.0
DRAIN_UPLOAD_MAX_S: Final = 10.0
"""Maximum duration of the upload before a WAL leaves a WAL store that is being drained. The move
itself uploads the rest while appends wait.
"""
RETURN_AFTER_MIN_S: Final = 30.0
RETURN_AFTER_MAX_S: Final = 1_800.0
"""Upper limit of the time for which probes of the WAL store must succeed before the WAL returns.
The required time doubles up to this limit each time the store fails within `RELAPSE_S` of a return,
so that an unstable store does not make the WAL move back and forth.
"""
RELAPSE_S: Final = 600.0


class ReturnPolicy:
    """Decides when the WAL returns to its WAL store. Pure: `now` is monotonic."""

    def __init__(self, wait_min_s: float) -> None:
        self._wait_min_s = self._wait_s = wait_min_s
        self._works_since: float | None = None
        self._returned_at: float | None = None

    def left(self, now: float) -> None:
        """Record that the WAL has left the WAL store."""
        is_relapse = self._returned_at is not None and now - self._returned_at < RELAPSE_S
        doubled_s = min(2 * self._wait_s, RETURN_AFTER_MAX_S)
        self._wait_s = doubled_s if is_relapse else self._wait_min_s
        self._works_since = None

    def returned(self, now: float) -> None:
        self._returned_at = now

    def probed(self, now: float, *, works: bool) -> bool:
        """Record the result of a probe. Return whether the WAL should return now."""
        if not works:
            self._works_since = None
            return False
        if self._works_since is None:
            self._works_since = now
        return now - self._works_since >= self._wait_s


class WalPlaceDuty:
    """Decides which store contains the WAL of this broker. Runs on each broker with a WAL store."""

    def __init__(
        self,
        storage: Storage,
        stores: BrokerStores,
        *,
        current: Callable[[], WalStoreIdentity | None],
        is_leaving: Callable[[], bool],
        fallback_after_ms: Callable[[], int],
        probe_key: str,
        now: MonotonicClock,
        return_after_s: float = RETURN_AFTER_MIN_S,
    ) -> None:
        """current: returns the WAL store in the metadata. is_leaving: returns whether this broker
        is the next one to leave a WAL store that is being drained. probe_key: key of the object
        that is written to test whether a store accepts writes.
        """
        self._storage = storage
        self._stores = stores
        self._current = current
        self._is_leaving = is_leaving
        self._fallback_after_ms = fallback_after_ms
        self._probe_key = probe_key
        self._now = now
        self._policy = ReturnPolicy(return_after_s)
        self._next_check_at = 0.0
        self._reported = ""
        """The reason last logged for rejecting the WAL store."""

    async def run(self) -> None:
        """Run until cancelled, or until the storage is fenced."""
        while not self._storage.fenced:
            try:
                await self._step()
            except (StreamError, ObjectStoreError, TimeoutError) as error:
                log.warning("wal_place_check_failed", error=repr(error))
            await asyncio.sleep(INTERVAL_S)

    async def _step(self) -> None:
        if self._storage.wal_store is None:
            await self._return_if_possible()
            return
        if self._is_check_due():
            await self._storage.check_wal_store()
        reason = self._reason_to_leave()
        if not reason and not self._is_leaving():
            return
        # If both stores are down, the WAL stays where it is, because the WAL store may recover
        # first.
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await self._stores.own.put(self._probe_key, b"x")
        if reason:
            log.error("wal_store_left", reason=reason)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_UPLOAD_MAX_S):
                    await self._storage.upload()
        self._policy.left(self._now())
        await self._storage.move_wal(None)

    def _reason_to_leave(self) -> str:
        """Return the reason to leave the WAL store, or "". The WAL always leaves a store that was
        replaced, because only this process still holds the records of the old store.
        """
        if (problem := self._storage.wal_store_problem) is not None:
            return str(problem)
        limit_ms = self._fallback_after_ms()
        stalled_s = self._storage.stalled_s
        if limit_ms and stalled_s * 1_000 >= limit_ms:
            return f"nothing could be acknowledged for {stalled_s:.0f} s"
        return ""

    async def _return_if_possible(self) -> None:
        target = self._current()
        if target is None or not self._is_check_due():
            return
        works = await self._works(target)
        if self._policy.probed(self._now(), works=works):
            await self._storage.upload()
            await self._storage.move_wal(target)
            self._policy.returned(self._now())

    async def _works(self, target: WalStoreIdentity) -> bool:
        """Return whether the WAL store is the right one and accepts writes."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await check_identity(self._stores.store, target)
                await self._stores.probe_writes(self._probe_key)
        except WalStoreWrong as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.error("wal_store_wrong", error=self._reported)
            return False
        except (ObjectStoreError, TimeoutError):
            return False
        return True

    def _is_check_due(self) -> bool:
        now = self._now()
        if now < self._next_check_at:
            return False
        self._next_check_at = now + CHECK_INTERVAL_S
        return True

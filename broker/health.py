"""Whether a broker should get clients: it serves, it has its session and so the present metadata,
and the store takes writes.

Invariants: the store is asked only when somebody wants to know, at most once in `STORE_INTERVAL_S`,
by one small PUT that is bounded by `STORE_TIMEOUT_S`; without questions nothing is sent (a question
every 5 s costs 1.30 USD a month on S3).
Must not decide anything about the broker itself: leases and fences do that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from objectstore.errors import ObjectStoreError
from objectstore.metered import StoreMeter

if TYPE_CHECKING:
    from broker.node import Broker

STORE_INTERVAL_S: Final = 10.0
STORE_TIMEOUT_S: Final = 3.0
"""Probes of orchestrators have to wait longer than this."""


class StoreProbe:
    """put: writes something small. Several that ask at once share one write."""

    def __init__(self, put: Callable[[], Awaitable[object]]) -> None:
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._written_at = float("-inf")
        self._check: asyncio.Task[list[str]] | None = None

    async def problems(self) -> list[str]:
        """Why the store does not take writes; empty: it took one a moment ago."""
        if self._loop.time() - self._written_at < STORE_INTERVAL_S:
            return []
        if self._check is None or self._check.done():
            self._check = self._loop.create_task(self._write())
        return await asyncio.shield(self._check)

    async def _write(self) -> list[str]:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._put()
        except TimeoutError:
            return [f"the store did not take a write within {STORE_TIMEOUT_S:.0f} s"]
        except ObjectStoreError as error:
            return [f"the store does not take writes: {error}"]
        self._written_at = self._loop.time()
        return []

    async def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)


class BrokerHealth:
    """Before there is a broker, nothing is started."""

    def __init__(self) -> None:
        self.requests = StoreMeter()
        """Of the process to its store."""
        self._broker: Broker | None = None
        self._store: StoreProbe | None = None
        self._is_stopping = False

    @property
    def broker(self) -> "Broker | None":
        """The one that serves, once it does."""
        return self._broker

    def started(self, broker: "Broker", store: StoreProbe) -> None:
        """It serves clients from here on."""
        self._broker, self._store = broker, store

    def stopping(self) -> None:
        """New clients should go elsewhere; those that are here are still served."""
        self._is_stopping = True

    def not_started(self) -> list[str]:
        return (
            ["the broker looks for a controller, or catches up with its metadata"]
            if self._broker is None
            else []
        )

    def not_alive(self) -> list[str]:
        broker = self._broker
        return (
            [f"this start is over: {broker.ended.result()}"]
            if broker is not None and broker.ended.done()
            else []
        )

    async def not_ready(self) -> list[str]:
        broker, store = self._broker, self._store
        if broker is None or store is None:
            return self.not_started()
        if self._is_stopping:
            return ["the broker is leaving: its partitions move to others"]
        if broker.ended.done() or broker.storage.fenced:
            return self.not_alive() or ["the WAL is fenced"]
        if broker.follower.went_back:
            return [broker.follower.went_back]
        if not broker.follower.can_write():
            return [
                "the session with the controller is lost: metadata may be old, and nothing is"
                " acknowledged"
            ]
        return await store.problems()

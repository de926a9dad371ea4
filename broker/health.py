"""Broker readiness. A broker is ready if it serves clients, has a session (and thus current
metadata), and its store accepts writes.

The store is probed only on health requests, at most once per `STORE_INTERVAL_S`, with one small
PUT. With a health request every 5 s, this costs 1.30 USD per month on S3.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.metered import StoreMeter

if TYPE_CHECKING:
    from penstock.broker.node import Broker

STORE_INTERVAL_S: Final = 10.0
STORE_TIMEOUT_S: Final = 3.0
"""The probes of an orchestrator need a longer timeout than this."""


class StoreProbe:
    """Checks that the store accepts writes. Concurrent checks share one write.

    put: writes a small object.
    """

    def __init__(self, put: Callable[[], Awaitable[object]]) -> None:
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._written_at = float("-inf")
        self._check: asyncio.Task[list[str]] | None = None

    async def problems(self) -> list[str]:
        """Return the reasons why the store does not accept writes; empty if it has recently
        accepted one.
        """
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
            return [f"no write to the store succeeded within {STORE_TIMEOUT_S:.0f} s"]
        except ObjectStoreError as error:
            return [f"writes to the store fail: {error}"]
        self._written_at = self._loop.time()
        return []

    async def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)


class BrokerHealth:
    """Health of the broker process. Until `started` is called, the process is reported as not
    started.
    """

    def __init__(self) -> None:
        self.requests = StoreMeter()
        """Counts all store requests of the process, including requests to the WAL store."""
        self.wal_store_calls = StoreMeter()
        """Counts the calls to the WAL store. A call is counted once, regardless of retries."""
        self._broker: Broker | None = None
        self._store: StoreProbe | None = None
        self._is_stopping = False

    @property
    def broker(self) -> "Broker | None":
        """Return the broker, or None before it serves clients."""
        return self._broker

    def started(self, broker: "Broker", store: StoreProbe) -> None:
        """Record that the broker serves clients."""
        self._broker, self._store = broker, store

    def begin_restart(self) -> None:
        """Record that the broker has ended and is being restarted by the process."""
        self._broker = self._store = None

    def stopping(self) -> None:
        """Record that the broker is stopping: new clients should use another broker, but existing
        clients are still served.
        """
        self._is_stopping = True

    def not_started(self) -> list[str]:
        return (
            ["the broker is looking for a controller or catching up with its metadata"]
            if self._broker is None
            else []
        )

    def not_alive(self) -> list[str]:
        broker = self._broker
        return (
            [f"the broker has stopped: {broker.ended.result()}"]
            if broker is not None and broker.ended.done()
            else []
        )

    async def not_ready(self) -> list[str]:
        broker, store = self._broker, self._store
        if broker is None or store is None:
            return self.not_started()
        if self._is_stopping:
            return ["the broker is stopping: its partitions move to other brokers"]
        if broker.ended.done() or broker.storage.fenced:
            return self.not_alive() or ["the WAL is fenced"]
        if broker.follower.regression:
            return [broker.follower.regression]
        if not broker.follower.can_write():
            return [
                "the session with the controller is lost: metadata may be stale, and no writes"
                " are acknowledged"
            ]
        return await store.problems()

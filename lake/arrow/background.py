"""A background event loop for synchronous code, such as Spark's Python workers and planners.

Source: Spark `python/pyspark/daemon.py` (workers are forked and reused).
"""

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores
from penstock.stream.wal.wal_store_url import check_wal_store_url, open_backend

_T = TypeVar("_T")
_CLOSE_S = 10.0


class BackgroundLoop:
    """An event loop in a separate thread, and its stores.

    Invariant: a process has one background loop with one client per store URL, for any number of
    readers. A forked child starts its own loop, because threads and sockets do not survive a fork.
    Must not import Arrow: processes that only look up offsets import this module. All waits are
    bounded by the deadlines of store calls.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stores: dict[str, ObjectStore] = {}
        self._wal_backends: dict[str, ObjectStore] = {}
        self._routed: dict[tuple[str, str], ObjectStore] = {}
        self._thread = Thread(target=self._loop.run_forever, name="penstock-reader", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine on the loop, wait for it in the calling thread, and return the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def with_store(
        self, url: str, use: Callable[[ObjectStore], Coroutine[Any, Any, _T]], timeout_s: float
    ) -> _T:
        """Run `use` on the loop with the store of a URL, and return the result."""

        async def work() -> _T:
            return await use(self._open(url))

        return self.run(work(), timeout_s)

    async def store(self, url: str, wal_store_url: str = "") -> ObjectStore:
        """Return the store of a URL. It also serves keys of the WAL store, if there is one. Call it
        on the loop. Raises InvalidStoreUrl.
        """
        if not wal_store_url:
            return self._open(url)
        routed = self._routed.get((url, wal_store_url))
        if routed is None:
            stores = WalStores(self._open(url), await self.wal_store(url, wal_store_url))
            stores.follow_any()
            routed = self._routed[url, wal_store_url] = stores.store
        return routed

    async def wal_store(self, url: str, wal_store_url: str) -> ConfiguredWalStore | None:
        """Return the WAL store at a URL, for use with this store, or None if the URL is empty. Call
        it on the loop. Raises InvalidStoreUrl.
        """
        if not wal_store_url:
            return None
        check_wal_store_url(wal_store_url, url)
        store = self._wal_backends.get(wal_store_url)
        if store is None:
            store = self._wal_backends[wal_store_url] = open_backend(wal_store_url)
        return ConfiguredWalStore(store, "")

    def _open(self, url: str) -> ObjectStore:
        store = self._stores.get(url)
        if store is None:
            store = self._stores[url] = open_store(url)
        return store

    def close(self) -> None:
        """Close all stores and end the thread."""
        try:
            self.run(self._close_stores(), _CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)
            self._loop.close()

    async def _close_stores(self) -> None:
        """Close every store, even if one of them fails."""
        stores = list(self._stores.values())
        self._stores.clear()
        self._routed.clear()
        for result in await asyncio.gather(
            *(store.close() for store in stores), return_exceptions=True
        ):
            if isinstance(result, BaseException):
                raise result


class _Process:
    """The state that all readers of this process share."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._background: BackgroundLoop | None = None

    def background(self) -> BackgroundLoop:
        with self._lock:
            if self._background is None:
                self._background = BackgroundLoop()
            return self._background

    def forget(self) -> None:
        """Reset the state in a forked child, where the thread does not exist and the lock may still
        be held.
        """
        self._lock = Lock()
        self._background = None

    def close(self) -> None:
        """Close at interpreter exit. A store that needs a thread to close then fails, which is
        harmless, because no data is left to write.
        """
        background, self._background = self._background, None
        if background is not None:
            with suppress(RuntimeError, TimeoutError):
                background.close()


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)
atexit.register(_process.close)


def background() -> BackgroundLoop:
    """Return the loop of this process."""
    return _process.background()

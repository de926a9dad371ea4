"""Decide whether slots in a WAL store may be acknowledged: only those in the right store, because
recovery does not read any other store.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from penstock.base.errors import StreamError
from penstock.base.ids import WalSequence
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import WalFailed, WalStoreWrong
from penstock.stream.ports import WalStoreIdentity
from penstock.stream.wal.wal_store import check_identity

_log = structlog.get_logger(__name__)

CHECK_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 1.0


class StoreCheck:
    """Rereads the identity of the WAL store while the broker runs.

    After an error, a slow PUT or a lost session (`doubt`), a slot is acknowledged only if the
    identity was read after its PUT, because the store may be replaced or unmounted while it or this
    process does not respond. The periodic `look` detects a store that was replaced without any
    error. Once another store has been found, slots may be in either of the two, so nothing is
    acknowledged until the WAL has moved (`use`).
    """

    def __init__(
        self,
        store: ObjectStore,
        identity: WalStoreIdentity | None,
        *,
        durable_end: Callable[[], int],
        on_checked: Callable[[int], None],
        on_failed: Callable[[StreamError], None],
    ) -> None:
        """identity: None if the WAL is in the cluster's own store, which needs no check.
        durable_end: returns the slot below which all PUTs have succeeded. on_checked: called with
        the slot below which slots may be acknowledged; later slots may be as well if the store
        `is_trusted`. on_failed: called after an unexpected error, which ends the checks.
        """
        self._store = store
        self._identity = identity
        self._durable_end = durable_end
        self._on_checked = on_checked
        self._on_failed = on_failed
        self._clock = asyncio.get_running_loop().time
        self._doubt_count = 0
        self._doubted_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self.is_trusted = True
        self.wrong: WalStoreWrong | None = None
        """Set when another store has been found."""

    @property
    def doubtful_s(self) -> float:
        """Seconds since the identity became unreadable; 0 if the store is trusted."""
        return 0.0 if self.is_trusted else self._clock() - self._doubted_at

    def use(self, identity: WalStoreIdentity | None) -> None:
        """Restart the checks with another store, whose identity was just read."""
        self.close()
        self._identity, self.is_trusted, self.wrong = identity, True, None

    def doubt(self) -> None:
        if self._identity is None:
            return
        if self.is_trusted:
            self._doubted_at = self._clock()
        self.is_trusted = False
        self._doubt_count += 1
        if self._task is None and self.wrong is None:
            self._task = asyncio.get_running_loop().create_task(self._restore_trust())
            self._task.add_done_callback(self._on_end)

    async def look(self) -> None:
        """Read the identity once, unless the store is no longer trusted."""
        if self._identity is not None and self.is_trusted and not await self._is_right():
            self.doubt()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failed(WalFailed(WalSequence(self._durable_end()), repr(error)))

    async def _restore_trust(self) -> None:
        while self.wrong is None:
            doubt_count, durable_end = self._doubt_count, self._durable_end()
            began_at = self._clock()
            if not await self._is_right():
                await asyncio.sleep(RETRY_S)
                continue
            # While every PUT is slow, new doubts arise during each check. This check succeeded
            # nonetheless.
            self._doubted_at = began_at
            self.is_trusted = doubt_count == self._doubt_count
            if self.is_trusted:
                break
            self._on_checked(durable_end)
        self._task = None
        if self.is_trusted:
            self._on_checked(self._durable_end())

    async def _is_right(self) -> bool:
        """Return whether the identity could be read and is the right one."""
        identity = self._identity
        assert identity is not None, "the cluster's own store has no identity"
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await check_identity(self._store, identity)
        except WalStoreWrong as error:
            if identity == self._identity:
                _log.error("wal_store_wrong", error=str(error))
                self.wrong, self.is_trusted = error, False
        except (ObjectStoreError, TimeoutError):
            pass
        else:
            return self.wrong is None  # a concurrent read may have found another store
        return False

"""Check whether the object store responds, with one request every PROBE_S while pages are open.

Invariants: the probe reads a nonexistent object, so it changes nothing; "not found" counts as a
response. The time of a response is the time of its request, so a pause of this process does not
hide its age.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.deploy.console.health import StoreHealth
from penstock.objectstore.errors import AccessDenied, ObjectNotFound, ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store

PROBE_S: Final = 1.0
TIMEOUT_S: Final = 2.0
_KEY: Final = "penstock-console-probe"


class StoreProbe:
    """Belongs to one event loop. url: URL of the store; nothing is checked if it is empty or refers
    to a memory store. opens: opens the store at a URL.
    """

    def __init__(
        self,
        url: str,
        opens: Callable[[str], ObjectStore] = open_store,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opens = opens
        self._now = now
        self._url = "" if url.startswith("memory:") else url
        self._store: ObjectStore | None = None
        self._responded_at: float | None = None
        self._refusal = ""
        self._since: float | None = None
        """The time when the checks began, or None if they are not running."""

    async def run(self) -> None:
        """Check the store repeatedly until canceled."""
        if not self._url:
            return
        self._since = self._now()
        try:
            while True:
                await self.check()
                await asyncio.sleep(PROBE_S)
        finally:
            self._since = None

    async def check(self) -> None:
        """Check the store with one request."""
        requested_at = self._now()
        try:
            if self._store is None:
                self._store = self._opens(self._url)
            async with asyncio.timeout(TIMEOUT_S):
                await self._store.head(_KEY)
        except (ObjectNotFound, AccessDenied):  # S3 denies access without the permission to list
            self._refusal = ""
        except ObjectStoreError as error:
            if error.retriable:
                return
            self._refusal = str(error)
        except TimeoutError:
            return
        except OSError as error:
            self._refusal = str(error)
        self._responded_at = requested_at

    def health(self) -> StoreHealth | None:
        """Return the state, or None if the store is not currently watched."""
        if self._since is None:
            return None
        since = max(self._since, self._responded_at or 0.0)
        return StoreHealth(self._now() - since, self._refusal)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

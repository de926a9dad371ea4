"""Share reads of the newest metadata offset among requests that need a current image, like Raft's
ReadIndex (dissertation, section 6.4).
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.controller.api.errors import ControllerError


class ConfirmedReads:
    """The shared reads of one process. A read serves only requests that arrived before it started,
    so after the read, the image includes everything that was committed before these requests. At
    most one read runs at a time, and the next one serves all requests that arrive in the meantime.

    read: see `ControllerClient.confirm_metadata`.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[bool] | None = None

    def begin(self) -> "asyncio.Future[bool]":
        """Return a future that completes when the image includes everything committed so far. Its
        result is False if the controller did not respond in time.
        """
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._waiting

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        serving: asyncio.Future[bool] | None = None
        try:
            while (serving := self._waiting) is not None:
                self._waiting = None
                is_confirmed = True
                try:
                    await self._read()
                except (ControllerError, TimeoutError):
                    is_confirmed = False
                if not serving.done():
                    serving.set_result(is_confirmed)
        finally:
            self._task = None
            for left in (serving, self._waiting):
                if left is not None and not left.done():
                    left.set_result(False)
            self._waiting = None

"""Share reads of the controller's newest metadata among requests that need an image which is not
behind.

Invariant: a read that a request shares has begun after the request, so the image then has
everything that was committed before it. At most one read runs, and the next one serves all that
came meanwhile.
Source: none in Kafka; Raft's read index (section 6.4 of the dissertation).
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.controller.api.errors import ControllerError


class ConfirmedReads:
    """The reads of one process. read: see `ControllerClient.confirm_metadata`."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[bool] | None = None

    def begin(self) -> "asyncio.Future[bool]":
        """Return a future that is done when the image has everything that is committed now; False:
        the controller did not answer in time.
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

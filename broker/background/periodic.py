"""Run a check at regular intervals."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Never

import structlog

_log = structlog.get_logger(__name__)


class IntervalWait:
    """The interval between two checks. A change also affects a wait in progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = asyncio.Event()

    def change(self, seconds: float) -> None:
        if seconds != self._seconds:
            self._seconds = seconds
            self._changed.set()

    async def wait(self, share: float = 1.0) -> None:
        """Wait for a fraction of the interval."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while (left_s := begun + self._seconds * share - clock()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)


async def check_periodically(
    check: Callable[[], Awaitable[None]], interval: IntervalWait, rng: Random, failed_event: str
) -> Never:
    """Call `check` at every interval, until cancelled. The first call happens after a random
    fraction of the interval, so that brokers that start together do not check together. Exceptions
    are logged as `failed_event`, and `check` is called again at the next interval.
    """
    await interval.wait(rng.random())
    while True:
        try:
            await check()
        except Exception:  # noqa: BLE001 - the work of a check can wait for the next one
            _log.exception(failed_event)
        await interval.wait()

"""Run a check of this broker at every interval."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Never

import structlog

_log = structlog.get_logger()


async def check_periodically(
    check: Callable[[], Awaitable[None]], interval_s: float, rng: Random, failed_event: str
) -> Never:
    """Call `check` at every interval, until cancelled. The first call comes earlier, at random, so
    that brokers that start together do not check together. A call that raises is logged as
    `failed_event`; the next one may succeed.
    """
    await asyncio.sleep(interval_s * rng.random())
    while True:
        try:
            await check()
        except Exception:  # noqa: BLE001 - the work of a check can wait for the next one
            _log.exception(failed_event)
        await asyncio.sleep(interval_s)

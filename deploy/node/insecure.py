"""Warn operators of insecure listeners when a node starts, and every hour.

Invariant: a secure node logs nothing. `deploy.node.config.exposure` decides which listeners are
insecure.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from penstock.base.health import Health, ServeHealth
from penstock.deploy.node.config.exposure import Exposure, InsecureListener

REMIND_INTERVAL_S: Final = 3_600.0
Sleep = Callable[[float], Awaitable[None]]

_log = structlog.get_logger(__name__)


async def remind(found: Sequence[Exposure], sleep: Sleep = asyncio.sleep) -> None:
    """Log each exposure now and every hour, until cancelled. sleep: a function that waits for a
    number of seconds.
    """
    while found:
        for each in found:
            warning = {"reason": each.reason, "next": each.remedy}
            if isinstance(each, InsecureListener):
                _log.warning("listener_insecure", listener=each.listener, **warning)
            else:
                _log.warning("controllers_insecure", controllers=each.controllers, **warning)
        await sleep(REMIND_INTERVAL_S)


@asynccontextmanager
async def reminding(found: Sequence[Exposure]) -> AsyncGenerator[None, None]:
    """Warn of these exposures while the context is active."""
    task = asyncio.get_running_loop().create_task(remind(found))
    try:
        yield
    finally:
        task.cancel()


def with_reminders(serve: ServeHealth, found: Sequence[Exposure]) -> ServeHealth:
    """Return a context manager that serves the health of a process and warns of its exposures."""

    @asynccontextmanager
    async def both(health: Health) -> AsyncGenerator[None, None]:
        async with reminding(found), serve(health):
            yield

    return both

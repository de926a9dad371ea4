"""Remind operators of what lets strangers in: a warning at the start of a node and every hour.

Invariant: a secure node logs nothing. What is insecure is decided by `deploy.node.config.exposure`.
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
    """Log each exposure now and every hour, until cancelled. sleep: waits so many seconds."""
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
    """Remind of these exposures while the context lasts."""
    task = asyncio.get_running_loop().create_task(remind(found))
    try:
        yield
    finally:
        task.cancel()


def with_reminders(serve: ServeHealth, found: Sequence[Exposure]) -> ServeHealth:
    """Return what serves the health of a process and reminds of its exposures meanwhile."""

    @asynccontextmanager
    async def both(health: Health) -> AsyncGenerator[None, None]:
        async with reminding(found), serve(health):
            yield

    return both

"""Wait for conditions with a deadline, instead of sleeping for a fixed time.

Conditions are polled with pauses that grow from 1 ms to 50 ms. A slow condition, such as listing a
store, is checked less often, so that the check does not slow down the event that it waits for.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE_S = 180
"""How long tests wait for an event that must occur. Only failures take this long. On a machine with
a load of 20, everything takes 10 times as long as on an idle one.
"""
_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PAUSE_AFTER_WORK_MAX_S = 0.5


async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
    """Wait until the condition is true. It may be a coroutine function.

    Raises TimeoutError at the deadline.
    """
    async with asyncio.timeout(timeout_s):
        for pause_s in _pauses_s():
            begin_s = time.monotonic()
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return
            await asyncio.sleep(_lengthened_s(pause_s, time.monotonic() - begin_s))


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait until the condition is true, and return its result; for threads without an event loop.

    Raises TimeoutError at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    for pause_s in _pauses_s():
        begin_s = time.monotonic()
        if result := condition():
            return result
        now_s = time.monotonic()
        if now_s > deadline:
            raise TimeoutError(f"the condition did not become true within {timeout_s} s")
        time.sleep(_lengthened_s(pause_s, now_s - begin_s))


def _pauses_s() -> Iterator[float]:
    pause_s = _PAUSE_MIN_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _lengthened_s(pause_s: float, check_s: float) -> float:
    """Return the pause after a check that took this long: checks get at most a quarter
    of the time.
    """
    return max(pause_s, min(3 * check_s, _PAUSE_AFTER_WORK_MAX_S))

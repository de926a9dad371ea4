"""Time as parameters: shells take these callables, so that the simulator can run them on virtual
time.
"""

import asyncio
import time
from collections.abc import Callable

from base.ids import Millis

WallClock = Callable[[], Millis]
"""Milliseconds since 1970; goes into records and metadata, never into a wait. It may step by an
hour at any moment.
"""

MonotonicClock = Callable[[], float]
"""Seconds that never go back (`loop.time`); deadlines and rates are measured with it."""


def wall_ms() -> Millis:
    """Return milliseconds since 1970, by the clock of this machine."""
    return Millis(time.time_ns() // 1_000_000)


def steady(now_ms: WallClock, now: MonotonicClock) -> WallClock:
    """Read the wall clock once and advance it by the monotonic clock from there: it never steps,
    and stays as wrong as it began.
    """
    began_ms, began = now_ms(), now()
    return lambda: Millis(began_ms + int((now() - began) * 1_000))


def monotonic_ms() -> int:
    """Milliseconds of the running loop's clock, for durations inside of this process."""
    return int(asyncio.get_running_loop().time() * 1_000)

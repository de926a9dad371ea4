"""Define clocks as parameters, so that the simulator can run on virtual time."""

import asyncio
import time
from collections.abc import Callable

from base.ids import Millis

WallClock = Callable[[], Millis]
"""Return milliseconds since 1970, for records and metadata, never for a wait. The clock may jump by
an hour at any moment.
"""

MonotonicClock = Callable[[], float]
"""Return monotonic seconds (`loop.time`), for deadlines and rates."""


def wall_ms() -> Millis:
    """Return milliseconds since 1970 by the clock of this machine."""
    return Millis(time.time_ns() // 1_000_000)


def steady(now_ms: WallClock, now: MonotonicClock) -> WallClock:
    """Return a wall clock that never jumps: it reads `now_ms` once and advances by the monotonic
    clock. It keeps the initial error.
    """
    began_ms, began = now_ms(), now()
    return lambda: Millis(began_ms + int((now() - began) * 1_000))


def monotonic_ms() -> int:
    """Return milliseconds of the running loop's clock, for durations inside this process."""
    return int(asyncio.get_running_loop().time() * 1_000)

"""Clocks as parameters, so that the simulator can run in virtual time."""

import asyncio
import time
from collections.abc import Callable

from penstock.base.ids import Millis

SUSPENSION_MIN_S = 12 * 3_600.0
"""If the wall clock advances by more than this, the machine was probably suspended. If only the
clock was corrected, sessions survive, because their next heartbeat follows within milliseconds.
"""

WallClock = Callable[[], Millis]
"""Returns milliseconds since 1970, for records and metadata, but never for waits. The clock may
jump by an hour at any moment.
"""

MonotonicClock = Callable[[], float]
"""Returns monotonic seconds (`loop.time`), for deadlines and rates."""


def wall_ms() -> Millis:
    """Return milliseconds since 1970 according to the clock of this machine."""
    return Millis(time.time_ns() // 1_000_000)


def steady(now_ms: WallClock, now: MonotonicClock) -> WallClock:
    """Return a wall clock that never jumps: it reads `now_ms` once and advances with the monotonic
    clock. The initial error of the clock remains.
    """
    began_ms, began = now_ms(), now()
    return lambda: Millis(began_ms + int((now() - began) * 1_000))


def counting_suspensions(now_ms: WallClock, now: MonotonicClock) -> MonotonicClock:
    """Return a monotonic clock that includes the time during which the machine was suspended. A
    suspension is detected if the wall clock advances by more than SUSPENSION_MIN_S; smaller steps
    are treated as corrections of the wall clock.
    """
    skipped_s = 0.0
    ahead_min_s = now_ms() / 1_000 - now()

    def read() -> float:
        nonlocal skipped_s, ahead_min_s
        time_s = now()
        ahead_s = now_ms() / 1_000 - time_s
        if ahead_s < ahead_min_s:
            ahead_min_s = ahead_s
        elif ahead_s - ahead_min_s > SUSPENSION_MIN_S:
            skipped_s += ahead_s - ahead_min_s
            ahead_min_s = ahead_s
        return time_s + skipped_s

    return read


def monotonic_ms() -> int:
    """Return the running event loop's time in milliseconds, for durations inside this process."""
    return int(asyncio.get_running_loop().time() * 1_000)

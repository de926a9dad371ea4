"""Put a load on a system until its speed is stable, before it is measured.

The JVM compiles hot code: small requests went from 5,000 to 12,000 a second in one start of Apache
Kafka. Without this, its figures depend on which rows were measured before.
"""

import time
from collections.abc import Callable
from typing import Final

from penstock.base.clock import MonotonicClock

WITHIN: Final = 0.05
"""Two windows in a row that differ by less are the end of the warm-up."""


def warm_up(
    window: Callable[[], float], limit_s: float, *, now: MonotonicClock = time.monotonic
) -> int:
    """Run windows of the load that is measured next, which return their speed, until two in a row
    differ by less than 5 %, or no further one may begin because `limit_s` are over. Returns the
    number of windows: none without a limit, otherwise at least two.
    """
    if not limit_s:
        return 0
    deadline = now() + limit_s
    before, speed, count = window(), window(), 2
    while abs(speed - before) >= WITHIN * before and now() < deadline:
        before, speed, count = speed, window(), count + 1
    return count

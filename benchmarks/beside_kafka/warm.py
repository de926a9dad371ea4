"""Put load on a system until its speed is stable, before it is measured.

The JVM compiles hot code: in one start of Apache Kafka, small requests went from 5,000 to 12,000
per second. Without a warm-up, its figures depend on which rows were measured before.
"""

import time
from collections.abc import Callable
from typing import Final

from penstock.base.clock import MonotonicClock

WITHIN: Final = 0.05
"""The warm-up ends when two consecutive windows differ by less than this."""


def warm_up(
    window: Callable[[], float], limit_s: float, *, now: MonotonicClock = time.monotonic
) -> int:
    """Run windows of the load to be measured, each of which returns its speed, until two
    consecutive ones differ by less than 5 % or `limit_s` has passed. Return the number of windows:
    0 without a limit, otherwise at least two.
    """
    if not limit_s:
        return 0
    deadline = now() + limit_s
    before, speed, count = window(), window(), 2
    while abs(speed - before) >= WITHIN * before and now() < deadline:
        before, speed, count = speed, window(), count + 1
    return count

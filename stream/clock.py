"""Time as parameters: shells take these callables, so that the simulator can run them on virtual time."""

from collections.abc import Callable

from stream.ids import Millis

WallClock = Callable[[], Millis]
"""Milliseconds since 1970; goes into records and metadata, never into a wait."""

MonotonicClock = Callable[[], float]
"""Seconds that never go back (`loop.time`); deadlines and rates are measured with it."""

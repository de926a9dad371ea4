"""Deadlines that exclude the time during which this process was stalled, for busy machines.

Invariant: at most `_COUNTED_S_MAX` of the time between two calls of `lasts` counts, so a stall of
the machine is not mistaken for a stall of the cluster. `Stalls` measures the longest stall.
"""

import asyncio
import time
from typing import Final

_COUNTED_S_MAX: Final = 2.0
_LOOK_S: Final = 0.1
_WHOLE_FACTOR: Final = 10


class Patience:
    """A deadline, used as `while trouble and patience.lasts(): wait a little`.

    Progress restarts the timeout. The total wait is at most ten timeouts.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = self._left_s = timeout_s
        self._whole_left_s = timeout_s * _WHOLE_FACTOR
        self._looked_at = time.monotonic()
        self._progress: object = None

    def lasts(self, progress: object = None) -> bool:
        """Return whether time is left. `progress`: any value that changes with progress."""
        now = time.monotonic()
        counted_s = min(now - self._looked_at, _COUNTED_S_MAX)
        self._looked_at = now
        self._whole_left_s -= counted_s
        self._left_s = self._left_s - counted_s if progress == self._progress else self._timeout_s
        self._progress = progress
        return self._left_s > 0 and self._whole_left_s > 0


class Stalls:
    """Measures `longest_s`, the longest delayed wake-up of this process."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def measure(self) -> None:
        """Run until it is canceled."""
        while True:
            due_at = time.monotonic() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - due_at)

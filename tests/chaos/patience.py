"""Deadlines on a machine that may have much else to do: time in which we ourselves did not run
counts for nobody.

Invariant: of the time between two looks at most `_COUNTED_S_MAX` is used up, so that a machine
which stands still for a minute is not taken for a cluster that does; `Stalls` tells how long it
stood still at most.
"""

import asyncio
import time
from typing import Final

_COUNTED_S_MAX: Final = 2.0
_LOOK_S: Final = 0.1
_WHOLE_FACTOR: Final = 10


class Patience:
    """`while trouble and patience.lasts(): wait a little`. It begins anew with each progress, but
    is never longer than ten times.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = self._left_s = timeout_s
        self._whole_left_s = timeout_s * _WHOLE_FACTOR
        self._looked_at = time.monotonic()
        self._progress: object = None

    def lasts(self, progress: object = None) -> bool:
        """progress: anything that changes when something was achieved."""
        now = time.monotonic()
        counted_s = min(now - self._looked_at, _COUNTED_S_MAX)
        self._looked_at = now
        self._whole_left_s -= counted_s
        self._left_s = self._left_s - counted_s if progress == self._progress else self._timeout_s
        self._progress = progress
        return self._left_s > 0 and self._whole_left_s > 0


class Stalls:
    """longest_s: how much later than it asked for this process was woken, at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def measure(self) -> None:
        """Until it is cancelled."""
        while True:
            due_at = time.monotonic() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - due_at)

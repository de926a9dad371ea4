"""Deadlines on a machine that may have much else to do: time in which we ourselves did not run counts for nobody.

Invariant: of the time between two looks at most `_COUNTED_S_MAX` is used up, so that a machine which stands still for a minute is not taken
for a cluster that does; `Stalls` tells how long it stood still at most.
"""

import asyncio
import time
from typing import Final

_COUNTED_S_MAX: Final = 0.5
_LOOK_S: Final = 0.1


class Patience:
    """`while trouble and patience.lasts(): wait a little`."""

    def __init__(self, timeout_s: float) -> None:
        self._left_s = timeout_s
        self._looked_at = time.monotonic()

    def lasts(self) -> bool:
        now = time.monotonic()
        self._left_s -= min(now - self._looked_at, _COUNTED_S_MAX)
        self._looked_at = now
        return self._left_s > 0


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

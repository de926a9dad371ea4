"""Close disconnected connections, a few per event loop iteration.

When a process or a proxy terminates, a thousand clients may disconnect at once. Closing a
connection takes 25 us, so closing them all at once would block other connections for 25 to 40 ms.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

COUNT_MAX: Final = 20
"""Number of connections closed per event loop iteration, which takes half a millisecond."""


class ClosingOrder:
    """Spreads close calls over event loop iterations. call_soon: `loop.call_soon`."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, close: Callable[[], None]) -> None:
        """Call `close` in a later event loop iteration, after the callables added before it."""
        self._waiting.append(close)
        if len(self._waiting) == 1:
            self._call_soon(self._close_some)

    def _close_some(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(COUNT_MAX, len(self._waiting)))]
        if self._waiting:
            self._call_soon(self._close_some)
        for close in some:
            close()

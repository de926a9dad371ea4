"""Schedule TLS handshakes: one step per event loop iteration, and a limited share of its time.
Addresses take turns, so that a flood from one does not block others. Pure.

A step takes 0.1 to 0.3 ms with a P-256 key, 1 to 2 ms with RSA, and the client's next requests
about as much. Without this, other requests would wait while a thousand clients reconnect.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from penstock.base.clock import MonotonicClock

SHARE: Final = 1 / 15
"""Maximum share of time for handshakes, once BURST_S is used up."""

BURST_S: Final = 0.02
"""How much longer handshakes may take than SHARE allows: 3 to 7 logins."""

STEP_S_MAX: Final = 0.003_3
"""Maximum time counted for one step: 150 logins per second, even with slow keys."""

_TIMER_S: Final = 0.001
"""Minimum delay of event loop timers."""


class HandshakeOrder:
    """Delays each connection at most once, and a few handshakes after a pause not at all. Nothing
    is read from waiting connections.

    call_soon, call_later: of the event loop. now: in seconds, more precise than the event loop
    time, which does not advance during a step.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        call_later: Callable[[float, Callable[[], None]], Any],
        now: MonotonicClock,
    ) -> None:
        self._call_soon = call_soon
        self._call_later = call_later
        self._now = now
        self._lanes: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """Waiting steps by address, in the order of their turns."""
        self._is_running = False
        self._due_s = now()
        """When the time of past steps is compensated."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, host: str, step: Callable[[], None]) -> None:
        """Run a step of a client at this address, after earlier ones."""
        self._lanes.setdefault(host, deque()).append(step)
        if not self._is_running:
            self._is_running = True
            self._begin_next()

    def _begin_next(self) -> None:
        wait_s = self._due_s - BURST_S - self._now()
        if wait_s < _TIMER_S:
            self._call_soon(self._run)
        else:
            self._call_later(wait_s, self._run)

    def _run(self) -> None:
        host, lane = self._lanes.popitem(last=False)
        step = lane.popleft()
        if lane:
            self._lanes[host] = lane
        began_s = self._now()
        try:
            step()
        finally:
            used_s = min((self._now() - began_s) / SHARE, STEP_S_MAX)
            self._due_s = max(self._due_s, began_s) + used_s
            self._is_running = bool(self._lanes)
            if self._is_running:
                self._begin_next()

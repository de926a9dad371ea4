"""Schedule TLS handshakes: one step per event loop iteration, for a limited share of the time.
Client addresses take turns. Pure.

A step takes 0.1 to 0.3 ms with a P-256 key and 1 to 2 ms with RSA, and the client's next requests
take about as long. Without a limit, other requests would wait while a thousand clients reconnect.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from penstock.base.clock import MonotonicClock

SHARE: Final = 1 / 15
"""Maximum share of time used for handshakes, after BURST_S is used up."""

BURST_S: Final = 0.02
"""Extra time that handshakes may use beyond SHARE, enough for 3 to 7 logins."""

STEP_S_MAX: Final = 0.003_3
"""Maximum time counted for one step, which allows 150 logins per second even with slow keys."""

_TIMER_S: Final = 0.001
"""Minimum delay of an event loop timer."""


class HandshakeOrder:
    """Schedules handshake steps. Each connection is delayed at most once; the first few handshakes
    after a pause are not delayed. Nothing is read from waiting connections.

    call_soon, call_later: methods of the event loop. now: a clock in seconds that advances during a
    step, unlike the event loop time.
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
        """Waiting steps by address, in the order in which the addresses are served."""
        self._is_running = False
        self._due_s = now()
        """Time at which the time used by past steps is compensated."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, host: str, step: Callable[[], None]) -> None:
        """Run a step for a client at this address, after the steps added before."""
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

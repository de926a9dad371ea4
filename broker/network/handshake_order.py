"""Let TLS handshakes take turns with everything else: one step in a turn of the event loop, and a
share of its time. Addresses take turns too, so that one that floods does not keep others out.

A step takes 0.1 to 0.3 ms with a key on P-256, 1 to 2 ms with RSA, and the requests of its client
that follow about as much. When a thousand clients connect again at once, others would wait for all
of that, and for the processors that the clients take.
Invariants: a connection waits at most once, and nothing is read from it meanwhile, so the limit of
unauthenticated connections limits what waits. A few handshakes after a pause do not wait.
Pure, but for the calls of the event loop. Time is a parameter.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from penstock.base.clock import MonotonicClock

SHARE: Final = 1 / 15
"""Of the time that steps may take, once BURST_S is used up."""

BURST_S: Final = 0.02
"""How long others may have waited for handshakes less than SHARE: 3 to 7 logins."""

STEP_S_MAX: Final = 0.003_3
"""What one step uses of the time, at most: 150 logins a second with slow keys too."""

_TIMER_S: Final = 0.001
"""The shortest time that a timer of the event loop can wait."""


class HandshakeOrder:
    """call_soon, call_later: of the event loop. now: in seconds, more exact than the event loop's,
    which stands still during a step.
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
        """What waits by address, in the order of their turns."""
        self._is_running = False
        self._due_s = now()
        """When the time of the steps so far is paid for."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, host: str, step: Callable[[], None]) -> None:
        """Run a step of a client at this address, once those before it had their turns."""
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

"""Exponential backoff for many items with few timers: items that have failed the same number of
times, at about the same time, are retried together, which takes few requests. Thousands of items
fail together when a broker or the controller is unavailable.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedBackoff(Generic[T]):
    """The items that wait for their next attempt, with one timer per pause length. Call all methods
    on the event loop.
    """

    def __init__(
        self, first_s: float, max_s: float, on_due: Callable[[Collection[T]], None]
    ) -> None:
        """The pause doubles from `first_s` to `max_s`. on_due: called on the loop with due items,
        in the order in which they were added.
        """
        self._first_s = first_s
        self._max_s = max_s
        self._on_due = on_due
        self._waiting: dict[float, tuple[asyncio.TimerHandle, dict[T, None]]] = {}

    def add(self, item: T, failed_count: int) -> float:
        """Delay the item after this many earlier failures. Returns the pause in seconds, which may
        be shorter than the item's own backoff, because the item may join items that are already
        waiting. An item that is already waiting with the same pause becomes due only once.
        """
        pause_s = min(self._max_s, self._first_s * 2.0 ** min(failed_count, 10))
        if pause_s not in self._waiting:
            timer = asyncio.get_running_loop().call_later(pause_s, self._end_pause, pause_s)
            self._waiting[pause_s] = (timer, {})
        self._waiting[pause_s][1][item] = None
        return pause_s

    def _end_pause(self, pause_s: float) -> None:
        _, due = self._waiting.pop(pause_s)
        self._on_due(due.keys())

    def cancel(self) -> None:
        """Cancel all timers; waiting items do not become due."""
        for timer, _ in self._waiting.values():
            timer.cancel()

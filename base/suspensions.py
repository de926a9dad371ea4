"""Items that have failed and are skipped for a while, with pauses that double."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_FIRST_S: Final = 10.0
_MAX_S: Final = 3600.0


class Suspensions(Generic[T]):
    """The items whose next attempt is not due yet: `item in suspensions`.

    A checksum mismatch is often caused by a single bad response, so no failure is final. Pauses
    grow from 10 s to an hour.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """now_s: a monotonic clock."""
        self._now_s = now_s
        self._suspended: dict[T, tuple[float, float]] = {}
        """The time of the next attempt, and the length of the current pause."""

    def __contains__(self, item: T) -> bool:
        due_s, _ = self._suspended.get(item, (0.0, 0.0))
        return self._now_s() < due_s

    def add(self, item: T) -> float:
        """Skip the item from now on, after another failure. Return the pause in seconds."""
        _, before_s = self._suspended.get(item, (0.0, _FIRST_S / 2))
        pause_s = min(_MAX_S, 2 * before_s)
        self._suspended[item] = self._now_s() + pause_s, pause_s
        return pause_s

    def discard(self, item: T) -> None:
        """Forget the failures of an item that succeeded."""
        self._suspended.pop(item, None)

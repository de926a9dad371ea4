"""Exponential backoff with jitter ("equal jitter", AWS). Randomness is a parameter, so that
simulations are reproducible.
"""

from random import Random


class Backoff:
    """The pauses between attempts of one operation.

    The nominal pause doubles from `first_ms` to `max_ms`. Each pause is uniformly distributed
    between half of the nominal pause and the full pause.
    """

    __slots__ = ("_max_s", "_pause_s", "_rng", "attempt_count")

    def __init__(self, first_ms: int, max_ms: int, rng: Random) -> None:
        self._pause_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self._rng = rng
        self.attempt_count = 0

    def next_s(self) -> float:
        """Return the pause before the next attempt, in seconds, and count the attempt."""
        pause_s = self._pause_s
        self._pause_s = min(self._max_s, pause_s * 2)
        self.attempt_count += 1
        return pause_s * (0.5 + self._rng.random() / 2)

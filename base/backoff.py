"""How long to wait between tries: doubling, jittered, bounded. One per operation that is being repeated.

Must not sleep by itself; randomness comes from the caller, so that simulations repeat.
"""

from random import Random


class Backoff:
    """`next_s` grows from the first to the largest pause; each is between half and all of its nominal length."""

    __slots__ = ("_max_s", "_pause_s", "_rng", "attempt_count")

    def __init__(self, first_ms: int, max_ms: int, rng: Random) -> None:
        self._pause_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self._rng = rng
        self.attempt_count = 0

    def next_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(self._max_s, pause_s * 2)
        self.attempt_count += 1
        return pause_s * (0.5 + self._rng.random() / 2)

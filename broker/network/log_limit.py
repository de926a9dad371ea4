"""A limit on log lines about other people's mistakes: hostile or broken peers must not be able to
fill a disk.

Pure: the clock is a parameter. Must not: be used for facts about ourselves that an operator needs
one by one.
"""


class LogLimit:
    """Lets `burst_count` lines through at once, then one each `interval_s`, and counts what it kept
    back.
    """

    __slots__ = ("_burst_count", "_credit", "_interval_s", "_last", "_suppressed_count")

    def __init__(self, *, burst_count: int = 10, interval_s: float = 1.0) -> None:
        self._burst_count = burst_count
        self._interval_s = interval_s
        self._credit = float(burst_count)
        self._last = float("-inf")
        self._suppressed_count = 0

    def take(self, now: float) -> int | None:
        """None: stay silent. Otherwise log, and say how many lines were kept back since the last
        one.
        """
        if self._last != float("-inf"):
            self._credit = min(
                float(self._burst_count), self._credit + (now - self._last) / self._interval_s
            )
        self._last = now
        if self._credit < 1.0:
            self._suppressed_count += 1
            return None
        self._credit -= 1.0
        suppressed, self._suppressed_count = self._suppressed_count, 0
        return suppressed

"""Rate limit for log events caused by hostile or broken peers, so that they cannot fill a disk.
Pure.
"""


class LogLimit:
    """Allows `burst_count` lines at once, then one per `interval_s`, and counts suppressed ones."""

    __slots__ = ("_burst_count", "_credit", "_interval_s", "_last", "_suppressed_count")

    def __init__(self, *, burst_count: int = 10, interval_s: float = 1.0) -> None:
        self._burst_count = burst_count
        self._interval_s = interval_s
        self._credit = float(burst_count)
        self._last = float("-inf")
        self._suppressed_count = 0

    def take(self, now: float) -> int | None:
        """Return None to suppress the line; otherwise the number of lines suppressed since the last
        allowed line.
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

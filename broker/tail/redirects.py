"""Track which consumers this leader has redirected to a broker in their rack, and serve consumers
that return after an error or a timeout. librdkafka waits for 0.5 s whenever it is redirected twice
within a minute, so a consumer that is always redirected would starve.
"""

from typing import Final, TypeAlias
from uuid import UUID

REDIRECT_INTERVAL_S: Final = 60.0
"""Minimum interval between redirects, as in librdkafka, which backs off if redirects are more
frequent. Its leases last 5 minutes, as does Java's `metadata.max.age.ms`.
"""
REDIRECTS_MAX: Final = 20_000

RedirectKey: TypeAlias = tuple[int, UUID, int]
"""The connection id and the partition."""


class RedirectTable:
    __slots__ = ("_sent_at",)

    def __init__(self) -> None:
        self._sent_at: dict[RedirectKey, float] = {}
        """The time of each redirect, in chronological order."""

    def has_returned(self, key: RedirectKey, now: float) -> bool:
        """Return whether this consumer was redirected less than REDIRECT_INTERVAL_S ago."""
        sent_at = self._sent_at.get(key)
        return sent_at is not None and now - sent_at < REDIRECT_INTERVAL_S

    def add(self, key: RedirectKey, now: float) -> None:
        """Record that this consumer is being redirected."""
        self._sent_at.pop(key, None)
        while self._sent_at:
            oldest = next(iter(self._sent_at))
            is_full = len(self._sent_at) >= REDIRECTS_MAX
            if not is_full and now - self._sent_at[oldest] < REDIRECT_INTERVAL_S:
                break
            del self._sent_at[oldest]
        self._sent_at[key] = now

"""Track which consumers this leader redirected to a broker in their rack, and serve those that
return after an error or a timeout. librdkafka waits for 0.5 s whenever it is redirected twice
within a minute, so that a consumer that is always redirected starves.
"""

from typing import Final, TypeAlias
from uuid import UUID

REDIRECT_INTERVAL_S: Final = 60.0
"""As in librdkafka, which considers a shorter interval too short. Its leases last 5 minutes, Java's
`metadata.max.age.ms`.
"""
REDIRECTS_MAX: Final = 20_000

RedirectKey: TypeAlias = tuple[int, UUID, int]
"""The id of the connection, and the partition."""


class RedirectTable:
    __slots__ = ("_sent_at",)

    def __init__(self) -> None:
        self._sent_at: dict[RedirectKey, float] = {}
        """In order of time."""

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

"""Track which consumers this leader sent to a broker in their rack, and serve those that come back.

A consumer returns after an error or a timeout there. librdkafka waits for 0.5 s whenever it is
redirected twice within a minute, so that a consumer that always gets redirected starves.
Invariant: after a redirect, a connection is served here for REDIRECT_INTERVAL_S.
Limit: REDIRECTS_MAX; the oldest are forgotten first. Must not: do I/O. Time is a parameter.
"""

from typing import Final, TypeAlias
from uuid import UUID

REDIRECT_INTERVAL_S: Final = 60.0
"""As librdkafka, which finds a shorter interval too short. Its leases last for 5 minutes, Java's
for `metadata.max.age.ms`.
"""
REDIRECTS_MAX: Final = 20_000

RedirectKey: TypeAlias = tuple[int, UUID, int]
"""The id of the connection, and the partition."""


class RedirectTable:
    __slots__ = ("_sent_at",)

    def __init__(self) -> None:
        self._sent_at: dict[RedirectKey, float] = {}
        """In the order of time."""

    def has_returned(self, key: RedirectKey, now: float) -> bool:
        """Return whether this consumer was redirected less than REDIRECT_INTERVAL_S ago."""
        sent_at = self._sent_at.get(key)
        return sent_at is not None and now - sent_at < REDIRECT_INTERVAL_S

    def add(self, key: RedirectKey, now: float) -> None:
        """Note that this consumer is redirected now."""
        self._sent_at.pop(key, None)
        while self._sent_at:
            oldest = next(iter(self._sent_at))
            is_full = len(self._sent_at) >= REDIRECTS_MAX
            if not is_full and now - self._sent_at[oldest] < REDIRECT_INTERVAL_S:
                break
            del self._sent_at[oldest]
        self._sent_at[key] = now

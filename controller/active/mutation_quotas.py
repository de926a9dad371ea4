"""Limit the rate at which clients create and delete partitions in the entire cluster (KIP-599).
Pure.

Brokers report the clients that have such a quota. The buckets exist only in memory, so after a
change of the active controller, all of them are full, as in Kafka.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from penstock.base.clock import MonotonicClock
from penstock.controller.api.messages import ItemResults, QuotaClient, Status, TopicsCreated
from penstock.controller.managers.result import CountPartitions, Refused, Result, count_nothing
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.quota_scopes import Scope, entity_of, resolve
from penstock.controller.metadata.quotas import CONTROLLER_MUTATION_RATE, THROTTLE_MS_MAX

BUCKETS_MAX: Final = 10_000
"""Maximum number of buckets, of about 300 bytes each. The least recently used one is dropped first,
because it has most likely been refilled, in which case a new bucket is identical.
"""

V = TypeVar("V", TopicsCreated, ItemResults)


class TokenBucket:
    """Tokens that are refilled at the rate of a quota, up to the total for a whole window. The
    bucket is initially full. Its balance may become negative.
    """

    __slots__ = ("_at_ms", "_tokens", "_window_ms")

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._tokens = float("inf")
        self._at_ms = 0.0

    def tokens(self, bound: float, now_ms: float) -> float:
        """Refill the bucket, and return the number of tokens. bound: tokens per second."""
        burst = bound * self._window_ms / 1_000
        self._tokens = min(burst, self._tokens + bound * (now_ms - self._at_ms) / 1_000)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, bound: float, now_ms: float) -> None:
        self._tokens = self.tokens(bound, now_ms) - count

    def throttle_ms(self, bound: float, now_ms: float) -> int:
        """Return the time until the balance is no longer negative."""
        tokens = self.tokens(bound, now_ms)
        return 0 if tokens >= 0 else round(min(-tokens / bound * 1_000, THROTTLE_MS_MAX))


class MutationQuota:
    """The quota usage of one request."""

    __slots__ = ("_bound", "_bucket", "_is_strict", "_now_ms", "throttle_ms")

    def __init__(
        self, bucket: TokenBucket, bound: float, now_ms: float, *, is_strict: bool
    ) -> None:
        """bound: partitions per second."""
        self._bucket = bucket
        self._bound = bound
        self._now_ms = now_ms
        self._is_strict = is_strict
        self.throttle_ms = 0
        """The throttle time of the client."""

    def count(self, partition_count: int) -> None:
        """Count partitions that are created or deleted. While the balance is negative, raises
        Refused if the client supports the quota (`is_strict`); other clients are throttled.
        """
        bucket, bound, now_ms = self._bucket, self._bound, self._now_ms
        if self._is_strict and bucket.tokens(bound, now_ms) < 0:
            self.throttle_ms = bucket.throttle_ms(bound, now_ms)
            raise Refused(Status.THROTTLING_QUOTA_EXCEEDED, "")
        bucket.take(partition_count, bound, now_ms)
        if not self._is_strict:
            self.throttle_ms = bucket.throttle_ms(bound, now_ms)


class MutationQuotas:
    """The buckets of one active controller."""

    def __init__(self, window_ms: int, now: MonotonicClock) -> None:
        """window_ms: the time for which an idle client may use its quota at once."""
        self._window_ms = window_ms
        self._now = now
        self._buckets: dict[Scope, TokenBucket] = {}
        """Buckets by quota entity, in last-use order."""

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._buckets)

    def apply(
        self,
        image: MetadataImage,
        client: QuotaClient | None,
        change: Callable[[CountPartitions], Result[V]],
    ) -> Result[V]:
        """Return the result of `change`, with the throttle time of the client. `change` counts the
        partitions of each item before it creates records for the item. client: None for a request
        without a quota.
        """
        found = None if client is None else _find(image, client)
        if client is None or found is None:
            return change(count_nothing)
        scope, bound = found
        quota = MutationQuota(
            self._bucket(scope), bound, self._now() * 1_000, is_strict=client.is_strict
        )
        result = change(quota.count)
        if quota.throttle_ms and result.value is not None:
            value: Any = msgspec.structs.replace(result.value, throttle_ms=quota.throttle_ms)
            return Result(result.records, result.status, result.detail, value)
        return result

    def _bucket(self, scope: Scope) -> TokenBucket:
        bucket = self._buckets.pop(scope, None) or TokenBucket(self._window_ms)
        while len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[scope] = bucket
        return bucket


def _find(image: MetadataImage, client: QuotaClient) -> tuple[Scope, float] | None:
    """Return the entity of the client's quota and the quota, or None if there is none."""
    return resolve(
        lambda scope: image.quotas.of(entity_of(scope)).get(CONTROLLER_MUTATION_RATE),
        client.user,
        client.client_id,
    )

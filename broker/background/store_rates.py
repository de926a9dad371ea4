"""Compute object store request rates from counters, as exponentially decayed means. Pure. Each page
of a LIST counts as one request.
"""

from collections.abc import Iterable, Mapping
from math import exp
from typing import Final

from penstock.broker.partition.load_meter import DECAY_S
from penstock.controller.api.load_messages import StoreRequests
from penstock.objectstore.metered import OperationStats, StoreStats

_PUTS: Final = ("put", "put_if_absent", "put_if_match")
_GETS: Final = ("get", "get_range", "get_tail", "head")


WATCHED_S_MIN: Final = 1.0
"""Shorter observation periods yield no rate, because the few requests made at broker startup would
appear as thousands per second.
"""


class StoreRates:
    """Rates of store requests. now: monotonic seconds. stats: the current counters, which are not
    zero if a broker has already run in this process; None means zero.
    """

    def __init__(self, now: float, stats: StoreStats | None = None) -> None:
        self._sampled_at = now
        self._seen = _totals({} if stats is None else stats.operations)
        self._sums = StoreRequests(0, 0, 0, 0, 0, 0)
        self._seconds = 0.0

    def sample(self, stats: StoreStats, now: float) -> StoreRequests | None:
        """Return the rates, or None if fewer than WATCHED_S_MIN seconds were observed."""
        elapsed_s = max(now - self._sampled_at, 1e-3)
        self._sampled_at = now
        decay = exp(-elapsed_s / DECAY_S)
        seen, self._seen = self._seen, _totals(stats.operations)
        self._seconds = self._seconds * decay + elapsed_s
        self._sums = StoreRequests(
            *(
                known * decay + new - old
                for known, new, old in zip(self._sums, self._seen, seen, strict=True)
            )
        )
        if self._seconds < WATCHED_S_MIN:
            return None
        return StoreRequests(*(total / self._seconds for total in self._sums))


def _totals(operations: Mapping[str, OperationStats]) -> StoreRequests:
    def count(names: Iterable[str]) -> int:
        return sum(operations[name].count for name in names if name in operations)

    return StoreRequests(
        put_s=count(_PUTS),
        list_s=count(("list",)),
        get_s=count(_GETS),
        delete_s=count(("delete",)),
        failed_s=sum(sum(stats.errors.values()) for stats in operations.values()),
        written_bytes_s=sum(stats.written_bytes for stats in operations.values()),
    )

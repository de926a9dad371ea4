"""Name the target to the producers of moving partitions while their records are still accepted.

Why: a client delays a refused batch by its retry backoff (librdkafka: 100 ms), which is longer than
the whole move. librdkafka also follows the leader in a *successful* answer, immediately and without
a backoff; what it sends then waits at the target for the end of the move. Clients that read the
hint only in errors are refused when the notice ends, as without it.
Invariants: nothing else changes during a notice. The streams are open here, and everything accepted
is flushed before they are closed. A notice ends `grace_ms` after the last partition's producers got
the hint, so that earlier requests in flight are still accepted, and at the latest `longest_ms`
after its beginning. Must not: decide what moves.
Source: KIP-951; `rd_kafka_handle_Produce` of librdkafka.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.broker.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNoticeConfig:
    longest_ms: int = 100
    """Longest time that a move waits for an answer that can carry the hint. 0: no notice."""
    grace_ms: int = 20
    """Time for requests that were in flight when their client got the hint. Longer than a round
    trip within a region.
    """


class MoveNotice:
    """One notice for all partitions that began to move together. They are closed together."""

    __slots__ = ("_grace_s", "_on_over", "_timer", "_unannounced", "is_over")

    def __init__(
        self, partitions: Iterable[Partition], config: MoveNoticeConfig, on_over: Callable[[], None]
    ) -> None:
        self.is_over = False
        self._on_over = on_over
        self._grace_s = config.grace_ms / 1000
        self._unannounced = set(partitions)
        for partition in self._unannounced:
            partition.notice = self
        self._timer = asyncio.get_running_loop().call_later(config.longest_ms / 1000, self._end)

    def mark_announced(self, partition: Partition) -> None:
        """Note that an answer with the next leader of this partition is being sent."""
        if partition not in self._unannounced:
            return
        self._unannounced.discard(partition)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._grace_s
        if not self._unannounced and ends_at < self._timer.when():
            self._timer.cancel()
            self._timer = loop.call_at(ends_at, self._end)

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._on_over()

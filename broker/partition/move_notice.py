"""Tells the producers of partitions that move away where to go, while their records are still
taken.

Why: a batch that is refused waits in its client for the retry backoff (librdkafka: 100 ms), which
is longer than the whole move. librdkafka follows the leader that a *successful* answer names as
well, at once and without a backoff; what it sends then waits at the target for the end of the move.
Clients that look at the hint only in errors are refused when the notice is over, as they would have
been without it.
Invariants: nothing else is different while it lasts: the streams are open here and everything taken
is flushed before they are closed. It ends `grace_s` after the last partition's producers were told,
so that what they had sent before they heard of it is still taken, and `longest_s` after its
beginning, told or not. Must not decide what moves. Source: KIP-951; `rd_kafka_handle_Produce` of
librdkafka.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNoticeConfig:
    longest_ms: int = 100
    """Longest time that a move waits for an answer that can tell. 0: nobody is told."""
    grace_ms: int = 20
    """For requests that were on their way when their client heard of the move. Longer than a round
    trip inside a region.
    """


class MoveNotice:
    """One for all partitions that were seen to move in one go: they are closed together."""

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
        """An answer that names the next leader of this partition is on its way."""
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

"""Announce the target of a partition move to producers while their records are still accepted
(KIP-951). A client delays a rejected batch by its retry backoff (100 ms in librdkafka), which is
longer than the entire move. librdkafka also follows a leader hint in a successful response, without
a backoff, and its next requests wait at the target.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.broker.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNoticeConfig:
    longest_ms: int = 100
    """Maximum time that a move waits for a response that can include the leader hint; 0 disables
    notices.
    """
    grace_ms: int = 20
    """Extra time for requests that were in flight when their client received the hint. It is longer
    than a round trip within a region.
    """


class MoveNotice:
    """One notice for all partitions whose moves started together. They are closed together as well.

    The streams stay open during a notice, and everything accepted is flushed before they are
    closed. A notice ends `grace_ms` after the last partition has sent the hint, so that requests
    already in flight are still accepted, or after `longest_ms` at the latest.
    """

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
        """Record that a response with the next leader of this partition is being sent."""
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

"""Assign rewrites of ranges in WAL stores that have no leader."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.base.clock import MonotonicClock
from penstock.base.ids import StreamId
from penstock.controller.managers.wal_rewrites import FROM_START, closed_in_wal_stores
from penstock.controller.metadata.image import MetadataImage
from penstock.stream.ports import BrokerIncarnation

_TERM_S: Final = 30.0
"""How long a broker keeps the job. The time is limited because the broker may be unable to complete
the job, for example because it cannot read the WAL store.
"""
_TURN_S: Final = 6.0
"""How long the broker is not assigned the job again, so that other brokers get their turn: three
report intervals.
"""
_SEARCH_S: Final = 1.0


class _Job(NamedTuple):
    worker: BrokerIncarnation
    end: float


class WalRewrites:
    """The rewrite job of one active controller. It is assigned to one broker at a time, in the
    response to the broker's load report, and is not stored in the metadata. If two brokers rewrite
    the same range after a change of the active controller, the second commit is rejected.

    Each job starts after the last stream of the previous one, because ranges that cannot be
    rewritten, for example because their slots are lost, must not block others.

    image: returns the current image.
    """

    def __init__(self, image: Callable[[], MetadataImage], now: MonotonicClock) -> None:
        self._image = image
        self._now = now
        self._job: _Job | None = None
        self._streams: tuple[StreamId, ...] = ()
        self._after = FROM_START
        self._searched = -_SEARCH_S

    def assigned_to(self, reporter: BrokerIncarnation) -> tuple[StreamId, ...]:
        """Return the streams to rewrite if the job is, or can now be, assigned to this broker."""
        image, now = self._image(), self._now()
        if now - self._searched >= _SEARCH_S:
            self._search(image, now)
        if not self._streams or self._is_leaving(image, reporter):
            return ()
        job = self._job
        if job is not None and now < job.end + (_TURN_S if job.worker == reporter else 0):
            return self._streams if job.worker == reporter and now < job.end else ()
        if job is not None:
            self._after = self._streams[-1]
            self._search(image, now)
        self._job = _Job(reporter, now + _TERM_S)
        return self._streams

    def _search(self, image: MetadataImage, now: float) -> None:
        self._searched = now
        has_any = image.objects.wal_store_bytes
        self._streams = closed_in_wal_stores(image, self._after) if has_any else ()

    @staticmethod
    def _is_leaving(image: MetadataImage, reporter: BrokerIncarnation) -> bool:
        node = image.nodes.get(reporter.node_id)
        return node is None or node.draining or not image.nodes.is_alive(reporter)

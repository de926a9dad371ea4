"""Assign the rewrite of ranges in WAL stores that have no leader."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.base.clock import MonotonicClock
from penstock.base.ids import StreamId
from penstock.controller.managers.wal_rewrites import FROM_START, closed_in_wal_stores
from penstock.controller.metadata.image import MetadataImage
from penstock.stream.ports import BrokerIncarnation

_TERM_S: Final = 30.0
"""How long a broker has the job. It may be unable to do it, for example to read the WAL store."""
_TURN_S: Final = 6.0
"""How long the others may take it afterwards: three reports."""
_SEARCH_S: Final = 1.0


class _Job(NamedTuple):
    worker: BrokerIncarnation
    end: float


class WalRewrites:
    """The job of one active controller, which one broker at a time gets in the response to its load
    report. It is not in the metadata: if two brokers rewrite the same range, after a change of the
    controller, the second commit is refused.

    Each job begins after the last stream of the previous one: some ranges cannot be rewritten, for
    example because their slots are lost, and must not keep others waiting.

    image: returns the newest image.
    """

    def __init__(self, image: Callable[[], MetadataImage], now: MonotonicClock) -> None:
        self._image = image
        self._now = now
        self._job: _Job | None = None
        self._streams: tuple[StreamId, ...] = ()
        self._after = FROM_START
        self._searched = -_SEARCH_S

    def assigned_to(self, reporter: BrokerIncarnation) -> tuple[StreamId, ...]:
        """Return the streams to rewrite, if this broker has the job or gets it now."""
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

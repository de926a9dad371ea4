"""Detect brokers whose appends are much slower than those of other brokers. Pure.

The limit is relative, so that a broker that is 10 times slower is detected even on S3, where 100 ms
is normal.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Final

from penstock.base.ids import NodeEpoch, NodeId

SLOW_RATIO: Final = 5.0
SLOW_MIN_MS: Final = 300.0
SLOW_REPORTS: Final = 3
WELL_RATIO: Final = 2.0
WELL_MIN_MS: Final = 150.0
WELL_REPORTS: Final = 5


@dataclass(slots=True)
class _Watch:
    node_epoch: NodeEpoch
    slow: int = 0
    well: int = 0


class SlowBrokers:
    def __init__(self) -> None:
        self._watched: dict[NodeId, _Watch] = {}
        self._reasons: dict[NodeId, str] = {}
        """The reasons, in the order in which the brokers were found to be slow."""

    def heard(
        self, node_id: NodeId, node_epoch: NodeEpoch, responses: Mapping[NodeId, float]
    ) -> None:
        """Evaluate the latest report of a broker.

        A broker is excluded after `SLOW_REPORTS` consecutive reports of at least `SLOW_RATIO` times
        the median of the others and at least `SLOW_MIN_MS`. It is included again after
        `WELL_REPORTS` consecutive reports within lower limits. Reports without appends are ignored.

        `responses` are the valid latencies of all brokers, including this one if it has reported
        any.
        """
        watch = self._watched.get(node_id)
        if watch is None or watch.node_epoch != node_epoch:
            watch = self._watched[node_id] = _Watch(node_epoch)
            self._reasons.pop(node_id, None)
        mine = responses.get(node_id)
        peers = [
            response
            for other, response in responses.items()
            if other != node_id and other not in self._reasons
        ]
        if mine is None or not peers:
            return
        usual = median(peers)
        if node_id in self._reasons:
            watch.well = watch.well + 1 if mine <= max(WELL_RATIO * usual, WELL_MIN_MS) else 0
            if watch.well >= WELL_REPORTS:
                del self._reasons[node_id]
                watch.slow = watch.well = 0
            return
        watch.slow = watch.slow + 1 if mine >= max(SLOW_RATIO * usual, SLOW_MIN_MS) else 0
        if watch.slow >= SLOW_REPORTS:
            self._reasons[node_id] = (
                f"appends take {mine:,.0f} ms (median), {mine / max(usual, 0.1):,.0f} x the"
                f" {usual:,.1f} ms of its peers"
            )
            watch.well = 0

    def excluded(self, alive: Collection[NodeId]) -> dict[NodeId, str]:
        """Return the excluded brokers, which receive no partitions and are relieved of theirs, with
        the reasons.

        At most half of `alive` are excluded, namely those that were found first.
        """
        found = ((node_id, reason) for node_id, reason in self._reasons.items() if node_id in alive)
        return dict(islice(found, len(alive) // 2))

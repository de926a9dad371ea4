"""Brokers that left recently. Metadata continues to list them as brokers (never as leaders), except
in requests for all topics.

Why: librdkafka 2.x gives up a broker that disappears from the list. If that happens in the answer
that names a partition's new leader, the partition is orphaned until the next refresh a second
later. Listing them shortens the outage from 500 to 20 ms after a graceful stop, and from 2.5 to 1.5
s after a crash (measured with librdkafka 2.16). If the broker coordinates the client's group,
versions 2.11 to 2.16 wait for it forever, even when it is back (confluentinc/librdkafka#5511).
Clients do not notice a restart that takes less than `LISTED_S`.
Invariant: a live broker is not listed as departed, and none is listed for longer than `LISTED_S`.
Brokers that are fenced when this one starts count as having left at that moment. Pure: seconds are
arguments.
Must not: appear in answers about the whole cluster (DescribeCluster, Metadata of all topics).
"""

from typing import Final

from penstock.base.ids import NodeId
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState

LISTED_S: Final = 30.0
"""A restart takes some seconds. Meanwhile the dead broker refuses connections immediately, and
clients use another one.
"""


class DepartedBrokers:
    def __init__(self) -> None:
        self._seen: dict[NodeId, bool] = {}
        """Whether each node was alive at the last change of the nodes."""
        self._departed: dict[NodeId, tuple[NodeState, float]] = {}

    def update(self, image: MetadataImage, now: float) -> None:
        """Apply a change of the image's nodes. O(brokers)."""
        for state in image.nodes:
            if not state.fenced:
                self._departed.pop(state.node_id, None)
            elif self._seen.get(state.node_id, True):
                self._departed[state.node_id] = (state, now + LISTED_S)
        gone = [node_id for node_id in self._departed if image.nodes.get(node_id) is None]
        for node_id in gone:
            del self._departed[node_id]
        self._seen = {state.node_id: not state.fenced for state in image.nodes}

    def listed(self, now: float) -> list[NodeState]:
        for node_id in [node_id for node_id, (_, until) in self._departed.items() if until <= now]:
            del self._departed[node_id]
        return [state for state, _ in self._departed.values()]

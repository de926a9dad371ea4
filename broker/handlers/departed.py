"""Brokers that left a moment ago, which Metadata goes on listing (as brokers, never as leaders) to those who ask for topics.

Why: librdkafka 2.x ends the thread of a broker that vanishes from the list; if that happens in the very answer that names the partition's
new leader, the partition is orphaned until its next look a second later. Listing the old one a little longer makes the difference between
20 and 500 ms after a graceful stop, and 1.5 and 2.5 s after a crash (measured, librdkafka 2.16).
Invariant: a broker that is alive again is not among them; nobody stays longer than `LISTED_S`. Pure: seconds come in.
Must not: be told to those who ask who is there (DescribeCluster, Metadata of all topics or of none).
"""

from typing import Final

from base.ids import NodeId
from controller.metadata.image import MetadataImage
from controller.metadata.nodes import NodeState

LISTED_S: Final = 10.0
"""Clients look for new leaders every second or faster; after this everyone has moved."""


class DepartedBrokers:
    def __init__(self) -> None:
        self._alive: dict[NodeId, NodeState] = {}
        self._departed: dict[NodeId, tuple[NodeState, float]] = {}

    def update(self, image: MetadataImage, now: float) -> None:
        """Nodes of the image changed. O(number of brokers)."""
        alive = {state.node_id: state for state in image.nodes if not state.fenced}
        for node_id, state in self._alive.items():
            if node_id not in alive:
                self._departed[node_id] = (state, now + LISTED_S)
        for node_id in alive:
            self._departed.pop(node_id, None)
        self._alive = alive

    def listed(self, now: float) -> list[NodeState]:
        for node_id in [node_id for node_id, (_, until) in self._departed.items() if until <= now]:
            del self._departed[node_id]
        return [state for state, _ in self._departed.values()]

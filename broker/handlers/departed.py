"""Brokers that left a moment ago, which Metadata goes on listing (as brokers, never as leaders),
but not to who asks for all topics.

Why: librdkafka 2.x gives up a broker that vanishes from the list. If that happens in the very
answer that names a partition's new leader, the partition is orphaned until its next look a second
later: 20 instead of 500 ms after a graceful stop, and 1.5 instead of 2.5 s after a crash (measured,
librdkafka 2.16). If the broker coordinates the client's group, versions 2.11 to 2.16 wait for it
without end, even when it is back (confluentinc/librdkafka#5511). A broker that restarts within
`LISTED_S` is never missed.
Invariant: a broker that is alive again is not among them; nobody stays longer than `LISTED_S`.
Brokers that are fenced when this one starts count as having left at that moment. Pure: seconds come
in.
Must not: be told to those who ask who is there (DescribeCluster, Metadata of all topics).
"""

from typing import Final

from base.ids import NodeId
from controller.metadata.image import MetadataImage
from controller.metadata.nodes import NodeState

LISTED_S: Final = 30.0
"""A restart takes some seconds. Clients that try a dead broker in the meantime are refused at once,
and ask another one.
"""


class DepartedBrokers:
    def __init__(self) -> None:
        self._seen: dict[NodeId, bool] = {}
        """Whether each was alive when the nodes changed last."""
        self._departed: dict[NodeId, tuple[NodeState, float]] = {}

    def update(self, image: MetadataImage, now: float) -> None:
        """Nodes of the image changed. O(number of brokers)."""
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

"""Tells a client that asked the wrong broker which one is right, inside the same answer: saves it a
round of metadata.

Invariant: only a live leader is named, under the address at which this client can reach it; of a
partition that moves, the next one.
Source: KIP-951.
"""

from base.ids import NodeId
from broker.handlers import advertised
from broker.handlers.node import Node
from broker.network.request import RequestContext
from broker.partition.leaders import announced_leader
from broker.wire.leader_hint import CurrentLeader, NodeEndpoint


class LeaderHints:
    """Collects the hints of one response."""

    __slots__ = ("_ctx", "_node", "_node_ids")

    def __init__(self, node: Node, ctx: RequestContext) -> None:
        self._node = node
        self._ctx = ctx
        self._node_ids: set[NodeId] = set()

    def current_leader(self, topic_name: str, index: int) -> CurrentLeader | None:
        """Who leads now; None if nobody does, or if it is us (still opening)."""
        image = self._node.image
        topic = image.topics.by_name(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        leader = announced_leader(image, topic.partitions[index])
        if leader is None or leader.node_id == self._node.node_id:
            return None
        self._node_ids.add(leader.node_id)
        return CurrentLeader(leader.node_id, leader.leader_epoch)

    def endpoints(self) -> list[NodeEndpoint]:
        """The addresses of those that were named."""
        found: list[NodeEndpoint] = []
        for node_id in sorted(self._node_ids):
            state = self._node.image.nodes.get(node_id)
            if state is not None:
                address = advertised.address_of(self._node, state, self._ctx.connection)
                found.append(NodeEndpoint(node_id, address.host, address.port, address.rack))
        return found

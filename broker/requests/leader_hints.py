"""Return the current leader to a client that has contacted the wrong broker, which saves a metadata
refresh (KIP-951).

A hint always refers to a live leader, with the address for this client's listener. For a moving
partition, it refers to the next leader.
"""

from penstock.base.ids import NodeId
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.requests import advertised
from penstock.broker.requests.node import Node
from penstock.protocol.leader_hint import CurrentLeader, NodeEndpoint


class LeaderHints:
    """Collects the hints of one response."""

    __slots__ = ("_ctx", "_node", "_node_ids")

    def __init__(self, node: Node, ctx: RequestContext) -> None:
        self._node = node
        self._ctx = ctx
        self._node_ids: set[NodeId] = set()

    def current_leader(self, topic_name: str, index: int) -> CurrentLeader | None:
        """Return the current leader, or None if there is none or it is this broker, which is still
        opening the partition.
        """
        image = self._node.image
        topic = image.topics.by_name(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        leader = announced_leader(image, topic.partitions[index], self._node.gone)
        if leader is None or leader.node_id == self._node.node_id:
            return None
        self._node_ids.add(leader.node_id)
        return CurrentLeader(leader.node_id, leader.leader_epoch)

    def endpoints(self) -> list[NodeEndpoint]:
        """Return the addresses of the leaders returned so far."""
        found: list[NodeEndpoint] = []
        for node_id in sorted(self._node_ids):
            state = self._node.image.nodes.get(node_id)
            if state is not None:
                address = advertised.address_of(self._node, state, self._ctx.connection)
                found.append(NodeEndpoint(node_id, address.host, address.port, address.rack))
        return found

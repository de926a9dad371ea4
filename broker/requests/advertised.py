"""Select the brokers and addresses that are returned to clients, like Kafka with
`advertised.listeners` (KIP-103).
"""

from dataclasses import dataclass

from penstock.base.ids import NodeId
from penstock.broker.network.request import ConnectionInfo
from penstock.broker.requests.node import Node
from penstock.controller.metadata.nodes import NodeState


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    node_id: NodeId
    host: str
    port: int
    rack: str | None


def registered_nodes(node: Node) -> list[NodeState]:
    """Return all registered brokers by id, including fenced ones."""
    return sorted(node.image.nodes, key=lambda state: state.node_id)


def live_nodes(node: Node) -> list[NodeState]:
    """Return the registered brokers that are not fenced, by id.

    All brokers return the same ids, because the ids depend only on the image. librdkafka treats any
    difference as a leader change.
    """
    return [state for state in registered_nodes(node) if not state.fenced]


def address_of(node: Node, state: NodeState, connection: ConnectionInfo) -> BrokerAddress:
    matching = next(
        (other for other in state.other_listeners if other.name == connection.listener), None
    )
    host, port = (state.host, state.port) if matching is None else (matching.host, matching.port)
    if not host:
        own = node.image.nodes.get(node.node_id)
        is_here = state.node_id == node.node_id or (
            own is not None and own.machine_host == state.machine_host
        )
        host = connection.local_host if is_here else state.machine_host
    return BrokerAddress(state.node_id, host, port, state.rack)


def live_brokers(node: Node, connection: ConnectionInfo) -> list[BrokerAddress]:
    return [address_of(node, state, connection) for state in live_nodes(node)]


def known_brokers(node: Node, connection: ConnectionInfo) -> list[BrokerAddress]:
    """Return the live brokers and recently departed ones (`broker.requests.recent_brokers`)."""
    states = sorted([*live_nodes(node), *node.departed()], key=lambda state: state.node_id)
    return [address_of(node, state, connection) for state in states]


def controller_id(node: Node) -> int:
    """Return the broker to which clients send admin requests. It is the live broker with the lowest
    id, because any broker forwards them. Returns -1 if no broker is live.
    """
    return min((state.node_id for state in node.image.nodes if not state.fenced), default=-1)

"""Decide which brokers clients may use, and at which address each client reaches them.

Invariant: a client can use every address that it gets, without configuration in the common cases. A
broker with an advertised host is returned as configured. Without one, a broker on this machine is
returned with the address at which the client reached this broker; a broker on another machine, with
the address from which it reaches the controller. Ports are always the registered ones. A client of
one listener gets the other brokers' listeners of the same name, or their first. All brokers return
the same map of ids, because it comes from the image alone; librdkafka takes a difference for a
change of leaders.
Source: Kafka's `advertised.listeners`; KIP-103.
"""

from dataclasses import dataclass

from penstock.base.ids import NodeId
from penstock.broker.handlers.node import Node
from penstock.broker.network.request import ConnectionInfo
from penstock.controller.metadata.nodes import NodeState


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    node_id: NodeId
    host: str
    port: int
    rack: str | None


def registered_nodes(node: Node) -> list[NodeState]:
    """Return the registered brokers by id, fenced ones too."""
    return sorted(node.image.nodes, key=lambda state: state.node_id)


def live_nodes(node: Node) -> list[NodeState]:
    """Return the registered brokers that are not fenced, by id."""
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
    """Return live brokers and those that left recently (`broker.handlers.recent_brokers`)."""
    states = sorted([*live_nodes(node), *node.departed()], key=lambda state: state.node_id)
    return [address_of(node, state, connection) for state in states]


def controller_id(node: Node) -> int:
    """Return the broker for admin requests: the lowest live id, because any broker forwards them.
    -1: no broker is live.
    """
    return min((state.node_id for state in node.image.nodes if not state.fenced), default=-1)

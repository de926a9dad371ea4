"""Which brokers clients may talk to, and under which address each client should reach them.

Invariant: an address told to a client is one that it can use, without configuration in the common
cases: a broker with an advertised host is told as configured; one without, on the machine that
answers, as the address at which this client reached us; one on another machine as the address from
which it reaches the controller. Ports are always the registered ones. Who came to a listener is
told the others' listeners of that name, else their first. All brokers tell the same map of ids
(librdkafka takes a difference for a change of leaders): it comes from the image alone.
Source: Kafka's `advertised.listeners`; KIP-103.
"""

from dataclasses import dataclass

from base.ids import NodeId
from broker.handlers.node import Node
from broker.network.request import ConnectionInfo
from controller.metadata.nodes import NodeState


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    node_id: NodeId
    host: str
    port: int
    rack: str | None


def live_nodes(node: Node) -> list[NodeState]:
    """Registered and not fenced, by id."""
    return sorted(
        (state for state in node.image.nodes if not state.fenced), key=lambda state: state.node_id
    )


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
    """The live ones, and those that left a moment ago (see `broker.handlers.departed`)."""
    states = sorted([*live_nodes(node), *node.departed()], key=lambda state: state.node_id)
    return [address_of(node, state, connection) for state in states]


def controller_id(node: Node) -> int:
    """Whom clients should send admin requests to: any broker forwards them, so it is the lowest
    live one. -1: none is live.
    """
    return min((state.node_id for state in node.image.nodes if not state.fenced), default=-1)

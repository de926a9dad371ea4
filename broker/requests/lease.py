"""Define which responses a broker may send after its session has ended.

A session ends on the broker before the controller may assign the broker's partitions to others
(`controller.api.lease`). From then on, another broker may accept records that this one lacks.
"""

import asyncio
from typing import Final

from penstock.broker.errors import ErrorCode
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.node import Node
from penstock.protocol import apis

_CLOSED: Final = frozenset({apis.DESCRIBE_CLUSTER.key, apis.FIND_COORDINATOR.key})


def check_session(node: Node, ctx: RequestContext) -> None:
    """If the broker has no session, close the connection of a client that looks up leaders or
    coordinators, so that it uses another broker. Raises CannotRespond.

    Metadata requests are still handled, with an outdated image, because a client that is connected
    only to this broker must find others. The response does not list this broker as a leader, and
    the connection is then closed, because librdkafka would otherwise continue to refresh metadata
    only from this broker.
    """
    if ctx.api_key in _CLOSED and not node.can_write():
        name = apis.APIS[ctx.api_key].name
        raise CannotRespond(
            f"a {name} request arrived while the controller is unreachable: the client should use"
            " another broker"
        )
    if ctx.api_key == apis.METADATA.key and not node.can_write() and _has_peers(node):
        asyncio.get_running_loop().call_soon(ctx.connection.close_quietly)


def _has_peers(node: Node) -> bool:
    return any(state.node_id != node.node_id and not state.fenced for state in node.image.nodes)


async def wait_led(
    node: Node, topic_name: str, index: int, deadline: float
) -> Partition | ErrorCode:
    """Return the partition if the end of its log is certain. Waits until `deadline` (`loop.time()`)
    if this broker is opening the partition.

    Responses that depend on the end of a log, such as "out of range", require that no other broker
    can be the leader. The same applies to committed offsets and ended transactions from a
    coordinator's memory (`broker.coordination.shards`), and to OUT_OF_ORDER_SEQUENCE_NUMBER:
    nothing is written, so WAL fencing does not protect the response, and librdkafka would start a
    new epoch and write unacknowledged batches twice. Without this certainty, clients receive
    NOT_LEADER_OR_FOLLOWER.
    """
    found = led_now(node, topic_name, index)
    if found is None:
        found = _if_certain(node, await node.partitions.wait_open(topic_name, index, deadline))
    return found


def led_now(node: Node, topic_name: str, index: int) -> Partition | ErrorCode | None:
    """Return the result of `wait_led`, or None if it would wait."""
    found = node.partitions.get(topic_name, index)
    return None if found is ErrorCode.LEADER_NOT_AVAILABLE else _if_certain(node, found)


def _if_certain(node: Node, found: Partition | ErrorCode) -> Partition | ErrorCode:
    if found is ErrorCode.LEADER_NOT_AVAILABLE or (
        isinstance(found, Partition) and not node.leads_alone()
    ):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return found


def still_leads(node: Node, partition: Partition) -> bool:
    """Return True if an earlier result for `partition` is still valid."""
    return (
        node.leads_alone()
        and node.partitions.get(partition.topic_name, partition.index) is partition
    )

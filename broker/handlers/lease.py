"""Define what a broker may answer while it does not know whether it still leads. Handlers ask only
here.

A session ends on the broker before the controller may give the broker's partitions to others
(`controller.api.lease`). From then on another broker may accept records that this one does not
know. Therefore:

- Fetch, ListOffsets and OffsetForLeaderEpoch answer NOT_LEADER_OR_FOLLOWER. Records below the high
  watermark never change, so Fetch returns them as long as the broker may acknowledge.
- A statement about the end of a log, such as "out of range", requires that no other broker can
  lead: `leads_alone`. So does OUT_OF_ORDER_SEQUENCE_NUMBER for a batch of an idempotent producer:
  nothing is written, so the fence in the WAL does not protect the answer, and librdkafka would
  begin a new epoch and write its unanswered batches a second time. Such a batch gets
  NOT_LEADER_OR_FOLLOWER.
- So does what a coordinator answers from memory without an append: committed offsets, or the end of
  a transaction (`broker.coordination.shards`).
- Metadata is answered from an image that no longer changes, because a client that knows no other
  broker must learn of the others. It does not name this broker as a leader, and the connection
  closes after the answer. Otherwise librdkafka would keep refreshing metadata only from this
  broker.
- FindCoordinator and DescribeCluster close the connection immediately, as Produce does.

Must not: keep state. Each call reads the clock.
"""

import asyncio
from typing import Final

from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.node import Node
from penstock.broker.network.dispatcher import CannotAnswer
from penstock.broker.network.request import RequestContext
from penstock.broker.partition.partition import Partition
from penstock.protocol import apis

_CLOSED: Final = frozenset({apis.DESCRIBE_CLUSTER.key, apis.FIND_COORDINATOR.key})


def check_session(node: Node, ctx: RequestContext) -> None:
    """If there is no session, send a client that looks for leaders or coordinators to another
    broker. Raises CannotAnswer.
    """
    if ctx.api_key in _CLOSED and not node.can_write():
        name = apis.APIS[ctx.api_key].name
        raise CannotAnswer(
            f"a {name} request arrived while the controller is unreachable: the client should use"
            " another broker"
        )
    if ctx.api_key == apis.METADATA.key and not node.can_write() and _knows_others(node):
        asyncio.get_running_loop().call_soon(ctx.connection.close_quietly)


def _knows_others(node: Node) -> bool:
    return any(state.node_id != node.node_id and not state.fenced for state in node.image.nodes)


async def wait_led(
    node: Node, topic_name: str, index: int, deadline: float
) -> Partition | ErrorCode:
    """Return a partition whose end is certain. Waits until `deadline` (`loop.time()`) for one that
    is being opened here.
    """
    found = led_now(node, topic_name, index)
    if found is None:
        found = _if_certain(node, await node.partitions.wait_open(topic_name, index, deadline))
    return found


def led_now(node: Node, topic_name: str, index: int) -> Partition | ErrorCode | None:
    """Return what `wait_led` does, or None if it would wait."""
    found = node.partitions.get(topic_name, index)
    return None if found is ErrorCode.LEADER_NOT_AVAILABLE else _if_certain(node, found)


def _if_certain(node: Node, found: Partition | ErrorCode) -> Partition | ErrorCode:
    if found is ErrorCode.LEADER_NOT_AVAILABLE or (
        isinstance(found, Partition) and not node.leads_alone()
    ):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return found


def still_leads(node: Node, partition: Partition) -> bool:
    """Return True if an earlier answer about `partition` still holds."""
    return (
        node.leads_alone()
        and node.partitions.get(partition.topic_name, partition.index) is partition
    )

"""What a broker may answer while it does not know whether it still leads: the one place where
handlers ask.

A session ends here before the controller may give this broker's partitions to others
(`controller.api.lease`). From then on another broker may take records that this one does not know,
so nothing is read: Fetch, ListOffsets and OffsetForLeaderEpoch answer NOT_LEADER_OR_FOLLOWER. What
is said about where a log ends (that an offset lies behind it, too) needs more: that no other broker
can lead, `leads_alone`. So does "out of order" for a batch that an idempotent producer sends:
nothing is written then, so the WAL's fence does not protect the answer, and librdkafka begins a new
epoch upon it and writes what has no answer a second time. The batch gets NOT_LEADER_OR_FOLLOWER
instead. And so does what a coordinator answers from its memory without an append: committed
offsets, or that a transaction has ended (`broker.coordination.shards`). Records below the high
watermark never change, so Fetch gives them as long as acknowledgements are given. Metadata comes
from an image that moves no more then. It is answered, because a client that knows no other broker
has to learn of the others; it does not name this broker as a leader, and the connection closes
behind the answer. Otherwise librdkafka, told that there is no leader, would ask the broker that it
is connected to again and again, for ever. What names a coordinator closes the connection at once,
as Produce does.
Must not: keep anything; each question is a look at the clock.
"""

import asyncio
from typing import Final

from broker.errors import ErrorCode
from broker.handlers.node import Node
from broker.network.request import RequestContext
from broker.network.server import CannotAnswer
from broker.partition.partition import Partition
from broker.wire import apis

_CLOSED: Final = frozenset({apis.DESCRIBE_CLUSTER.key, apis.FIND_COORDINATOR.key})


def check_session(node: Node, ctx: RequestContext) -> None:
    """Send a client that looks for leaders or coordinators to another broker, if there is no
    session. Raises CannotAnswer.
    """
    if ctx.api_key in _CLOSED and not node.can_write():
        name = apis.APIS[ctx.api_key].name
        raise CannotAnswer(
            f"a {name} request came while the controller is out of reach: the client should ask"
            " another broker"
        )
    if ctx.api_key == apis.METADATA.key and not node.can_write() and _knows_others(node):
        asyncio.get_running_loop().call_soon(ctx.connection.close_quietly)


def _knows_others(node: Node) -> bool:
    return any(state.node_id != node.node_id and not state.fenced for state in node.image.nodes)


async def wait_led(
    node: Node, topic_name: str, index: int, deadline: float
) -> Partition | ErrorCode:
    """Find a partition whose end may be told, waiting until `deadline` (`loop.time()`) for one that
    is being opened here.
    """
    found = await node.partitions.wait_open(topic_name, index, deadline)
    if found is ErrorCode.LEADER_NOT_AVAILABLE or (
        isinstance(found, Partition) and not node.leads_alone()
    ):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return found


def still_leads(node: Node, partition: Partition) -> bool:
    """Is what was found out about `partition` true, though time has passed since it was found?"""
    return (
        node.leads_alone()
        and node.partitions.get(partition.topic_name, partition.index) is partition
    )

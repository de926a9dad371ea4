"""Request the end offsets of partitions from their leaders, like Kafka's
NetworkPartitionMetadataClient.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from penstock.base.ids import NodeId
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.node import Node
from penstock.protocol import apis
from penstock.protocol.errors import WireError
from penstock.protocol.gen import list_offsets
from penstock.protocol.offset_specs import LATEST

VERIFY_TIMEOUT_S: Final = 5.0
_VERSION: Final = 10

PartitionName = tuple[UUID, str, int]


async def end_offsets(
    node: Node, partitions: Iterable[tuple[UUID, int]]
) -> dict[tuple[UUID, int], int]:
    """Return the high watermarks of these partitions. Partitions that no leader reports within
    ASK_TIMEOUT_S are omitted. There are no retries.
    """
    by_leader: dict[NodeId, list[PartitionName]] = {}
    for topic_id, index in partitions:
        topic = node.image.topics.by_id(topic_id)
        if topic is not None and index < len(topic.partitions):
            leader = NodeId(topic.partitions[index].leader)
            by_leader.setdefault(leader, []).append((topic_id, topic.name, index))
    found = _led_here(node, by_leader.pop(node.node_id, []))
    if not by_leader:
        return found
    peers = node.connect_peers()
    try:
        async with asyncio.timeout(VERIFY_TIMEOUT_S):
            responses = await asyncio.gather(
                *(_send_request(peers, leader, wanted) for leader, wanted in by_leader.items())
            )
    except TimeoutError:
        return found
    finally:
        peers.close()
    for response in responses:
        found.update(response)
    return found


def _led_here(node: Node, wanted: Sequence[PartitionName]) -> dict[tuple[UUID, int], int]:
    led = {(topic_id, index): node.partitions.get(name, index) for topic_id, name, index in wanted}
    return {
        key: int(partition.high_watermark)
        for key, partition in led.items()
        if isinstance(partition, Partition) and node.leads_alone()
    }


async def _send_request(
    peers: PeerConnections, leader: NodeId, wanted: Sequence[PartitionName]
) -> dict[tuple[UUID, int], int]:
    ids = {name: topic_id for topic_id, name, _ in wanted}
    indexes: dict[str, list[int]] = {}
    for _, name, index in wanted:
        indexes.setdefault(name, []).append(index)
    topics = [
        list_offsets.ListOffsetsTopic(
            name,
            [list_offsets.ListOffsetsPartition(index, timestamp=LATEST) for index in of_topic],
        )
        for name, of_topic in indexes.items()
    ]
    request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
    try:
        response = await peers.send_request(
            leader, apis.LIST_OFFSETS, _VERSION, request, list_offsets.ListOffsetsResponse
        )
    except (PeerGone, OSError, EOFError, WireError):
        return {}
    return {
        (ids[topic.name], part.partition_index): part.offset
        for topic in response.topics
        for part in topic.partitions
        if not part.error_code
    }

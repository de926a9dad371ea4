"""DescribeQuorum: return the controllers (KIP-595, KIP-836, KIP-853), as reported by the quorum
leader.

A directory id has 22 hexadecimal digits and is sent as a UUID, padded with zeros.
"""

from typing import Final
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_cluster
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import QuorumMember, QuorumStatus
from penstock.protocol.gen import describe_quorum as wire

_TIMEOUT_S: Final = 5.0
_TOPIC: Final = "__cluster_metadata"
_LISTENER: Final = "CONTROLLER"


async def handle_describe_quorum(node: Node, ctx: RequestContext) -> Response:
    """Describe the metadata log, which has one partition. Other partitions do not exist."""
    request = decoded(ctx, wire.decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE)
    try:
        quorum = await node.client.describe_quorum(timeout_s=_TIMEOUT_S)
    except (ControllerError, TimeoutError) as error:
        return encode_response(
            ctx, wire.DescribeQuorumResponse(error_code=code_of(error), error_message=str(error))
        )
    now_ms = node.now_ms()
    topics = [
        wire.ResponseTopicData(
            topic.topic_name,
            [
                _partition(quorum, topic.topic_name, requested.partition_index, now_ms)
                for requested in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    nodes = [wire.Node(member.node_id, _listeners(member.address)) for member in quorum.members]
    return encode_response(
        ctx, wire.DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)
    )


def _partition(
    quorum: QuorumStatus, topic: str, index: int, now_ms: int
) -> wire.ResponsePartitionData:
    if topic != _TOPIC or index != 0:
        message = f"only partition 0 of {_TOPIC} has a quorum"
        return wire.ResponsePartitionData(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return wire.ResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[
            _replica(quorum, member, now_ms) for member in quorum.members if member.is_voter
        ],
        observers=[
            _replica(quorum, member, now_ms) for member in quorum.members if not member.is_voter
        ],
    )


def _replica(quorum: QuorumStatus, member: QuorumMember, now_ms: int) -> wire.ReplicaState:
    is_leader = member.node_id == quorum.leader_id
    return wire.ReplicaState(
        replica_id=member.node_id,
        replica_directory_id=UUID(f"{member.directory_id:0<32}"[:32])
        if member.directory_id
        else None,
        log_end_offset=member.log_end,
        last_fetch_timestamp=now_ms if is_leader else now_ms - member.last_fetch_ms,
        last_caught_up_timestamp=-1
        if member.last_caught_up_ms < 0
        else now_ms - member.last_caught_up_ms,
    )


def _listeners(address: str) -> list[wire.Listener]:
    host, _, port = address.rpartition(":")
    return [wire.Listener(_LISTENER, host, int(port))] if port.isdecimal() else []

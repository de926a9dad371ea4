"""Validate a StreamsGroupHeartbeat before the group is looked up (KIP-1071)."""

from penstock.broker.groups.common.model import STATIC_LEAVE_EPOCH, HeartbeatRefused
from penstock.broker.groups.streams.model import CLIENT_TAGS_MAX, StreamsHeartbeatRequest
from penstock.broker.groups.streams.topology import check_topology
from penstock.protocol.error_codes import ErrorCode


def check_streams_heartbeat(group_id: str, request: StreamsHeartbeatRequest) -> None:
    """Validate the heartbeat. Raises HeartbeatRefused with INVALID_REQUEST or
    STREAMS_INVALID_TOPOLOGY.
    """
    _check_support(request)
    _require(bool(request.member_id.strip()), "MemberId can't be empty.")
    _require(bool(group_id.strip()), "GroupId can't be empty.")
    _require(request.rack_id is None or bool(request.rack_id.strip()), "RackId can't be empty.")
    if request.is_joining:
        _check_join(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    _require(
        request.member_epoch >= STATIC_LEAVE_EPOCH,
        f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.",
    )
    given = [tasks is not None for tasks in (request.active, request.standby, request.warmup)]
    _require(all(given) or not any(given), "If one task-type is non-null, all must be non-null.")
    _require(
        request.is_joining or request.topology is None,
        "Topology can only be provided when (re-)joining.",
    )
    _require(
        len(request.client_tags or ()) <= CLIENT_TAGS_MAX,
        f"A member has at most {CLIENT_TAGS_MAX} client tags.",
    )


def _check_support(request: StreamsHeartbeatRequest) -> None:
    """Reject features that Kafka 4.2 does not support yet."""
    _require(request.instance_id is None, "Static membership is not yet supported.")
    _require(not request.has_task_offsets, "TaskOffsets are not supported yet.")
    _require(not request.has_task_end_offsets, "TaskEndOffsets are not supported yet.")
    _require(not request.warmup, "WarmupTasks are not supported yet.")
    topology = request.topology
    for subtopology in () if topology is None else topology.subtopologies:
        _require(
            not subtopology.source_topic_regex,
            "Regular expressions for source topics are not supported yet.",
        )


def _check_join(request: StreamsHeartbeatRequest) -> None:
    _require(
        request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
    )
    for name, tasks in (
        ("ActiveTasks", request.active),
        ("StandbyTasks", request.standby),
        ("WarmupTasks", request.warmup),
    ):
        _require(tasks is not None and not tasks, f"{name} must be empty when (re-)joining.")
    _require(request.topology is not None, "Topology must be non-null when (re-)joining.")
    if request.topology is not None:
        check_topology(request.topology)


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise HeartbeatRefused(ErrorCode.INVALID_REQUEST, message)

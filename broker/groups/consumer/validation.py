"""Validate a ConsumerGroupHeartbeat before the group is looked up (KIP-848, KIP-1082)."""

from collections.abc import Sequence
from typing import Final

from penstock.broker.groups.common.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatRefused,
)
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.protocol.error_codes import ErrorCode

_FIRST_WITH_OWN_IDS: Final = 1
"""From this version on, members generate their own ids."""


def check_heartbeat(
    group_id: str, request: HeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """Validate the heartbeat. Raises HeartbeatRefused with INVALID_REQUEST or
    UNSUPPORTED_ASSIGNOR.
    """
    has_own_id = version >= _FIRST_WITH_OWN_IDS
    epoch = request.member_epoch
    if has_own_id or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        _require(bool(request.member_id.strip()), "MemberId can't be empty.")
    _require(bool(group_id.strip()), "GroupId can't be empty.")
    _check_optional("InstanceId", request.instance_id)
    _check_optional("RackId", request.rack_id)
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    else:
        _require(epoch > STATIC_LEAVE_EPOCH, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise HeartbeatRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(assignors)}.",
        )


def _check_join(request: HeartbeatRequest) -> None:
    _require(
        request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
    )
    _require(
        request.owned is not None and not request.owned,
        "TopicPartitions must be empty when (re-)joining.",
    )
    _require(
        request.subscribed_names is not None or request.subscribed_regex is not None,
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    )


def _check_optional(field: str, value: str | None) -> None:
    _require(value is None or bool(value.strip()), f"{field} can't be empty.")


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise HeartbeatRefused(ErrorCode.INVALID_REQUEST, message)

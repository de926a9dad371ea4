"""Describe groups of all protocols for DescribeGroups and ListGroups. Pure."""

from dataclasses import dataclass

from penstock.broker.groups.classic.embedded import CONSUMER_PROTOCOL
from penstock.broker.groups.common.model import GroupState, GroupType
from penstock.broker.groups.coordinator.shard import Group


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A snapshot of a group, for DescribeGroups and ListGroups."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, str | None, str, str, bytes, bytes], ...]
    """(member id, instance id, client id, client host, subscription, assignment)"""
    type: GroupType = GroupType.CLASSIC


def state_of(group: Group) -> GroupState:
    """Return the group state in its current protocol."""
    return (group.modern or group.classic).state


def describe(group: Group) -> GroupDescription:
    """Return a snapshot of the group, with members only for the classic protocol."""
    if group.share is not None:
        return GroupDescription(
            group.classic.group_id, group.share.state, "share", "", (), GroupType.SHARE
        )
    if group.streams is not None:
        return GroupDescription(
            group.classic.group_id, group.streams.state, "streams", "", (), GroupType.STREAMS
        )
    if group.consumer is not None:
        return GroupDescription(
            group.classic.group_id,
            group.consumer.state,
            CONSUMER_PROTOCOL,
            "",
            (),
            GroupType.CONSUMER,
        )
    classic = group.classic
    stable = classic.state is GroupState.STABLE
    members = tuple(
        (
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.metadata_for(classic.protocol or "") if stable else b"",
            m.assignment,
        )
        for m in classic.members.values()
    )
    return GroupDescription(
        classic.group_id,
        classic.state,
        classic.protocol_type or "",
        (classic.protocol or "") if stable else "",
        members,
    )

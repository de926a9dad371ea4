"""List, describe and delete groups of all types.

Invariant: every failure is a KafkaFailed that contains the group. Source: Kafka's
`kafka-consumer-groups`, `kafka-share-groups` and `kafka-streams-groups`; KIP-848, KIP-932,
KIP-1071.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from penstock.broker.groups.classic.embedded import MalformedEmbedded, decode_assignment
from penstock.deploy.admin.groups.committed import committed_offsets
from penstock.deploy.admin.groups.lags import Progress, progress_of, sum_of
from penstock.deploy.admin.groups.streams import described_streams
from penstock.deploy.admin.groups.views import (
    DescribedGroup,
    GroupType,
    GroupView,
    ListedGroup,
    MemberView,
    OffsetView,
)
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.errors import near_hint
from penstock.protocol import apis
from penstock.protocol.client.brokers import GROUP, PAUSE_S, Partition
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import DoesNotExist, NoResponse, check
from penstock.protocol.gen import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    describe_share_group_offsets,
    list_groups,
    share_group_describe,
)
from penstock.protocol.offset_specs import LATEST

_ELECTION_S: Final = 2.0
EndsOf = Callable[[Sequence[Partition]], Mapping[Partition, int]]


class NoSuchGroup(DoesNotExist):
    """The group does not exist, or the user may not describe it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Groups by name. problems: the errors of coordinators that do not respond, by broker. The
    groups of these coordinators are missing.
    """

    groups: list[ListedGroup]
    problems: Mapping[int, str]


def listed_groups(
    brokers: Brokers, states: Sequence[str] = (), types: Sequence[str] = ()
) -> Listing:
    """Return the groups of all coordinators that respond. states, types: if not empty, only groups
    in these states or of these types. Raises KafkaFailed if none responds.
    """
    request = list_groups.ListGroupsRequest(list(states), list(types))
    found, problems = brokers.of_all(lambda node_id: _listed_at(brokers, node_id, request))
    groups = [group for listed in found.values() for group in listed]
    return Listing(sorted(groups, key=lambda item: item.group), problems)


def with_lags(brokers: Brokers, listing: Listing) -> Listing:
    """Return the groups with their lags, to the extent that coordinators and leaders respond. Sends
    at most two requests to each coordinator and each leader.
    """
    coordinated: dict[int, list[ListedGroup]] = {}
    for group in listing.groups:
        coordinated.setdefault(group.coordinator, []).append(group)
    progress: dict[str, Progress] = {}
    for node_id, groups in coordinated.items():
        with suppress(NoResponse):
            progress |= progress_of(brokers.connection(node_id), groups)
    wanted = {
        (topic, index)
        for known in progress.values()
        for topic, offsets in known.committed.items()
        for index in offsets
    }
    ends: dict[str, dict[int, int]] = {}
    for (topic, index), end in _known_ends(brokers, sorted(wanted)).items():
        ends.setdefault(topic, {})[index] = end
    lags = {
        group: known.lag(lambda topic: ends.get(topic, {})) for group, known in progress.items()
    }
    groups = [replace(group, lag=lags.get(group.group)) for group in listing.groups]
    return Listing(groups, listing.problems)


def _known_ends(brokers: Brokers, keys: Sequence[Partition]) -> dict[Partition, int]:
    """Return the end offsets of partitions whose leaders respond. Retries for a few seconds during
    elections.
    """
    missing = brokers.existing(keys)
    found: dict[Partition, int] = {}
    ends_at = time.monotonic() + _ELECTION_S
    while missing:
        found |= brokers.known_ends(missing)
        missing = [key for key in missing if key not in found]
        if not missing or time.monotonic() >= ends_at:
            break
        time.sleep(PAUSE_S)
    return found


def groups_of(node_id: int, client: Connection) -> list[ListedGroup]:
    """Return the groups coordinated by one broker."""
    request = list_groups.ListGroupsRequest()
    return _listed(
        node_id, client.send_request(apis.LIST_GROUPS, request, list_groups.ListGroupsResponse)
    )


def found_group(brokers: Brokers, name: str) -> ListedGroup:
    """Return one group, from its coordinator. Raises KafkaFailed, NoSuchGroup."""
    node_id = brokers.retried(lambda: brokers.coordinator(GROUP, name))
    for group in _listed_at(brokers, node_id, list_groups.ListGroupsRequest()):
        if group.group == name:
            return group
    raise NoSuchGroup(
        f"group {name!r} does not exist, or you may not describe it; it may have been deleted"
    )


def found_groups(brokers: Brokers, names: Sequence[str]) -> Listing:
    """Return the groups with these names, or all groups if no names are given. Raises KafkaFailed,
    which lists groups with similar names.
    """
    listing = listed_groups(brokers)
    if not names:
        return listing
    listed = {item.group: item for item in listing.groups}
    for name in names:
        if name in listed:
            continue
        if listing.problems:
            # The coordinator of this group may not have responded.
            listed[name] = found_group(brokers, name)
        else:
            hint = near_hint(name, listed, "`penstock groups list` lists the groups")
            raise DoesNotExist(f"group {name!r} does not exist; {hint}")
    return Listing([listed[name] for name in dict.fromkeys(names)], {})


def described(brokers: Brokers, group: ListedGroup, ends_of: EndsOf | None = None) -> GroupView:
    """Return the members and offsets of a group, without the end offsets of leaders that do not
    respond. ends_of: returns the known end offsets of partitions; by default, they are requested,
    allowing a few seconds for elections.
    """
    ends_of = ends_of or (lambda keys: _known_ends(brokers, keys))
    found = brokers.retried(lambda: _described(brokers, group))
    if group.type == GroupType.SHARE:
        offsets = brokers.retried(lambda: _share_offsets(brokers, group.group, ends_of))
    else:
        offsets = _lags(committed(brokers, group.group), found.members, ends_of)
    lag = known_lag(offsets)
    return GroupView(
        group.group,
        group.type,
        found.state,
        group.coordinator,
        found.assignor,
        lag,
        sum(item.current_offset is None for item in offsets),
        offsets,
        found.members,
        found.topology_epoch,
    )


def known_lag(offsets: Sequence[OffsetView]) -> int | None:
    """Return the lag of a group, or None if the lag of a partition is unknown or no partition has a
    committed offset.
    """
    lags = [item.lag for item in offsets if item.current_offset is not None]
    return sum_of(lags) if lags else None


def committed(brokers: Brokers, group: str) -> dict[Partition, int]:
    """Return the offsets that a group has committed."""
    return {key: item.offset for key, item in committed_offsets(brokers, group).items()}


def delete(brokers: Brokers, group: str) -> None:
    """Delete a group without members. Raises KafkaFailed."""
    request = delete_groups.DeleteGroupsRequest([group])

    def send_request() -> None:
        response = brokers.send_request(
            apis.DELETE_GROUPS,
            request,
            delete_groups.DeleteGroupsResponse,
            node=brokers.coordinator(GROUP, group),
        )
        for result in response.results:
            brokers.check(result.error_code, None, f"group {group!r} was not deleted")

    brokers.retried(send_request)


def share_start_offsets(brokers: Brokers, group: str) -> dict[Partition, OffsetView]:
    """Return the start offset of a share group in each partition that it has read."""
    found = brokers.retried(
        lambda: _share_offsets(
            brokers, group, lambda keys: brokers.offsets(brokers.existing(keys), LATEST)
        )
    )
    return {(item.topic, item.partition): item for item in found}


def _listed_at(
    brokers: Brokers, node_id: int, request: list_groups.ListGroupsRequest
) -> list[ListedGroup]:
    response = brokers.send_request(
        apis.LIST_GROUPS, request, list_groups.ListGroupsResponse, node=node_id
    )
    return _listed(node_id, response)


def _listed(node_id: int, response: list_groups.ListGroupsResponse) -> list[ListedGroup]:
    check(response.error_code, None, f"broker {node_id} cannot list groups")
    return [
        ListedGroup(item.group_id, item.group_type, item.group_state, item.protocol_type, node_id)
        for item in response.groups
    ]


def _described(brokers: Brokers, group: ListedGroup) -> DescribedGroup:
    if group.type == GroupType.STREAMS:
        return described_streams(brokers, group.group)
    if group.type == GroupType.SHARE:
        return _described_share(brokers, group.group)
    if group.type == GroupType.CONSUMER:
        return _described_consumer(brokers, group.group)
    return _described_classic(brokers, group.group)


def _described_classic(brokers: Brokers, name: str) -> DescribedGroup:
    response = brokers.send_request(
        apis.DESCRIBE_GROUPS,
        describe_groups.DescribeGroupsRequest([name]),
        describe_groups.DescribeGroupsResponse,
        node=brokers.coordinator(GROUP, name),
    )
    (found,) = response.groups
    brokers.check(found.error_code, found.error_message, f"group {name!r} cannot be described")
    members = [
        MemberView(
            member.member_id,
            member.group_instance_id,
            member.client_host,
            member.client_id,
            None,
            _classic_assignment(found.protocol_type, bytes(member.member_assignment)),
        )
        for member in found.members
    ]
    return DescribedGroup(found.group_state, found.protocol_data, members)


def _classic_assignment(protocol: str, assignment: bytes) -> dict[str, list[int]]:
    """Return the assigned partitions; empty if the protocol type is not "consumer", as for Connect,
    or the assignment is invalid.
    """
    if protocol not in {"consumer", ""}:
        return {}
    try:
        found = decode_assignment(assignment)
    except MalformedEmbedded:
        return {}
    return {topic: sorted(partitions) for topic, partitions in sorted(found.items())}


def _described_consumer(brokers: Brokers, name: str) -> DescribedGroup:
    response = brokers.send_request(
        apis.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe.ConsumerGroupDescribeRequest([name]),
        consumer_group_describe.ConsumerGroupDescribeResponse,
        node=brokers.coordinator(GROUP, name),
    )
    (found,) = response.groups
    brokers.check(found.error_code, found.error_message, f"group {name!r} cannot be described")
    members = [_member(member, member.instance_id) for member in found.members]
    return DescribedGroup(found.group_state, found.assignor_name, members)


def _described_share(brokers: Brokers, name: str) -> DescribedGroup:
    response = brokers.send_request(
        apis.SHARE_GROUP_DESCRIBE,
        share_group_describe.ShareGroupDescribeRequest([name]),
        share_group_describe.ShareGroupDescribeResponse,
        node=brokers.coordinator(GROUP, name),
    )
    (found,) = response.groups
    brokers.check(found.error_code, found.error_message, f"group {name!r} cannot be described")
    members = [_member(member, None) for member in found.members]
    return DescribedGroup(found.group_state, found.assignor_name, members)


def _member(
    member: consumer_group_describe.Member | share_group_describe.Member, instance_id: str | None
) -> MemberView:
    return MemberView(
        member.member_id,
        instance_id,
        member.client_host,
        member.client_id,
        member.member_epoch,
        {
            part.topic_name: sorted(part.partitions)
            for part in (member.assignment.topic_partitions if member.assignment else ())
        },
    )


def _share_offsets(brokers: Brokers, name: str, ends_of: EndsOf) -> list[OffsetView]:
    request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
        [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(name, None)]
    )
    response = brokers.send_request(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        request,
        describe_share_group_offsets.DescribeShareGroupOffsetsResponse,
        node=brokers.coordinator(GROUP, name),
    )
    (found,) = response.groups
    failed = f"the offsets of group {name!r} cannot be read"
    brokers.check(found.error_code, found.error_message, failed)
    views: list[OffsetView] = []
    for topic in found.topics:
        for part in topic.partitions:
            brokers.check(part.error_code, part.error_message, failed)
            start = part.start_offset if part.start_offset >= 0 else None
            lag = part.lag if part.lag >= 0 else None
            views.append(OffsetView(topic.topic_name, part.partition_index, start, None, lag))
    ends = ends_of([(view.topic, view.partition) for view in views])
    return [
        replace(view, log_end_offset=ends.get((view.topic, view.partition)))
        for view in sorted(views, key=lambda view: (view.topic, view.partition))
    ]


def _lags(
    committed: Mapping[Partition, int], members: Sequence[MemberView], ends_of: EndsOf
) -> list[OffsetView]:
    """Return the partitions with a committed offset or an assigned member."""
    readers = {
        (topic, index): member
        for member in members
        for topic, indexes in member.partitions.items()
        for index in indexes
    }
    keys = sorted({*committed, *readers})
    ends = ends_of(keys)
    views: list[OffsetView] = []
    for key in keys:
        current, end = committed.get(key), ends.get(key)
        lag = None if current is None or end is None else max(0, end - current)
        reader = readers.get(key)
        names = (reader.member_id, reader.host, reader.client_id) if reader else ()
        views.append(OffsetView(*key, current, end, lag, *names))
    return views

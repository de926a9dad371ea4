"""Compute the lag of many groups of one coordinator, with one request for each type.

Invariant: a lag is None unless all of its parts are known.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from penstock.deploy.admin.groups.views import GroupType, ListedGroup
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import describe_share_group_offsets, offset_fetch

KnownEnds = Callable[[str], Mapping[int, int]]
"""Returns the end offsets of a topic by partition, as far as they are known."""
_NAMED_TOPICS: Final = 9
"""The last version of OffsetFetch that names topics; later ones have only ids."""


def group_lags(
    client: WireClient, groups: Sequence[ListedGroup], ends: KnownEnds
) -> dict[str, int | None]:
    """Return the lags by group, without groups that have no committed offsets. Raises
    KafkaFailed.
    """
    shares = [group.group for group in groups if group.type.lower() == GroupType.SHARE]
    others = [group.group for group in groups if group.type.lower() != GroupType.SHARE]
    return (_others(client, others, ends) if others else {}) | (
        _shares(client, shares) if shares else {}
    )


def _others(client: WireClient, groups: Sequence[str], ends: KnownEnds) -> dict[str, int | None]:
    response = client.send_request(
        apis.OFFSET_FETCH,
        offset_fetch.OffsetFetchRequest(
            [offset_fetch.OffsetFetchRequestGroup(group, topics=None) for group in groups]
        ),
        offset_fetch.OffsetFetchResponse,
        version=_NAMED_TOPICS,
    )
    found: dict[str, int | None] = {}
    for group in response.groups:
        lags = [
            None
            if (end := ends(topic.name).get(part.partition_index)) is None
            else max(0, end - part.committed_offset)
            for topic in group.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        ]
        if lags and not group.error_code:
            found[group.group_id] = _sum(lags)
    return found


def _shares(client: WireClient, groups: Sequence[str]) -> dict[str, int | None]:
    request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
        [
            describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group, None)
            for group in groups
        ]
    )
    response = client.send_request(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        request,
        describe_share_group_offsets.DescribeShareGroupOffsetsResponse,
    )
    found: dict[str, int | None] = {}
    for group in response.groups:
        lags = [
            part.lag if part.lag >= 0 and not part.error_code else None
            for topic in group.topics
            for part in topic.partitions
        ]
        if lags and not group.error_code:
            found[group.group_id] = _sum(lags)
    return found


def _sum(lags: Collection[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None

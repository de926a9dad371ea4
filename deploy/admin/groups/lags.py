"""Compute the lag of many groups of one coordinator, with one request for each type.

Invariant: a lag is None unless all of its parts are known.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.deploy.admin.groups.views import GroupType, ListedGroup
from penstock.protocol import apis
from penstock.protocol.client.connection import Connection
from penstock.protocol.gen import describe_share_group_offsets, offset_fetch

KnownEnds = Callable[[str], Mapping[int, int]]
"""Returns the known end offsets of a topic, by partition."""
_NAMED_TOPICS: Final = 9
"""The last version of OffsetFetch with topic names; later versions contain only topic ids."""


@dataclass(frozen=True, slots=True)
class Progress:
    """committed: offsets by topic and partition. share_lags: lags of the partitions of a share
    group.
    """

    committed: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    share_lags: Sequence[int | None] = ()

    def lag(self, ends: KnownEnds) -> int | None:
        return sum_of(
            [
                *self.share_lags,
                *(
                    None if (end := ends(topic).get(index)) is None else max(0, end - offset)
                    for topic, offsets in self.committed.items()
                    for index, offset in offsets.items()
                ),
            ]
        )


def sum_of(lags: Collection[int | None]) -> int | None:
    """Return the sum of lags, or None if any of them is unknown."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def progress_of(client: Connection, groups: Sequence[ListedGroup]) -> dict[str, Progress]:
    """Return the progress by group, without groups that have no committed offsets. Raises
    KafkaFailed.
    """
    shares = [group.group for group in groups if group.type.lower() == GroupType.SHARE]
    others = [group.group for group in groups if group.type.lower() != GroupType.SHARE]
    return (_others(client, others) if others else {}) | (_shares(client, shares) if shares else {})


def _others(client: Connection, groups: Sequence[str]) -> dict[str, Progress]:
    response = client.send_request(
        apis.OFFSET_FETCH,
        offset_fetch.OffsetFetchRequest(
            [offset_fetch.OffsetFetchRequestGroup(group, topics=None) for group in groups]
        ),
        offset_fetch.OffsetFetchResponse,
        version=_NAMED_TOPICS,
    )
    found: dict[str, Progress] = {}
    for group in response.groups:
        committed = {
            topic.name: {
                part.partition_index: part.committed_offset
                for part in topic.partitions
                if part.committed_offset >= 0
            }
            for topic in group.topics
        }
        if any(committed.values()) and not group.error_code:
            found[group.group_id] = Progress(committed)
    return found


def _shares(client: Connection, groups: Sequence[str]) -> dict[str, Progress]:
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
    found: dict[str, Progress] = {}
    for group in response.groups:
        lags = [
            part.lag if part.lag >= 0 and not part.error_code else None
            for topic in group.topics
            for part in topic.partitions
        ]
        if lags and not group.error_code:
            found[group.group_id] = Progress(share_lags=lags)
    return found

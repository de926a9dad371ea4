"""Read the offsets that all consumer groups have committed for the topics of a new snapshot.

Each coordinator lists its groups. Before and after listing, this broker checks that the coordinator
has loaded all its partitions of the offsets topic, so that no group is missed while coordinators
change.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, TypeAlias

from penstock.base.ids import NodeId, Offset
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.errors import ErrorCode, kafka_error
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.requests.node import Node
from penstock.controller.metadata.records import GroupOffsets
from penstock.protocol import apis
from penstock.protocol.error_codes import known_code
from penstock.protocol.errors import WireError
from penstock.protocol.gen import list_groups, offset_fetch

_GROUPS_PER_REQUEST_COUNT: Final = 20
_RETRY_PAUSE_S: Final = 0.1
_LAST_WITH_NAMES: Final = 9
"""The last version of OffsetFetch with topic names. Brokers of every version support it."""
_NOT_FOUND: Final = int(ErrorCode.GROUP_ID_NOT_FOUND)

Committed: TypeAlias = dict[str, list[GroupOffsets]]
"""Group offsets by topic, ordered by group id."""
_Found: TypeAlias = dict[str, dict[str, dict[int, int]]]
"""Offsets by topic, group and partition."""


class _NotReady(Exception):
    """Raised if a coordinator cannot currently respond for all its groups."""


async def committed_offsets(node: Node, names: Collection[str], deadline: float) -> Committed:
    """Return the offsets that each group has committed for these topics. Retries while coordinators
    change, until `deadline` (`loop.time()`).

    Fork points that are determined later are not below these offsets. Raises KafkaError with
    REQUEST_TIMED_OUT or the error of a coordinator.
    """
    found = [node.image.topics.by_name(name) for name in names]
    topics = {topic.name: len(topic.partitions) for topic in found if topic is not None}
    reason = "nothing responded"
    peers = node.connect_peers()
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    return await _read(node, peers, topics)
                except (_NotReady, PeerGone, OSError, EOFError, WireError) as error:
                    reason = str(error) or repr(error)
                await asyncio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        message = f"the offsets of consumer groups could not be read in time: {reason}"
        raise kafka_error(ErrorCode.REQUEST_TIMED_OUT, message) from None
    finally:
        peers.close()


async def _read(node: Node, peers: PeerConnections, topics: Mapping[str, int]) -> Committed:
    leaders = _coordinators(node)
    found: _Found = {}
    probes = _probe_groups(node, sum(map(len, leaders.values())))
    for leader, partitions in leaders.items():
        loaded = [probes[partition] for partition in partitions]
        await _fetch(peers, leader, loaded, found={}, topics={})
        request = list_groups.ListGroupsRequest()
        listed = await peers.send_request(
            leader, apis.LIST_GROUPS, apis.LIST_GROUPS.max, request, list_groups.ListGroupsResponse
        )
        if listed.error_code:
            raise _NotReady(f"broker {leader} cannot list groups: error {listed.error_code}")
        await _fetch(peers, leader, loaded, found={}, topics={})
        groups = sorted(group.group_id for group in listed.groups)
        for at in range(0, len(groups), _GROUPS_PER_REQUEST_COUNT):
            some = groups[at : at + _GROUPS_PER_REQUEST_COUNT]
            await _fetch(peers, leader, some, found=found, topics=topics)
    if _coordinators(node) != leaders:
        raise _NotReady("coordinators changed")
    return {
        topic: [
            GroupOffsets(
                group, tuple((at, Offset(offset)) for at, offset in sorted(offsets.items()))
            )
            for group, offsets in sorted(by_group.items())
        ]
        for topic, by_group in found.items()
    }


def _coordinators(node: Node) -> dict[NodeId, list[int]]:
    """Return the partitions of the offsets topic by leader, or nothing if the topic does not
    exist.
    """
    topic = node.image.topics.by_name(OFFSETS_TOPIC)
    leaders: dict[NodeId, list[int]] = {}
    for partition in () if topic is None else topic.partitions:
        if partition.leader < 0:
            raise _NotReady(f"partition {partition.partition} of {OFFSETS_TOPIC} has no leader")
        leaders.setdefault(partition.leader, []).append(partition.partition)
    return leaders


def _probe_groups(node: Node, partition_count: int) -> dict[int, str]:
    """Return one group id for each partition of the offsets topic. These groups never have members;
    a coordinator that responds for one of them has loaded its partition.
    """
    probes: dict[int, str] = {}
    names = (f"penstock-snapshot-{number}" for number in count())
    while len(probes) < partition_count:
        name = next(names)
        partition = node.groups.partition_of(name)
        if partition is None:
            raise _NotReady(f"{OFFSETS_TOPIC} was deleted")
        probes.setdefault(partition, name)
    return probes


async def _fetch(
    peers: PeerConnections,
    leader: NodeId,
    groups: Sequence[str],
    *,
    found: _Found,
    topics: Mapping[str, int],
) -> None:
    """Add to `found` the offsets that these groups have committed for the topics."""
    request = offset_fetch.OffsetFetchRequest(
        groups=[
            offset_fetch.OffsetFetchRequestGroup(group, topics=None if topics else [])
            for group in groups
        ]
    )
    response = await peers.send_request(
        leader,
        apis.OFFSET_FETCH,
        _LAST_WITH_NAMES,
        request,
        offset_fetch.OffsetFetchResponse,
    )
    for group in response.groups:
        if group.error_code == _NOT_FOUND:
            continue
        if group.error_code:
            code = known_code(group.error_code)
            raise _NotReady(f"broker {leader} cannot describe its groups: {code.message}")
        for topic, partition, offset in _committed(group, topics):
            found.setdefault(topic, {}).setdefault(group.group_id, {})[partition] = offset


def _committed(
    group: offset_fetch.OffsetFetchResponseGroup, topics: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    for topic in group.topics:
        partition_count = topics.get(topic.name, 0)
        for item in topic.partitions:
            if item.committed_offset >= 0 and item.partition_index < partition_count:
                yield topic.name, item.partition_index, item.committed_offset

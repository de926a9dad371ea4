"""Before a request without an epoch deletes a state, check that no share group uses the state.

An existing group does not initialize a state twice, so after such a deletion it could no longer
read records.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.groups.share.state.model import SharePartitionKey, ShareStateError
from penstock.broker.network.peers import PeerGone
from penstock.broker.partition.leaders import announced_leader
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.errors import WireError
from penstock.protocol.gen import share_group_describe

_ASK_S: Final = 5.0


async def unowned_epochs(
    node: Node, group_id: str, keys: Iterable[SharePartitionKey]
) -> Mapping[SharePartitionKey, int | ShareStateError]:
    """Return the epochs of states that no group has used since they were read, or the reason why a
    state must not be deleted. A group that is created later starts with a newer epoch.
    """
    found: dict[SharePartitionKey, int | ShareStateError] = {}
    reads = await listed((key, node.share_coordinator.summary(key)) for key in keys)
    async for key, read in sliced(reads):
        try:
            found[key] = (await read).state_epoch
        except ShareStateError as error:
            found[key] = error
    refused = await _refusal(node, group_id) if found else None
    return found if refused is None else dict.fromkeys(found, refused)


async def _refusal(node: Node, group_id: str) -> ShareStateError | None:
    """Return None if the group does not exist, otherwise the reason why its states must not be
    deleted.
    """
    code = await _describe(node, group_id)
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if code is ErrorCode.NONE:
        return ShareStateError(
            ErrorCode.INVALID_REQUEST,
            f"The share group {group_id} exists: delete its offsets of the topic"
            " (DeleteShareGroupOffsets) or the group, which deletes the state.",
        )
    return ShareStateError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"The coordinator of the share group {group_id} could not be reached: {code.name}.",
    )


async def _describe(node: Node, group_id: str) -> ErrorCode:
    """Describe the group at its coordinator. Returns GROUP_ID_NOT_FOUND if the topic for groups
    does not exist.
    """
    index, topic = node.groups.partition_of(group_id), node.image.topics.by_name(OFFSETS_TOPIC)
    if index is None or topic is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    leader = announced_leader(node.image, topic.partitions[index], node.gone)
    if leader is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    api, peers = apis.SHARE_GROUP_DESCRIBE, node.connect_peers()
    request = share_group_describe.ShareGroupDescribeRequest([group_id])
    kind = share_group_describe.ShareGroupDescribeResponse
    try:
        async with asyncio.timeout(_ASK_S):
            response = await peers.send_request(leader.node_id, api, api.max, request, kind)
    except (PeerGone, OSError, EOFError, WireError, TimeoutError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    finally:
        peers.close()
    return known_code(response.groups[0].error_code)

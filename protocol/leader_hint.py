"""Tagged fields of Produce and Fetch that contain the new leader after NOT_LEADER_OR_FOLLOWER
(KIP-951).

A client that supports them (Produce v10, Fetch v16) follows the leader immediately instead of
refreshing metadata first, which would account for most of the cost of a planned move.
"""

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.protocol.primitives import Writer

_LEADER: Final = struct.Struct(">ii")
_NODE_ID: Final = struct.Struct(">i")


class CurrentLeader(Struct, frozen=True, gc=False):
    """The current leader of a partition in this broker's metadata. If all values are -1, the leader
    is unknown and nothing is sent.
    """

    leader_id: int = -1
    leader_epoch: int = -1


class NodeEndpoint(Struct, frozen=True, gc=False):
    """The address of a node in a `CurrentLeader` of the same response."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


_UNKNOWN: Final = CurrentLeader()


def is_known(leader: CurrentLeader | None) -> bool:
    return leader is not None and leader != _UNKNOWN


def leader_field(tag: int, leader: CurrentLeader) -> bytes:
    """Encode the tagged field: tag, size, leader id and epoch, and no nested tags."""
    return (
        bytes((tag, _LEADER.size + 1))
        + _LEADER.pack(leader.leader_id, leader.leader_epoch)
        + b"\x00"
    )


def endpoints_section(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Encode the tagged section at the end of a response. Its only field is `node_endpoints` with
    tag 0, omitted if empty.
    """
    if not endpoints:
        return b"\x00"
    body = Writer()
    body.length(len(endpoints), flexible=True)
    for endpoint in endpoints:
        body += _NODE_ID.pack(endpoint.node_id)
        body.string(endpoint.host, flexible=True)
        body += _NODE_ID.pack(endpoint.port)
        body.nullable_string(endpoint.rack, flexible=True)
        body.append(0)
    section = Writer(b"\x01")
    section.tagged(0, body)
    return bytes(section)

"""Encode ShareFetch responses without copying record batches. The generated codec decodes requests
and, in tests and tools, responses.
"""

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.protocol.errors import UnencodableValue
from penstock.protocol.leader_hint import CurrentLeader, NodeEndpoint
from penstock.protocol.primitives import Writer

_HEAD: Final = struct.Struct(">iiBihBi")
"""Size, correlation id, tags, throttle time, error code, no message, lock timeout."""
_PARTITION: Final = struct.Struct(">ihBhBiiB")
"""Index, error code, no message, acknowledge error code, no message, leader, epoch, tags."""
_ACQUIRED: Final = struct.Struct(">qqhB")
_I32: Final = struct.Struct(">i")
_NO_MESSAGE: Final = 0
_NO_TAGS: Final = 0
_NO_LEADER: Final = CurrentLeader(0, 0)


class ShareFetchPartitionResult(Struct, gc=False):
    """The result of one partition."""

    index: int
    error_code: int = 0
    acknowledge_error_code: int = 0
    current_leader: CurrentLeader | None = None
    records: Sequence[Buffer] = ()
    acquired: Sequence[tuple[int, int, int]] = ()
    """(first offset, last offset, delivery count) of the acquired records."""


def encode_share_fetch_response(
    correlation_id: int,
    topics: Sequence[tuple[UUID, Sequence[ShareFetchPartitionResult]]],
    *,
    error_code: int = 0,
    lock_timeout_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """Return the complete frame. Batches are views. Raises UnencodableValue."""
    head = tail = Writer(_HEAD.size)
    frame: list[Buffer] = [head]
    try:
        tail.length(len(topics), flexible=True)
        for topic_id, results in topics:
            tail.uuid(topic_id)
            tail.length(len(results), flexible=True)
            for result in results:
                tail = _write_partition(frame, tail, result)
            tail.append(_NO_TAGS)
        tail.length(len(node_endpoints), flexible=True)
        for endpoint in node_endpoints:
            tail += _I32.pack(endpoint.node_id)
            tail.string(endpoint.host, flexible=True)
            tail += _I32.pack(endpoint.port)
            tail.nullable_string(endpoint.rack, flexible=True)
            tail.append(_NO_TAGS)
        tail.append(_NO_TAGS)
        size_bytes = sum(map(len, frame)) - 4
        _HEAD.pack_into(
            head,
            0,
            size_bytes,
            correlation_id,
            _NO_TAGS,
            0,
            error_code,
            _NO_MESSAGE,
            lock_timeout_ms,
        )
    except struct.error as error:
        raise UnencodableValue(
            f"a ShareFetch response contains a number out of range: {error}"
        ) from error
    return frame


def _write_partition(
    frame: list[Buffer], tail: Writer, result: ShareFetchPartitionResult
) -> Writer:
    """Append a partition after `tail`, the last buffer of `frame`. Return the new last buffer."""
    leader = result.current_leader or _NO_LEADER
    tail += _PARTITION.pack(
        result.index,
        result.error_code,
        _NO_MESSAGE,
        result.acknowledge_error_code,
        _NO_MESSAGE,
        leader.leader_id,
        leader.leader_epoch,
        _NO_TAGS,
    )
    tail.uvarint(1 + sum(map(len, result.records)))
    if result.records:
        frame += result.records
        tail = Writer()
        frame.append(tail)
    tail.length(len(result.acquired), flexible=True)
    for first_offset, last_offset, count in result.acquired:
        tail += _ACQUIRED.pack(first_offset, last_offset, count, _NO_TAGS)
    tail.append(_NO_TAGS)
    return tail

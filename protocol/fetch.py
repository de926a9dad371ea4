"""Hand-written codec of Fetch, the hot read path. A response is a list of buffers; record batches
are never joined or copied. When joined, the buffers equal the output of `protocol.gen.fetch`
(property-tested). A response takes 2 us for 1 partition, 7 us for 10, regardless of the size of the
batches (generated code: 56 us for 10 of 100 KB).
"""

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.protocol.apis import FETCH
from penstock.protocol.errors import UnencodableValue
from penstock.protocol.leader_hint import (
    CurrentLeader,
    NodeEndpoint,
    endpoints_section,
    is_known,
    leader_field,
)
from penstock.protocol.primitives import Writer
from penstock.protocol.topic_key import TopicKey, write_topic_key

_LOG_START_FROM: Final = 5
_SESSION_FROM: Final = 7
_REPLICA_FROM: Final = 11
_FLEXIBLE_FROM: Final = 12
_TOPIC_ID_FROM: Final = 13
_ENDPOINTS_FROM: Final = 16
_TAG_DIVERGING_EPOCH: Final = 0
_TAG_CURRENT_LEADER: Final = 1

_HEAD: Final = struct.Struct(">ii")
_pack_i32: Final = struct.Struct(">i").pack
_pack_session: Final = struct.Struct(">hi").pack
_pack_v4: Final = struct.Struct(">ihqq").pack
_pack_v5: Final = struct.Struct(">ihqqq").pack
_pack_plain_v12: Final = struct.Struct(">ihqqqBi").pack
_pack_aborted: Final = struct.Struct(">qq").pack
_pack_diverging: Final = struct.Struct(">BBiqB").pack


class FetchPartitionResult(Struct, gc=False):
    """The result of one partition. `records` are whole batches. `aborted_transactions` (producer
    id, first offset) is None except for committed reads. `diverging_epoch` is (epoch, end offset).
    """

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()
    diverging_epoch: tuple[int, int] | None = None
    current_leader: CurrentLeader | None = None


def encode_fetch_response(
    correlation_id: int,
    version: int,
    responses: Sequence[tuple[TopicKey, Sequence[FetchPartitionResult]]],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """Return a complete frame, including the size prefix, as buffers to be written in order. The
    batches must not change until they are sent.
    """
    flexible, by_id = version >= _FLEXIBLE_FROM, version >= _TOPIC_ID_FROM
    head = Writer(9 if flexible else 8)
    frame: list[Buffer] = [head]
    write_partitions = _write_partitions if flexible else _write_legacy_partitions
    try:
        head += _pack_i32(throttle_ms)
        if version >= _SESSION_FROM:
            head += _pack_session(error_code, session_id)
        head.length(len(responses), flexible)
        tail = head
        for topic, results in responses:
            write_topic_key(tail, FETCH, version, topic, by_id=by_id)
            tail.length(len(results), flexible)
            tail = write_partitions(frame, tail, results, version)
        if flexible:
            tail += endpoints_section(node_endpoints) if version >= _ENDPOINTS_FROM else b"\x00"
        _HEAD.pack_into(head, 0, sum(map(len, frame)) - 4, correlation_id)
    except struct.error as error:
        raise UnencodableValue(
            f"a Fetch response contains a number out of range: {error}"
        ) from error
    return frame


def _write_partitions(
    frame: list[Buffer], tail: Writer, results: Sequence[FetchPartitionResult], version: int
) -> Writer:
    """Append partitions after `tail`, the last buffer of `frame`. Returns the new last buffer."""
    for result in results:
        if result.aborted_transactions is None:
            # Nearly all partitions have no aborted transactions (compact null): write them with one
            # pack.
            tail += _pack_plain_v12(
                result.index,
                result.error_code,
                result.high_watermark,
                result.last_stable_offset,
                result.log_start_offset,
                0,
                result.preferred_read_replica,
            )
        else:
            _write_aborted(tail, result, version)
        records = result.records
        if records:
            tail.uvarint(1 + (len(records[0]) if len(records) == 1 else sum(map(len, records))))
            frame += records
            tail = Writer()
            frame.append(tail)
        else:
            tail.append(1)
        if result.current_leader is None and result.diverging_epoch is None:
            tail.append(0)
        else:
            _write_tags(tail, result)
    tail.append(0)
    return tail


def _write_aborted(tail: Writer, result: FetchPartitionResult, version: int) -> None:
    aborted = result.aborted_transactions or ()
    _write_fixed(tail, result, version)
    tail.length(len(aborted), flexible=True)
    for producer_id, first_offset in aborted:
        tail += _pack_aborted(producer_id, first_offset)
        tail.append(0)
    tail += _pack_i32(result.preferred_read_replica)


def _write_tags(tail: Writer, result: FetchPartitionResult) -> None:
    fields: list[bytes] = []
    if result.diverging_epoch is not None:
        # Tag, size, epoch, end offset, no more tags.
        fields.append(_pack_diverging(_TAG_DIVERGING_EPOCH, 13, *result.diverging_epoch, 0))
    if result.current_leader is not None and is_known(result.current_leader):
        fields.append(leader_field(_TAG_CURRENT_LEADER, result.current_leader))
    tail.append(len(fields))
    tail += b"".join(fields)


def _write_legacy_partitions(
    frame: list[Buffer], tail: Writer, results: Sequence[FetchPartitionResult], version: int
) -> Writer:
    for result in results:
        _write_fixed(tail, result, version)
        aborted = result.aborted_transactions
        if aborted is None:
            tail.null(flexible=False)
        else:
            tail.length(len(aborted), flexible=False)
            for producer_id, first_offset in aborted:
                tail += _pack_aborted(producer_id, first_offset)
        if version >= _REPLICA_FROM:
            tail += _pack_i32(result.preferred_read_replica)
        records = result.records
        tail += _pack_i32(sum(map(len, records)))
        if records:
            frame += records
            tail = Writer()
            frame.append(tail)
    return tail


def _write_fixed(tail: Writer, result: FetchPartitionResult, version: int) -> None:
    head = (result.index, result.error_code, result.high_watermark, result.last_stable_offset)
    if version >= _LOG_START_FROM:
        tail += _pack_v5(*head, result.log_start_offset)
    else:
        tail += _pack_v4(*head)

"""Hand-written codec of Produce, the hot write path. Batches are neither copied nor re-encoded
between socket and object store.

Equivalent to `protocol.gen.produce` (property-tested). A request takes 3 us for 1 partition and 8
us for 10, a response 1.1 us and 3.2 us, regardless of the batch size.
"""

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.protocol.apis import PRODUCE
from penstock.protocol.errors import InvalidLength, Truncated, UnencodableValue
from penstock.protocol.leader_hint import (
    CurrentLeader,
    NodeEndpoint,
    endpoints_section,
    is_known,
    leader_field,
)
from penstock.protocol.primitives import ELEMENTS_AT_ONCE_MAX, Reader, Writer
from penstock.protocol.topic_key import NO_TOPIC_ID, TopicKey, write_topic_key

_FLEXIBLE_FROM: Final = 9
_LEADER_FROM: Final = 10
_ERRORS_FROM: Final = 8
_TOPIC_ID_FROM: Final = 13
_LOG_START_FROM: Final = 5
_MIRROR_SOURCE_TAG: Final = 10_000
_PARTITION_LEAST_BYTES: Final = 5
_TOPIC_LEAST_BYTES: Final = 2
_TOPIC_BY_ID_LEAST_BYTES: Final = 18

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_INDEX_SIZE: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">ii")
_HEAD_FLEXIBLE: Final = struct.Struct(">iix")
_index_at: Final = _INDEX.unpack_from
_pack_i32: Final = _INDEX.pack
_pack_result_v3: Final = struct.Struct(">ihqq").pack
_pack_result_v5: Final = struct.Struct(">ihqqq").pack
_pack_plain_v9: Final = struct.Struct(">ihqqqBBB").pack


class ProducePartition(Struct, gc=False):
    """The records that one request appends to one partition, as a view of the frame. The handler
    rejects null records.
    """

    index: int
    records: memoryview | None


class ProduceTopic(Struct, gc=False):
    key: TopicKey
    partitions: list[ProducePartition]


class ProduceRequest(Struct, gc=False):
    """mirror_source: specific to Penstock, and empty for producers; see
    `broker.partition.mirrored`.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    mirror_source: str = ""


class ProducePartitionResult(Struct, gc=False):
    """The result of one partition's batch. `record_errors` are (index of the record in its batch,
    reason).
    """

    index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: CurrentLeader | None = None


def decode_produce_request(frame: memoryview, offset: int, version: int) -> ProduceRequest:
    """Read a body that begins at `offset` of `frame`. Raises `WireError`, or `TooManyElements` if
    there are more than `ELEMENTS_AT_ONCE_MAX` elements. This takes about 1 us per partition,
    regardless of its size.
    """
    return read_produce_request(Reader(frame, offset, ELEMENTS_AT_ONCE_MAX), version)


def read_produce_request(reader: Reader, version: int) -> ProduceRequest:
    """Read a body. Raises `WireError`."""
    flexible = version >= _FLEXIBLE_FROM
    transactional_id = reader.nullable_string(flexible)
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    if version >= _TOPIC_ID_FROM:
        count = reader.count(flexible, _TOPIC_BY_ID_LEAST_BYTES)
        topics = [_read_topic_by_id(reader) for _ in range(count)]
    else:
        count = reader.count(flexible, _TOPIC_LEAST_BYTES)
        topics = [_read_topic(reader, flexible) for _ in range(count)]
    mirror_source = _read_mirror_source(reader) if flexible else ""
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, mirror_source)


def _read_mirror_source(reader: Reader) -> str:
    """Read the tagged fields at the end of a request. Producers send none."""
    if reader.pos < reader.end and reader.view[reader.pos] == 0:
        reader.pos += 1
        return ""
    mirror_source = ""
    for _ in range(reader.tag_count()):
        tag, stop = reader.tag()
        if tag == _MIRROR_SOURCE_TAG:
            mirror_source = reader.string(True)
            reader.end_tag(stop)
        reader.pos = stop
    return mirror_source


def _read_topic(reader: Reader, flexible: bool) -> ProduceTopic:
    name = reader.string(flexible)
    count = reader.count(flexible, _PARTITION_LEAST_BYTES)
    if not flexible:
        return ProduceTopic(name, [_read_legacy_partition(reader) for _ in range(count)])
    return _with_partitions(reader, name, count)


def _read_topic_by_id(reader: Reader) -> ProduceTopic:
    topic_id = reader.uuid() or NO_TOPIC_ID
    return _with_partitions(reader, topic_id, reader.count(True, _PARTITION_LEAST_BYTES))


def _with_partitions(reader: Reader, key: TopicKey, count: int) -> ProduceTopic:
    partitions = [_read_partition(reader) for _ in range(count)]
    reader.skip_tags()
    return ProduceTopic(key, partitions)


def _read_partition(reader: Reader) -> ProducePartition:
    """Read a partition. `Reader.i32`, `records` and `skip_tags` are inlined, which is twice as fast
    as calling them.
    """
    view = reader.view
    pos = reader.pos
    try:
        (index,) = _index_at(view, pos)
        reader.pos = pos + 4
        size_bytes = reader.uvarint() - 1
        pos = reader.pos
        if size_bytes < 0:
            records = None
        else:
            stop = pos + size_bytes
            records = view[pos:stop]
            pos = stop
        # The byte after the batch is the number of tags. Reading it proves that the batch is
        # complete.
        has_tags = view[pos] != 0
    except (struct.error, IndexError):
        raise Truncated(1, max(reader.end - pos, 0)) from None
    if has_tags:
        reader.pos = pos
        reader.skip_tags()
    else:
        reader.pos = pos + 1
    return ProducePartition(index, records)


def _read_legacy_partition(reader: Reader) -> ProducePartition:
    index, size_bytes = reader.unpack(_INDEX_SIZE)
    if size_bytes < -1:
        raise InvalidLength("records", size_bytes, reader.end - reader.pos)
    return ProducePartition(index, None if size_bytes < 0 else reader.take(size_bytes))


def encode_produce_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Writer:
    """Encode a complete frame, including the size prefix. Fields that do not exist in the version
    are omitted.
    """
    flexible, by_id = version >= _FLEXIBLE_FROM, version >= _TOPIC_ID_FROM
    writer = Writer(9 if flexible else 8)
    writer.length(len(topics), flexible)
    try:
        for key, results in topics:
            write_topic_key(writer, PRODUCE, version, key, by_id=by_id)
            writer.length(len(results), flexible)
            for result in results:
                if flexible:
                    _write_result(writer, result, version)
                else:
                    _write_legacy_result(writer, result, version)
            if flexible:
                writer.append(0)
        writer += _pack_i32(throttle_ms)
    except struct.error as error:
        raise UnencodableValue(
            f"a Produce response contains a number out of range: {error}"
        ) from error
    if flexible:
        writer += endpoints_section(node_endpoints) if version >= _LEADER_FROM else b"\x00"
    _HEAD.pack_into(writer, 0, len(writer) - 4, correlation_id)
    return writer


def _write_result(writer: Writer, result: ProducePartitionResult, version: int) -> None:
    errors = result.record_errors
    message = result.error_message
    leader = result.current_leader if version >= _LEADER_FROM else None
    if not errors and message is None and leader is None:
        # Nearly all results have no record errors (compact 0 + 1), a null message and no tags:
        # write them with one pack.
        writer += _pack_plain_v9(
            result.index,
            result.error_code,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
            1,
            0,
            0,
        )
        return
    _write_fixed(writer, result, version)
    _write_errors(writer, result, flexible=True)
    if leader is not None and is_known(leader):
        writer.append(1)
        writer += leader_field(0, leader)
    else:
        writer.append(0)


def _write_legacy_result(writer: Writer, result: ProducePartitionResult, version: int) -> None:
    _write_fixed(writer, result, version)
    if version >= _ERRORS_FROM:
        _write_errors(writer, result, flexible=False)


def _write_fixed(writer: Writer, result: ProducePartitionResult, version: int) -> None:
    head = (result.index, result.error_code, result.base_offset, result.log_append_time_ms)
    if version >= _LOG_START_FROM:
        writer += _pack_result_v5(*head, result.log_start_offset)
    else:
        writer += _pack_result_v3(*head)


def _write_errors(writer: Writer, result: ProducePartitionResult, flexible: bool) -> None:
    writer.length(len(result.record_errors), flexible)
    for batch_index, message in result.record_errors:
        writer += _pack_i32(batch_index)
        writer.nullable_string(message, flexible)
        if flexible:
            writer.append(0)
    writer.nullable_string(result.error_message, flexible)

"""Encode and decode the values of streams group records, in Kafka's binary format.

Fields that Kafka 4.2 does not use are written empty and skipped: instance ids and warm-up tasks.
"""

from collections.abc import Sequence
from typing import Final

from penstock.broker.groups.common.records import (
    ConsumerRecordKind,
    GroupRecordCodec,
    read_epoch,
    read_names,
    write_epoch,
    write_names,
)
from penstock.broker.groups.streams.values import (
    ActiveTasks,
    CopartitionGroup,
    HeldTasks,
    InternalTopic,
    StreamsAssignment,
    StreamsEpoch,
    StreamsMemberState,
    StreamsMetadata,
    Subtopology,
    TaskIds,
    Tasks,
    Topology,
)
from penstock.protocol.primitives import Reader, Writer

_VALIDATED_TAG: Final = 0
_CONFIGS_TAG: Final = 1
_EPOCHS_TAG: Final = 0
_NOT_VALIDATED: Final = -1
_STATES: Final = {state.value: state for state in StreamsMemberState}


def _i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


# Groups


def _write_epoch(writer: Writer, value: StreamsEpoch) -> None:
    writer += _i32(value.epoch)
    writer += value.metadata_hash.to_bytes(8, "big", signed=True)
    is_validated = value.validated_topology_epoch != _NOT_VALIDATED
    writer.uvarint(1 + is_validated)
    if is_validated:
        writer.tagged(_VALIDATED_TAG, Writer(_i32(value.validated_topology_epoch)))
    configs = Writer()
    _write_pairs(configs, value.assignment_configs)
    writer.tagged(_CONFIGS_TAG, configs)


def _read_epoch(reader: Reader) -> StreamsEpoch:
    epoch, metadata_hash = reader.i32(), reader.i64()
    validated, configs = _NOT_VALIDATED, tuple[tuple[str, str], ...]()
    for _ in range(reader.tag_count()):
        tag, stop = reader.tag()
        if tag == _VALIDATED_TAG:
            validated = reader.i32()
        elif tag == _CONFIGS_TAG:
            configs = _read_pairs(reader)
        else:
            reader.pos = stop
        reader.end_tag(stop)
    return StreamsEpoch(epoch, metadata_hash, validated, configs)


def _write_pairs(writer: Writer, pairs: Sequence[tuple[str, str]]) -> None:
    writer.length(len(pairs), True)
    for key, value in pairs:
        writer.string(key, True)
        writer.string(value, True)
        writer.append(0)


def _read_pairs(reader: Reader) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for _ in range(max(0, reader.nullable_count(True, 3))):
        pairs.append((reader.string(True), reader.string(True)))
        reader.skip_tags()
    return tuple(pairs)


# Members


def _write_metadata(writer: Writer, value: StreamsMetadata) -> None:
    writer.nullable_string(None, True)
    writer.nullable_string(value.rack_id, True)
    writer.string(value.client_id, True)
    writer.string(value.client_host, True)
    writer += _i32(value.rebalance_timeout_ms)
    writer += _i32(value.topology_epoch)
    writer.string(value.process_id, True)
    if value.endpoint is None:
        writer += b"\xff"
    else:
        writer.append(1)
        writer.string(value.endpoint[0], True)
        writer += value.endpoint[1].to_bytes(2, "big")
        writer.append(0)
    _write_pairs(writer, value.client_tags)
    writer.append(0)


def _read_metadata(reader: Reader) -> StreamsMetadata:
    reader.nullable_string(True)
    rack_id = reader.nullable_string(True)
    client_id, client_host = reader.string(True), reader.string(True)
    rebalance_timeout_ms, topology_epoch = reader.i32(), reader.i32()
    process_id, endpoint = reader.string(True), None
    if reader.i8() >= 0:
        endpoint = (reader.string(True), reader.u16())
        reader.skip_tags()
    value = StreamsMetadata(
        rack_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        topology_epoch,
        process_id,
        endpoint,
        _read_pairs(reader),
    )
    reader.skip_tags()
    return value


# Tasks


def _write_target(writer: Writer, value: Tasks) -> None:
    _write_tasks(writer, value.active)
    _write_tasks(writer, value.standby)
    _write_tasks(writer, {})
    writer.append(0)


def _read_target(reader: Reader) -> Tasks:
    value = Tasks(_read_tasks(reader), _read_tasks(reader))
    _read_tasks(reader)
    reader.skip_tags()
    return value


def _write_assignment(writer: Writer, value: StreamsAssignment) -> None:
    writer += _i32(value.epoch)
    writer += _i32(value.previous_epoch)
    writer.append(value.state.value)
    for held in (value.assigned, value.revoking):
        _write_active(writer, held.active)
        _write_tasks(writer, held.standby)
        _write_tasks(writer, {})
    writer.append(0)


def _read_assignment(reader: Reader) -> StreamsAssignment:
    epoch, previous_epoch = reader.i32(), reader.i32()
    state = _STATES.get(reader.i8(), StreamsMemberState.UNKNOWN)
    value = StreamsAssignment(
        epoch, previous_epoch, state, _read_held(reader, epoch), _read_held(reader, epoch)
    )
    reader.skip_tags()
    return value


def _write_tasks(writer: Writer, tasks: TaskIds) -> None:
    writer.length(len(tasks), True)
    for subtopology_id, partitions in sorted(tasks.items()):
        writer.string(subtopology_id, True)
        writer.i32s(sorted(partitions), True)
        writer.append(0)


def _read_tasks(reader: Reader) -> TaskIds:
    tasks: dict[str, frozenset[int]] = {}
    for _ in range(reader.count(True, 3)):
        subtopology_id = reader.string(True)
        partitions = frozenset(reader.i32s(True))
        if partitions:
            tasks[subtopology_id] = partitions
        reader.skip_tags()
    return tasks


def _write_active(writer: Writer, tasks: ActiveTasks) -> None:
    writer.length(len(tasks), True)
    for subtopology_id, epochs in sorted(tasks.items()):
        writer.string(subtopology_id, True)
        writer.i32s(sorted(epochs), True)
        writer.uvarint(1)
        body = Writer()
        body.i32s([epochs[partition] for partition in sorted(epochs)], True)
        writer.tagged(_EPOCHS_TAG, body)


def _read_held(reader: Reader, epoch: int) -> HeldTasks:
    """epoch: the epoch of tasks that are stored without one."""
    active: dict[str, dict[int, int]] = {}
    for _ in range(reader.count(True, 3)):
        subtopology_id, partitions = reader.string(True), reader.i32s(True)
        epochs: list[int] | None = None
        for _ in range(reader.tag_count()):
            tag, stop = reader.tag()
            if tag == _EPOCHS_TAG:
                epochs = reader.nullable_i32s(True)
            else:
                reader.pos = stop
            reader.end_tag(stop)
        if partitions:
            each = zip(partitions, epochs or [epoch] * len(partitions), strict=True)
            active[subtopology_id] = dict(each)
    standby = _read_tasks(reader)
    _read_tasks(reader)
    return HeldTasks(active, standby)


# Topologies


def _write_topology(writer: Writer, value: Topology) -> None:
    writer += _i32(value.epoch)
    writer.length(len(value.subtopologies), True)
    for subtopology in value.subtopologies:
        writer.string(subtopology.subtopology_id, True)
        write_names(writer, subtopology.source_topics)
        write_names(writer, subtopology.source_topic_regex)
        _write_topics(writer, subtopology.changelog_topics)
        write_names(writer, subtopology.repartition_sink_topics)
        _write_topics(writer, subtopology.repartition_source_topics)
        writer.length(len(subtopology.copartition_groups), True)
        for group in subtopology.copartition_groups:
            _write_positions(writer, group.source_topics)
            _write_positions(writer, group.source_topic_regex)
            _write_positions(writer, group.repartition_source_topics)
            writer.append(0)
        writer.append(0)
    writer.append(0)


def _read_topology(reader: Reader) -> Topology:
    epoch = reader.i32()
    value = Topology(epoch, tuple(_read_subtopology(reader) for _ in range(reader.count(True, 8))))
    reader.skip_tags()
    return value


def _read_subtopology(reader: Reader) -> Subtopology:
    value = Subtopology(
        reader.string(True),
        tuple(read_names(reader)),
        tuple(read_names(reader)),
        _read_topics(reader),
        tuple(read_names(reader)),
        _read_topics(reader),
        tuple(_read_copartition_group(reader) for _ in range(reader.count(True, 4))),
    )
    reader.skip_tags()
    return value


def _read_copartition_group(reader: Reader) -> CopartitionGroup:
    value = CopartitionGroup(
        _read_positions(reader), _read_positions(reader), _read_positions(reader)
    )
    reader.skip_tags()
    return value


def _write_positions(writer: Writer, positions: Sequence[int]) -> None:
    writer.length(len(positions), True)
    for position in positions:
        writer += position.to_bytes(2, "big", signed=True)


def _read_positions(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.i16() for _ in range(reader.count(True, 2)))


def _write_topics(writer: Writer, topics: Sequence[InternalTopic]) -> None:
    writer.length(len(topics), True)
    for topic in topics:
        writer.string(topic.name, True)
        writer += _i32(topic.partitions)
        writer += topic.replication_factor.to_bytes(2, "big", signed=True)
        _write_pairs(writer, topic.configs)
        writer.append(0)


def _read_topics(reader: Reader) -> tuple[InternalTopic, ...]:
    topics: list[InternalTopic] = []
    for _ in range(reader.count(True, 9)):
        topics.append(
            InternalTopic(reader.string(True), reader.i32(), reader.i16(), _read_pairs(reader))
        )
        reader.skip_tags()
    return tuple(topics)


STREAMS_CODECS: Final[dict[ConsumerRecordKind, GroupRecordCodec]] = {
    ConsumerRecordKind.STREAMS_GROUP: (_write_epoch, _read_epoch),
    ConsumerRecordKind.STREAMS_MEMBER: (_write_metadata, _read_metadata),
    ConsumerRecordKind.STREAMS_TARGET_EPOCH: (write_epoch, read_epoch),
    ConsumerRecordKind.STREAMS_TARGET: (_write_target, _read_target),
    ConsumerRecordKind.STREAMS_CURRENT: (_write_assignment, _read_assignment),
    ConsumerRecordKind.STREAMS_TOPOLOGY: (_write_topology, _read_topology),
}

"""Check the invariants of an image between transactions. This takes O(size of the image) and is
used by tests and the simulator.
"""

from collections import Counter
from collections.abc import Iterator

from penstock.base.ids import NodeEpoch, ObjectId, StreamId
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.frozen_topics import FrozenTopicsImage
from penstock.controller.metadata.nodes import NodesImage
from penstock.controller.metadata.objects import ObjectPhase, ObjectsImage
from penstock.controller.metadata.streams import StreamsImage, StreamState
from penstock.controller.metadata.topics import (
    NO_LEADER,
    PartitionKey,
    PartitionMetadata,
    TopicsImage,
    leader_of,
)
from penstock.stream.format.keys import WAL_STORE_ROOT
from penstock.stream.ports import ObjectRole


def check(
    topics: TopicsImage,
    frozen_topics: FrozenTopicsImage,
    nodes: NodesImage,
    streams: StreamsImage,
    objects: ObjectsImage,
) -> None:
    """Check all invariants. Raises InvariantBroken for the first violation."""
    refs: Counter[ObjectId] = Counter()
    for stream in streams:
        _check_log(stream)
        _check_wal_store_ranges(stream, objects)
        refs.update(entry.object_id for entry in (*stream.kept_entries, *stream.entries))
    _check_objects(objects, nodes, refs)
    _check_owners(streams, nodes)
    owned = _check_partitions(topics, streams, nodes)
    owned |= _check_frozen(frozen_topics, topics, streams)
    if stray := {stream.stream_id for stream in streams} - owned:
        raise broken(f"streams without a partition: {stray}")


def _check_log(stream: StreamState) -> None:
    name = f"stream {stream.stream_id}"
    _check_kept(stream, name)
    if not stream.entries:
        if stream.end_offset > stream.start_offset:
            raise broken(f"{name}: no entry contains [{stream.start_offset}, {stream.end_offset})")
        return
    first, last = stream.entries[0], stream.entries[-1]
    if not first.start_offset <= stream.start_offset < first.end_offset:
        raise broken(
            f"{name}: the first entry {first} does not contain the start {stream.start_offset}"
        )
    if last.end_offset != stream.end_offset:
        raise broken(f"{name}: the last entry {last} does not reach the end {stream.end_offset}")
    for before, after in zip(stream.entries, stream.entries[1:], strict=False):
        if before.end_offset != after.start_offset or before.start_offset >= before.end_offset:
            raise broken(f"{name}: {after} does not follow {before}")
    if len({entry.object_id for entry in stream.entries}) != len(stream.entries):
        raise broken(f"{name}: an object holds two entries")


def _check_kept(stream: StreamState, name: str) -> None:
    if stream.kept is None:
        return
    ends = [trim.end_offset for trim in stream.kept.trims]
    if ends != sorted(ends) or ends[-1:] != [stream.start_offset]:
        raise broken(
            f"{name}: the retained trims end at {ends}, the start is {stream.start_offset}"
        )
    at = stream.kept_offset
    for entry in stream.kept_entries:
        if entry.start_offset > at or not at < entry.end_offset <= stream.start_offset:
            raise broken(f"{name}: the retained entry {entry} does not follow {at}")
        at = entry.end_offset
    first = stream.entries[0].start_offset if stream.entries else stream.start_offset
    if at < first:
        raise broken(f"{name}: no entry contains [{at}, {first}), which is retained")


def _check_wal_store_ranges(stream: StreamState, objects: ObjectsImage) -> None:
    found = {
        entry.start_offset: entry.object_id
        for entry in (*stream.kept_entries, *stream.entries)
        if (state := objects.get(entry.object_id)) is not None
        and state.key.startswith(WAL_STORE_ROOT)
    }
    if found != objects.wal_store_ranges(stream.stream_id):
        raise broken(f"stream {stream.stream_id}: the index of ranges in WAL stores is wrong")


def _check_objects(objects: ObjectsImage, nodes: NodesImage, refs: Counter[ObjectId]) -> None:
    for state in objects:
        if state.refs != refs[state.object_id]:
            raise broken(
                f"object {state.object_id} counts {state.refs} references instead of"
                f" {refs[state.object_id]}"
            )
        if state.refs and state.phase != ObjectPhase.COMMITTED:
            raise broken(f"object {state.object_id} is referenced but {state.phase.name}")
        if (
            state.wal is not None
            and state.phase == ObjectPhase.DESTROYED
            and not nodes.wal_is_past(state.wal, state.wal_sequence)
        ):
            raise broken(
                f"object {state.object_id} is destroyed, but recovery of {state.wal} would need"
                f" slot {state.wal_sequence}"
            )
    for object_id in refs:
        if objects.get(object_id) is None:
            raise broken(f"object {object_id} is referenced but does not exist")
    unreferenced = {
        state.object_id
        for state in objects
        if state.phase == ObjectPhase.COMMITTED and not state.refs
    }
    if unreferenced != {state.object_id for state in objects.unreferenced()}:
        raise broken("the set of unreferenced objects is wrong")


def _check_owners(streams: StreamsImage, nodes: NodesImage) -> None:
    opened_by = {owner: streams.opened_by(owner) for owner in {stream.owner for stream in streams}}
    for stream in streams:
        if stream.opened != (stream.stream_id in opened_by[stream.owner]):
            raise broken(f"stream {stream.stream_id}: the index of owners is wrong")
        wal = nodes.wal(stream.owner)
        if stream.opened and (wal is None or wal.ended):
            raise broken(
                f"stream {stream.stream_id} is open for {stream.owner}, whose WAL has ended"
            )


def _check_partitions(
    topics: TopicsImage, streams: StreamsImage, nodes: NodesImage
) -> set[StreamId]:
    """Check the partitions of all topics, and return their streams."""
    led = {key: leader for leader, keys in topics.leaders().items() for key in keys}
    owned: set[StreamId] = set()
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            if partition.partition != index or led.pop(
                PartitionKey(topic.topic_id, index), None
            ) != leader_of(partition):
                raise broken(f"{topic.name}-{index}: the index of leaders is wrong")
            _check_partition(topic.name, partition, streams, nodes)
            owned.update(partition.stream_ids)
    if led:
        raise broken(f"the index of leaders contains partitions that do not exist: {led}")
    return owned


def _check_frozen(
    frozen_topics: FrozenTopicsImage, topics: TopicsImage, streams: StreamsImage
) -> set[StreamId]:
    """Check the partitions of all frozen topics, and return their streams."""
    owned: set[StreamId] = set()
    for topic in frozen_topics:
        if topics.by_id(topic.topic_id) is not None:
            raise broken(f"topic {topic.full_name} is frozen but served")
        for index, partition in enumerate(topic.partitions):
            name = f"{topic.full_name}-{index}"
            if partition.partition != index or leader_of(partition) != NO_LEADER:
                raise broken(f"{name} is frozen but has a leader, or another number")
            for stream in _streams_of(name, partition, streams):
                if stream.opened and not topic.is_deleted:
                    raise broken(f"{name}: stream {stream.stream_id} of a snapshot is open")
            owned.update(partition.stream_ids)
    count = sum(len(topic.partitions) for topic in frozen_topics if not topic.is_deleted)
    if count != frozen_topics.snapshot_partition_count:
        raise broken(
            f"snapshots have {count} partitions, {frozen_topics.snapshot_partition_count} are"
            " counted"
        )
    return owned


def _streams_of(
    name: str, partition: PartitionMetadata, streams: StreamsImage
) -> Iterator[StreamState]:
    for stream_id in partition.stream_ids:
        stream = streams.get(stream_id)
        if stream is None or (stream.topic_id, stream.partition) != (
            partition.topic_id,
            partition.partition,
        ):
            raise broken(f"{name}: stream {stream_id} is missing or belongs to another partition")
        yield stream


def _check_partition(
    topic: str, partition: PartitionMetadata, streams: StreamsImage, nodes: NodesImage
) -> None:
    name = f"{topic}-{partition.partition}"
    if len(set(partition.replicas)) != len(partition.replicas):
        raise broken(f"{name}: candidates repeat")
    leader = leader_of(partition)
    wal = nodes.wal(leader)
    if leader != NO_LEADER and (
        wal is None or wal.ended or partition.leader not in partition.replicas
    ):
        raise broken(f"{name} is led by {leader}, whose WAL has ended, or which is not a candidate")
    if partition.target_replicas is not None and (
        leader != NO_LEADER or partition.move is None or not partition.target_replicas
    ):
        raise broken(f"{name} is moving but led by {leader}, or its move is not recorded")
    for stream in _streams_of(name, partition, streams):
        if stream.opened and leader == NO_LEADER and partition.target_replicas is None:
            raise broken(f"{name}: stream {stream.stream_id} is open without a leader or a move")
        if stream.epoch > partition.leader_epoch:
            raise broken(
                f"{name}: stream {stream.stream_id} has epoch {stream.epoch}, the partition"
                f" {partition.leader_epoch}"
            )


def check_counters(
    streams: StreamsImage, next_stream_id: StreamId, objects: ObjectsImage, next_object_id: ObjectId
) -> None:
    """Check that no id that is in use can be assigned again."""
    if any(stream.stream_id >= next_stream_id for stream in streams):
        raise broken("a stream id would be assigned twice")
    if any(state.object_id >= next_object_id for state in objects):
        raise broken("an object id would be assigned twice")


def check_object_counts(objects: ObjectsImage) -> None:
    """Check that the object counts for metrics match the objects."""
    committed = [state for state in objects if state.phase == ObjectPhase.COMMITTED]
    roles = Counter(state.role for state in committed)
    if any(roles[role] != objects.committed_count(role) for role in ObjectRole):
        raise broken("the count of committed objects is wrong")
    if objects.committed_bytes != sum(state.size_bytes for state in committed) or objects.count(
        ObjectPhase.COMMITTED
    ) != len(committed):
        raise broken("the byte count of committed objects is wrong")
    in_wal_stores = sum(
        state.size_bytes
        for state in committed
        if state.refs and state.key.startswith(WAL_STORE_ROOT)
    )
    if objects.wal_store_bytes != in_wal_stores:
        raise broken("the byte count of objects in WAL stores is wrong")


def check_epochs(nodes: NodesImage, next_node_epoch: NodeEpoch) -> None:
    if any(wal.writer.node_epoch >= next_node_epoch for wal in nodes.wals()):
        raise broken("a node epoch would be assigned twice")

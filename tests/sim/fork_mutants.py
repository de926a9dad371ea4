"""Planted bugs in forks, for `tests.sim.mutants`.

Not planted: a fork that keeps the sequence numbers of its source's producers. They matter only if a
transaction was open at the fork and the same producer writes to the fork.
tests/unit/broker/test_forks.py finds it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.broker.handlers.topics import forks, snapshot_groups
from penstock.broker.partition import fork_point, opener
from penstock.controller.api.messages import ForkedPartition, TopicFork
from penstock.controller.managers import forks as fork_manager
from penstock.controller.metadata import invariants, snapshot
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectsImage
from penstock.controller.metadata.records import StreamForked
from penstock.stream.ports import OWN_STREAM, CommittedBorder
from penstock.stream.read.stream_reader import StreamReader

Patch = tuple[Any, str, Any]


def _without_references(is_concerned: Callable[[MetadataImage, StreamForked], bool]) -> list[Patch]:
    """Does not count some forks as references to their objects. The image does not detect that."""

    def forked(self: MetadataImage, record: StreamForked) -> None:
        for entry in self.streams.fork(record):
            self.objects.refer(entry.object_id, record.stream_id, entry.start_offset)
            if is_concerned(self, record):
                self.objects.release(entry.object_id, record.stream_id, entry.start_offset)

    real = ObjectsImage.release

    def release(self: ObjectsImage, object_id: Any, stream_id: Any, start: Any) -> None:
        state = self._objects.get(object_id)
        if state is not None and state.refs > 0:
            real(self, object_id, stream_id, start)

    return [
        (MetadataImage, "_stream_forked", forked),
        (ObjectsImage, "release", release),
        (invariants, "_check_objects", lambda *_: None),
    ]


def _forks_do_not_hold_their_objects() -> list[Patch]:
    """An object is destroyed when its source drops it, although a fork references it."""
    return _without_references(lambda image, record: True)


def _snapshots_do_not_hold_their_objects() -> list[Patch]:
    """An object is destroyed when its source drops it, although a snapshot references it."""
    return _without_references(
        lambda image, record: image.streams.known(record.stream_id).topic_id in image.frozen_topics
    )


def _snapshots_without_group_offsets() -> list[Patch]:
    async def committed_offsets(*_: Any) -> dict[str, Any]:
        return {}

    return [(snapshot_groups, "committed_offsets", committed_offsets)]


def _inherited_transactions_stay_open() -> list[Patch]:
    return [(opener, "end_inherited", lambda storage, partition, now_ms: None)]


def _inherited_transactions_not_looked_for() -> list[Patch]:
    """Transactions open at the fork point are read as committed."""
    real = fork_point.find_fork_point

    async def find(*args: Any) -> Any:
        found = await real(*args)
        return msgspec.structs.replace(found, scan_offset=found.end_offset)

    return [(forks, "find_fork_point", find)]


def _snapshots_forget_the_stored_stream() -> list[Patch]:
    """A controller that loads a snapshot looks for the fork's own stream in objects of
    the source.
    """
    real = snapshot.RangeEntry

    def entry(*args: Any) -> Any:
        return real(*args[:6], OWN_STREAM)

    return [(snapshot, "RangeEntry", entry)]


def _batches_cut_at_the_fork() -> list[Patch]:
    async def border(self: StreamReader, stream_id: Any, offset: Any) -> CommittedBorder:
        found = await real(self, stream_id, offset)
        return found._replace(offset=offset)

    real = StreamReader.committed_border
    return [(StreamReader, "committed_border", border)]


def _snapshots_forget_open_transactions() -> list[Patch]:
    """Transactions open at the time of a snapshot are committed in its forks."""
    real = forks.fork_of_snapshot

    def forked(*args: Any) -> Any:
        found = real(*args)
        if found is None:
            return None
        points = [
            msgspec.structs.replace(point, scan_offset=point.end_offset)
            for point in found.partitions
        ]
        return msgspec.structs.replace(found, partitions=points)

    return [(forks, "fork_of_snapshot", forked)]


def _snapshots_of_the_committed_metadata() -> list[Patch]:
    """A snapshot ends at the end of the uploads, and lacks records that are only in the WAL."""

    async def planned(node: Any, requests: Any, deadline: float) -> Any:
        return [_left_at_the_committed_end(node, request) for request in requests]

    return [(forks, "plan_forks", planned)]


def _left_at_the_committed_end(node: Any, request: Any) -> Any:
    topic, streams = node.image.topics.by_name(request.source), node.image.streams
    ends = [
        [streams.known(stream_id).end_offset for stream_id in record.stream_ids[1:]]
        for record in topic.partitions
    ]
    points = [
        ForkedPartition(end_offset=end, scan_offset=0, txn_end_offset=min(end, txn_end))
        for end, txn_end in ends
    ]
    return TopicFork(source_topic_id=topic.topic_id, partitions=points)


def _forks_below_cleaned_ranges() -> list[Patch]:
    """The controller creates a fork below the end of a cleaner pass."""
    return [(fork_manager, "is_cleaned_beyond", lambda stream, offset: False)]


FORK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "snapshots_do_not_hold_their_objects": _snapshots_do_not_hold_their_objects,
    "snapshots_without_group_offsets": _snapshots_without_group_offsets,
    "forks_do_not_hold_their_objects": _forks_do_not_hold_their_objects,
    "inherited_transactions_stay_open": _inherited_transactions_stay_open,
    "inherited_transactions_not_looked_for": _inherited_transactions_not_looked_for,
    "snapshots_forget_the_stored_stream": _snapshots_forget_the_stored_stream,
    "batches_cut_at_the_fork": _batches_cut_at_the_fork,
    "snapshots_forget_open_transactions": _snapshots_forget_open_transactions,
    "forks_below_cleaned_ranges": _forks_below_cleaned_ranges,
    "snapshots_of_the_committed_metadata": _snapshots_of_the_committed_metadata,
}

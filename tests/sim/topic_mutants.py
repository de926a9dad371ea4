"""Planted bugs in topics that are deleted, recreated or get partitions, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import msgspec

import penstock.controller.managers.topics as topics
from penstock.broker.groups.offsets.offsets import GroupOffsets
from penstock.broker.handlers.fetch.fetch_call import FetchCall
from penstock.broker.partition.manager import PartitionManager
from penstock.controller.active import periodic as ticks
from penstock.controller.api.messages import NewPartitions
from penstock.controller.managers import deleted_topics
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord, StreamRemoved

Patch = tuple[Any, str, Any]


def _deleted_topic_still_served() -> list[Patch]:
    """A partition is closed when it gets another leader, but not when its topic is deleted."""
    real = PartitionManager._stop_if_stale

    def stop_if_stale(self: Any, hosted: Any, record: Any) -> bool:
        return (
            False
            if self._image().topics.by_id(hosted.key.topic_id) is None
            else real(self, hosted, record)
        )

    return [(PartitionManager, "_stop_if_stale", stop_if_stale)]


def _reads_find_the_topic_by_its_name() -> list[Patch]:
    """A reader of a deleted topic gets the records of the topic that now has its name."""
    real = FetchCall.evaluate
    names: dict[Any, str] = {}

    def evaluate(self: Any) -> None:
        topics = self._node.image.topics
        names.update({topic.topic_id: topic.name for topic in topics})
        for target in self._targets:
            if (
                topics.by_id(target.topic_id) is None
                and (other := topics.by_name(names.get(target.topic_id, ""))) is not None
            ):
                target.topic_id = other.topic_id
        real(self)

    return [(FetchCall, "evaluate", evaluate)]


def _deletion_keeps_streams() -> list[Patch]:
    """Data streams of partitions after the first are kept."""
    real = deleted_topics._removal

    def removal(topic: Any) -> list[Any]:
        kept = {partition.data_stream_id for partition in topic.partitions[1:]}
        return [
            record
            for record in real(topic)
            if not (isinstance(record, StreamRemoved) and record.stream_id in kept)
        ]

    return [(deleted_topics, "_removal", removal)]


def _deleted_topic_removed_before_its_grace_is_over() -> list[Patch]:
    """The deletion ignores the age."""
    real = deleted_topics.remove_deleted
    return [(ticks, "remove_deleted", lambda image, _, limit: real(image, lambda _: 1e9, limit))]


def _deleted_topic_gives_up_its_objects() -> list[Patch]:
    """The streams are kept, but the references of their ranges are removed."""
    real = MetadataImage._topic_deleted

    def topic_deleted(self: Any, record: Any) -> None:
        real(self, record)
        for partition in self.frozen_topics.by_id(record.topic_id).partitions:
            for entry in self.streams.known(partition.data_stream_id).entries:
                self.objects.release(entry.object_id, partition.data_stream_id, entry.start_offset)

    return [(MetadataImage, "_topic_deleted", topic_deleted)]


def _undelete_keeps_the_leader_epoch() -> list[Patch]:
    """The first leader of a restored topic has the last leader epoch from before the deletion."""
    real = deleted_topics.Undeletions._first_record

    def first_record(self: Any, deleted: PartitionRecord) -> PartitionRecord:
        record = real(self, deleted)
        return (
            record
            if record.leader < 0
            else msgspec.structs.replace(record, leader_epoch=deleted.leader_epoch)
        )

    return [(deleted_topics.Undeletions, "_first_record", first_record)]


def _undelete_does_not_wait_for_the_close() -> list[Patch]:
    """A restored topic has a leader immediately, whichever broker has its streams open."""

    def first_record(self: Any, deleted: PartitionRecord) -> PartitionRecord:
        return self._elector.elect(deleted, self._now_ms)

    return [(deleted_topics.Undeletions, "_first_record", first_record)]


def _deletion_keeps_objects() -> list[Patch]:
    """The streams are removed, but the references of their ranges are kept."""
    return [
        (
            MetadataImage,
            "_stream_removed",
            lambda self, record: self.streams.remove(record.stream_id) and None,
        )
    ]


def _added_partitions_share_streams() -> list[Patch]:
    """An added partition writes to the streams of the first one."""
    real = topics._grow

    def grow(image: Any, request: NewPartitions, maker: Any) -> None:
        first = len(maker.records)
        real(image, request, maker)
        topic = image.topics.by_name(request.name)
        for at, record in enumerate(maker.records[first:], first):
            if isinstance(record, PartitionRecord):
                maker.records[at] = record.__replace__(
                    data_stream_id=topic.partitions[0].data_stream_id
                )

    return [(topics, "_grow", grow)]


def _repeated_growth_adds_again() -> list[Patch]:
    """If the total count of partitions already exists, it is taken for the number to add."""
    real = topics._grow

    def grow(image: Any, request: NewPartitions, maker: Any) -> None:
        topic = image.topics.by_name(request.name)
        present = 0 if topic is None else len(topic.partitions)
        real(
            image,
            NewPartitions(
                name=request.name,
                total=request.total + (present if present >= request.total else 0),
            ),
            maker,
        )

    return [(topics, "_grow", grow)]


def _offsets_kept_by_name() -> list[Patch]:
    """A new topic gets the committed offsets of another one with its name."""
    return [(GroupOffsets, "of_topic", lambda self, key, _topic_id: self.committed.get(key))]


TOPIC_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "deleted_topic_still_served": _deleted_topic_still_served,
    "reads_find_the_topic_by_its_name": _reads_find_the_topic_by_its_name,
    "deletion_keeps_streams": _deletion_keeps_streams,
    "deletion_keeps_objects": _deletion_keeps_objects,
    "deleted_topic_removed_before_its_grace_is_over": (
        _deleted_topic_removed_before_its_grace_is_over
    ),
    "deleted_topic_gives_up_its_objects": _deleted_topic_gives_up_its_objects,
    "undelete_keeps_the_leader_epoch": _undelete_keeps_the_leader_epoch,
    "undelete_does_not_wait_for_the_close": _undelete_does_not_wait_for_the_close,
    "added_partitions_share_streams": _added_partitions_share_streams,
    "repeated_growth_adds_again": _repeated_growth_adds_again,
    "offsets_kept_by_name": _offsets_kept_by_name,
}

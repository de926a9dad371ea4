"""Plan forks: topics that start with the log of another topic and share its objects.

A fork and its source share objects but not streams, so each of them is moved, trimmed, compacted
and deleted separately. A plan contains one record per stream. Applying a record takes about 2 us
per range of the source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.base.ids import Offset, StreamEpoch, StreamId
from penstock.controller.api.messages import NewTopic, Status, TopicFork
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.records import ForkPoint, PartitionRecord, StreamForked
from penstock.controller.metadata.streams import is_cleaned_beyond
from penstock.controller.metadata.topic_configs import FORK_SOURCE, MIRROR_FINISHED, MIRROR_SOURCE

EPOCHS_MAX: Final = 8
"""Maximum number of leader epochs in a fork point, so that 10,000 partitions fit into a
transaction. The newest ones are kept; to clients, older epochs end where the first known one
starts, which is never too early.
"""


@dataclass(frozen=True, slots=True)
class Fork:
    """One partition of a fork."""

    source: PartitionRecord
    point: ForkPoint
    txn_end_offset: Offset
    with_kept: bool = False
    """Whether the fork starts with retained records that DeleteRecords removed from the source."""

    @property
    def leader_epoch(self) -> StreamEpoch:
        return StreamEpoch(self.source.leader_epoch + 1)

    def stream_records(self, data: StreamId, txn: StreamId) -> list[StreamForked]:
        """Return the records that copy the source's log to the new streams."""
        return [
            StreamForked(data, self.source.data_stream_id, self.point.end_offset, self.with_kept),
            StreamForked(txn, self.source.txn_stream_id, self.txn_end_offset, self.with_kept),
        ]


@dataclass(frozen=True, slots=True)
class Source:
    """The source topic of a fork: a regular topic or a snapshot topic."""

    topic_id: UUID
    name: str
    configs: Mapping[str, str]
    partitions: Sequence[PartitionRecord]

    @staticmethod
    def find(image: MetadataImage, topic_id: UUID) -> "Source | None":
        topic = image.topics.by_id(topic_id)
        if topic is not None:
            configs = image.configs.topic(topic.name)
            return Source(topic_id, topic.name, configs, topic.partitions)
        frozen = image.frozen_topics.by_id(topic_id)
        if frozen is None or frozen.is_deleted:
            return None
        return Source(topic_id, frozen.full_name, frozen.configs, frozen.partitions)


def configs_of(image: MetadataImage, topic: NewTopic) -> dict[str, str]:
    """Return the configs of a new topic. Configs in the request override configs of the source. A
    fork of a mirror is not a mirror.
    """
    source = None if topic.fork is None else Source.find(image, topic.fork.source_topic_id)
    configs = {} if source is None else dict(source.configs)
    if source is not None:
        configs[FORK_SOURCE] = source.name
        configs.pop(MIRROR_SOURCE, None)
        configs.pop(MIRROR_FINISHED, None)
    for name, value in topic.configs.items():
        if value is not None:
            configs[name] = value
    return configs


def plan_forks(image: MetadataImage, topic: NewTopic) -> list[Fork] | None:
    """Return the partitions of a fork, or None if the topic is not a fork. The leader epoch of a
    fork starts above all leader epochs of the source, because the copied batches contain the epochs
    of the source. Refuses with UNKNOWN_TOPIC (the source was deleted), INVALID_PARTITIONS (its
    number of partitions has changed) and OFFSET_NOT_MATCHED (a log ends before its fork point,
    starts after it, or was compacted past it).
    """
    wanted = topic.fork
    named = topic.configs.get(FORK_SOURCE)
    if wanted is None:
        if named:
            detail = f"config {FORK_SOURCE}={named!r} without the offsets of a fork"
            raise Refused(Status.INVALID_REQUEST, detail)
        return None
    source = Source.find(image, wanted.source_topic_id)
    if source is None or named not in (None, source.name):
        raise Refused(Status.UNKNOWN_TOPIC, f"there is no topic {named or 'of this id'!r} to fork")
    if source.name in INTERNAL_TOPICS:
        detail = (
            f"topic {source.name!r} holds the state of coordinators: it cannot be forked or be"
            " part of a snapshot"
        )
        raise Refused(Status.INVALID_TOPIC_NAME, detail)
    if len(wanted.partitions) != len(source.partitions):
        detail = (
            f"topic {source.name!r} has {len(source.partitions)} partitions now, the fork was"
            f" prepared for {len(wanted.partitions)}: try again"
        )
        raise Refused(Status.INVALID_PARTITIONS, detail)
    if wanted.with_kept and not any(
        image.streams.known(partition.data_stream_id).kept for partition in source.partitions
    ):
        detail = (
            f"topic {source.name!r} has no deleted records that can come back: none were deleted by"
            " request, or their grace is over"
        )
        raise Refused(Status.INVALID_CONFIG, detail)
    return _forks(image, source, wanted)


def _forks(image: MetadataImage, source: Source, wanted: TopicFork) -> list[Fork]:
    forks: list[Fork] = []
    for partition, item in zip(source.partitions, wanted.partitions, strict=True):
        name = f"{source.name}-{partition.partition}"
        for stream_id, end in (
            (partition.data_stream_id, item.end_offset),
            (partition.txn_stream_id, item.txn_end_offset),
        ):
            committed = image.streams.known(stream_id).end_offset
            if not 0 <= end <= committed:
                detail = f"{name}: a fork at offset {end}, but only {committed} is committed"
                raise Refused(Status.OFFSET_NOT_MATCHED, detail)
        data = image.streams.known(partition.data_stream_id)
        if item.end_offset < data.start_offset:
            detail = (
                f"{name}: a fork at offset {item.end_offset}, but its log begins at"
                f" {data.start_offset}"
            )
            raise Refused(Status.OFFSET_NOT_MATCHED, detail)
        if is_cleaned_beyond(data, item.end_offset):
            detail = (
                f"{name}: log compaction has reached offset {data.cleaned_end}, past the fork at"
                f" offset {item.end_offset}, and may have removed records that the fork needs"
            )
            raise Refused(Status.OFFSET_NOT_MATCHED, detail)
        # Nothing below the log start is read, so a fork point at the log start may be inside a
        # batch.
        last = data.find(max(data.start_offset, Offset(item.end_offset - 1)), item.end_offset, 1)
        if last and last[0].end_offset > item.end_offset and last[0].object_id != item.object_id:
            detail = (
                f"{name}: the records at offset {item.end_offset} were compacted in the meantime"
            )
            raise Refused(Status.OFFSET_NOT_MATCHED, detail)
        if not 0 <= item.scan_offset <= item.end_offset >= item.txn_end_offset:
            detail = f"{name}: the offsets {item} contradict each other"
            raise Refused(Status.INVALID_REQUEST, detail)
        scan_offset = item.scan_offset
        if wanted.with_kept and scan_offset <= data.start_offset:
            # A position at the log start means that the position is unknown, so all records must be
            # scanned.
            scan_offset = data.kept_offset
        epochs = tuple(item.epochs[-EPOCHS_MAX:])
        point = ForkPoint(source.topic_id, item.end_offset, scan_offset, epochs)
        forks.append(Fork(partition, point, item.txn_end_offset, wanted.with_kept))
    return forks

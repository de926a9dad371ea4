"""Delete topics, retain them for a grace period, restore them, and remove them permanently."""

from typing import Final
from uuid import UUID

import msgspec

from penstock.base.ids import Millis, StreamEpoch
from penstock.controller.api.messages import (
    PARTITIONS_PER_REQUEST_MAX,
    DeleteTopics,
    ItemResult,
    ItemResults,
    NewTopic,
    Status,
)
from penstock.controller.managers.deleted_records import grace_ms_of
from penstock.controller.managers.elections import Elector
from penstock.controller.managers.objects import Age
from penstock.controller.managers.result import CountPartitions, Refused, Result, count_nothing
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.records import (
    FrozenTopicRemoved,
    Move,
    PartitionRecord,
    Record,
    StreamRemoved,
    TopicDeleted,
    TopicRemoved,
    TopicUndeleted,
)
from penstock.controller.metadata.topic_configs import UNDELETE
from penstock.controller.metadata.topics import TopicState

_KEPT: Final = (
    "topic {name!r} holds the state of coordinators and cannot be deleted; delete unused"
    " consumer groups instead"
)


def delete_topics(
    image: MetadataImage,
    request: DeleteTopics,
    now_ms: Millis,
    *,
    grace_ms: int,
    count: CountPartitions = count_nothing,
) -> Result[ItemResults]:
    """Delete topics. They can be restored during their grace period. Topics without a grace period
    are removed with all their streams, as are deleted topics that the request lists for removal.
    Their owners detect that the streams were removed. Objects are destroyed when no stream
    references them.

    grace_ms: grace period of topics without their own. count: counts the partitions of each topic
    toward the client's quota.

    A transaction deletes at most `PARTITIONS_PER_REQUEST_MAX` partitions. Additional topics fail
    with CONTROLLER_BUSY and can be deleted by another request.
    """
    deletion = _Deletion(image, now_ms, grace_ms, count)
    purged_ids = frozenset(request.purged_ids)
    items: list[ItemResult] = []
    for topic_id in request.topic_ids:
        try:
            deletion.add(topic_id, is_purge=topic_id in purged_ids)
            items.append(ItemResult())
        except Refused as refused:
            items.append(ItemResult(status=refused.status, detail=refused.detail))
    return Result(deletion.records, value=ItemResults(items=items))


class _Deletion:
    """Collects the deletions of one transaction."""

    def __init__(
        self, image: MetadataImage, now_ms: Millis, grace_ms: int, count: CountPartitions
    ) -> None:
        self.records: list[Record] = []
        self._count = count
        self._image = image
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._seen: set[UUID] = set()
        self._partition_count = 0

    def add(self, topic_id: UUID, *, is_purge: bool) -> None:
        topic = self._find(topic_id, is_purge=is_purge)
        if topic is None:
            raise Refused(Status.UNKNOWN_TOPIC, f"no topic has the id {topic_id}")
        if topic.name in INTERNAL_TOPICS:
            raise Refused(Status.INVALID_TOPIC_NAME, _KEPT.format(name=topic.name))
        if topic_id in self._seen:
            raise Refused(
                Status.DUPLICATE_IN_REQUEST, f"topic {topic.name!r} is in the request twice"
            )
        count = self._partition_count + len(topic.partitions)
        if self._partition_count and count > PARTITIONS_PER_REQUEST_MAX:
            detail = (
                f"more than {PARTITIONS_PER_REQUEST_MAX} partitions in one request: delete"
                f" {topic.name!r} with the next one"
            )
            raise Refused(Status.CONTROLLER_BUSY, detail)
        self._count(len(topic.partitions))
        self._seen.add(topic_id)
        self._partition_count = count
        self.records += self._records(topic)

    def _find(self, topic_id: UUID, *, is_purge: bool) -> TopicState | FrozenTopic | None:
        frozen = self._image.frozen_topics.by_id(topic_id)
        if frozen is not None and (is_purge or not frozen.is_deleted):
            return frozen
        return None if is_purge else self._image.topics.by_id(topic_id)

    def _records(self, topic: TopicState | FrozenTopic) -> list[Record]:
        keep_ms = grace_ms_of(self._image, topic.topic_id, self._grace_ms)
        if isinstance(topic, TopicState) and keep_ms:
            return [TopicDeleted(topic.topic_id, self._now_ms, keep_ms, self._image.end_offset)]
        return _removal(topic)


def remove_deleted(image: MetadataImage, age_s: Age, partitions_max: int) -> list[Record]:
    """Remove the deleted topics whose grace period has ended, and the oldest deleted topics while
    the total number of their partitions exceeds `partitions_max`. Each call removes a limited
    number; call again while it returns records.
    """
    topics = sorted(image.frozen_topics.deleted(), key=lambda topic: topic.offset)
    excess = sum(len(topic.partitions) for topic in topics) - partitions_max
    records: list[Record] = []
    partition_count = 0
    for topic in topics:
        if excess <= 0 and age_s(topic.offset) * 1_000 < topic.keep_ms:
            continue
        count = len(topic.partitions)
        if partition_count and partition_count + count > PARTITIONS_PER_REQUEST_MAX:
            break
        partition_count += count
        excess -= count
        records += _removal(topic)
    return records


def find_deleted(image: MetadataImage, wanted: str) -> FrozenTopic | None:
    """Return the deleted topic with this id, otherwise the last one that was deleted with this
    name.
    """
    try:
        found = image.frozen_topics.deleted_by_id(UUID(wanted))
    except ValueError:
        found = None
    named = (topic for topic in image.frozen_topics.deleted() if topic.name == wanted)
    return found or max(named, key=lambda topic: topic.offset, default=None)


class Undeletions:
    """Restores deleted topics in one transaction. A restored topic keeps its id and streams. It
    gets a leader with the next leader epoch once its streams are closed.
    """

    def __init__(
        self, image: MetadataImage, elector: Elector, now_ms: Millis, move_timeout_ms: int
    ) -> None:
        """move_timeout_ms: timeout for partitions that their last owner still has open."""
        self._image = image
        self._elector = elector
        self._now_ms = now_ms
        self._deadline_ms = Millis(now_ms + move_timeout_ms)
        self._seen: set[UUID] = set()

    def check(self, topic: NewTopic, wanted: str) -> FrozenTopic:
        """Return the deleted topic that `topic` restores. Raises Refused if it cannot be
        restored.
        """
        if self._image.topics.by_name(topic.name) is not None:
            detail = f"topic {topic.name!r} exists: undelete {wanted!r} under another name"
            raise Refused(Status.TOPIC_EXISTS, detail)
        found = find_deleted(self._image, wanted)
        if found is None:
            detail = (
                f"no deleted topic has the name or id {wanted!r}: it was never there, or its grace"
                " is over"
            )
            raise Refused(Status.UNKNOWN_TOPIC, detail)
        if found.topic_id in self._seen:
            detail = f"the request undeletes the topic {wanted!r} twice"
            raise Refused(Status.DUPLICATE_IN_REQUEST, detail)
        _check_request(topic, len(found.partitions))
        return found

    def records(self, topic: FrozenTopic, name: str) -> list[Record]:
        """Return the records that restore the topic as `name`."""
        self._seen.add(topic.topic_id)
        return [TopicUndeleted(topic.topic_id, name), *map(self._first_record, topic.partitions)]

    def _first_record(self, deleted: PartitionRecord) -> PartitionRecord:
        """Return the record of a restored partition, with a new leader. If a broker, dead or alive,
        still has the streams open, the partition moves away from it, and the transaction that
        closes the streams elects the leader.
        """
        partition = msgspec.structs.replace(
            deleted, undeleted_epoch=StreamEpoch(deleted.leader_epoch + 1)
        )
        streams = map(self._image.streams.get, partition.stream_ids)
        owner = next(
            (stream.owner for stream in streams if stream is not None and stream.opened), None
        )
        if owner is None:
            return self._elector.elect(partition, self._now_ms)
        target = self._elector.choose(partition.replicas).node_id
        return msgspec.structs.replace(
            partition,
            target_replicas=partition.replicas,
            move=Move(owner.node_id, target, self._now_ms, self._deadline_ms),
        )


def _check_request(topic: NewTopic, count: int) -> None:
    """Reject options that do not apply to restored topics. count: number of the topic's
    partitions.
    """
    if topic.name in INTERNAL_TOPICS:
        raise Refused(
            Status.INVALID_TOPIC_NAME,
            f"topic {topic.name!r} holds the state of coordinators: undelete under another name",
        )
    others = sorted(name for name in topic.configs if name != UNDELETE)
    if others or topic.fork is not None:
        detail = (
            f"{UNDELETE} restores a topic with its configs: omit"
            f" {', '.join(others) or 'the fork'} and alter configs afterwards"
        )
        raise Refused(Status.INVALID_CONFIG, detail)
    if topic.partitions not in (-1, count):
        detail = (
            f"{UNDELETE} restores all {count} partitions, not {topic.partitions}: omit the"
            " number, or use -1"
        )
        raise Refused(Status.INVALID_PARTITIONS, detail)
    if topic.replication_factor != -1 or topic.assignment is not None:
        detail = (
            f"{UNDELETE} also restores the leader candidates: omit the replication factor and the"
            " assignment, or use -1"
        )
        raise Refused(Status.INVALID_REQUEST, detail)


def _removal(topic: TopicState | FrozenTopic) -> list[Record]:
    """Return the records that permanently remove a topic, which may be deleted already."""
    records: list[Record] = [
        StreamRemoved(stream_id)
        for partition in topic.partitions
        for stream_id in partition.stream_ids
    ]
    if isinstance(topic, TopicState):
        return [*records, TopicRemoved(topic.topic_id)]
    return [*records, FrozenTopicRemoved(topic.topic_id)]

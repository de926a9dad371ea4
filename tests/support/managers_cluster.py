"""A controller without I/O: it applies the results of the managers to one image and checks the
image's invariants after each transaction.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.active.record_ages import Timeline
from penstock.controller.api.messages import (
    AlterReassignments,
    CloseItem,
    Commit,
    CommitObject,
    CommitRecovered,
    CreatedTopic,
    CreateTopics,
    DeleteTopics,
    ItemResult,
    NewTopic,
    OpenedStreamItem,
    OpenStreamItem,
    OpenStreams,
    PartitionTarget,
    PreparedItem,
    PrepareObjects,
    Progress,
    RegisterBroker,
    ReplacedItem,
    Status,
    TopicsCreated,
    TrimStream,
)
from penstock.controller.managers import (
    commits,
    deleted_topics,
    failover,
    nodes,
    objects,
    reassign,
    streams,
    topics,
)
from penstock.controller.managers.deleted_records import drop_kept
from penstock.controller.managers.elections import elect_leaderless
from penstock.controller.managers.result import Result
from penstock.controller.metadata.codec import decode_record, encode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectState
from penstock.controller.metadata.records import (
    ClusterRecord,
    MetadataOffset,
    PartitionRecord,
    RangeEntry,
    Record,
)
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.metadata.topics import PartitionKey, leader_of
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole

T = TypeVar("T")
MOVE_TIMEOUT_MS = 10_000
DELETED_PARTITIONS_MAX = 8
"""A limit that tests do not exceed with one deletion, except tests of the limit itself."""


def part(stream_id: int, start: int, end: int, records: int | None = None) -> RangeEntry:
    return RangeEntry(
        StreamId(stream_id),
        Offset(start),
        Offset(end),
        end - start if records is None else records,
        10 * (end - start),
        Millis(end),
    )


def slot(writer: BrokerIncarnation, sequence: int, *ranges: RangeEntry) -> CommitObject:
    return CommitObject(
        object_id=None,
        key=wal_key(writer, WalSequence(sequence), IN_STORE),
        role=ObjectRole.WAL,
        size_bytes=100,
        ranges=list(ranges),
    )


def uploaded(item: PreparedItem, *ranges: RangeEntry) -> CommitObject:
    return CommitObject(
        object_id=item.object_id,
        key=item.key,
        role=ObjectRole.STREAM_SET,
        size_bytes=100,
        ranges=list(ranges),
    )


def replaced(stream_id: int, object_id: int, start: int, end: int) -> ReplacedItem:
    return ReplacedItem(
        stream_id=StreamId(stream_id),
        object_id=ObjectId(object_id),
        start_offset=Offset(start),
        end_offset=Offset(end),
    )


def close(stream_id: int, epoch: int, end: int) -> CloseItem:
    return CloseItem(
        stream_id=StreamId(stream_id), epoch=StreamEpoch(epoch), end_offset=Offset(end)
    )


def registration(number: int, **changes: Any) -> RegisterBroker:
    fields = {
        "node_id": NodeId(number),
        "incarnation_id": UUID(int=1_000 + number),
        "host": "h",
        "port": 9092,
        "machine_host": "m",
        **changes,
    }
    return RegisterBroker(**fields)


def snapshot_of(image: MetadataImage) -> MetadataImage:
    """Return the image as loaded by another process, from encoded bytes."""
    copy = MetadataImage()
    copy.load(decode_record(encode_record(record)) for record in ImageCopy.of(image).records())
    copy.loaded(image.end_offset)
    return copy


class ManagersCluster:
    def __init__(self) -> None:
        self.image = MetadataImage()
        self.now_ms = Millis(1_000)
        self.live: set[NodeId] = set()
        self.uuids = 0
        self.partitions_max: int | None = None
        """The cluster's partition limit for created topics."""
        self.timeline = Timeline()
        self.moves: dict[reassign.MoveUnderWay, int] = {}
        self.apply([ClusterRecord("test")])

    def new_uuid(self) -> UUID:
        self.uuids += 1
        return UUID(int=self.uuids)

    def apply(self, records: Sequence[Record]) -> None:
        self.image.apply_all(records)
        self.image.check_invariants()
        self.timeline.note(self.image.end_offset, self.now_ms / 1_000)
        self.moves = {
            move: self.moves.get(move, self.now_ms) for move in reassign.moves_under_way(self.image)
        }

    def age_s(self, offset: MetadataOffset) -> float:
        return self.timeline.age_s(offset, self.now_ms / 1_000)

    def deletable(self, after_ms: int, late_ms: int, limit: int = 10) -> list[ObjectState]:
        """Return what may be deleted within this many milliseconds, with a read grace period of a
        second.
        """
        later_s = (self.now_ms + after_ms) / 1_000
        return objects.deletable(
            self.image, lambda offset: self.timeline.age_s(offset, later_s), 1_000, late_ms, limit
        )

    def overdue(self) -> dict[BrokerIncarnation, PartitionKey]:
        late = [
            move
            for move, since_ms in self.moves.items()
            if self.now_ms - since_ms >= MOVE_TIMEOUT_MS
        ]
        return reassign.sources_of(self.image, late)

    def run(
        self, result: Result[T], status: Status = Status.OK, *, records: int | None = None
    ) -> T | None:
        """Check the `status` and the number of records, then apply the records."""
        assert result.status == status, result.detail
        assert status == Status.OK or (not result.records and result.detail)
        assert records is None or len(result.records) == records, result.records
        self.apply(result.records)
        return result.value

    def value_of(self, result: Result[T], *, records: int | None = None) -> T:
        """Run a request that succeeds; return its response."""
        value = self.run(result, records=records)
        assert value is not None
        return value

    def broker(self, node_id: int) -> BrokerIncarnation:
        """Register a new incarnation of a broker, live and after its tick."""
        return self.register(registration(node_id, incarnation_id=self.new_uuid()))

    def register(self, request: RegisterBroker) -> BrokerIncarnation:
        value = self.value_of(nodes.register_broker(self.image, request))
        self.live.add(value.node_id)
        return BrokerIncarnation(value.node_id, value.node_epoch)

    def die(self, node: BrokerIncarnation) -> None:
        self.live.discard(node.node_id)
        self.apply(nodes.fence_brokers(self.image, [node]))

    def tick(self) -> None:
        """Run the periodic work of the controller between requests."""
        overdue = self.overdue()
        self.apply(nodes.fence_brokers(self.image, overdue))
        self.live -= {node.node_id for node in overdue}
        self.apply(failover.assign_recoveries(self.image, self.live))
        self.apply(elect_leaderless(self.image, self.live, self.now_ms))
        self.apply(deleted_topics.remove_deleted(self.image, self.age_s, DELETED_PARTITIONS_MAX))
        self.apply(drop_kept(self.image, self.age_s))
        self.apply(objects.expire_prepared(self.image, self.now_ms, self.age_s, 100))
        self.apply(objects.destroy_unreferenced(self.image, self.now_ms, 100))

    def create(self, topic: NewTopic, status: Status = Status.OK) -> CreatedTopic:
        (created,) = self.value_of(self.create_topics([topic])).topics
        assert created.status == status, created.detail
        return created

    def create_topics(
        self, requested: Sequence[NewTopic], *, validate_only: bool = False, **options: Any
    ) -> Result[TopicsCreated]:
        """Return the result of a request without applying it."""
        return topics.create_topics(
            self.image,
            CreateTopics(topics=list(requested), validate_only=validate_only),
            new_uuid=self.new_uuid,
            live=self.live,
            defaults=topics.TopicDefaults(),
            now_ms=self.now_ms,
            move_timeout_ms=MOVE_TIMEOUT_MS,
            partitions_max=self.partitions_max,
            **options,
        )

    def topic(self, name: str, partitions: int = 1) -> list[PartitionRecord]:
        self.create(NewTopic(name=name, partitions=partitions))
        return self.partitions(name)

    def partitions(self, name: str) -> list[PartitionRecord]:
        topic = self.image.topics.by_name(name)
        assert topic is not None
        return list(topic.partitions)

    def delete(self, name: str, grace_ms: int = 0) -> None:
        topic = self.image.topics.by_name(name)
        assert topic is not None
        assert self.delete_by_id(topic.topic_id, grace_ms=grace_ms).status == Status.OK

    def delete_by_id(self, *topic_ids: UUID, grace_ms: int = 0, purge: bool = False) -> ItemResult:
        """Delete topics in one request; return the result for the last topic. purge: the topics are
        already deleted.
        """
        ids = list(topic_ids)
        request = DeleteTopics(topic_ids=ids, purged_ids=ids if purge else [])
        value = self.value_of(
            deleted_topics.delete_topics(self.image, request, self.now_ms, grace_ms=grace_ms)
        )
        return value.items[-1]

    def open(self, node: BrokerIncarnation, *pairs: tuple[int, int]) -> list[OpenedStreamItem]:
        items = [
            OpenStreamItem(stream_id=StreamId(stream_id), epoch=StreamEpoch(epoch))
            for stream_id, epoch in pairs
        ]
        value = self.value_of(
            streams.open_streams(
                self.image,
                OpenStreams(node_id=node.node_id, node_epoch=node.node_epoch, items=items),
            )
        )
        return value.items

    def open_one(
        self, node: BrokerIncarnation, stream_id: int, epoch: int, status: Status = Status.OK
    ) -> OpenedStreamItem:
        item = self.open(node, (stream_id, epoch))[0]
        assert item.status == status, item.detail
        return item

    def move(
        self,
        name: str,
        partition: int,
        *replicas: int,
        status: Status = Status.OK,
        records: int | None = None,
    ) -> None:
        """Reassign; without replicas: cancel."""
        target = PartitionTarget(
            topic=name,
            partition=partition,
            replicas=[NodeId(node_id) for node_id in replicas] or None,
        )
        request = AlterReassignments(partitions=[target])
        result = reassign.alter_reassignments(
            self.image, request, self.now_ms, live=self.live, timeout_ms=MOVE_TIMEOUT_MS
        )
        value = self.value_of(result, records=records)
        assert value.items[0].status == status, value.items[0].detail

    def give_up(self, node: BrokerIncarnation) -> None:
        """Close all open streams of the node at their committed ends."""
        opened = [
            self.image.streams.get(stream_id)
            for stream_id in sorted(self.image.streams.opened_by(node))
        ]
        self.commit(
            node,
            closes=[
                close(stream.stream_id, stream.epoch, stream.next_offset)
                for stream in opened
                if stream is not None
            ],
        )

    def open_led(self, node: BrokerIncarnation) -> None:
        """Open the streams of all partitions that the node leads."""
        for topic in list(self.image.topics):
            for partition in topic.partitions:
                if leader_of(partition) == node:
                    self.open(
                        node,
                        *(
                            (stream_id, partition.leader_epoch)
                            for stream_id in partition.stream_ids
                        ),
                    )

    def prepare(self, node: BrokerIncarnation, count: int = 1) -> list[PreparedItem]:
        request = PrepareObjects(node_id=node.node_id, node_epoch=node.node_epoch, count=count)
        value = self.value_of(objects.prepare_objects(self.image, request, self.now_ms))
        return value.items

    def commit(
        self,
        node: BrokerIncarnation,
        *items: CommitObject,
        replaced: Sequence[ReplacedItem] = (),
        cleaned_end: int = 0,
        closes: Sequence[CloseItem] = (),
        wal: int | None = None,
        status: Status = Status.OK,
        records: int | None = None,
    ) -> None:
        request = Commit(
            node_id=node.node_id,
            node_epoch=node.node_epoch,
            objects=list(items),
            replaced=list(replaced),
            cleaned_end=Offset(cleaned_end),
            closes=list(closes),
            wal_committed=None if wal is None else WalSequence(wal),
        )
        self.run(
            commits.commit(self.image, request, self.now_ms, live=self.live),
            status,
            records=records,
        )

    def recover(
        self,
        node: BrokerIncarnation,
        failed: BrokerIncarnation,
        *items: CommitObject,
        end: int | None = None,
        held: Sequence[int] = (),
        status: Status = Status.OK,
        records: int | None = None,
    ) -> Progress | None:
        request = CommitRecovered(
            node_id=node.node_id,
            node_epoch=node.node_epoch,
            failed_node_id=failed.node_id,
            failed_node_epoch=failed.node_epoch,
            objects=list(items),
            done=end is not None,
            end=WalSequence(end or 0),
            held=[StreamId(stream_id) for stream_id in held],
        )
        return self.run(
            failover.commit_recovered(self.image, request, self.now_ms, live=self.live),
            status,
            records=records,
        )

    def trim(
        self,
        node: BrokerIncarnation,
        stream_id: int,
        epoch: int,
        start: int,
        status: Status = Status.OK,
    ) -> None:
        request = TrimStream(
            node_id=node.node_id,
            node_epoch=node.node_epoch,
            stream_id=StreamId(stream_id),
            epoch=StreamEpoch(epoch),
            start_offset=Offset(start),
        )
        self.run(streams.trim_stream(self.image, request, self.now_ms), status)

    def spans(self, stream_id: int) -> list[tuple[int, int, int]]:
        """Return (start, end, object id) of each range of the stream's log."""
        stream = self.image.streams.get(StreamId(stream_id))
        assert stream is not None
        return [(entry.start_offset, entry.end_offset, entry.object_id) for entry in stream.entries]

    def end(self, stream_id: int) -> int:
        stream = self.image.streams.get(StreamId(stream_id))
        assert stream is not None
        return stream.end_offset


class CommittedAtOnce:
    """A runtime that commits requests immediately, and a backup that never lags."""

    def __init__(self, cluster: ManagersCluster) -> None:
        self._cluster = cluster
        self.status = Status.OK
        """The status of requests; statuses other than OK reject them."""

    @property
    def image(self) -> MetadataImage:
        return self._cluster.image

    def observe(self, note: Callable[[Sequence[Record]], None]) -> None:
        """Do nothing, because there is no other task."""

    async def with_committed_image(self, look: Callable[[MetadataImage], Any]) -> Any:
        return look(self._cluster.image)

    async def submit(
        self, name: str, work: Callable[[MetadataImage, Millis], Result[Any]]
    ) -> Result[Any]:
        del name
        if self.status is not Status.OK:
            return Result([], self.status)
        result = work(self._cluster.image, Millis(0))
        self._cluster.apply(result.records)
        return result

    async def covered(self, _: MetadataOffset) -> None:
        """Return at once."""


def stale(node: BrokerIncarnation, by: int = 1) -> BrokerIncarnation:
    return BrokerIncarnation(node.node_id, NodeEpoch(node.node_epoch - by))

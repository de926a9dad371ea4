"""The metadata image: the state that results from all records so far. Every controller and every
broker has an image.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.base.ids import (
    NodeEpoch,
    ObjectId,
    Offset,
    StreamId,
    WalStoreId,
)
from penstock.controller.metadata import invariants
from penstock.controller.metadata.acls import AclsImage
from penstock.controller.metadata.configs import TOPIC_RESOURCE, ConfigsImage
from penstock.controller.metadata.delegation_tokens import DelegationTokensImage
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.features import FeaturesImage
from penstock.controller.metadata.frozen_topics import FrozenTopicsImage
from penstock.controller.metadata.kv import KeyValueImage
from penstock.controller.metadata.nodes import NodesImage
from penstock.controller.metadata.objects import ObjectsImage
from penstock.controller.metadata.quotas import QuotasImage
from penstock.controller.metadata.records import (
    AclRecord,
    AclRemoved,
    ClusterRecord,
    ConfigRecord,
    DelegationTokenRecord,
    DelegationTokenRemoved,
    FeatureRecord,
    FrozenTopicRecord,
    FrozenTopicRemoved,
    IdsReserved,
    KeptLogDropped,
    KeyValueRecord,
    MetadataOffset,
    NodeRecord,
    NodeRemoved,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    ObjectRemoved,
    PartitionRecord,
    ProducerIdsAllocated,
    QuotaRecord,
    RangesReplaced,
    Record,
    ScramCredentialRecord,
    ScramCredentialRemoved,
    StreamClosed,
    StreamCreated,
    StreamForked,
    StreamOpened,
    StreamRemoved,
    StreamTrimmed,
    TopicDeleted,
    TopicRecord,
    TopicRemoved,
    TopicUndeleted,
    WalEnded,
    WalPlaced,
    WalRecord,
    WalRemoved,
    WalStoreDrain,
    WalStoreLost,
    WalStoreRecord,
)
from penstock.controller.metadata.scram import ScramImage
from penstock.controller.metadata.streams import StreamsImage
from penstock.controller.metadata.topics import TopicsImage
from penstock.stream.ports import (
    BrokerIncarnation,
    ObjectRange,
    ObjectRole,
    StreamRange,
    WalStoreIdentity,
)

_FIRST_OFFSET = MetadataOffset(0)
_FIRST_STREAM_ID = StreamId(0)
_FIRST_OBJECT_ID = ObjectId(0)
_FIRST_NODE_EPOCH = NodeEpoch(1)


@dataclass(slots=True)
class MetadataImage:
    """A mutable image. Only one thread uses it, and only `apply` changes it, so readers must not
    keep references to its lists across an await.

    `check_invariants` succeeds after each whole transaction (records proposed together). Two images
    that have applied the same records are equal.
    """

    cluster_id: str = ""
    end_offset: MetadataOffset = _FIRST_OFFSET
    """Offset of the next record. The image contains everything below it."""
    next_stream_id: StreamId = _FIRST_STREAM_ID
    next_object_id: ObjectId = _FIRST_OBJECT_ID
    next_node_epoch: NodeEpoch = _FIRST_NODE_EPOCH
    next_producer_id: int = 0
    topics: TopicsImage = field(default_factory=TopicsImage)
    frozen_topics: FrozenTopicsImage = field(default_factory=FrozenTopicsImage)
    nodes: NodesImage = field(default_factory=NodesImage)
    streams: StreamsImage = field(default_factory=StreamsImage)
    objects: ObjectsImage = field(default_factory=ObjectsImage)
    configs: ConfigsImage = field(default_factory=ConfigsImage)
    features: FeaturesImage = field(default_factory=FeaturesImage)
    acls: AclsImage = field(default_factory=AclsImage)
    scram: ScramImage = field(default_factory=ScramImage)
    delegation_tokens: DelegationTokensImage = field(default_factory=DelegationTokensImage)
    quotas: QuotasImage = field(default_factory=QuotasImage)
    kv: KeyValueImage = field(default_factory=KeyValueImage)
    _appliers: dict[type[Record], Callable[..., None]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self._appliers = {
            ClusterRecord: self._cluster,
            TopicRecord: self.topics.create,
            TopicRemoved: self._topic_removed,
            FrozenTopicRecord: self.frozen_topics.create,
            TopicDeleted: self._topic_deleted,
            TopicUndeleted: self._topic_undeleted,
            FrozenTopicRemoved: self.frozen_topics.remove,
            PartitionRecord: self._partition,
            NodeRecord: self._node,
            NodeRemoved: self.nodes.remove_node,
            WalRecord: self._wal,
            WalStoreRecord: self.nodes.add_wal_store,
            WalStoreLost: self.nodes.lose_wal_store,
            WalStoreDrain: self.nodes.drain_wal_store,
            WalPlaced: self.nodes.place_wal,
            WalEnded: self.nodes.end_wal,
            WalRemoved: self.nodes.remove_wal,
            StreamCreated: self._stream_created,
            StreamForked: self._stream_forked,
            StreamOpened: self.streams.open,
            StreamClosed: self.streams.close,
            StreamTrimmed: self._stream_trimmed,
            KeptLogDropped: self._kept_log_dropped,
            StreamRemoved: self._stream_removed,
            ObjectPrepared: self._object_prepared,
            ObjectCommitted: self._object_committed,
            RangesReplaced: self._ranges_replaced,
            ObjectDestroyed: self.objects.destroy,
            ObjectRemoved: self.objects.remove,
            ProducerIdsAllocated: self._producer_ids,
            IdsReserved: self._ids,
            ConfigRecord: self.configs.set,
            FeatureRecord: self.features.set,
            AclRecord: self.acls.add,
            AclRemoved: self.acls.remove,
            ScramCredentialRecord: self.scram.set,
            ScramCredentialRemoved: self.scram.remove,
            DelegationTokenRecord: self.delegation_tokens.set,
            DelegationTokenRemoved: self.delegation_tokens.remove,
            QuotaRecord: self.quotas.set,
            KeyValueRecord: self.kv.set,
        }

    def apply(self, record: Record, offset: MetadataOffset) -> None:
        """Apply the record at `offset`.

        Raises InvariantBroken if the record does not fit. This is a bug, and the process must stop.
        """
        self._appliers[type(record)](record)
        self.end_offset = MetadataOffset(offset + 1)

    def apply_all(self, records: Iterable[Record]) -> None:
        """Apply consecutive records that start at `end_offset`."""
        for record in records:
            self.apply(record, self.end_offset)

    def load(self, records: Iterable[Record]) -> None:
        """Apply records of a snapshot in order to an empty image.

        Call it for each part of the snapshot, then call `loaded`.
        """
        if self.end_offset:
            raise broken("a snapshot is loaded into an image that is not fresh")
        for record in records:
            self._appliers[type(record)](record)

    def loaded(self, end_offset: MetadataOffset) -> None:
        """Finish loading a snapshot that contains everything below `end_offset`."""
        self.end_offset = end_offset

    def find_ranges(
        self, stream_id: StreamId, start: Offset, end: Offset, limit: int
    ) -> list[ObjectRange]:
        """Return the committed ranges of one stream that intersect [start, end), in order, with
        their objects.

        Implements `StreamMetadata.objects`.
        """
        found: list[ObjectRange] = []
        for entry in self.streams.find(stream_id, start, end, limit):
            state = self.objects.get(entry.object_id)
            if state is None:
                raise broken(
                    f"stream {stream_id} refers to object {entry.object_id}, which does not exist"
                )
            part = StreamRange(
                stream_id,
                entry.start_offset,
                entry.end_offset,
                entry.record_count,
                entry.size_bytes,
                entry.max_timestamp_ms,
            )
            found.append(
                ObjectRange(
                    entry.object_id,
                    state.key,
                    ObjectRole(state.role),
                    state.size_bytes,
                    part,
                    entry.stored_stream_id,
                )
            )
        return found

    def first_in_wal_store(self, stream_id: StreamId) -> Offset | None:
        """Return the first offset of the log whose data is in a WAL store, or None.

        Implements `StreamMetadata.first_in_wal_store`. This takes O(n log n) for n ranges in WAL
        stores.
        """
        ranges = self.objects.wal_store_ranges(stream_id)
        for start in sorted(ranges):
            if self.streams.has_entry(stream_id, start, ranges[start]):
                return start
        return None

    @property
    def current_wal_store(self) -> WalStoreIdentity | None:
        """The store in which brokers open their WALs, or None for the cluster's own store."""
        current = self.nodes.current_wal_store
        return None if current is None else self.wal_store(current.store_id)

    def wal_store_identities(self) -> list[WalStoreIdentity]:
        """Return the WAL stores that have not ended, without the cluster's own store."""
        return [
            WalStoreIdentity(self.cluster_id, store.store_id, store.uuid)
            for store in self.nodes.wal_stores()
        ]

    def wal_store_of(self, writer: BrokerIncarnation) -> WalStoreIdentity | None:
        """Return the WAL store that contains the WAL, or None for the cluster's own store or an
        unknown WAL.
        """
        wal = self.nodes.wal(writer)
        return None if wal is None else self.wal_store(wal.store_id)

    def wal_store(self, store_id: WalStoreId) -> WalStoreIdentity | None:
        """Return a WAL store, which may have ended, or None for the cluster's own store or an
        unknown id.
        """
        store = self.nodes.wal_store(store_id)
        return (
            None if store is None else WalStoreIdentity(self.cluster_id, store.store_id, store.uuid)
        )

    def topic_name(self, topic_id: UUID) -> str:
        """Return the name of a topic, which may be frozen, or "" if it does not exist."""
        topic = self.topics.by_id(topic_id)
        if topic is not None:
            return topic.name
        frozen = self.frozen_topics.by_id(topic_id)
        return "" if frozen is None else frozen.full_name

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the image is inconsistent.

        This takes O(size of the image) and is used by tests and the simulator.
        """
        invariants.check(self.topics, self.frozen_topics, self.nodes, self.streams, self.objects)
        invariants.check_counters(
            self.streams, self.next_stream_id, self.objects, self.next_object_id
        )
        invariants.check_object_counts(self.objects)
        invariants.check_epochs(self.nodes, self.next_node_epoch)

    def _cluster(self, record: ClusterRecord) -> None:
        self.cluster_id = record.cluster_id

    def _topic_removed(self, record: TopicRemoved) -> None:
        self.configs.remove_topic(self.topics.remove(record.topic_id).name)

    def _topic_deleted(self, record: TopicDeleted) -> None:
        topic = self.topics.remove(record.topic_id)
        self.frozen_topics.take(topic, self.configs.topic(topic.name), record)
        self.configs.remove_topic(topic.name)

    def _topic_undeleted(self, record: TopicUndeleted) -> None:
        topic = self.frozen_topics.give_back(record)
        self.topics.create(TopicRecord(topic.topic_id, record.name))
        for partition in topic.partitions:
            self.topics.set_partition(partition)
        for name, value in topic.configs.items():
            self.configs.set(ConfigRecord(TOPIC_RESOURCE, record.name, name, value))

    def _partition(self, record: PartitionRecord) -> None:
        if record.topic_id in self.frozen_topics:
            self.frozen_topics.set_partition(record)
        else:
            self.topics.set_partition(record)

    def _node(self, record: NodeRecord) -> None:
        self.nodes.set_node(record)
        self.next_node_epoch = max(self.next_node_epoch, NodeEpoch(record.node_epoch + 1))

    def _wal(self, record: WalRecord) -> None:
        self.nodes.set_wal(record)
        self.next_node_epoch = max(self.next_node_epoch, NodeEpoch(record.node_epoch + 1))

    def _stream_created(self, record: StreamCreated) -> None:
        self.streams.create(record)
        self.next_stream_id = max(self.next_stream_id, StreamId(record.stream_id + 1))

    def _stream_forked(self, record: StreamForked) -> None:
        for entry in self.streams.fork(record):
            self.objects.refer(entry.object_id, record.stream_id, entry.start_offset)

    def _stream_trimmed(self, record: StreamTrimmed) -> None:
        for entry in self.streams.trim(record):
            self.objects.release(entry.object_id, record.stream_id, entry.start_offset)

    def _kept_log_dropped(self, record: KeptLogDropped) -> None:
        for entry in self.streams.drop_kept(record):
            self.objects.release(entry.object_id, record.stream_id, entry.start_offset)

    def _stream_removed(self, record: StreamRemoved) -> None:
        for entry in self.streams.remove(record.stream_id):
            self.objects.release(entry.object_id, record.stream_id, entry.start_offset)

    def _object_prepared(self, record: ObjectPrepared) -> None:
        self.objects.prepare(record)
        self.next_object_id = max(self.next_object_id, ObjectId(record.object_id + 1))

    def _object_committed(self, record: ObjectCommitted) -> None:
        self.objects.commit(record)
        self.next_object_id = max(self.next_object_id, ObjectId(record.object_id + 1))
        for part in record.ranges:
            if self.streams.add(record.object_id, part):
                self.objects.refer(record.object_id, part.stream_id, part.start_offset)

    def _ranges_replaced(self, record: RangesReplaced) -> None:
        dropped = self.streams.drop(
            record.stream_id,
            frozenset(record.removed_object_ids),
            record.replacement.start_offset,
        )
        self.streams.record_cleaned(record.stream_id, record.cleaned_end)
        if self.streams.add(record.object_id, record.replacement):
            self.objects.refer(record.object_id, record.stream_id, record.replacement.start_offset)
        for entry in dropped:
            self.objects.release(entry.object_id, record.stream_id, entry.start_offset)

    def _producer_ids(self, record: ProducerIdsAllocated) -> None:
        self.next_producer_id = max(self.next_producer_id, record.next_producer_id)

    def _ids(self, record: IdsReserved) -> None:
        self.next_stream_id = max(self.next_stream_id, record.next_stream_id)
        self.next_object_id = max(self.next_object_id, record.next_object_id)
        self.next_node_epoch = max(self.next_node_epoch, record.next_node_epoch)

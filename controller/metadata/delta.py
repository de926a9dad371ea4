"""Collects the changes made by records, so that subscribers do not have to examine the whole image.

A delta is level-triggered: it contains ids to look up in the image. It may contain ids of unchanged
items.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    StreamId,
)
from penstock.controller.metadata.records import (
    AclEntry,
    AclRecord,
    AclRemoved,
    ConfigRecord,
    DelegationTokenRecord,
    DelegationTokenRemoved,
    FeatureRecord,
    FrozenTopicRecord,
    FrozenTopicRemoved,
    KeptLogDropped,
    KeyValueRecord,
    NodeRecord,
    NodeRemoved,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    ObjectRemoved,
    PartitionRecord,
    QuotaRecord,
    QuotaTarget,
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
)
from penstock.controller.metadata.topics import PartitionKey
from penstock.stream.ports import BrokerIncarnation


@dataclass(slots=True)
class MetadataDelta:
    """The ids that consecutive records changed.

    `everything` means that a snapshot replaced the image. Subscribers must then examine the whole
    image, and the sets are empty.
    """

    everything: bool = False
    topic_ids: set[UUID] = field(default_factory=set[UUID])
    """Topics that were created or removed, or whose partitions changed, including frozen topics."""
    removed_topic_ids: set[UUID] = field(default_factory=set[UUID])
    partitions: set[PartitionKey] = field(default_factory=set[PartitionKey])
    node_ids: set[NodeId] = field(default_factory=set[NodeId])
    wals: set[BrokerIncarnation] = field(default_factory=set[BrokerIncarnation])
    stream_ids: set[StreamId] = field(default_factory=set[StreamId])
    trimmed_stream_ids: set[StreamId] = field(default_factory=set[StreamId])
    """Streams in `stream_ids` whose start has advanced."""
    object_ids: set[ObjectId] = field(default_factory=set[ObjectId])
    configs: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Pairs of resource type and resource name."""
    keys: set[str] = field(default_factory=set[str])
    features: set[str] = field(default_factory=set[str])
    acls: set[AclEntry] = field(default_factory=set[AclEntry])
    """ACLs that were added or removed."""
    users: set[str] = field(default_factory=set[str])
    token_ids: set[str] = field(default_factory=set[str])
    """Delegation tokens that were set or removed."""
    quotas: set[tuple[QuotaTarget, ...]] = field(default_factory=set[tuple[QuotaTarget, ...]])
    """Entities whose quotas changed."""

    @staticmethod
    def of(records: Iterable[Record]) -> "MetadataDelta":
        delta = MetadataDelta()
        for record in records:
            delta.note(record)
        return delta

    def note(self, record: Record) -> None:
        self._record_cluster(record)
        self._record_settings(record)
        self._record_log(record)

    def _record_cluster(self, record: Record) -> None:
        match record:
            case TopicRecord() | TopicUndeleted() | FrozenTopicRecord() | FrozenTopicRemoved():
                self.topic_ids.add(record.topic_id)
            case TopicRemoved() | TopicDeleted():
                self.topic_ids.add(record.topic_id)
                self.removed_topic_ids.add(record.topic_id)
            case PartitionRecord():
                self.topic_ids.add(record.topic_id)
                self.partitions.add(PartitionKey(record.topic_id, record.partition))
            case NodeRecord() | NodeRemoved():
                self.node_ids.add(record.node_id)
            case WalRecord() | WalPlaced() | WalEnded() | WalRemoved():
                self.wals.add(
                    BrokerIncarnation(NodeId(record.node_id), NodeEpoch(record.node_epoch))
                )
            case _:
                pass

    def _record_settings(self, record: Record) -> None:
        match record:
            case ConfigRecord():
                self.configs.add((record.resource_type, record.resource_name))
            case FeatureRecord():
                self.features.add(record.name)
            case AclRecord() | AclRemoved():
                self.acls.add(record.acl)
            case ScramCredentialRecord() | ScramCredentialRemoved():
                self.users.add(record.user)
            case DelegationTokenRecord() | DelegationTokenRemoved():
                self.token_ids.add(record.token_id)
            case QuotaRecord():
                self.quotas.add(record.entity)
            case KeyValueRecord():
                self.keys.add(record.key)
            case _:
                pass

    def _record_log(self, record: Record) -> None:
        match record:
            case (
                StreamCreated()
                | StreamForked()
                | StreamOpened()
                | StreamClosed()
                | StreamRemoved()
                | KeptLogDropped()
            ):
                self.stream_ids.add(record.stream_id)
            case StreamTrimmed():
                self.stream_ids.add(record.stream_id)
                self.trimmed_stream_ids.add(record.stream_id)
            case ObjectCommitted():
                self.object_ids.add(record.object_id)
                self.stream_ids.update(part.stream_id for part in record.ranges)
            case RangesReplaced():
                self.object_ids.add(record.object_id)
                self.object_ids.update(record.removed_object_ids)
                self.stream_ids.add(record.stream_id)
            case ObjectPrepared() | ObjectDestroyed() | ObjectRemoved():
                self.object_ids.add(record.object_id)
            case _:
                pass

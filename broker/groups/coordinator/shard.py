"""The groups of one partition of `__consumer_offsets`, replayed from its records, and the live
records. Pure.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.broker.coordination.compaction import Live
from penstock.broker.coordination.log import KeyValue, LogBatch
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import GroupType
from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerRecordKind,
    MalformedGroupRecord,
    decode_consumer_key,
    encode_consumer_key,
)
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.coordinator.records import decode_consumer_value
from penstock.broker.groups.offsets.offsets import GroupOffsets, PendingOffsets, TopicPartition
from penstock.broker.groups.offsets.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
)
from penstock.broker.groups.share.group import ShareGroup
from penstock.broker.groups.streams.group import StreamsGroup
from penstock.protocol.error_codes import ErrorCode


@dataclass(slots=True)
class Group:
    """A group of any protocol. While `consumer`, `share` or `streams` is set, `classic` is empty
    and unused.
    """

    classic: ClassicGroup
    partition: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    timer: asyncio.TimerHandle | None = None
    emptied_ms: int = 0
    """When the last member left, or 0 if the group never had members."""
    record: bytes | None = None
    """Value of the newest durable record of the classic group."""
    appends_count: int = 0
    """Number of in-flight appends of this group."""
    consumer: ConsumerGroup | None = None
    """The group, if it uses the consumer protocol (KIP-848)."""
    consumer_timer: asyncio.TimerHandle | None = None
    consumer_records: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The newest durable records of `consumer`, `share` or `streams`, by key."""
    consumer_append: asyncio.Future[ErrorCode] | None = None
    """The outcome of the last append of `consumer`, `share` or `streams`."""
    share: ShareGroup | None = None
    """The group, if it is a share group (KIP-932)."""
    streams: StreamsGroup | None = None
    """The group, if it is a streams group (KIP-1071)."""

    @property
    def modern(self) -> ConsumerGroup | ShareGroup | StreamsGroup | None:
        """Return the consumer, share or streams group, or None for a classic group."""
        return self.consumer or self.share or self.streams

    @property
    def has_members(self) -> bool:
        return bool(self.classic.members or (self.modern is not None and self.modern.members))

    @property
    def is_classic(self) -> bool:
        return self.modern is None

    @property
    def is_unused(self) -> bool:
        """Return True if the group was just created and does not have a type yet."""
        is_typed = self.modern is not None or self.record is not None
        return not is_typed and not self.consumer_records and self.is_forgettable

    @property
    def is_forgettable(self) -> bool:
        """Return True if the group is empty, with no record or member id pending."""
        is_held = self.has_members or len(self.offsets) or self.appends_count
        return not is_held and self.classic.next_deadline_ms() is None

    def cancel_modern_timer(self) -> None:
        """Cancel the timer of `modern`, because another protocol replaces it."""
        if self.consumer_timer is not None:
            self.consumer_timer.cancel()
            self.consumer_timer = None

    def cancel_timers(self) -> None:
        self.cancel_modern_timer()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(slots=True)
class OffsetsPartition:
    partition: int
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    open_groups: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    """For each producer id, the groups with offsets in the open transaction of the producer."""


class LiveGroups:
    """Implements `LiveKeys`. An offset that exists only in an open transaction is not live yet,
    because its record is above the stable offset.
    """

    def __init__(self, state: OffsetsPartition) -> None:
        self._groups = state.groups

    def keys(self) -> Iterator[bytes]:
        for group_id in list(self._groups):
            yield encode_group_key(GroupKey(group_id))
            group = self._groups.get(group_id)
            yield from () if group is None else list(group.consumer_records)
            for topic, partition in () if group is None else list(group.offsets.committed):
                yield encode_offset_key(OffsetKey(group_id, topic, partition))

    def get(self, key: bytes) -> Live | None:
        decoded = decode_key(key) or decode_consumer_key(key)
        group = None if decoded is None else self._groups.get(decoded.group_id)
        if group is None:
            return None
        if isinstance(decoded, ConsumerRecordKey):
            value = group.consumer_records.get(key)
            return None if value is None else Live(value)
        if isinstance(decoded, OffsetKey):
            where = (decoded.topic, decoded.partition)
            committed = group.offsets.committed.get(where)
            return (
                None
                if committed is None
                else Live(encode_offset_value(committed), group.offsets.is_pending(where))
            )
        return None if group.record is None else Live(group.record)


def tombstones(
    group_id: str, keys: Iterable[TopicPartition], *, with_group: bool
) -> list[KeyValue]:
    records: list[KeyValue] = [
        (encode_offset_key(OffsetKey(group_id, topic, partition)), None)
        for topic, partition in keys
    ]
    if with_group:
        records.append((encode_group_key(GroupKey(group_id)), None))
    return records


def offset_records(group_id: str, offsets: dict[TopicPartition, CommittedOffset]) -> list[KeyValue]:
    return [
        (encode_offset_key(OffsetKey(group_id, topic, partition)), encode_offset_value(value))
        for (topic, partition), value in offsets.items()
    ]


def complete_transaction(state: OffsetsPartition, producer_id: int, *, committed: bool) -> None:
    tables = {
        group_id: state.groups[group_id].offsets
        for group_id in state.open_groups.get(producer_id, ())
        if group_id in state.groups
    }
    _end_transaction(state.open_groups, tables, producer_id, committed=committed)


def _end_transaction(
    open_groups: dict[int, set[str]],
    tables: Mapping[str, GroupOffsets],
    producer_id: int,
    *,
    committed: bool,
) -> None:
    for group_id in sorted(open_groups.pop(producer_id, ())):
        table = tables.get(group_id)
        if table is not None and table.complete(producer_id, committed=committed):
            open_groups.setdefault(producer_id, set()).add(group_id)


ConsumerRecords: TypeAlias = dict[str, dict[bytes, bytes]]
"""Record values by group and key."""


_KINDS_WITHOUT_MEMBERS: Final[Mapping[GroupType, tuple[ConsumerRecordKind, ...]]] = {
    GroupType.CONSUMER: (ConsumerRecordKind.TARGET_EPOCH, ConsumerRecordKind.GROUP),
    GroupType.SHARE: (
        ConsumerRecordKind.SHARE_TARGET_EPOCH,
        ConsumerRecordKind.SHARE_PARTITIONS,
        ConsumerRecordKind.SHARE_GROUP,
    ),
    GroupType.STREAMS: (
        ConsumerRecordKind.STREAMS_TARGET_EPOCH,
        ConsumerRecordKind.STREAMS_GROUP,
        ConsumerRecordKind.STREAMS_TOPOLOGY,
    ),
}
"""Kinds of records that an empty group may still have, in the order in which Kafka deletes them."""


def consumer_tombstones(group: Group) -> list[KeyValue]:
    """Return the tombstones of an empty consumer, share or streams group."""
    group_id = group.classic.group_id
    always = _KINDS_WITHOUT_MEMBERS[_type_now(group)]
    own = [encode_consumer_key(ConsumerRecordKey(kind, group_id)) for kind in always]
    return [(key, None) for key in (*(k for k in group.consumer_records if k not in own), *own)]


def emptied(group: Group) -> GroupChanges | None:
    """Apply the tombstones of an empty group to its state. Returns None for a classic group."""
    if group.modern is None:
        return None
    changes = GroupChanges(group.modern)
    for kind in _KINDS_WITHOUT_MEMBERS[_type_now(group)]:
        changes.put(kind, None)
    return changes


def _type_now(group: Group) -> GroupType:
    if group.streams is not None:
        return GroupType.STREAMS
    return GroupType.SHARE if group.share is not None else GroupType.CONSUMER


def recorded_type(group: Group) -> GroupType:
    """Return the type of a group from its durable records."""
    keys = map(decode_consumer_key, group.consumer_records)
    found = {key.kind.group_type for key in keys if key is not None}
    others = found - {GroupType.CONSUMER}
    return others.pop() if others else GroupType.CONSUMER


def replay(
    batch: LogBatch,
    records: dict[str, bytes],
    offsets: dict[str, GroupOffsets],
    open_groups: dict[int, set[str]],
    consumers: ConsumerRecords,
) -> int:
    """Apply a batch of the log to the state. Return the number of malformed records.

    Replaying the whole log restores the coordinator's state, except for the parts that are kept
    only in memory.
    """
    if batch.committed is not None:
        _end_transaction(open_groups, offsets, batch.producer_id, committed=batch.committed)
        return 0
    malformed_count = 0
    staged: dict[str, PendingOffsets] = {}
    for key, value in batch.records:
        try:
            decoded = decode_key(key)
            if isinstance(decoded, OffsetKey):
                _replay_offset(decoded, value, batch.producer_id, offsets, staged)
            elif isinstance(decoded, GroupKey):
                _replay_group(decoded, value, records)
            else:
                _replay_consumer(key, value, consumers)
        except MalformedGroupRecord:
            malformed_count += 1
    for group_id in staged:
        open_groups.setdefault(batch.producer_id, set()).add(group_id)
    return malformed_count


def _replay_offset(
    key: OffsetKey,
    value: bytes | None,
    producer_id: int,
    offsets: dict[str, GroupOffsets],
    staged: dict[str, PendingOffsets],
) -> None:
    table = offsets.setdefault(key.group_id, GroupOffsets())
    where = (key.topic, key.partition)
    if value is None:
        table.drop((where,))
        return
    if producer_id < 0:
        table.put({where: decode_offset_value(value)})
        return
    committed = decode_offset_value(value)
    _stage(staged, table, key.group_id, producer_id).offsets[where] = committed


def _replay_group(key: GroupKey, value: bytes | None, records: dict[str, bytes]) -> None:
    if value is None:
        records.pop(key.group_id, None)
        return
    decode_group_value(value)
    records[key.group_id] = value


def _replay_consumer(key: bytes, value: bytes | None, consumers: ConsumerRecords) -> None:
    decoded = decode_consumer_key(key)
    if decoded is None or decoded.kind is ConsumerRecordKind.PARTITION_METADATA:
        return
    if value is not None:
        decode_consumer_value(decoded.kind, value)
        consumers.setdefault(decoded.group_id, {})[key] = value
        return
    known = consumers.get(decoded.group_id, {})
    known.pop(key, None)
    if not known:
        consumers.pop(decoded.group_id, None)


def _stage(
    staged: dict[str, PendingOffsets], table: GroupOffsets, group_id: str, producer_id: int
) -> PendingOffsets:
    """Return the pending offsets of a group in this batch. Each group gets one entry per batch."""
    if group_id not in staged:
        staged[group_id] = table.stage(producer_id, {})
        staged[group_id].is_durable = True
    return staged[group_id]

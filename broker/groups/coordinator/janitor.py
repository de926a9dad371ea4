"""Delete groups and offsets, on request and when their retention expires."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.broker.coordination.log import KeyValue
from penstock.broker.coordination.shards import CoordinatorShards
from penstock.broker.groups.classic.embedded import CONSUMER_PROTOCOL, subscribed_topics
from penstock.broker.groups.coordinator.journal import (
    GroupHome,
    append_step,
    failed_heartbeat,
)
from penstock.broker.groups.coordinator.shard import (
    Group,
    OffsetsPartition,
    consumer_tombstones,
    emptied,
    tombstones,
)
from penstock.broker.groups.coordinator.share import ShareGroups
from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.groups.offsets.records import OffsetKey, decode_key, encode_offset_key
from penstock.protocol.error_codes import ErrorCode


class JanitorHome(GroupHome, Protocol):
    """The coordinator that owns the groups."""

    async def append(
        self, group: Group, records: Sequence[KeyValue], durable: Callable[[], None]
    ) -> ErrorCode: ...


class GroupJanitor:
    """Deletes groups and offsets of one coordinator, on request and when they expire.

    Expiration never appends a tombstone while a commit of the same offset is in flight, and a group
    with a record in flight is not dropped, so that a commit after the deletion is not lost.
    """

    def __init__(
        self, home: JanitorHome, shards: CoordinatorShards[OffsetsPartition], shares: ShareGroups
    ) -> None:
        self._home = home
        self._shards = shards
        self._shares = shares

    async def delete_group(self, group: Group) -> ErrorCode:
        """Delete the group with its offsets, including pending ones of open transactions. The
        deletion is durable if the result is NONE. A group with members is not deleted.
        """
        if group.has_members:
            return ErrorCode.NON_EMPTY_GROUP
        if group.share is not None:
            return await self._shares.delete_group(group.classic.group_id, self._delete_group)
        return await self._delete_group(group)

    async def _delete_group(self, group: Group) -> ErrorCode:
        keys = [*group.offsets.known(), *self._commits_in_flight(group)]
        code = await self._begin_deletion(group, keys)
        return code if code is ErrorCode.NONE else failed_heartbeat(code).error

    async def delete_offsets(
        self, group: Group, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | ErrorCode:
        """See `GroupCoordinator.delete_offsets`."""
        members = group.classic.members
        if members and group.classic.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.NON_EMPTY_GROUP
        subscribed = (
            subscribed_topics(members.values())
            if group.modern is None
            else group.modern.subscribed_names()
        )
        results = {
            key: ErrorCode.NONE
            if subscribed is not None and key[0] not in subscribed
            else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            for key in partitions
        }
        in_flight = set(self._commits_in_flight(group))
        deleted = [
            key
            for key, code in results.items()
            if code is ErrorCode.NONE and (key in in_flight or group.offsets.is_known(key))
        ]
        if not deleted:
            return results
        outcome = await self._home.append(
            group,
            tombstones(group.classic.group_id, deleted, with_group=False),
            lambda: group.offsets.drop(deleted),
        )
        return results if outcome is ErrorCode.NONE else outcome

    def _commits_in_flight(self, group: Group) -> list[TopicPartition]:
        """Return the partitions whose first committed offset is in a record in flight."""
        group_id, known = group.classic.group_id, set(group.offsets.known())
        decoded = (
            [decode_key(key) for key in self._shards.in_flight(group.partition)]
            if group.appends_count
            else []
        )
        found = [
            (key.topic, key.partition)
            for key in decoded
            if isinstance(key, OffsetKey) and key.group_id == group_id
        ]
        return [key for key in found if key not in known]

    def _begin_deletion(
        self, group: Group, keys: Iterable[TopicPartition]
    ) -> "asyncio.Future[ErrorCode]":
        """Append the tombstones of these offsets and of a group without members. As in Kafka, the
        group can be used again immediately: a member that joins before the tombstones are durable
        writes all records of the group again.
        """
        records = _tombstones(group, keys)

        def durable() -> None:
            group.offsets.drop(keys)
            group.record = None
            group.consumer_records.clear()
            if group.modern is not None and group.modern.epoch == 0:  # nobody has joined since
                group.consumer = group.share = group.streams = None
            self._home.forget_unused(group)

        return append_step(self._home, group, emptied(group), records, durable)

    def expire(self, oldest_ms: int) -> None:
        """Append tombstones for offsets committed before `oldest_ms`, and for groups with neither
        members nor offsets.
        """
        for state in self._shards.loaded():
            for group in list(state.groups.values()):
                is_in_use = (
                    group.classic.members or group.offsets.has_pending or group.share is not None
                )
                if not is_in_use:
                    self._expire_group(group, oldest_ms)

    def _expire_group(self, group: Group, oldest_ms: int) -> None:
        group_id, committed = group.classic.group_id, group.offsets.committed
        in_flight = (
            set(self._shards.in_flight(group.partition))
            if group.appends_count
            else frozenset[bytes]()
        )
        subscribed = frozenset[str]() if group.modern is None else group.modern.subscribed_names()
        old = [
            key
            for key, value in committed.items()
            if max(value.commit_timestamp_ms, group.emptied_ms) <= oldest_ms
            and key[0] not in subscribed
            and encode_offset_key(OffsetKey(group_id, *key)) not in in_flight
        ]
        is_held = group.has_members or group.appends_count
        is_over = len(old) == len(committed) and not is_held
        if is_over:
            self._begin_deletion(group, old)
        elif old:

            def done(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    group.offsets.drop(old)

            self._home.begin_append(group, tombstones(group_id, old, with_group=False), done)


def _tombstones(group: Group, keys: Iterable[TopicPartition]) -> list[KeyValue]:
    if group.share is not None:
        return consumer_tombstones(group)
    records = tombstones(group.classic.group_id, keys, with_group=True)
    if group.modern is not None or group.consumer_records:
        records += consumer_tombstones(group)
    return records

"""Planted bugs in consumer groups and coordinator logs, for `tests.sim.mutants`.

Not planted, because it is harmless: a trim that does not wait for the copies. It appends a
checkpoint after them and waits for that.
"""

from collections.abc import Callable
from typing import Any

import penstock.broker.groups.coordinator.janitor as janitor
from penstock.broker.coordination.compaction import CoordinatorLogCompactor
from penstock.broker.coordination.log import TopicLog
from penstock.broker.coordination.shards import CoordinatorShards
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import OffsetKey, decode_key
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _plain_commits_never_written() -> list[Patch]:
    real = GroupCoordinator.append

    async def append(
        self: GroupCoordinator, group: Group, records: Any, durable: Any, **options: Any
    ) -> ErrorCode:
        if "producer" in options or any(value is None for _, value in records):
            return await real(self, group, records, durable, **options)
        durable()
        return ErrorCode.NONE

    return [(GroupCoordinator, "append", append)]


def _offsets_of_subscribed_topics_deleted() -> list[Patch]:
    return [(janitor, "subscribed_topics", lambda _members: frozenset())]


def _deleted_offsets_come_back() -> list[Patch]:
    """OffsetDelete removes the offsets in memory and writes nothing."""
    real = GroupCoordinator.append

    async def append(
        self: GroupCoordinator, group: Group, records: Any, durable: Any, **options: Any
    ) -> ErrorCode:
        keys = [decode_key(key) for key, value in records if value is None]
        if not keys or not all(isinstance(key, OffsetKey) for key in keys):
            return await real(self, group, records, durable, **options)
        durable()
        return ErrorCode.NONE

    return [(GroupCoordinator, "append", append)]


def _generations_unchecked() -> list[Patch]:
    real = ClassicGroup.check_member

    def check_member(self: ClassicGroup, *args: Any) -> ErrorCode:
        code = real(self, *args)
        return ErrorCode.NONE if code is ErrorCode.ILLEGAL_GENERATION else code

    return [(ClassicGroup, "check_member", check_member)]


def _stale_coordinator_responds() -> list[Patch]:
    return [
        (TopicLog, "can_write", property(lambda _: True)),
        (TopicLog, "leads_alone", property(lambda _: True)),
    ]


def _tombstones_after_commits_in_flight() -> list[Patch]:
    return [(CoordinatorShards, "in_flight", lambda _self, _partition: ())]


def _groups_with_commits_in_flight_forgotten() -> list[Patch]:
    return [(Group, "is_forgettable", property(lambda _: True))]


def _copies_override_newer_records() -> list[Patch]:
    return [(CoordinatorLogCompactor, "_is_settled", lambda _self, _key, _found: True)]


def _deleted_groups_keep_their_epoch() -> list[Patch]:
    """A member that joins while the tombstones are in flight continues in the old group's epoch."""
    return [(janitor, "emptied", lambda _group: None)]


GROUP_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "plain_commits_never_written": _plain_commits_never_written,
    "generations_unchecked": _generations_unchecked,
    "stale_coordinator_responds": _stale_coordinator_responds,
    "tombstones_after_commits_in_flight": _tombstones_after_commits_in_flight,
    "groups_with_commits_in_flight_forgotten": _groups_with_commits_in_flight_forgotten,
    "copies_override_newer_records": _copies_override_newer_records,
    "offsets_of_subscribed_topics_deleted": _offsets_of_subscribed_topics_deleted,
    "deleted_groups_keep_their_epoch": _deleted_groups_keep_their_epoch,
    "deleted_offsets_come_back": _deleted_offsets_come_back,
}

"""Update committed offsets after a topic or `offsets.version` has changed."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import UUID

import structlog

from penstock.broker.coordination.log import Done, KeyValue
from penstock.broker.coordination.shards import CoordinatorShards
from penstock.broker.groups.coordinator.shard import (
    Group,
    OffsetsPartition,
    offset_records,
    tombstones,
)
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset, OffsetKey, encode_offset_key
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

SWEEP_DELAY_S: Final = 1.0
"""Delay before a sweep, so that a single sweep can handle several changes."""
SWEEP_AGAIN_S: Final = 10.0
"""Pause before the next sweep if a sweep had to skip offsets."""
APPENDS_MAX: Final = 100
RECORDS_PER_APPEND_MAX: Final = 500
OFFSETS_PER_TURN_COUNT: Final = 2_000


@dataclass(slots=True)
class OffsetChanges:
    """The changes of one group's offsets.

    Offsets of permanently deleted topics get tombstones, as in Kafka. Offsets of a deleted topic
    that can be restored are kept, and move to the new name if the topic is restored under another
    one. After a change of `offsets.version`, offsets are rewritten with or without topic ids. A
    partition with a record in flight or in an open transaction is skipped until the next sweep.
    """

    kept: dict[TopicPartition, CommittedOffset] = field(
        default_factory=dict[TopicPartition, CommittedOffset]
    )
    """Offsets to rewrite."""
    dropped: list[TopicPartition] = field(default_factory=list[TopicPartition])
    left_out: int = 0
    """Number of skipped offsets."""
    parked: set[UUID] = field(default_factory=set[UUID])
    """Deleted topics that can be restored and whose offsets are kept."""

    def pieces(self) -> Iterator["OffsetChanges"]:
        """Split the changes into chunks, each for one append."""
        kept, dropped = list(self.kept.items()), self.dropped
        size = RECORDS_PER_APPEND_MAX
        for at in range(0, len(kept), size):
            yield OffsetChanges(dict(kept[at : at + size]))
        for at in range(0, len(dropped), size):
            yield OffsetChanges(dropped=dropped[at : at + size])


def find_changes(
    offsets: GroupOffsets, topics: OffsetTopics, is_busy: Callable[[TopicPartition], bool]
) -> OffsetChanges:
    """Return the changes that these offsets require. is_busy: returns whether a record of the
    partition is in flight.
    """
    changes = OffsetChanges()
    for key, value in offsets.committed.items():
        if value.topic_id is not None and topics.can_return(value.topic_id):
            changes.parked.add(value.topic_id)
        target = _target(key, value, topics)
        if target == key and value.has_stored_id == topics.stores_ids:
            continue
        if any(
            item is not None and (is_busy(item) or offsets.is_pending(item))
            for item in (key, target)
        ):
            changes.left_out += 1
            continue
        if target != key:
            changes.dropped.append(key)
        if target is not None and (target == key or not _is_taken(offsets, target, value)):
            changes.kept[target] = replace(value, has_stored_id=topics.stores_ids)
    return changes


def _target(
    key: TopicPartition, value: CommittedOffset, topics: OffsetTopics
) -> TopicPartition | None:
    """Return the topic name and partition under which the offset should be stored, or None if its
    topic was deleted permanently.
    """
    if value.topic_id is None:
        return None
    name = topics.name_of(value.topic_id)
    if name is not None:
        return name, key[1]
    # If its record contained no topic id, the offset would apply to a new topic with this name.
    is_safe = topics.stores_ids or topics.id_of(key[0]) is None
    return key if topics.can_return(value.topic_id) and is_safe else None


def _is_taken(offsets: GroupOffsets, target: TopicPartition, value: CommittedOffset) -> bool:
    """Return whether the group has already committed an offset under the topic's new name."""
    present = offsets.committed.get(target)
    return present is not None and present.topic_id == value.topic_id


class SweepHome(Protocol):
    """The coordinator that owns the groups."""

    def begin_append(self, group: Group, records: Sequence[KeyValue], done: Done) -> None: ...


class OffsetSweep:
    """Schedules and runs the sweeps of one coordinator."""

    def __init__(
        self,
        home: SweepHome,
        shards: CoordinatorShards[OffsetsPartition],
        topics: OffsetTopics,
    ) -> None:
        self._home = home
        self._shards = shards
        self._topics = topics
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_due = False
        self._is_left_out = False
        self.parked: set[UUID] = set()
        """Deleted topics whose offsets the last sweep kept."""

    def request(self, delay_s: float = SWEEP_DELAY_S) -> None:
        """Sweep after the delay, unless a sweep is already scheduled for an earlier time."""
        if self._task is not None:
            self._is_due = True
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self._start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._timer = self._task = None

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return
        self._task = None
        if self._is_due or self._is_left_out:
            delay_s = SWEEP_DELAY_S if self._is_due else SWEEP_AGAIN_S
            self._is_due = self._is_left_out = False
            self.request(delay_s)

    async def _run(self) -> None:
        parked: set[UUID] = set()
        left_out = written = deleted = looked = 0
        appends: list[asyncio.Future[ErrorCode]] = []
        for state in self._shards.loaded():
            for group in list(state.groups.values()):
                if self._shards.get(state.partition) is not state:
                    break
                changes = self._find(group)
                parked |= changes.parked
                left_out += changes.left_out
                written += len(changes.kept)
                deleted += len(changes.dropped)
                appends += [self._write(group, piece) for piece in changes.pieces()]
                looked += len(group.offsets.committed) + 1
                if looked >= OFFSETS_PER_TURN_COUNT or len(appends) >= APPENDS_MAX:
                    looked = 0
                    left_out += await _failed_count(appends)
                    await asyncio.sleep(0)
        left_out += await _failed_count(appends)
        self.parked = parked
        if written or deleted or left_out:
            log.info("offsets_swept", written=written, deleted=deleted, left_out=left_out)
        self._is_left_out = left_out > 0

    def _find(self, group: Group) -> OffsetChanges:
        in_flight: Collection[bytes] = (
            set(self._shards.in_flight(group.partition)) if group.appends_count else ()
        )
        group_id = group.classic.group_id
        return find_changes(
            group.offsets,
            self._topics,
            lambda key: (
                bool(in_flight) and encode_offset_key(OffsetKey(group_id, *key)) in in_flight
            ),
        )

    def _write(self, group: Group, changes: OffsetChanges) -> "asyncio.Future[ErrorCode]":
        group_id = group.classic.group_id
        records = offset_records(group_id, changes.kept)
        records += tombstones(group_id, changes.dropped, with_group=False)
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                group.offsets.put(changes.kept)
                group.offsets.drop(changes.dropped)
            if not outcome.done():
                outcome.set_result(code)

        self._home.begin_append(group, records, done)
        return outcome


async def _failed_count(appends: "list[asyncio.Future[ErrorCode]]") -> int:
    """Wait for all appends and clear the list. Return the number of failed appends."""
    outcomes = await asyncio.gather(*appends)
    appends.clear()
    return sum(code is not ErrorCode.NONE for code in outcomes)

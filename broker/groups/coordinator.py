"""The group coordinator of one broker: the shell around `ClassicGroup`, with its state in `__consumer_offsets`.

A group lives in one partition of that topic; whoever leads the partition is its coordinator. Becoming leader loads the partition from
the start; losing it answers everybody who waits with NOT_COORDINATOR and forgets. Invariants: an offset commit is visible and answered
only when its record is durable; a group's records are appended in the order of its events; nothing here survives the partition's loss.
Limits: GROUPS_MAX and OFFSETS_MAX per partition; reached: COORDINATOR_NOT_AVAILABLE, which clients retry.
Source: Kafka GroupCoordinator, GroupMetadataManager.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from broker.groups.classic import ClassicGroup
from broker.groups.model import (
    CompleteJoin,
    CompleteSync,
    Effect,
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    PersistGroup,
    SyncRequest,
    SyncResult,
    Token,
)
from broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupSnapshot,
    MalformedGroupRecord,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    partition_for,
)
from broker.wire.error_codes import ErrorCode

log = structlog.get_logger()

GROUPS_MAX = 50_000
OFFSETS_MAX = 1_000_000
OFFSET_METADATA_BYTES_MAX = 4_096
LOAD_RETRY_S = 0.5
LOAD_WAIT_S = 2.0
"""How long a request waits for its group to be loaded; librdkafka hands COORDINATOR_LOAD_IN_PROGRESS to the application here and there."""
EXPIRY_INTERVAL_S = 600.0

Result = TypeVar("Result", JoinResult, SyncResult)
KeyValue = tuple[bytes, bytes | None]
TopicPartition = tuple[str, int]


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets` that this broker leads."""

    @property
    def partition_count(self) -> int:
        """0 while the topic does not exist."""
        ...

    def is_ours(self, partition: int) -> bool:
        """Do the metadata name this broker as the leader, be the partition open yet or not?"""
        ...

    def append(self, partition: int, records: Sequence[KeyValue], done: Callable[[ErrorCode], None]) -> None:
        """One batch; `done` is called when it is durable (NONE) or can not become so."""
        ...

    def read(self, partition: int) -> AsyncIterator[Sequence[KeyValue]]:
        """Everything durable, from the start, batch by batch."""
        ...


@dataclass(slots=True)
class _Group:
    classic: ClassicGroup
    partition: int
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict[TopicPartition, CommittedOffset])
    timer: asyncio.TimerHandle | None = None
    emptied_ms: int = 0
    """When the last member left; 0 for groups that never had one."""


@dataclass(slots=True)
class _OffsetsPartition:
    loaded: bool = False
    groups: dict[str, _Group] = field(default_factory=dict[str, _Group])
    loader: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A moment of a group, for DescribeGroups and ListGroups."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, str | None, str, str, bytes, bytes], ...]
    """(member id, instance id, client id, client host, subscription, assignment)"""


class GroupCoordinator:
    """All methods are called on the event loop. `now_ms` is monotonic enough for sessions: it never jumps by more than clock steps."""

    def __init__(
        self,
        offsets_log: OffsetsLog,
        limits: GroupLimits,
        *,
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        self._log = offsets_log
        self._limits = limits
        self._now_ms = now_ms
        self._new_member_id = new_member_id
        self._partitions: dict[int, _OffsetsPartition] = {}
        self._released: set[int] = set()
        """Partitions that were closed here: their next leader is another broker, though the metadata may name us for a moment."""
        self._changed = asyncio.Event()
        """Set and replaced whenever a partition is loaded or closed."""
        self._joins: dict[Token, asyncio.Future[JoinResult]] = {}
        self._syncs: dict[Token, asyncio.Future[SyncResult]] = {}
        self._next_token = 0
        self._expiry: asyncio.TimerHandle | None = None

    # --- becoming and ceasing to be coordinator ------------------------------------------------------------------------------------

    def partition_opened(self, partition: int) -> None:
        """This broker leads the offsets partition now: load it."""
        self.partition_closed(partition)
        self._released.discard(partition)
        state = _OffsetsPartition()
        self._partitions[partition] = state
        state.loader = asyncio.get_running_loop().create_task(self._load(partition, state))
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(EXPIRY_INTERVAL_S, self._expire_regularly)

    def partition_closed(self, partition: int) -> None:
        state = self._partitions.pop(partition, None)
        self._released.add(partition)
        self._tell_change()
        if state is None:
            return
        if state.loader is not None:
            state.loader.cancel()
        for group in state.groups.values():
            self._run(group, group.classic.unload())

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for partition in list(self._partitions):
            self.partition_closed(partition)

    async def ready(self, group_id: str) -> None:
        """Wait, up to LOAD_WAIT_S, while the group is on its way to this broker: FindCoordinator names us before the partition is loaded.

        Every request of a group begins with this; afterwards the answers are those of the moment, which may still be a retriable error.
        """
        if not self._is_awaited(group_id):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT_S):
                while self._is_awaited(group_id):
                    await self._changed.wait()

    def _is_awaited(self, group_id: str) -> bool:
        return self._partition(group_id) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _load(self, partition: int, state: _OffsetsPartition) -> None:
        while not state.loaded:
            try:
                await self._replay(partition, state)
            except Exception as error:  # noqa: BLE001 - whatever the read met, the groups of this partition must come back: log, wait, again
                log.warning("group_load_failed", partition=partition, error=str(error))
                await asyncio.sleep(LOAD_RETRY_S)

    async def _replay(self, partition: int, state: _OffsetsPartition) -> None:
        snapshots: dict[str, GroupSnapshot] = {}
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        malformed_count = 0
        async for batch in self._log.read(partition):
            for key, value in batch:
                try:
                    _apply_record(key, value, snapshots, offsets)
                except MalformedGroupRecord:
                    malformed_count += 1
        for group_id in snapshots.keys() | {group_id for group_id, table in offsets.items() if table}:
            group = _Group(ClassicGroup(group_id, self._limits, self._new_member_id), partition, offsets.get(group_id, {}))
            snapshot = snapshots.get(group_id)
            if snapshot is not None:
                group.classic.restore(
                    generation=snapshot.generation,
                    protocol_type=snapshot.protocol_type or None,
                    protocol=snapshot.protocol,
                    leader=snapshot.leader,
                    members=snapshot.members,
                    now_ms=self._now_ms(),
                )
                group.emptied_ms = snapshot.state_timestamp_ms
            state.groups[group_id] = group
            self._arm(group)
        state.loaded = True
        self._tell_change()
        log.info("groups_loaded", partition=partition, groups=len(state.groups), malformed=malformed_count)

    # --- finding a group -------------------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """Partition of `__consumer_offsets`; None while the topic does not exist."""
        count = self._log.partition_count
        return partition_for(group_id, count) if count > 0 else None

    def _partition(self, group_id: str) -> _OffsetsPartition | ErrorCode:
        partition = self.partition_of(group_id)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        state = self._partitions.get(partition)
        if state is None:
            opening = partition not in self._released and self._log.is_ours(partition)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if opening else ErrorCode.NOT_COORDINATOR
        return state if state.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _find(self, group_id: str, *, create: bool) -> _Group | ErrorCode:
        if group_id == "" and create:
            return ErrorCode.INVALID_GROUP_ID
        state = self._partition(group_id)
        if isinstance(state, ErrorCode):
            return state
        group = state.groups.get(group_id)
        if group is not None:
            return group
        if not create:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if len(state.groups) >= GROUPS_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = self.partition_of(group_id)
        assert partition is not None
        state.groups[group_id] = _Group(ClassicGroup(group_id, self._limits, self._new_member_id), partition)
        return state.groups[group_id]

    # --- membership ------------------------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """Parks until the rebalance completes; bounded by the members' rebalance timeout."""
        group = self._find(group_id, create=request.member_id == "")
        if isinstance(group, ErrorCode):
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is ErrorCode.GROUP_ID_NOT_FOUND else group
            return JoinResult(error=error, member_id=request.member_id)
        token, future = self._park(self._joins)
        self._run(group, group.classic.join(request, token, self._now_ms()))
        try:
            return await future
        finally:
            self._joins.pop(token, None)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        group = self._find(group_id, create=False)
        if isinstance(group, ErrorCode):
            return SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID if group is ErrorCode.GROUP_ID_NOT_FOUND else group)
        token, future = self._park(self._syncs)
        self._run(group, group.classic.sync(request, token, self._now_ms()))
        try:
            return await future
        finally:
            self._syncs.pop(token, None)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self._find(group_id, create=False)
        if isinstance(group, ErrorCode):
            return ErrorCode.UNKNOWN_MEMBER_ID if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        error = group.classic.heartbeat(member_id, instance_id, generation, self._now_ms())
        self._arm(group)
        return error

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> ErrorCode | list[ErrorCode]:
        """One error for the whole request, or one per member (id, instance id)."""
        group = self._find(group_id, create=False)
        if isinstance(group, ErrorCode):
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members) if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        errors: list[ErrorCode] = []
        for member_id, instance_id in members:
            error, effects = group.classic.leave(member_id, instance_id, self._now_ms())
            errors.append(error)
            self._run(group, effects)
        return errors

    # --- offsets ---------------------------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: dict[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ErrorCode]:
        """Durable when it returns NONE. Offsets whose metadata is too long are refused one by one, the others go through."""
        group = self._find(group_id, create=generation < 0)
        if isinstance(group, ErrorCode):
            refusal = ErrorCode.ILLEGAL_GENERATION if group is ErrorCode.GROUP_ID_NOT_FOUND else group
            return dict.fromkeys(offsets, refusal)
        error = group.classic.check_commit(member_id, instance_id, generation, self._now_ms())
        self._arm(group)
        if error is ErrorCode.NONE and len(group.offsets) + len(offsets) > OFFSETS_MAX:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        accepted = {key: value for key, value in offsets.items() if len(value.metadata.encode()) <= OFFSET_METADATA_BYTES_MAX}
        results = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        if accepted:
            records: list[KeyValue] = [
                (encode_offset_key(OffsetKey(group_id, topic, partition)), encode_offset_value(value))
                for (topic, partition), value in accepted.items()
            ]
            outcome = await self._append(group.partition, records, lambda: group.offsets.update(accepted))
            results.update(dict.fromkeys(accepted, outcome))
        return results

    def fetch_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset] | ErrorCode:
        """Committed offsets; an unknown group has none, which is not an error."""
        group = self._find(group_id, create=False)
        if isinstance(group, ErrorCode):
            return {} if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        return group.offsets

    async def _append(self, partition: int, records: Sequence[KeyValue], durable: Callable[[], None]) -> ErrorCode:
        """`durable` runs in the append's own callback, so that effects become visible in the order of the log."""
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                durable()
            if not future.done():
                future.set_result(error)

        self._log.append(partition, records, done)
        return await future

    # --- looking and deleting ----------------------------------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupDescription]:
        loaded = [state for state in self._partitions.values() if state.loaded]
        return [_describe(group) for state in loaded for group in state.groups.values()]

    def describe_group(self, group_id: str) -> GroupDescription | ErrorCode:
        """An unknown group is described as dead, without an error (DescribeGroups up to version 5)."""
        group = self._find(group_id, create=False)
        if group is ErrorCode.GROUP_ID_NOT_FOUND:
            return GroupDescription(group_id, GroupState.DEAD, "", "", ())
        return group if isinstance(group, ErrorCode) else _describe(group)

    async def delete_group(self, group_id: str) -> ErrorCode:
        group = self._find(group_id, create=False)
        if isinstance(group, ErrorCode):
            return group
        if group.classic.members:
            return ErrorCode.NON_EMPTY_GROUP
        records: list[KeyValue] = [(encode_offset_key(OffsetKey(group_id, topic, index)), None) for topic, index in group.offsets]
        records.append((encode_group_key(GroupKey(group_id)), None))
        return await self._append(group.partition, records, lambda: self._forget(group))

    # --- forgetting ------------------------------------------------------------------------------------------------------------------

    def _expire_regularly(self) -> None:
        self.expire()
        self._expiry = asyncio.get_running_loop().call_later(EXPIRY_INTERVAL_S, self._expire_regularly)

    def expire(self) -> None:
        """Drop offsets past their retention, and groups that have neither members nor offsets: both by tombstones in the log."""
        oldest_ms = self._now_ms() - self._limits.offsets_retention_ms
        for state in self._partitions.values():
            for group in list(state.groups.values()) if state.loaded else []:
                if not group.classic.members:
                    self._expire_group(group, oldest_ms)

    def _expire_group(self, group: _Group, oldest_ms: int) -> None:
        old = [key for key, value in group.offsets.items() if max(value.commit_timestamp_ms, group.emptied_ms) <= oldest_ms]
        forgotten = len(old) == len(group.offsets)
        if not old and not forgotten:
            return
        group_id = group.classic.group_id
        records: list[KeyValue] = [(encode_offset_key(OffsetKey(group_id, topic, index)), None) for topic, index in old]
        if forgotten:
            records.append((encode_group_key(GroupKey(group_id)), None))

        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                return
            for key in old:
                committed = group.offsets.get(key)
                if committed is not None and committed.commit_timestamp_ms <= oldest_ms:
                    del group.offsets[key]
            if forgotten and not group.offsets and not group.classic.members and group.classic.next_deadline_ms() is None:
                self._forget(group)

        self._log.append(group.partition, records, done)

    # --- running the core's effects ------------------------------------------------------------------------------------------------------

    def _park(self, waiting: dict[Token, asyncio.Future[Result]]) -> tuple[Token, asyncio.Future[Result]]:
        self._next_token += 1
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiting[self._next_token] = future
        return self._next_token, future

    def _run(self, group: _Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case CompleteJoin(token, result):
                    joining = self._joins.get(token)
                    if joining is not None and not joining.done():
                        joining.set_result(result)
                case CompleteSync(token, result):
                    syncing = self._syncs.get(token)
                    if syncing is not None and not syncing.done():
                        syncing.set_result(result)
                case PersistGroup(generation):
                    self._persist(group, generation)
        self._arm(group)

    def _persist(self, group: _Group, generation: int) -> None:
        classic = group.classic
        if classic.state is GroupState.EMPTY:
            group.emptied_ms = self._now_ms()
        snapshot = GroupSnapshot(
            classic.protocol_type or "",
            classic.generation,
            classic.protocol,
            classic.leader,
            self._now_ms(),
            tuple(classic.members.values()),
        )
        record: KeyValue = (encode_group_key(GroupKey(classic.group_id)), encode_group_value(snapshot))

        def done(error: ErrorCode) -> None:
            self._run(group, classic.assignment_persisted(generation, error, self._now_ms()))

        self._log.append(group.partition, [record], done)

    def _forget(self, group: _Group) -> None:
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        state = self._partitions.get(group.partition)
        if state is not None and state.groups.get(group.classic.group_id) is group:
            del state.groups[group.classic.group_id]

    def _arm(self, group: _Group) -> None:
        """One timer per group, at the core's next deadline."""
        deadline_ms = group.classic.next_deadline_ms() if group.classic.state is not GroupState.DEAD else None
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self._now_ms()) / 1000
            group.timer = asyncio.get_running_loop().call_later(delay_s, self._tick, group)

    def _tick(self, group: _Group) -> None:
        group.timer = None
        self._run(group, group.classic.tick(self._now_ms()))


def _apply_record(
    key: bytes, value: bytes | None, snapshots: dict[str, GroupSnapshot], offsets: dict[str, dict[TopicPartition, CommittedOffset]]
) -> None:
    decoded = decode_key(key)
    match decoded:
        case OffsetKey(group_id, topic, partition):
            table = offsets.setdefault(group_id, {})
            if value is None:
                table.pop((topic, partition), None)
            else:
                table[topic, partition] = decode_offset_value(value)
        case GroupKey(group_id):
            if value is None:
                snapshots.pop(group_id, None)
            else:
                snapshots[group_id] = decode_group_value(value)
        case None:
            pass


def _describe(group: _Group) -> GroupDescription:
    classic = group.classic
    stable = classic.state is GroupState.STABLE
    members = tuple(
        (m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata_for(classic.protocol or "") if stable else b"", m.assignment)
        for m in classic.members.values()
    )
    return GroupDescription(
        classic.group_id, classic.state, classic.protocol_type or "", (classic.protocol or "") if stable else "", members
    )

"""Run `ShareGroup` for the group coordinator: respond to heartbeats, manage timers, write records,
and have the share coordinator initialize and delete share-partition states.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

import structlog

from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Assignment,
    GroupState,
    HeartbeatRefused,
    HeartbeatResult,
    TopicsView,
)
from penstock.broker.groups.coordinator.journal import (
    RETRY_S,
    GroupHome,
    GroupJournal,
    durable_records,
    failed_heartbeat,
    is_refused,
    when_durable,
)
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.share.group import ShareGroup, check_share_heartbeat
from penstock.broker.groups.share.model import (
    ShareHeartbeatRequest,
    ShareLimits,
    ShareMember,
    indexes_of,
)
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateError,
    ShareStateStore,
)
from penstock.broker.groups.share.values import NamedPartitions
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
StartOffsets: TypeAlias = Mapping[UUID, Mapping[int, int | None]]
"""Start offsets by topic and partition. None for an existing state whose start offset must be kept,
because an alteration with an unknown outcome may have changed it.
"""
Outcome: TypeAlias = "asyncio.Future[ErrorCode]"
_HEARTBEAT: Final = apis.SHARE_GROUP_HEARTBEAT.key
CHANGES_MAX: Final = 10
"""Maximum number of concurrent requests that alter or delete states of one group."""
_EPOCH_MAX: Final = (1 << 31) - 2
_NO_STATE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Error codes of a deletion that mean that no state exists."""


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A snapshot of a share group, for ShareGroupDescribe."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    members: tuple[ShareMember, ...]


class ShareGroups:
    """Share groups of one broker. Call all methods on the event loop.

    A partition is recorded as initializing before its state is initialized, as initialized only
    after the state is durable, and as deleting before its state is deleted. The next coordinator
    can thus complete unfinished work, and no state is leaked. After an alteration with an unknown
    outcome, the state is not used until it has a newer epoch, so that a late copy of the alteration
    cannot reset it.

    Requests that alter or delete states of a group are serialized, and a partition is initialized
    only while none of them affects it. If a state has a newer epoch than the request, it is
    replaced or deleted only in an even newer group epoch, which this coordinator must record first.

    limits_of: returns the limits of a group. store: None only in tests without share-partition
    states.
    """

    def __init__(
        self,
        home: GroupHome,
        topics: TopicsView,
        limits_of: Callable[[str], ShareLimits],
        now_ms: Callable[[], int],
        store: ShareStateStore | None,
    ) -> None:
        self._home = home
        self._journal = GroupJournal(home, now_ms)
        self._topics = topics
        self._limits_of = limits_of
        self._now_ms = now_ms
        self._store = store
        self._initializations: dict[asyncio.Task[Any], str] = {}
        """Tasks that initialize states after heartbeats, with their group ids."""
        self._changes: dict[asyncio.Task[Any], str] = {}
        """Tasks of requests that alter or delete states, with their group ids, in order of
        arrival.
        """

    def close(self) -> None:
        for task in [*self._initializations, *self._changes]:
            task.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether states are being initialized, altered or deleted."""
        return bool(self._initializations or self._changes)

    # --- heartbeats -------------------------------------------------------------------------------

    async def heartbeat(
        self, group_id: str, request: ShareHeartbeatRequest, connection_id: int | None = None
    ) -> HeartbeatResult:
        """Handle ShareGroupHeartbeat. Returns once the response is durable. Raises LateRequest.

        connection_id: see `GroupCoordinator.join`.
        """
        try:
            check_share_heartbeat(group_id, request)
            group = self._home.find(group_id, create=request.member_epoch == JOIN_EPOCH)
            if isinstance(group, ErrorCode):
                is_leaving = request.member_epoch == LEAVE_EPOCH
                if is_leaving and group is ErrorCode.GROUP_ID_NOT_FOUND:
                    self._home.admit_leave(_HEARTBEAT, group_id, request.member_id, connection_id)
                return _not_found(group, group_id, is_leaving=is_leaving)
            self._home.admit(_HEARTBEAT, group, request.member_id, connection_id)
            result, outcome = self._step(group, request)
        except HeartbeatRefused as refused:
            return refused.result
        # Shielded, because the task that initializes states also awaits this future, and must
        # continue if the request is cancelled.
        code = await asyncio.shield(outcome)
        return result if code is ErrorCode.NONE else failed_heartbeat(code)

    def _step(
        self, group: Group, request: ShareHeartbeatRequest
    ) -> tuple[HeartbeatResult, Outcome]:
        """Change the group and start writing the change. Raises HeartbeatRefused."""
        share = group.share
        if share is None:
            return self._begin(group, request)
        share.limits = self._limits_of(group.classic.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            result, changes = share.leave(request.member_id, self._topics)
            return result, self._write(group, share, changes)
        result, changes = share.heartbeat(request, self._topics, self._now_ms())
        return result, self._write(group, share, changes, initializes=True)

    def _begin(
        self, group: Group, request: ShareHeartbeatRequest
    ) -> tuple[HeartbeatResult, Outcome]:
        """Create a share group with its first member. Raises HeartbeatRefused."""
        group_id = group.classic.group_id
        if not group.is_unused or request.member_epoch != JOIN_EPOCH:
            raise HeartbeatRefused(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
            )
        share = ShareGroup(group_id, self._limits_of(group_id))
        try:
            result, changes = share.heartbeat(request, self._topics, self._now_ms())
        except HeartbeatRefused:
            self._home.forget_unused(group)
            raise
        group.share = share
        outcome = self._write(group, share, changes, initializes=True)
        if is_refused(outcome):
            group.share = None
            self._home.forget_unused(group)
        return result, outcome

    def _write(
        self, group: Group, share: ShareGroup, changes: GroupChanges, *, initializes: bool = False
    ) -> Outcome:
        """Append the records of a step, then initialize newly subscribed partitions."""
        epoch = share.epoch
        missing: NamedPartitions = {}
        if initializes:
            missing = share.begin_initialization(self._topics, changes)
        outcome = self._journal.write(group, changes)
        self._set_timer(group)
        if missing and is_refused(outcome):
            share.give_up(missing)
        elif missing:
            work = self._initialize(group, share, missing, epoch, outcome)
            self._initializing(share, missing, work)
        return outcome

    def _initializing(
        self, share: ShareGroup, missing: NamedPartitions, work: Coroutine[Any, Any, None]
    ) -> None:
        """Initialize states in a task. If the task fails, the next heartbeat starts another one."""

        def ended(task: "asyncio.Task[None]") -> None:
            del self._initializations[task]
            if task.cancelled() or task.exception() is not None:
                share.give_up(missing)

        task = asyncio.get_running_loop().create_task(work)
        self._initializations[task] = share.group_id
        task.add_done_callback(ended)
        task.add_done_callback(_record_failure)

    async def _in_turn(self, group_id: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Run the work once all earlier changes of the group's states are complete, in a task that
        continues if its caller is cancelled. Raises HeartbeatRefused with COORDINATOR_NOT_AVAILABLE
        if too many changes are waiting.
        """
        earlier = [task for task, owner in self._changes.items() if owner == group_id]
        if len(earlier) >= CHANGES_MAX:
            raise HeartbeatRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{CHANGES_MAX} requests that alter or delete offsets of the group are in progress,"
                " the maximum; retry later",
            )

        async def run() -> _T:
            if earlier:
                await asyncio.wait(earlier)
            return await work()

        task = asyncio.get_running_loop().create_task(run())
        self._changes[task] = group_id
        task.add_done_callback(self._changes.pop)
        task.add_done_callback(_record_failure)
        return await asyncio.shield(task)

    # --- share-partition states -------------------------------------------------------------------

    async def _initialize(
        self,
        group: Group,
        share: ShareGroup,
        missing: NamedPartitions,
        epoch: int,
        noted: Outcome,
    ) -> None:
        """Initialize states that are recorded as initializing."""
        if await noted is not ErrorCode.NONE:
            share.give_up(missing)
            return  # the partition is reloaded, and the next heartbeat retries
        existing = indexes_of(share.partitions.initialized)
        offsets = {
            topic_id: {
                index: None if index in existing.get(topic_id, ()) else NO_START_OFFSET
                for index in indexes
            }
            for topic_id, (_, indexes) in missing.items()
        }
        codes = await self._initialize_states(group.classic.group_id, epoch, offsets)
        if ErrorCode.FENCED_STATE_EPOCH in codes.values():
            codes = await self._supersede(group, share, offsets)
        await self._end_initialization(group, share, missing, codes)

    async def _supersede(
        self, group: Group, share: ShareGroup, offsets: StartOffsets
    ) -> dict[tuple[UUID, int], ErrorCode]:
        """Initialize states that an earlier group with this id has left or deleted, in an epoch
        above theirs. The epoch must be recorded first, so that a coordinator that has lost the
        partition fails at this point.
        """
        keys = [
            SharePartitionKey(share.group_id, topic_id, index)
            for topic_id, by_index in offsets.items()
            for index in by_index
        ]
        epoch = await self._begin_epoch_after(group, share, keys)
        if isinstance(epoch, ErrorCode):
            return {(key.topic_id, key.partition): epoch for key in keys}
        return await self._initialize_states(share.group_id, epoch, offsets)

    async def _begin_epoch_after(
        self,
        group: Group,
        share: ShareGroup,
        keys: Sequence[SharePartitionKey],
        *,
        is_deletion: bool = False,
    ) -> int | ErrorCode:
        """Start a group epoch above the epochs of these states, and return it.

        is_deletion: fail if the group has members, whose heartbeats would initialize states in this
        epoch; a late copy of the deletion would then delete these states.
        """
        left = await asyncio.gather(*map(self._epoch_of, keys))
        if not self._is_current(group, share):
            return ErrorCode.NOT_COORDINATOR
        if is_deletion and share.members:
            return ErrorCode.NON_EMPTY_GROUP
        highest = max(left, default=0)
        if highest >= _EPOCH_MAX:  # no group epoch can exceed it
            return ErrorCode.FENCED_STATE_EPOCH
        changes = share.raise_epoch(highest)
        epoch, code = share.epoch, await self._journal.write(group, changes)
        return epoch if code is ErrorCode.NONE else code

    async def _epoch_of(self, key: SharePartitionKey) -> int:
        """Return the epoch of a state or of its deletion, or 0 if it cannot be read at the
        moment.
        """
        if self._store is None:
            return 0
        try:
            summary = await self._store.summary(key)
        except ShareStateError:
            return 0
        return max(summary.state_epoch, summary.deleted_epoch)

    async def _end_initialization(
        self,
        group: Group,
        share: ShareGroup,
        missing: NamedPartitions,
        codes: Mapping[tuple[UUID, int], ErrorCode],
    ) -> None:
        if not self._is_current(group, share):
            share.give_up(missing)  # the same group may become available again
            return
        done: dict[UUID, tuple[str, frozenset[int]]] = {}
        failed: dict[UUID, tuple[str, frozenset[int]]] = {}
        for topic_id, (name, indexes) in missing.items():
            good = frozenset(i for i in indexes if codes[topic_id, i] is ErrorCode.NONE)
            if good:
                done[topic_id] = (name, good)
            if indexes - good:
                failed[topic_id] = (name, indexes - good)
        await self._journal.write(group, share.end_initialization(done, failed))

    async def _initialize_states(
        self, group_id: str, epoch: int, offsets: StartOffsets
    ) -> dict[tuple[UUID, int], ErrorCode]:
        """Initialize the states of these partitions with the given start offsets."""
        keys = [
            (SharePartitionKey(group_id, topic_id, index), offset)
            for topic_id, by_index in offsets.items()
            for index, offset in by_index.items()
        ]
        codes = await asyncio.gather(
            *(self._initialize_state(key, epoch, offset) for key, offset in keys)
        )
        return {
            (key.topic_id, key.partition): code for (key, _), code in zip(keys, codes, strict=True)
        }

    async def _initialize_state(
        self, key: SharePartitionKey, epoch: int, start_offset: int | None
    ) -> ErrorCode:
        if self._store is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            if start_offset is None:
                await _settle(self._store, key, epoch)
            else:
                await self._store.initialize(key, state_epoch=epoch, start_offset=start_offset)
        except ShareStateError as error:
            log.info("share_state_initialization_failed", code=error.code.name, error=str(error))
            return error.code
        return ErrorCode.NONE

    async def _delete_state(self, key: SharePartitionKey, epoch: int) -> ErrorCode:
        if self._store is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            await self._store.delete(key, state_epoch=epoch)
        except ShareStateError as error:
            log.info("share_state_deletion_failed", code=error.code.name, error=str(error))
            return error.code
        return ErrorCode.NONE

    async def _delete_states(
        self, group: Group, share: ShareGroup, topic_ids: Iterable[UUID] | None = None
    ) -> dict[UUID, ErrorCode] | ErrorCode:
        """Delete the states of an empty group for the given topics, or for all topics if None.
        Return an error for each topic, or one for the whole request.
        """
        wanted = None if topic_ids is None else set(topic_ids)
        before = share.partitions
        changes = share.begin_deletion(wanted)
        try:
            # Members may join from here on, and their epochs may be lost and reused.
            epoch, code = share.epoch, await self._journal.write(group, changes)
            if code is not ErrorCode.NONE:
                return code
            topics = [key for key in share.partitions.deleting if wanted is None or key in wanted]
            keys = [
                SharePartitionKey(group.classic.group_id, topic_id, index)
                for topic_id in topics
                for index in self._indexes(topic_id, before.initialized, before.initializing)
            ]
            codes = await self._delete_keys(keys, epoch)
            if ErrorCode.FENCED_STATE_EPOCH in codes:
                later = await self._begin_epoch_after(group, share, keys, is_deletion=True)
                if isinstance(later, ErrorCode):
                    codes = [later] * len(keys)
                else:
                    codes = await self._delete_keys(keys, later)
            results = dict.fromkeys(topics, ErrorCode.NONE)
            for key, found in zip(keys, codes, strict=True):
                if found not in _NO_STATE:
                    results[key.topic_id] = found
            if not self._is_current(group, share):
                return ErrorCode.NOT_COORDINATOR
        finally:  # the same group may become available again
            share.give_up_deletion(wanted)
        done = [key for key, found in results.items() if found is ErrorCode.NONE]
        code = await self._journal.write(group, share.end_deletion(done))
        return results if code is ErrorCode.NONE else code

    async def _delete_keys(self, keys: Sequence[SharePartitionKey], epoch: int) -> list[ErrorCode]:
        return await asyncio.gather(*(self._delete_state(key, epoch) for key in keys))

    def _indexes(self, topic_id: UUID, *known: NamedPartitions) -> frozenset[int]:
        """Return the partitions of a topic that may have a state: the known partitions and all
        existing ones, because an earlier deletion may have failed.
        """
        found = frozenset(range(self._topics.partition_count(topic_id)))
        for partitions in known:
            found |= partitions.get(topic_id, ("", frozenset[int]()))[1]
        return found

    async def alter_offsets(
        self, group_id: str, chosen: NamedPartitions, offsets: Mapping[tuple[UUID, int], int]
    ) -> dict[tuple[UUID, int], ErrorCode]:
        """Set start offsets of an empty group, which is created if necessary. Return an error for
        each partition. Raises HeartbeatRefused if the whole request is rejected.
        """
        return await self._in_turn(group_id, lambda: self._alter(group_id, chosen, offsets))

    async def _alter(
        self, group_id: str, chosen: NamedPartitions, offsets: Mapping[tuple[UUID, int], int]
    ) -> dict[tuple[UUID, int], ErrorCode]:
        group, share = await self._empty(group_id, create=True)
        if not chosen:
            self._home.forget_unused(group)
            return {}
        is_new, group.share = group.share is None, share
        changes = share.begin_alteration(chosen)
        try:
            epoch, outcome = share.epoch, self._journal.write(group, changes)
            if is_refused(outcome) and is_new:
                group.share = None
                self._home.forget_unused(group)
            code = await outcome
            if code is not ErrorCode.NONE:
                raise HeartbeatRefused(code, code.message)
            by_topic = {
                topic_id: {index: offsets[topic_id, index] for index in indexes}
                for topic_id, (_, indexes) in chosen.items()
            }
            codes = await self._initialize_states(group_id, epoch, by_topic)
            if ErrorCode.FENCED_STATE_EPOCH in codes.values():
                codes = await self._supersede(group, share, by_topic)
        except BaseException:
            share.give_up(chosen)
            raise
        await self._end_initialization(group, share, chosen, codes)
        return codes

    async def delete_offsets(
        self, group_id: str, topic_ids: Iterable[UUID]
    ) -> dict[UUID, ErrorCode]:
        """Delete the states of an empty group for these topics. Return an error code for each topic
        that has states. Raises HeartbeatRefused if the whole request is rejected.
        """
        chosen = frozenset(topic_ids)
        return await self._in_turn(group_id, lambda: self._delete_offsets(group_id, chosen))

    async def _delete_offsets(
        self, group_id: str, topic_ids: frozenset[UUID]
    ) -> dict[UUID, ErrorCode]:
        group, share = await self._empty(group_id, create=False)
        known = {*share.partitions.initialized, *share.partitions.initializing}
        wanted = topic_ids & {*known, *share.partitions.deleting}
        results = await self._delete_states(group, share, wanted) if wanted else {}
        if isinstance(results, ErrorCode):
            raise HeartbeatRefused(results, results.message)
        return results

    async def delete_group(
        self, group_id: str, delete: Callable[[Group], Awaitable[ErrorCode]]
    ) -> ErrorCode:
        """Delete all states of an empty group, then the group itself. delete: deletes the records
        of the group.
        """
        try:
            return await self._in_turn(group_id, lambda: self._delete_group(group_id, delete))
        except HeartbeatRefused as refused:
            return refused.result.error

    async def _delete_group(
        self, group_id: str, delete: Callable[[Group], Awaitable[ErrorCode]]
    ) -> ErrorCode:
        group, share = await self._empty(group_id, create=False)
        results = await self._delete_states(group, share)
        if isinstance(results, ErrorCode):
            return results
        for code in results.values():
            if code is not ErrorCode.NONE:
                return code
        if not self._is_current(group, share):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NON_EMPTY_GROUP if share.members else await delete(group)

    def initialized(self, group_id: str) -> Assignment | ErrorCode:
        """Return the initialized partitions, or nothing if the group is not a share group. Returns
        INVALID_GROUP_ID for the empty id, for which Kafka returns nothing, or UNKNOWN_SERVER_ERROR
        if topics are given.
        """
        if group_id == "":
            return ErrorCode.INVALID_GROUP_ID
        group = self._home.find(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return {} if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        return {} if group.share is None else indexes_of(group.share.partitions.initialized)

    async def _empty(self, group_id: str, *, create: bool) -> tuple[Group, ShareGroup]:
        """Return a group without members, once pending initializations of its states have ended.
        Otherwise, they would leave states behind. Raises HeartbeatRefused.
        """
        found = self._find_empty(group_id, create=create)
        if earlier := self._initializations_of(group_id):
            await asyncio.wait(earlier)
            found = self._find_empty(group_id, create=create)
            # These initializations were started for members that have since left.
            if self._initializations_of(group_id):
                raise _refusal(ErrorCode.NON_EMPTY_GROUP)
        return found

    def _initializations_of(self, group_id: str) -> list[asyncio.Task[Any]]:
        return [task for task, owner in self._initializations.items() if owner == group_id]

    def _find_empty(self, group_id: str, *, create: bool) -> tuple[Group, ShareGroup]:
        if not group_id:
            raise _refusal(ErrorCode.INVALID_GROUP_ID)
        group = self._home.find(group_id, create=create)
        if group is ErrorCode.GROUP_ID_NOT_FOUND:
            raise HeartbeatRefused(group, f"Group {group_id} not found.")
        if isinstance(group, ErrorCode):
            raise _refusal(group)
        if group.share is None and not group.is_unused:
            raise HeartbeatRefused(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
            )
        share = group.share or ShareGroup(group_id, self._limits_of(group_id))
        if share.members:
            raise _refusal(ErrorCode.NON_EMPTY_GROUP)
        return group, share

    def _is_current(self, group: Group, share: ShareGroup) -> bool:
        """Return True unless the group was lost, reloaded or deleted in the meantime."""
        return group.share is share and self._home.find(share.group_id, create=False) is group

    # --- timers -----------------------------------------------------------------------------------

    def _set_timer(self, group: Group, *, delay_s: float = 0.0) -> None:
        deadline_ms = None if group.share is None else group.share.next_deadline_ms()
        self._journal.set_timer(group, deadline_ms, self._tick, delay_s=delay_s)

    def _tick(self, group: Group) -> None:
        group.consumer_timer = None
        if group.share is None:
            return
        changes = group.share.tick(self._topics, self._now_ms())
        must_retry = bool(changes.records) and is_refused(self._journal.write(group, changes))
        self._set_timer(group, delay_s=RETRY_S if must_retry else 0.0)

    def restore(self, group: Group) -> None:
        """Restore the group from its durable records."""
        group_id = group.classic.group_id
        group.share = ShareGroup(group_id, self._limits_of(group_id))
        group.share.restore(durable_records(group), self._now_ms())
        self._set_timer(group)

    # --- describing -------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> ShareGroupDescription | ErrorCode:
        """Describe a share group once its last change is durable. Returns GROUP_ID_NOT_FOUND if the
        group does not exist.
        """
        group = self._home.find(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return group
        share = group.share
        # Epoch 0 means that the deletion of the group is in flight.
        if share is None or share.epoch == 0:
            return ErrorCode.GROUP_ID_NOT_FOUND
        described = ShareGroupDescription(
            group_id,
            share.state,
            share.epoch,
            share.target_epoch,
            tuple(share.members.values()),
        )
        return await when_durable(group, described)


async def _settle(store: ShareStateStore, key: SharePartitionKey, epoch: int) -> None:
    """Advance a state to this epoch without other changes, so that late requests of earlier epochs
    are fenced. Initializes a missing state. Raises ShareStateError.
    """
    summary = await store.summary(key)
    if not summary.state_epoch:
        await store.initialize(key, state_epoch=epoch, start_offset=NO_START_OFFSET)
        return
    await store.write(
        key,
        state_epoch=epoch,
        leader_epoch=ANY_EPOCH,
        start_offset=NO_START_OFFSET,
        delivery_complete_count=summary.delivery_complete_count,
        batches=(),
    )


def _record_failure(task: "asyncio.Task[Any]") -> None:
    """Log the error of a task, because its caller may no longer be waiting for it."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, HeartbeatRefused):
        log.warning("share_states_failed", error=str(error), kind=type(error).__name__)


def _refusal(code: ErrorCode) -> HeartbeatRefused:
    return HeartbeatRefused(code, code.message)


def _not_found(code: ErrorCode, group_id: str, *, is_leaving: bool) -> HeartbeatResult:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        kind = "Group" if is_leaving else "Share group"
        return HeartbeatResult(code, f"{kind} {group_id} not found.")
    return failed_heartbeat(code)

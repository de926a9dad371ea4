"""The group coordinator of one broker: looks up groups, and stores their offsets and state in
`__consumer_offsets`. `ClassicGroups`, `ConsumerCoordinator`, `ShareGroups` and `StreamsGroups`
implement membership.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

import structlog

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.connection_order import (
    MEMBERS_MAX,
    STATIC_JOIN,
    ConnectionOrder,
    LateRequest,
)
from penstock.broker.coordination.log import (
    CoordinatorLog,
    Done,
    KeyValue,
    TransactionalProducer,
)
from penstock.broker.coordination.shards import LOAD_SLICE_COUNT, CoordinatorShards
from penstock.broker.groups.classic.model import (
    GroupLimits,
    JoinRequest,
    JoinResult,
    Member,
    SyncRequest,
    SyncResult,
)
from penstock.broker.groups.common.model import GroupState, GroupType
from penstock.broker.groups.common.topics import ImageTopics
from penstock.broker.groups.consumer.model import ConsumerLimits
from penstock.broker.groups.coordinator.classic import ClassicGroups
from penstock.broker.groups.coordinator.consumer import ConsumerCoordinator
from penstock.broker.groups.coordinator.descriptions import GroupDescription, describe, state_of
from penstock.broker.groups.coordinator.janitor import GroupJanitor
from penstock.broker.groups.coordinator.offset_sweep import OffsetSweep
from penstock.broker.groups.coordinator.shard import (
    ConsumerRecords,
    Group,
    LiveGroups,
    OffsetsPartition,
    complete_transaction,
    offset_records,
    recorded_type,
    replay,
)
from penstock.broker.groups.coordinator.share import ShareGroups
from penstock.broker.groups.coordinator.streams import StreamsGroups
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import (
    CommittedOffset,
)
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.broker.groups.share.model import ShareLimits
from penstock.broker.groups.share.state.model import ShareStateStore
from penstock.broker.groups.streams.model import StreamsLimits
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.features import OFFSETS_VERSION
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

GROUPS_MAX = 50_000
OFFSETS_MAX = 1_000_000
OFFSET_METADATA_CHARS_MAX = 4_096
"""UTF-16 units, as counted by Java. Kafka's setting is called `offset.metadata.max.bytes`."""
EXPIRY_INTERVAL_S = 600.0

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

Result = TypeVar("Result", JoinResult, SyncResult)


class GroupCoordinator:
    """The group coordinator. Call all methods on the event loop.

    A group belongs to a partition of `__consumer_offsets`, whose leader coordinates the group. A
    broker that becomes the leader loads the partition; one that loses the partition completes
    parked requests with NOT_COORDINATOR and drops the state. An offset commit is acknowledged and
    visible only after its record is durable; in a transaction, it becomes visible with the durable
    marker (KIP-447). Records of a group are appended in the order of its events, and become visible
    in log order. Above GROUPS_MAX or OFFSETS_MAX per partition, clients receive
    COORDINATOR_NOT_AVAILABLE and retry.

    now_ms: milliseconds since 1970 of a clock that never steps (`base.clock.steady`).
    """

    def __init__(
        self,
        offsets_log: CoordinatorLog,
        limits: GroupLimits,
        *,
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
        compaction: CompactionLimits | None = None,
        consumer_limits: Callable[[str], ConsumerLimits] | None = None,
        topics: ImageTopics | None = None,
        share_limits: Callable[[str], ShareLimits] = lambda _: ShareLimits(),
        share_states: ShareStateStore | None = None,
        streams_limits: Callable[[str], StreamsLimits] = lambda _: StreamsLimits(),
        offset_topics: OffsetTopics | None = None,
    ) -> None:
        """offset_topics: None only in tests that use no topics."""
        self._limits = limits
        self._now_ms = now_ms
        self._shards: CoordinatorShards[OffsetsPartition] = CoordinatorShards(
            offsets_log, self._load, self._unload, LiveGroups, compaction
        )
        self.topics = ImageTopics() if topics is None else topics
        """The topics as seen by consumer groups. The owner keeps them up to date."""
        self._classics = ClassicGroups(self, limits, now_ms, new_member_id)
        self.consumers = ConsumerCoordinator(
            self, self.topics, consumer_limits or _default_limits, now_ms, new_member_id
        )
        """Consumer groups (KIP-848)."""
        self.shares = ShareGroups(self, self.topics, share_limits, now_ms, share_states)
        """Share groups (KIP-932)."""
        self.streams = StreamsGroups(self, self.topics, streams_limits, now_ms)
        """Streams groups (KIP-1071)."""
        self._janitor = GroupJanitor(self, self._shards, self.shares)
        self._offset_topics = offset_topics
        self._sweep = (
            None if offset_topics is None else OffsetSweep(self, self._shards, offset_topics)
        )
        self._markers_while_loading: dict[int, list[tuple[int, bool]]] = {}
        """For each loading partition, the transactions that ended after the part of the log that is
        being loaded.
        """
        self._expiry: asyncio.TimerHandle | None = None
        self.transactional_commits = ConnectionOrder()
        """Detects late TxnOffsetCommit requests, by group."""
        self._requests = ConnectionOrder(MEMBERS_MAX)

    def reconfigure(self, limits: GroupLimits) -> None:
        """Replace the limits. Each group applies them in its next step."""
        self._limits = self._classics.limits = limits
        for state in self._shards.loaded():
            for group in state.groups.values():
                group.classic.limits = limits

    # --- leadership -------------------------------------------------------------------------------

    def partition_opened(self, partition: int) -> None:
        """Load the partition of `__consumer_offsets`, which this broker now leads."""
        self._markers_while_loading[partition] = []
        self._shards.opened(partition)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(
                EXPIRY_INTERVAL_S, self._expire_periodically
            )

    def partition_closed(self, partition: int) -> None:
        self._shards.closed(partition)
        self._markers_while_loading.pop(partition, None)

    def _unload(self, state: OffsetsPartition) -> None:
        for group in state.groups.values():
            self._classics.unload(group)
            group.cancel_timers()

    def topics_changed(self, delta: MetadataDelta) -> None:
        """Update the committed offsets that a topic change may affect."""
        sweep = self._sweep
        if sweep is not None and (
            delta.everything
            or delta.removed_topic_ids
            or OFFSETS_VERSION in delta.features
            or not sweep.parked.isdisjoint(delta.topic_ids)
        ):
            sweep.request()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.close()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.shares.close()
        self._shards.close()

    async def ready(self, group_id: str, since_s: float | None = None) -> None:
        """Wait briefly while the group is loading here. Every group request starts with this wait.
        since_s: see `CoordinatorShards.ready`.
        """
        await self._shards.ready(group_id, since_s)

    async def _load(self, partition: int) -> OffsetsPartition:
        state, malformed_count = OffsetsPartition(partition), 0
        records: dict[str, bytes] = {}
        offsets: dict[str, GroupOffsets] = {}
        consumers: ConsumerRecords = {}
        async for batch in self._shards.read(partition):
            malformed_count += replay(batch, records, offsets, state.open_groups, consumers)
        await self._create_groups(state, records, offsets, consumers)
        # Do not await below: sessions must start only when members can reach the group, and no
        # marker or changed limit may be missed.
        for group in state.groups.values():
            group.classic.limits = self._limits
        for group_id in records:
            self._classics.restore(state.groups[group_id])
        protocols: dict[GroupType, ConsumerCoordinator | ShareGroups | StreamsGroups] = {
            GroupType.CONSUMER: self.consumers,
            GroupType.SHARE: self.shares,
            GroupType.STREAMS: self.streams,
        }
        for group_id in consumers:
            restored = state.groups[group_id]
            protocols[recorded_type(restored)].restore(restored)
        for producer_id, committed in self._markers_while_loading.pop(partition, []):
            complete_transaction(state, producer_id, committed=committed)
        if self._sweep is not None:
            self._sweep.request()
        log.info(
            "groups_loaded",
            partition=partition,
            groups=len(state.groups),
            malformed=malformed_count,
        )
        return state

    async def _create_groups(
        self,
        state: OffsetsPartition,
        records: dict[str, bytes],
        offsets: dict[str, GroupOffsets],
        consumers: ConsumerRecords,
    ) -> None:
        """Create the groups that have a group record, then the groups that only have offsets."""
        with_record = dict.fromkeys([*records, *consumers])
        without_record = [
            group_id
            for group_id, table in offsets.items()
            if group_id not in with_record and len(table)
        ]
        for count, group_id in enumerate([*with_record, *without_record], 1):
            group = self._new_group(group_id, state.partition)
            group.offsets = offsets.get(group_id) or GroupOffsets()
            if self._offset_topics is not None:
                group.offsets.assign_topics(self._offset_topics.owner_of_plain)
            group.record = records.get(group_id)
            group.consumer_records = consumers.get(group_id, {})
            state.groups[group_id] = group
            if count % LOAD_SLICE_COUNT == 0:
                await self._shards.take_turn()

    # --- lookup -----------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition of `__consumer_offsets`, or None while the topic does not exist."""
        return self._shards.partition_of(group_id)

    def find(self, group_id: str, *, create: bool, is_read: bool = False) -> Group | ErrorCode:
        """Return the group, or the error that makes it unavailable here.

        is_read: see `CoordinatorShards.find`.
        """
        state = self._shards.find(group_id, is_read=is_read)
        if isinstance(state, ErrorCode):
            return state
        group = state.groups.get(group_id)
        if group is not None:
            return group
        if not create:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if len(state.groups) >= GROUPS_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        state.groups[group_id] = self._new_group(group_id, state.partition)
        return state.groups[group_id]

    def _find_with_offsets(
        self, group_id: str, *, create: bool, is_read: bool = False
    ) -> Group | ErrorCode:
        """Return the group, or an error for a share group, which does not commit offsets and
        accepts only share members.
        """
        group = self.find(group_id, create=create, is_read=is_read)
        is_share = isinstance(group, Group) and group.share is not None
        return ErrorCode.GROUP_ID_NOT_FOUND if is_share else group

    def _find_for_classic(self, group_id: str) -> Group | ErrorCode:
        """Return the group, or an error if it cannot have classic members."""
        if group_id == "":
            return ErrorCode.INVALID_GROUP_ID
        group = self._find_with_offsets(group_id, create=False)
        is_streams = isinstance(group, Group) and group.streams is not None
        return ErrorCode.GROUP_ID_NOT_FOUND if is_streams else group

    def _new_group(self, group_id: str, partition: int) -> Group:
        return Group(self._classics.new(group_id), partition)

    # --- membership -------------------------------------------------------------------------------

    def admit(self, api_key: int, group: Group, member_id: str, connection_id: int | None) -> None:
        """See `ConnectionOrder.admit_member`. The group protocols call this in the step that
        executes the request, after the group has been found or created.
        """
        group_id = group.classic.group_id
        try:
            self._requests.admit_member(api_key, group_id, member_id, connection_id)
        except LateRequest:
            self.forget_unused(group)
            raise

    def admit_leave(
        self, api_key: int, group_id: str, member_id: str, connection_id: int | None
    ) -> None:
        """Like `admit`, for the last request of a member whose group does not exist. The member's
        first request, which the client has given up, may still arrive.
        """
        self._requests.admit_member(api_key, group_id, member_id, connection_id)

    async def join(
        self, group_id: str, request: JoinRequest, connection_id: int | None = None
    ) -> JoinResult:
        """Join the group. Waits until the rebalance completes, at most for the rebalance timeout.

        connection_id: a number that increases with each connection to this broker, as for other
        member requests; None without a connection. Raises LateRequest.
        """
        if group_id == "":
            return JoinResult(error=ErrorCode.INVALID_GROUP_ID, member_id=request.member_id)
        if request.is_too_large:
            return JoinResult(error=ErrorCode.INVALID_REQUEST, member_id=request.member_id)
        group = self.find(group_id, create=request.member_id == "")
        if isinstance(group, ErrorCode):
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is ErrorCode.GROUP_ID_NOT_FOUND else group
            return JoinResult(error=error, member_id=request.member_id)
        if request.member_id:
            self.admit(apis.JOIN_GROUP.key, group, request.member_id, connection_id)
        else:
            self.admit(STATIC_JOIN, group, request.instance_id or "", connection_id)
        if group.share is not None or (group.streams is not None and group.streams.members):
            return JoinResult(
                error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id
            )
        if group.consumer is not None and group.consumer.members:
            return await self.consumers.join(group, request)
        code = self.consumers.make_classic(group)
        if code is not ErrorCode.NONE:
            return JoinResult(error=code, member_id=request.member_id)
        return await self._classics.join(group, request)

    async def sync(
        self, group_id: str, request: SyncRequest, connection_id: int | None = None
    ) -> SyncResult:
        """Return the assignment of the member once it is durable. Raises LateRequest."""
        group = self._find_for_classic(group_id)
        if isinstance(group, ErrorCode):
            return SyncResult(
                error=ErrorCode.UNKNOWN_MEMBER_ID
                if group is ErrorCode.GROUP_ID_NOT_FOUND
                else group
            )
        self.admit(apis.SYNC_GROUP.key, group, request.member_id, connection_id)
        if group.consumer is not None:
            return await self.consumers.sync(group, request)
        return await self._classics.sync(group, request)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        group = self._find_for_classic(group_id)
        if isinstance(group, ErrorCode):
            return ErrorCode.UNKNOWN_MEMBER_ID if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        if group.consumer is not None:
            return self.consumers.heartbeat_classic(group, (member_id, instance_id, generation))
        return self._classics.heartbeat(group, member_id, instance_id, generation)

    async def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None]],
        connection_id: int | None = None,
    ) -> ErrorCode | list[ErrorCode]:
        """Remove members, given as (member id, instance id). Return one error for the whole
        request, or one per member.

        connection_id: see `join`.
        """
        group = self._find_for_classic(group_id)
        if isinstance(group, ErrorCode):
            return (
                [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
                if group is ErrorCode.GROUP_ID_NOT_FOUND
                else group
            )
        for member_id, _ in members:
            # A consumer group does not store the member ids that it has generated, so the JoinGroup
            # of a member that has left may be its first one.
            if connection_id is not None and member_id:
                self._requests.end_member(apis.JOIN_GROUP.key, group_id, member_id, connection_id)
        if group.consumer is not None:
            return await self.consumers.leave(group, members)
        return self._classics.leave(group, members)

    # --- offsets ----------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: dict[TopicPartition, CommittedOffset],
        *,
        supports_epochs: bool = True,
        connection_id: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets. They are durable if the result is NONE. Offsets whose metadata is too
        long are rejected individually. As in Kafka, consumers without a group use the empty group
        id.

        generation: the member epoch in a consumer or streams group. supports_epochs: whether the
        request version has a member epoch (9 and later). Raises LateRequest, except for a commit
        without a generation, which may come from an administrator who resets offsets.
        """
        member = (member_id, instance_id, generation)
        group = self._admit(group_id, member, offsets, supports_epochs=supports_epochs)
        if isinstance(group, ErrorCode):
            return dict.fromkeys(offsets, group)
        if generation >= 0:
            advances, moves_back = group.offsets.compare(offsets)
            self._requests.admit_commit(
                group_id, member_id, connection_id, advances=advances, moves_back=moves_back
            )
        results, accepted = _check_metadata(offsets)
        if accepted:
            outcome = await self._append_commit(group, accepted)
            results.update(dict.fromkeys(accepted, outcome))
        self.forget_unused(group)
        return results

    async def _append_commit(
        self, group: Group, offsets: dict[TopicPartition, CommittedOffset]
    ) -> ErrorCode:
        known = group.offsets

        def durable() -> None:
            known.end_append(offsets)
            known.put(offsets)

        known.begin_append(offsets)
        return await self.append(
            group,
            offset_records(group.classic.group_id, offsets),
            durable,
            failed=lambda: known.end_append(offsets),
        )

    async def commit_transactional_offsets(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        producer: TransactionalProducer,
        offsets: dict[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets as part of a transaction. They are durable if the result is NONE, and
        become visible after `complete_transaction`.

        member: (member id, instance id, generation). Clients older than KIP-447 send none of these
        fields and are not checked.
        """
        if group_id == "":
            return dict.fromkeys(offsets, ErrorCode.INVALID_GROUP_ID)
        group = self._admit(group_id, member, offsets, transactional=True)
        if isinstance(group, ErrorCode):
            if group is ErrorCode.STALE_MEMBER_EPOCH:
                group = ErrorCode.ILLEGAL_GENERATION
            return dict.fromkeys(offsets, group)
        results, accepted = _check_metadata(offsets)
        if accepted:
            outcome = await self._append_pending(group, producer, accepted)
            results.update(dict.fromkeys(accepted, outcome))
        self.forget_unused(group)
        return results

    def _admit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Collection[TopicPartition],
        *,
        transactional: bool = False,
        supports_epochs: bool = True,
    ) -> Group | ErrorCode:
        """Check whether the member may commit offsets of these partitions. A commit without a
        generation may create the group.
        """
        member_id, _, generation = member
        group = self.find(group_id, create=generation < 0)
        if isinstance(group, ErrorCode):
            is_unexpected = group is ErrorCode.GROUP_ID_NOT_FOUND and (
                transactional or not supports_epochs
            )
            return ErrorCode.ILLEGAL_GENERATION if is_unexpected else group
        if group.share is not None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.consumer is None and group.streams is None:
            error = self._classics.check_commit(group, member, transactional=transactional)
        elif transactional and member == ("", None, -1):
            error = ErrorCode.NONE
        elif group.consumer is not None:
            error = group.consumer.check_commit(
                member_id, generation, supports_epochs=supports_epochs
            )
        else:
            assert group.streams is not None
            error = group.streams.check_commit(
                member_id, generation, offsets, supports_epochs=supports_epochs
            )
        if error is ErrorCode.NONE and len(group.offsets) + len(offsets) > OFFSETS_MAX:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is ErrorCode.NONE:
            return group
        self.forget_unused(group)
        return error

    async def _append_pending(
        self,
        group: Group,
        producer: TransactionalProducer,
        offsets: dict[TopicPartition, CommittedOffset],
    ) -> ErrorCode:
        state = self._shards.get(group.partition)
        if state is None:
            return ErrorCode.NOT_COORDINATOR
        group_id = group.classic.group_id
        pending = group.offsets.stage(producer.producer_id, offsets)

        def durable() -> None:
            pending.is_durable = True
            state.open_groups.setdefault(producer.producer_id, set()).add(group_id)

        records = offset_records(group_id, offsets)
        return await self.append(
            group,
            records,
            durable,
            failed=lambda: group.offsets.unstage(pending),
            producer=producer,
        )

    def complete_transaction(self, partition: int, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a producer after its transaction marker has become
        durable in this partition of `__consumer_offsets`.
        """
        state = self._shards.get(partition)
        if state is not None:
            complete_transaction(state, producer_id, committed=committed)
        elif partition in self._markers_while_loading:
            self._markers_while_loading[partition].append((producer_id, committed))

    def fetch_offsets(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1
    ) -> GroupOffsets | ErrorCode:
        """Return the committed offsets, which are empty for an unknown group.

        member_id, member_epoch: checked if the group is a consumer or streams group.
        """
        group = self._find_with_offsets(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return GroupOffsets() if group is ErrorCode.GROUP_ID_NOT_FOUND else group
        checked = group.consumer or group.streams
        if checked is not None:
            error = checked.check_fetch(member_id, member_epoch)
            if error is not ErrorCode.NONE:
                return error
        return group.offsets

    def assigned_topics(self, group_id: str, member_id: str) -> Collection[UUID]:
        """Return the topics of the partitions that a consumer group member owns or is revoking."""
        group = self.find(group_id, create=False)
        consumer = group.consumer if isinstance(group, Group) else None
        member = None if consumer is None else consumer.members.get(member_id)
        if member is None:
            return ()
        return member.current.assigned.keys() | member.current.pending_revocation.keys()

    async def append(
        self,
        group: Group,
        records: Sequence[KeyValue],
        durable: Callable[[], None],
        *,
        failed: Callable[[], None] | None = None,
        producer: TransactionalProducer | None = None,
    ) -> ErrorCode:
        """Append records. `durable` or `failed` is called directly when the append completes, so
        that effects become visible in log order.
        """
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                durable()
            elif failed is not None:
                failed()
            if not future.done():
                future.set_result(
                    ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else error
                )

        self.begin_append(group, records, done, producer=producer)
        return await future

    def begin_append(
        self,
        group: Group,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Append records of a group. `done` is called with the outcome, possibly before this method
        returns.
        """
        group.appends_count += 1

        def settled(error: ErrorCode) -> None:
            group.appends_count -= 1
            done(error)

        self._shards.append(group.partition, records, settled, producer=producer)

    # --- describing and deleting ------------------------------------------------------------------

    def list_groups(self) -> list[GroupDescription]:
        return [
            describe(group) for state in self._shards.loaded() for group in state.groups.values()
        ]

    def states(self) -> Iterator[GroupState]:
        """Yield the state of every group coordinated by this broker."""
        return (
            state_of(group) for loaded in self._shards.loaded() for group in loaded.groups.values()
        )

    def describe_group(self, group_id: str) -> GroupDescription | ErrorCode:
        """Describe a classic group. Unknown groups and groups of other types are reported as dead,
        without an error (DescribeGroups up to version 5).
        """
        group = self.find(group_id, create=False)
        is_unknown = isinstance(group, Group) and not group.is_classic
        if group is ErrorCode.GROUP_ID_NOT_FOUND or is_unknown:
            return GroupDescription(group_id, GroupState.DEAD, "", "", ())
        return group if isinstance(group, ErrorCode) else describe(group)

    def unknown_group(self, group_id: str) -> str | None:
        """Return Kafka's error message if this broker coordinates the id but no classic group with
        this id exists, otherwise None.
        """
        group = self.find(group_id, create=False)
        if group is ErrorCode.GROUP_ID_NOT_FOUND:
            return f"Group {group_id} not found."
        if isinstance(group, Group) and not group.is_classic:
            return f"Group {group_id} is not a classic group."
        return None

    async def delete_group(self, group_id: str) -> ErrorCode:
        group = self.find(group_id, create=False)
        return group if isinstance(group, ErrorCode) else await self._janitor.delete_group(group)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | ErrorCode:
        """Delete committed offsets, and pending ones of open transactions. The deletion is durable
        if the result is NONE, and does not affect later commits. Partitions without an offset are
        not an error.

        A partition fails with GROUP_SUBSCRIBED_TO_TOPIC if a member consumes the topic. Returns a
        single error for the whole request if the group has members that are not consumers
        (NON_EMPTY_GROUP) or the log rejects the tombstones.
        """
        if group_id == "":
            return ErrorCode.INVALID_GROUP_ID
        group = self._find_with_offsets(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return group
        return await self._janitor.delete_offsets(group, partitions)

    def _expire_periodically(self) -> None:
        self.expire()
        self._expiry = asyncio.get_running_loop().call_later(
            EXPIRY_INTERVAL_S, self._expire_periodically
        )

    def expire(self) -> None:
        """Append tombstones for expired offsets, and for groups with neither members nor offsets.
        Share groups are kept until they are deleted.
        """
        self._janitor.expire(self._now_ms() - self._limits.offsets_retention_ms)
        if self._sweep is not None:
            self._sweep.request()

    # --- interface for protocols ------------------------------------------------------------------

    def retire_classic(self, group: Group) -> None:
        """Make parked members of the classic group rejoin, and empty the group."""
        self._classics.retire(group)

    def take_over(self, group: Group, generation: int, members: Sequence[Member]) -> None:
        """Continue another group as a classic group, whose members must rejoin."""
        self._classics.take_over(group, generation, members)

    def reload(self, group: Group) -> None:
        """Reload the partition of a group, because the state in memory has diverged from the
        log.
        """
        state = self._shards.get(group.partition)
        if state is not None and state.groups.get(group.classic.group_id) is group:
            self.partition_opened(group.partition)

    def forget_unused(self, group: Group) -> None:
        """Drop a group that was created by a rejected request, or by a client that never joined."""
        if group.is_unused:
            self.forget(group)

    def forget(self, group: Group) -> None:
        """Drop an empty group."""
        group.cancel_timers()
        state = self._shards.get(group.partition)
        if state is not None and state.groups.get(group.classic.group_id) is group:
            del state.groups[group.classic.group_id]


def _default_limits(group_id: str) -> ConsumerLimits:
    return ConsumerLimits()


def _check_metadata(
    offsets: dict[TopicPartition, CommittedOffset],
) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
    """Return an error for every offset, as if all were rejected, and the offsets with valid
    metadata.
    """
    accepted = {
        key: value
        for key, value in offsets.items()
        if len(value.metadata.encode("utf-16-le")) <= 2 * OFFSET_METADATA_CHARS_MAX
    }
    return dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE), accepted

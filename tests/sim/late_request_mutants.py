"""Planted bugs: late requests of all kinds are executed, and the requests of two starts of a static
member, two transaction versions or two racks are confused.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from penstock.broker.coordination.connection_order import STATIC_JOIN, ConnectionOrder
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.groups.classic.embedded import decode_assignment
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.consumer import classic_members
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.coordinator import janitor
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.share import ShareGroups
from penstock.broker.groups.offsets.offsets import GroupOffsets
from penstock.broker.groups.share.partitions.sessions import ShareSessions
from penstock.broker.groups.share.partitions.window import ShareWindow
from penstock.broker.groups.share.state import combining
from penstock.broker.groups.share.state.machine import ShareStates
from penstock.broker.handlers.fetch import fetch_call
from penstock.broker.handlers.share import fetch
from penstock.broker.handlers.share.requests import release
from penstock.broker.handlers.topics import handlers as topics
from penstock.broker.requests.fetch_sessions import FetchSessions
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.machine import Transaction
from penstock.broker.transactions.model import Persist, TransactionState
from penstock.protocol import apis
from tests.sim import nodes

Patch = tuple[Any, str, Any]


def _carried_out(key: int) -> Callable[[], list[Patch]]:
    """Execute late requests of one API."""

    def patches() -> list[Patch]:
        real = ConnectionOrder.admit_member

        def admit_member(
            self: ConnectionOrder,
            api_key: int,
            group_id: str,
            member_id: str,
            connection_id: int | None,
        ) -> None:
            if api_key != key:
                real(self, api_key, group_id, member_id, connection_id)

        return [(ConnectionOrder, "admit_member", admit_member)]

    return patches


def _commits_carried_out() -> list[Patch]:
    return [(ConnectionOrder, "admit_commit", lambda *_, **__: None)]


def _commits_judged_alike() -> list[Patch]:
    """Late commits are judged alike, whether or not they advance offsets."""
    real = ConnectionOrder.admit_commit

    def admit_commit(self: ConnectionOrder, *sender: Any, **_: bool) -> None:
        real(self, *sender, advances=False, moves_back=False)

    return [(ConnectionOrder, "admit_commit", admit_commit)]


def _moves_back_forgotten() -> list[Patch]:
    real = ConnectionOrder.admit_commit

    def admit_commit(self: ConnectionOrder, *sender: Any, advances: bool, moves_back: bool) -> None:
        real(self, *sender, advances=advances, moves_back=False)

    return [(ConnectionOrder, "admit_commit", admit_commit)]


def _commits_in_flight_overlooked() -> list[Patch]:
    return [(GroupOffsets, "begin_append", lambda *_: None)]


def _acknowledgements_end_later_sessions() -> list[Patch]:
    def admit(self: ShareSessions, api_key: int, key: Any, connection_id: int) -> None:
        self._requests.admit_member(api_key, *key, connection_id)

    return [(ShareSessions, "admit", admit)]


def _connections_of_sessions_forgotten() -> list[Patch]:
    """Connections of a session are forgotten early; they must be remembered until the session that
    replaced theirs ends.
    """
    real = ShareSessions.close_connection

    def close_connection(self: ShareSessions, connection_id: int) -> Any:
        closed = real(self, connection_id)
        ended = {session.key for session in closed}
        for left in [left for left in self._left if left[1:] in ended]:
            del self._left[left]
        return closed

    return [(ShareSessions, "close_connection", close_connection)]


def _sessions_end_by_key() -> list[Patch]:
    real = ShareSessions.close

    def close(self: ShareSessions, session: Any) -> bool:
        return real(self, self.get(session.key) or session)

    return [(ShareSessions, "close", close)]


def _locks_released_one_step_late() -> list[Patch]:
    async def late(node: Any, session: Any) -> None:
        await release(node, session)

    return [(nodes, "release", late)]


def _fetches_outlive_their_sessions() -> list[Patch]:
    return [(fetch._ShareFetchCall, "_drop_targets_of_ended", lambda _self: None)]


def _sessions_stay_on_their_first_connection() -> list[Patch]:
    return [(ShareSessions, "_move", lambda *_: None)]


def _deletions_without_epoch() -> list[Patch]:
    real = ShareStates.delete

    def delete(self: ShareStates, key: Any, state_epoch: int = -1) -> Any:
        known = self.get(key)
        return real(self, key, state_epoch if known is None else known.current.state_epoch)

    return [(ShareStates, "delete", delete)]


def _deletions_not_remembered() -> list[Patch]:
    def forget(self: ShareStates, key: Any, state_epoch: int) -> None:
        self._states.pop(key, None)

    return [(ShareStates, "_forget", forget)]


def _highest_count_wins() -> list[Patch]:
    """A state with more deliveries replaces a final one, as in Kafka."""
    return [(combining, "AVAILABLE", -1)]


def _unstored_deliveries_forgotten() -> list[Patch]:
    real = ShareWindow.settle

    def settle(self: ShareWindow, changes: Any, *, is_written: bool) -> None:
        real(self, changes, is_written=is_written)
        self._record_stored()

    return [(ShareWindow, "settle", settle)]


def _upgrade_by_assignments_alone() -> list[Patch]:
    def owned_by(classic: Any, subscriptions: Any, topics: Any) -> Any:
        return {
            member_id: classic_members._by_id(decode_assignment(member.assignment), topics)
            for member_id, member in classic.members.items()
        }

    return [(classic_members, "_owned_by", owned_by)]


def _fetch_sessions_take_any_epoch() -> list[Patch]:
    real = FetchSessions.begin

    def begin(self: FetchSessions, request: Any, version: int, now: float) -> Any:
        session = self._sessions.get(request.session_id)
        if session is not None and request.session_epoch > 0:
            request.session_epoch = session.epoch
        return real(self, request, version, now)

    return [(FetchSessions, "begin", begin)]


def _late_deletions_find_topics_by_name() -> list[Patch]:
    real, names = topics._find, dict[UUID, str]()

    def find(node: Any, name: str | None, topic_id: UUID | None, count: int) -> Any:
        names.update((topic.topic_id, topic.name) for topic in node.image.topics)
        if topic_id in names:
            return real(node, names[topic_id], None, count)
        return real(node, name, topic_id, count)

    return [(topics, "_find", find)]


def _late_additions(is_internal: bool) -> Callable[[], list[Patch]]:
    """Execute late additions to a transaction: of internal topics, as AddOffsetsToTxn adds, or of
    others.
    """

    def patches() -> list[Patch]:
        real = TransactionCoordinator.add_partitions

        async def add_partitions(
            self: TransactionCoordinator,
            transactional_id: str,
            producer: Any,
            partitions: Any,
            *,
            connection_id: int,
        ) -> Any:
            added = frozenset(partitions)
            if any((topic == OFFSETS_TOPIC) is is_internal for topic, _ in added):
                key = (transactional_id, producer.producer_id, producer.producer_epoch)
                connection_id = self._requests._newest.get(key, connection_id)
            return await real(self, transactional_id, producer, added, connection_id=connection_id)

        return [(TransactionCoordinator, "add_partitions", add_partitions)]

    return patches


def _late_inits_abort() -> list[Patch]:
    """Late InitProducerId requests abort a transaction, as in Kafka."""
    real = Transaction.init_producer

    def init_producer(
        self: Transaction, timeout_ms: int, expected: Any, fresh: int | None, now_ms: int
    ) -> Any:
        is_open = self.current.state is TransactionState.ONGOING
        return real(self, timeout_ms, None if is_open else expected, fresh, now_ms)

    return [(Transaction, "init_producer", init_producer)]


def _late_inits_between_transactions() -> list[Patch]:
    """Late InitProducerId requests between transactions are executed, as in Kafka."""
    real = Transaction.add_partitions

    def add_partitions(self: Transaction, *arguments: Any) -> Any:
        outcome = real(self, *arguments)
        if not isinstance(outcome, Persist):
            return outcome
        self.pending = replace(
            outcome.metadata, last_producer_epoch=self.current.last_producer_epoch
        )
        return replace(outcome, metadata=self.pending)

    return [(Transaction, "add_partitions", add_partitions)]


def _versions_of_transactions_last() -> list[Patch]:
    """A transactional id that version 2 has used keeps the rules of version 2."""
    real, seen = Transaction.end, set[str]()

    def end_epoch(self: Transaction, *args: Any, **options: Any) -> Any:
        seen.add(self.current.transactional_id)
        return real_end_epoch(self, *args, **options)

    def end(self: Transaction, producer: Any, *, committed: bool, now_ms: int) -> Any:
        if self.current.transactional_id not in seen:
            return real(self, producer, committed=committed, now_ms=now_ms)
        return real_end_epoch(
            self, producer, committed=committed, fresh_producer_id=None, now_ms=now_ms
        )

    real_end_epoch = Transaction.end_epoch
    return [(Transaction, "end", end), (Transaction, "end_epoch", end_epoch)]


def _late_heartbeats_extend_sessions() -> list[Patch]:
    real = ClassicGroup.heartbeat

    def heartbeat(
        self: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Any:
        if member_id in self.members:
            self._touch(self.members[member_id], now_ms)
        return real(self, member_id, instance_id, generation, now_ms)

    return [(ClassicGroup, "heartbeat", heartbeat)]


def _groups_with_members_deleted() -> list[Patch]:
    async def delete_group(self: janitor.GroupJanitor, group: Any) -> Any:
        return await self._begin_deletion(group, group.offsets.known())

    return [(janitor.GroupJanitor, "delete_group", delete_group)]


def _share_offsets_changed_under_members() -> list[Patch]:
    def find_empty(self: ShareGroups, group_id: str, *, create: bool) -> Any:
        group: Any = self._home.find(group_id, create=create)
        return group, group.share

    return [(ShareGroups, "_find_empty", find_empty)]


def _late_joins_undo_leaves() -> list[Patch]:
    """As in Kafka, each API has its own order, so a late join undoes a leave."""
    return [(ConnectionOrder, "end_member", lambda *_: None)]


def _late_leaves_remove_the_next_start() -> list[Patch]:
    """LeaveGroup matches the instance id, whatever the member id."""
    real = ClassicGroup.leave

    def leave(self: ClassicGroup, member_id: str, instance_id: str | None, now_ms: int) -> Any:
        return real(self, "" if instance_id else member_id, instance_id, now_ms)

    return [(ClassicGroup, "leave", leave)]


def _late_static_joins() -> list[Patch]:
    """As in Kafka, requests without a member id are not ordered."""
    real = GroupCoordinator.join

    async def join(
        self: GroupCoordinator, group_id: str, request: Any, connection_id: int | None = None
    ) -> Any:
        return await real(self, group_id, request, connection_id if request.member_id else None)

    return [(GroupCoordinator, "join", join)]


def _repeated_static_starts_refused() -> list[Patch]:
    """As in Kafka, only a member that has left may start again."""
    real = ConsumerGroup._admit_static

    def admit_static(self: ConsumerGroup, request: Any, instance_id: str, changes: Any) -> Any:
        if request.member_epoch == 0 and instance_id in self.static_members:
            request = replace(request, member_id="another")
        return real(self, request, instance_id, changes)

    return [(ConsumerGroup, "_admit_static", admit_static)]


def _late_static_leaves() -> list[Patch]:
    """A heartbeat is matched by the instance id alone, whatever its member id."""

    def static(self: ConsumerGroup, instance_id: str, member_id: str) -> Any:
        return self.members[self.static_members[instance_id]]

    return [(ConsumerGroup, "static", static)]


def _partitions_of_stopped_members_lost() -> list[Patch]:
    """The next start of a static member gets no partitions."""
    real = ConsumerGroup.replace_static

    def replace_static(self: ConsumerGroup, old: Any, member_id: str, changes: Any) -> Any:
        self.targets.pop(old.member_id, None)
        return real(self, old, member_id, changes)

    return [(ConsumerGroup, "replace_static", replace_static)]


def _racks_of_brokers_ignored() -> list[Patch]:
    def broker_in_rack(image: Any, rack: str, topic_id: UUID, partition: int) -> Any:
        return max(node.node_id for node in image.nodes)

    return [(fetch_call, "broker_in_rack", broker_in_rack)]


def _every_rack_is_near() -> list[Patch]:
    return [(fetch_call.FetchCall, "_is_near", property(lambda self: bool(self._rack)))]


LATE_REQUEST_MUTANTS: Mapping[str, Callable[[], list[Patch]]] = {
    "late_consumer_heartbeats_are_carried_out": _carried_out(apis.CONSUMER_GROUP_HEARTBEAT.key),
    "late_streams_heartbeats_are_carried_out": _carried_out(apis.STREAMS_GROUP_HEARTBEAT.key),
    "late_share_heartbeats_are_carried_out": _carried_out(apis.SHARE_GROUP_HEARTBEAT.key),
    "late_joins_are_carried_out": _carried_out(apis.JOIN_GROUP.key),
    "late_syncs_are_carried_out": _carried_out(apis.SYNC_GROUP.key),
    "late_commits_are_carried_out": _commits_carried_out,
    "advancing_commits_are_late": _commits_judged_alike,
    "moves_back_are_forgotten": _moves_back_forgotten,
    "commits_in_flight_overlooked": _commits_in_flight_overlooked,
    "late_share_fetches_are_carried_out": _carried_out(apis.SHARE_FETCH.key),
    "late_share_acknowledgements_are_carried_out": _carried_out(apis.SHARE_ACKNOWLEDGE.key),
    "acknowledgements_end_later_sessions": _acknowledgements_end_later_sessions,
    "connections_of_share_sessions_forgotten": _connections_of_sessions_forgotten,
    "share_sessions_end_by_key": _sessions_end_by_key,
    "locks_released_one_step_late": _locks_released_one_step_late,
    "fetches_outlive_their_sessions": _fetches_outlive_their_sessions,
    "share_sessions_stay_on_their_first_connection": _sessions_stay_on_their_first_connection,
    "deletions_of_share_states_without_epoch": _deletions_without_epoch,
    "deletions_of_share_states_not_remembered": _deletions_not_remembered,
    "highest_delivery_count_wins": _highest_count_wins,
    "unstored_deliveries_forgotten": _unstored_deliveries_forgotten,
    "upgrade_by_assignments_alone": _upgrade_by_assignments_alone,
    "fetch_sessions_take_any_epoch": _fetch_sessions_take_any_epoch,
    "late_deletions_find_topics_by_name": _late_deletions_find_topics_by_name,
    "late_partitions_are_added": _late_additions(is_internal=False),
    "late_offsets_are_added": _late_additions(is_internal=True),
    "late_inits_abort": _late_inits_abort,
    "late_inits_between_transactions": _late_inits_between_transactions,
    "versions_of_transactions_last": _versions_of_transactions_last,
    "late_heartbeats_extend_sessions": _late_heartbeats_extend_sessions,
    "groups_with_members_deleted": _groups_with_members_deleted,
    "share_offsets_changed_under_members": _share_offsets_changed_under_members,
    "late_joins_undo_leaves": _late_joins_undo_leaves,
    "late_leaves_remove_the_next_start": _late_leaves_remove_the_next_start,
    "late_static_joins_are_carried_out": _late_static_joins,
    "late_starts_of_static_members": _carried_out(STATIC_JOIN),
    "repeated_starts_of_static_members_refused": _repeated_static_starts_refused,
    "late_static_leaves_are_carried_out": _late_static_leaves,
    "partitions_of_stopped_members_lost": _partitions_of_stopped_members_lost,
    "racks_of_brokers_ignored": _racks_of_brokers_ignored,
    "every_rack_is_near": _every_rack_is_near,
}

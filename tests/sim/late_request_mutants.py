"""Planted bugs: late requests of group members and of coordinators are carried out."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.broker.coordination.connection_order import ConnectionOrder
from penstock.broker.groups.classic.embedded import decode_assignment
from penstock.broker.groups.consumer import classic_members
from penstock.broker.groups.share.partitions.sessions import ShareSessions
from penstock.broker.groups.share.partitions.window import ShareWindow
from penstock.broker.groups.share.state import combining
from penstock.broker.groups.share.state.machine import ShareStates
from penstock.protocol import apis

Patch = tuple[Any, str, Any]


def _carried_out(api: Any) -> Callable[[], list[Patch]]:
    """Carry out late requests of one API."""

    def patches() -> list[Patch]:
        real = ConnectionOrder.admit_member

        def admit_member(
            self: ConnectionOrder,
            api_key: int,
            group_id: str,
            member_id: str,
            connection_id: int | None,
        ) -> None:
            if api_key != api.key:
                real(self, api_key, group_id, member_id, connection_id)

        return [(ConnectionOrder, "admit_member", admit_member)]

    return patches


def _acknowledgements_end_later_sessions() -> list[Patch]:
    def admit(self: ShareSessions, api_key: int, key: Any, connection_id: int) -> None:
        self._requests.admit_member(api_key, *key, connection_id)

    return [(ShareSessions, "admit", admit)]


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
    """A state with more deliveries replaces one that is final, as in Kafka."""
    return [(combining, "AVAILABLE", -1)]


def _unstored_deliveries_forgotten() -> list[Patch]:
    real = ShareWindow.settle

    def settle(self: ShareWindow, changes: Any, *, is_written: bool) -> None:
        real(self, changes, is_written=is_written)
        self._note_stored()

    return [(ShareWindow, "settle", settle)]


def _upgrade_by_assignments_alone() -> list[Patch]:
    def owned_by(classic: Any, subscriptions: Any, topics: Any) -> Any:
        return {
            member_id: classic_members._by_id(decode_assignment(member.assignment), topics)
            for member_id, member in classic.members.items()
        }

    return [(classic_members, "_owned_by", owned_by)]


LATE_REQUEST_MUTANTS: Mapping[str, Callable[[], list[Patch]]] = {
    "late_consumer_heartbeats_are_carried_out": _carried_out(apis.CONSUMER_GROUP_HEARTBEAT),
    "late_streams_heartbeats_are_carried_out": _carried_out(apis.STREAMS_GROUP_HEARTBEAT),
    "late_share_heartbeats_are_carried_out": _carried_out(apis.SHARE_GROUP_HEARTBEAT),
    "late_joins_are_carried_out": _carried_out(apis.JOIN_GROUP),
    "late_syncs_are_carried_out": _carried_out(apis.SYNC_GROUP),
    "late_commits_are_carried_out": _carried_out(apis.OFFSET_COMMIT),
    "late_share_fetches_are_carried_out": _carried_out(apis.SHARE_FETCH),
    "late_share_acknowledgements_are_carried_out": _carried_out(apis.SHARE_ACKNOWLEDGE),
    "acknowledgements_end_later_sessions": _acknowledgements_end_later_sessions,
    "deletions_of_share_states_without_epoch": _deletions_without_epoch,
    "deletions_of_share_states_not_remembered": _deletions_not_remembered,
    "highest_delivery_count_wins": _highest_count_wins,
    "unstored_deliveries_forgotten": _unstored_deliveries_forgotten,
    "upgrade_by_assignments_alone": _upgrade_by_assignments_alone,
}

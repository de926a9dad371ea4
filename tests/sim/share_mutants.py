"""Planted bugs in share groups and the share coordinator, for `tests.sim.mutants`."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.coordinator import share
from penstock.broker.groups.coordinator.share import ShareGroups
from penstock.broker.groups.share.group import ShareGroup
from penstock.broker.groups.share.model import indexes_of
from penstock.broker.groups.share.state.coordinator import ShareCoordinator, _LiveShareStates
from penstock.broker.groups.share.state.machine import ShareStates
from penstock.broker.groups.share.state.model import NO_START_OFFSET
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _states_confirmed_before_durable() -> list[Patch]:
    real = ShareCoordinator._append

    def append(self: ShareCoordinator, *args: Any) -> Any:
        outcome = real(self, *args)
        if outcome.done():
            return outcome
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        done.set_result(ErrorCode.NONE)
        return done

    return [(ShareCoordinator, "_append", append)]


def _older_leaders_read_states() -> list[Patch]:
    real = ShareStates.read

    def read(self: ShareStates, key: Any, leader_epoch: int, now_ms: int) -> Any:
        stored = self.get(key)
        known = -1 if stored is None else stored.current.leader_epoch
        return real(self, key, max(leader_epoch, known), now_ms)

    return [(ShareStates, "read", read)]


def _older_leaders_write_states() -> list[Patch]:
    real = ShareStates.write

    def write(self: ShareStates, key: Any, **named: Any) -> Any:
        return real(self, key, **named | {"leader_epoch": -1})

    return [(ShareStates, "write", write)]


def _leader_epochs_not_recorded() -> list[Patch]:
    real = ShareStates.read

    def read(self: ShareStates, *args: Any) -> Any:
        return real(self, *args)[0], None

    return [(ShareStates, "read", read)]


def _snapshots_forget_earlier_changes() -> list[Patch]:
    real = ShareStates._change

    def change(self: ShareStates, key: Any, before: Any, update: Any, *args: Any) -> Any:
        if before.updates_count >= self._updates_max:
            before = replace(before, current=replace(before.current, batches=()))
        return real(self, key, before, update, *args)

    return [(ShareStates, "_change", change)]


def _states_initialized_again() -> list[Patch]:
    real = ShareStates.initialize

    def initialize(self: ShareStates, key: Any, *args: Any) -> Any:
        self.put_back(key, None, self.deleted_epoch(key))
        return real(self, key, *args)

    return [(ShareStates, "initialize", initialize)]


def _initializations_forget_epochs() -> list[Patch]:
    real = ShareStates.initialize

    def initialize(self: ShareStates, key: Any, state_epoch: int, *args: Any) -> Any:
        record = real(self, key, state_epoch, *args)
        stored = self.get(key)
        if record is None or stored is None:
            return record
        return self._apply(key, replace(stored.current, state_epoch=state_epoch))

    return [(ShareStates, "initialize", initialize)]


def _copies_without_batches() -> list[Patch]:
    real = _LiveShareStates.__init__

    def init(self: _LiveShareStates, partition: Any) -> None:
        real(self, partition)
        kept = ShareStates(0)
        for key in partition.states:
            current = partition.states.get(key).current
            kept.apply(key, replace(current, batches=()))
        self._states = kept

    return [(_LiveShareStates, "__init__", init)]


def _start_offsets_not_kept() -> list[Patch]:
    real = ShareStates.write

    def write(self: ShareStates, key: Any, **named: Any) -> Any:
        return real(self, key, **named | {"start_offset": NO_START_OFFSET})

    return [(ShareStates, "write", write)]


def _partitions_given_without_states() -> list[Patch]:
    def assignable(self: ShareGroup, topics: Any) -> Any:
        found = {topics.id_of(name) for name in self.subscribed_names()} - {None}
        return {key: frozenset(range(topics.partition_count(key))) for key in found}

    return [(ShareGroup, "_assignable", assignable)]


def _share_members_not_restored() -> list[Patch]:
    real = ShareGroup.restore

    def restore(self: ShareGroup, records: Any, now_ms: int) -> None:
        kept = [item for item in records if item[0].kind is not ConsumerRecordKind.SHARE_CURRENT]
        real(self, kept, now_ms)

    return [(ShareGroup, "restore", restore)]


def _silent_share_members_stay() -> list[Patch]:
    return [(ShareGroup, "next_deadline_ms", lambda _: None)]


def _initializations_end_with_their_request() -> list[Patch]:
    real = ShareGroups.heartbeat

    async def heartbeat(self: ShareGroups, *args: Any) -> Any:
        try:
            return await real(self, *args)
        except asyncio.CancelledError:
            for task in list(self._initializations):
                task.cancel()
            raise

    return [(ShareGroups, "heartbeat", heartbeat), (ShareGroup, "give_up", lambda *_: None)]


def _changes_overlap() -> list[Patch]:
    """Requests that alter or delete states do not wait for each other, and overwrite others."""
    real = ShareGroups._begin_epoch_after

    async def in_turn(self: ShareGroups, group_id: str, work: Any) -> Any:
        return await work()

    async def begin_epoch_after(self: ShareGroups, *args: Any, **_: Any) -> Any:
        return await real(self, *args)

    return [
        (ShareGroups, "_in_turn", in_turn),
        (ShareGroups, "_begin_epoch_after", begin_epoch_after),
    ]


def _failed_alterations_not_fenced() -> list[Patch]:
    async def settle(*_: Any) -> None:
        pass

    return [(share, "_settle", settle)]


def _unfinished_alterations_forgotten() -> list[Patch]:
    """As in Kafka, members use existing states while these are altered."""

    def settled(self: ShareGroup) -> Any:
        return indexes_of(self.partitions.initialized)

    return [(ShareGroup, "_settled", settled)]


def _epochs_of_deletions_not_stored() -> list[Patch]:
    real = ShareStates.delete

    def delete(self: ShareStates, *args: Any) -> Any:
        return real(self, *args)[-1:]

    return [(ShareStates, "delete", delete)]


SHARE_GROUP_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "partitions_given_without_states": _partitions_given_without_states,
    "share_members_not_restored": _share_members_not_restored,
    "silent_share_members_stay": _silent_share_members_stay,
    "changes_of_share_states_overlap": _changes_overlap,
    "epochs_of_deletions_not_stored": _epochs_of_deletions_not_stored,
    "failed_alterations_not_fenced": _failed_alterations_not_fenced,
    "unfinished_alterations_forgotten": _unfinished_alterations_forgotten,
    "initializations_end_with_their_request": _initializations_end_with_their_request,
}
SHARE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "states_confirmed_before_durable": _states_confirmed_before_durable,
    "older_leaders_read_states": _older_leaders_read_states,
    "older_leaders_write_states": _older_leaders_write_states,
    "leader_epochs_not_recorded": _leader_epochs_not_recorded,
    "snapshots_forget_earlier_changes": _snapshots_forget_earlier_changes,
    "states_initialized_again": _states_initialized_again,
    "initializations_forget_epochs": _initializations_forget_epochs,
    "copies_without_batches": _copies_without_batches,
    "start_offsets_not_kept": _start_offsets_not_kept,
}

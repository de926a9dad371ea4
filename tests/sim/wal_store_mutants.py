"""Planted bugs in separate WAL stores, for `tests.sim.mutants`."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

import penstock.broker.background.wal_place as wal_place
import penstock.controller.managers.failover as failover
import penstock.controller.managers.nodes as nodes
import penstock.lake.manifest.tail as tail
import penstock.lake.manifest.view as view
import penstock.objectstore.in_order as lists
import penstock.stream.recovery.recoverer as recoverer
import penstock.stream.storage as storage
from penstock.base.ids import WalSequence
from penstock.broker.background.wal_place import ReturnPolicy, WalPlaceDuty
from penstock.broker.wal_store import BrokerStores
from penstock.controller.active.janitor import Janitor
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.metadata.image import MetadataImage
from penstock.lake.manifest.tail import WalTails
from penstock.objectstore.errors import ListTooLong, Unavailable
from penstock.objectstore.ports import ObjectInfo
from penstock.objectstore.routed import RoutedStore
from penstock.stream.format.keys import parse_wal_key, wal_prefix
from penstock.stream.ports import IN_STORE
from penstock.stream.recovery.later_slots import SlotsBehind
from penstock.stream.recovery.recoverer import WalWalker
from penstock.stream.storage import Storage
from penstock.stream.wal.core import WalCore
from penstock.stream.wal.store_check import StoreCheck

Patch = tuple[Any, str, Any]


async def _trust(*_: Any) -> None:
    """Check and write nothing."""


async def _always(*_: Any) -> bool:
    return True


def _recovery_reads_the_wrong_store() -> list[Patch]:
    """Recovery reads and fences in the cluster's own store, where the WAL is not."""
    real = WalWalker.__init__

    def begin(self: WalWalker, *args: Any, wal_store: Any, **options: Any) -> None:
        del wal_store
        real(self, *args, wal_store=None, **options)

    return [(WalWalker, "__init__", begin)]


def _recovery_trusts_an_empty_store() -> list[Patch]:
    return [(recoverer, "check_identity", _trust), (recoverer, "was_opened", _always)]


def _any_broker_recovers_from_a_wal_store() -> list[Patch]:
    return [(failover, "_is_inside", lambda *_: False)]


def _fence_not_checked_afterwards() -> list[Patch]:
    """The identity of the store is checked only before the fence."""
    real = WalWalker.check_store

    async def check_store(self: WalWalker) -> None:
        if not self.fenced_by_us:
            await real(self)

    return [(WalWalker, "check_store", check_store)]


def _vanished_wals_are_empty() -> list[Patch]:
    return [(recoverer, "was_opened", _always)]


def _wals_opened_without_a_marker() -> list[Patch]:
    return [(storage, "open_wal", _trust)]


def _slots_go_to_the_other_store_instead() -> list[Patch]:
    """While the WAL store is down, slots go to the other store, where no recovery looks."""
    real = RoutedStore.put_if_absent

    async def put_if_absent(self: RoutedStore, key: str, body: Any) -> str:
        try:
            return await real(self, key, body)
        except Unavailable:
            return await self._main.put_if_absent(key, body)

    return [(RoutedStore, "put_if_absent", put_if_absent)]


def _brokers_use_any_wal_store() -> list[Patch]:
    def wal_store(image: MetadataImage, _: Any) -> Any:
        current = image.nodes.current_wal_store
        return IN_STORE if current is None else current.store_id

    return [(nodes, "_wal_store", wal_store), (storage, "open_wal", _trust)]


def _slots_in_a_wal_store_deleted_by_list() -> list[Patch]:
    """Slots below the end of a WAL are deleted although ranges reference them."""

    async def clean(self: Janitor, wal: Any) -> Any:
        (store,) = wal.stores
        prefix = wal_prefix(wal.writer, store.store_id)
        keys = [info.key async for info in self._store.list(prefix) if parse_wal_key(info.key)]
        await self._store.delete(keys)
        return len(keys), 0

    return [(Janitor, "_clean_wal", clean)]


def _readers_ignore_the_wal_store() -> list[Patch]:
    real = WalTails.follow

    def follow(self: WalTails, wals: Any) -> None:
        real(self, [wal for wal in wals if wal.wal_store == IN_STORE])

    return [(WalTails, "follow", follow)]


def _readers_trust_an_empty_store() -> list[Patch]:
    return [(view, "check_identity", _trust), (tail, "was_opened", _always)]


def _readers_take_vanished_wals_for_empty() -> list[Patch]:
    return [(tail, "was_opened", _always)]


def _readers_expect_a_marker_at_once() -> list[Patch]:
    """Readers expect the marker of a WAL that its broker has registered but not opened."""
    real = WalTails.follow

    def follow(self: WalTails, wals: Any) -> None:
        real(self, [msgspec.structs.replace(wal, has_streams=True) for wal in wals])

    return [(WalTails, "follow", follow)]


def _moved_slots_acknowledged_at_once() -> list[Patch]:
    """Slots of a moving WAL are acknowledged before they are uploaded."""
    real = Storage._upload_moved

    async def upload(self: Storage, moved: Any) -> None:
        for slot in moved:
            for _, done in slot.groups:
                done(None)
        await real(self, moved)

    return [(Storage, "_upload_moved", upload)]


def _wal_moved_without_an_upload() -> list[Patch]:
    """A WAL moves although its slots are only in the old store."""

    async def upload(self: Storage, moved: Any) -> None:
        for slot in moved:
            self._cache.add(slot.runs, WalSequence(slot.sequence + 1), self._loop.time())

    return [(Storage, "_upload_moved", upload)]


def _moved_wals_repeat_slots() -> list[Patch]:
    """A moved WAL reuses the numbers of slots in doubt, which may exist."""
    real = WalCore.hand_over

    def hand_over(self: WalCore[Any]) -> Any:
        before = self.acknowledged_end
        pending = real(self)
        self._next = WalSequence(before + 1)
        return pending

    return [(WalCore, "hand_over", hand_over)]


def _moves_not_in_the_metadata() -> list[Patch]:
    """A broker opens a WAL in the other store without a commit."""
    real = ControllerStreamMetadata.commit

    async def commit(self: ControllerStreamMetadata, commit: Any) -> None:
        await real(self, replace(commit, wal_move=None))

    return [(ControllerStreamMetadata, "commit", commit)]


def _identity_checked_once() -> list[Patch]:
    """A running broker never reads the identity of its WAL store again."""
    return [
        (StoreCheck, "doubt", lambda _: None),
        (StoreCheck, "look", _trust),
    ]


def _identity_checked_after_errors_only() -> list[Patch]:
    return [(StoreCheck, "look", _trust)]


def _slots_in_doubt_acknowledged() -> list[Patch]:
    """After an outage, slots are acknowledged before the identity of the store is read."""
    real = StoreCheck.doubt

    def doubt(self: StoreCheck) -> None:
        real(self)
        self.is_trusted = True

    return [(StoreCheck, "doubt", doubt)]


def _brokers_wait_for_the_wal_store() -> list[Patch]:
    return [(WalPlaceDuty, "_reason_to_leave", lambda _: "")]


def _brokers_wait_for_the_identity() -> list[Patch]:
    """Brokers leave the WAL store only if PUTs do not end."""
    return [(Storage, "stalled_s", property(lambda self: self.wal.stalled_s))]


def _brokers_probe_any_wal_store() -> list[Patch]:
    return [(wal_place, "check_identity", _trust)]


def _brokers_return_at_once() -> list[Patch]:
    return [(ReturnPolicy, "probed", lambda self, now, works: works)]


def _brokers_need_the_wal_store_to_start() -> list[Patch]:
    real = BrokerStores.__init__

    def begin(self: BrokerStores, *args: Any) -> None:
        real(self, *args)
        self._falls_back = False

    return [(BrokerStores, "__init__", begin)]


def _recovery_ignores_moves() -> list[Patch]:
    """A recovery uses the WAL store although the WAL has moved."""
    return [(MetadataImage, "wal_store_of", lambda self, _: self.current_wal_store)]


def _dead_wals_recovered_without_their_store() -> list[Patch]:
    """A recovery uses the other store while the WAL store is down."""
    real = WalWalker.__init__

    def begin(self: WalWalker, store: Any, *args: Any, wal_store: Any, **options: Any) -> None:
        del wal_store
        real(self, store, *args, wal_store=None, **options)

    return [(WalWalker, "__init__", begin)]


def _readers_look_into_the_old_store() -> list[Patch]:
    """Readers keep their position in the store from which a WAL has moved."""
    real = WalTails.follow

    def follow(self: WalTails, wals: Any) -> None:
        known = {writer: cursor.wal_store for writer, cursor in self._cursors.items()}
        kept = [
            msgspec.structs.replace(wal, wal_store=known.get(wal.writer, wal.wal_store))
            for wal in wals
        ]
        real(self, kept)

    return [(WalTails, "follow", follow)]


def _lists_are_not_sorted() -> list[Patch]:
    """LISTs have the order of the store."""

    async def in_order(
        listed: AsyncIterator[ObjectInfo], prefix: str, *, start_after: str, limit: int
    ) -> AsyncIterator[ObjectInfo]:
        del limit
        async for info in listed:
            if info.key.startswith(prefix) and info.key > start_after:
                yield info

    return [(lists, "in_order", in_order)]


def _long_lists_end_early() -> list[Patch]:
    """A LIST that is too long ends where it should fail."""
    real = lists.in_order

    async def beginning(
        listed: AsyncIterator[ObjectInfo], prefix: str
    ) -> AsyncIterator[ObjectInfo]:
        left = lists.LISTED_MAX
        async for info in listed:
            if info.key.startswith(prefix):
                if not left:
                    return
                left -= 1
                yield info

    def in_order(
        listed: AsyncIterator[ObjectInfo], prefix: str, *, start_after: str, limit: int
    ) -> AsyncIterator[ObjectInfo]:
        return real(beginning(listed, prefix), prefix, start_after=start_after, limit=limit)

    return [(lists, "in_order", in_order)]


def _failed_lists_count() -> list[Patch]:
    """A failed LIST counts as one without later slots."""
    real = SlotsBehind.list

    async def list_once(self: SlotsBehind) -> None:
        with suppress(ListTooLong):
            await real(self)

    return [(SlotsBehind, "list", list_once)]


WAL_STORE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "recovery_reads_the_wrong_store": _recovery_reads_the_wrong_store,
    "recovery_trusts_an_empty_store": _recovery_trusts_an_empty_store,
    "any_broker_recovers_from_a_wal_store": _any_broker_recovers_from_a_wal_store,
    "fence_not_checked_afterwards": _fence_not_checked_afterwards,
    "vanished_wals_are_empty": _vanished_wals_are_empty,
    "wals_opened_without_a_marker": _wals_opened_without_a_marker,
    "slots_go_to_the_other_store_instead": _slots_go_to_the_other_store_instead,
    "brokers_use_any_wal_store": _brokers_use_any_wal_store,
    "slots_in_a_wal_store_deleted_by_list": _slots_in_a_wal_store_deleted_by_list,
    "readers_ignore_the_wal_store": _readers_ignore_the_wal_store,
    "readers_trust_an_empty_store": _readers_trust_an_empty_store,
    "readers_take_vanished_wals_for_empty": _readers_take_vanished_wals_for_empty,
    "readers_expect_a_marker_at_once": _readers_expect_a_marker_at_once,
    "moved_slots_acknowledged_at_once": _moved_slots_acknowledged_at_once,
    "wal_moved_without_an_upload": _wal_moved_without_an_upload,
    "moved_wals_repeat_slots": _moved_wals_repeat_slots,
    "moves_not_in_the_metadata": _moves_not_in_the_metadata,
    "identity_checked_once": _identity_checked_once,
    "identity_checked_after_errors_only": _identity_checked_after_errors_only,
    "slots_in_doubt_acknowledged": _slots_in_doubt_acknowledged,
    "brokers_wait_for_the_wal_store": _brokers_wait_for_the_wal_store,
    "brokers_wait_for_the_identity": _brokers_wait_for_the_identity,
    "brokers_probe_any_wal_store": _brokers_probe_any_wal_store,
    "brokers_return_at_once": _brokers_return_at_once,
    "brokers_need_the_wal_store_to_start": _brokers_need_the_wal_store_to_start,
    "recovery_ignores_moves": _recovery_ignores_moves,
    "dead_wals_recovered_without_their_store": _dead_wals_recovered_without_their_store,
    "readers_look_into_the_old_store": _readers_look_into_the_old_store,
    "lists_are_not_sorted": _lists_are_not_sorted,
    "long_lists_end_early": _long_lists_end_early,
    "failed_lists_prove_nothing_is_there": _failed_lists_count,
}

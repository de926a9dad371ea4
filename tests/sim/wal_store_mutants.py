"""Planted bugs of a WAL store of its own, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import msgspec

import penstock.controller.managers.nodes as nodes
import penstock.lake.manifest.tail as tail
import penstock.lake.manifest.view as view
import penstock.stream.recovery.recoverer as recoverer
import penstock.stream.storage as storage
from penstock.controller.active.janitor import Janitor
from penstock.controller.metadata.image import MetadataImage
from penstock.lake.manifest.tail import WalTails
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.routed import RoutedStore
from penstock.stream.format.keys import parse_wal_key, wal_prefix
from penstock.stream.ports import IN_STORE
from penstock.stream.recovery.recoverer import WalWalker

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


def _fence_not_checked_afterwards() -> list[Patch]:
    """The identity of the store is checked before the fence only."""
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
    """Slots below the end of a WAL are deleted although ranges refer to them."""

    async def clean(self: Janitor, wal: Any) -> Any:
        prefix = wal_prefix(wal.writer, wal.store_id)
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
    """Readers expect the marker of a WAL whose broker has registered and not opened it."""
    real = WalTails.follow

    def follow(self: WalTails, wals: Any) -> None:
        real(self, [msgspec.structs.replace(wal, has_streams=True) for wal in wals])

    return [(WalTails, "follow", follow)]


WAL_STORE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "recovery_reads_the_wrong_store": _recovery_reads_the_wrong_store,
    "recovery_trusts_an_empty_store": _recovery_trusts_an_empty_store,
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
}

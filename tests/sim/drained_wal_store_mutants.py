"""Planted bugs in draining WAL stores, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.controller.active.dispatch as dispatch
import penstock.controller.disaster_recovery.recovery as recovery
import penstock.controller.managers.nodes as nodes
import penstock.controller.managers.wal_stores as wal_stores
from penstock.base.ids import WalStoreId
from penstock.broker.background.wal_place import WalPlaceDuty
from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.api.messages import DrainWalStore, RegisterBroker
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import DrainState
from penstock.controller.metadata.records import WalStoreDrain
from penstock.stream.ports import IN_STORE, BrokerIncarnation

Patch = tuple[Any, str, Any]


def _ended_beside_dead_wals() -> list[Patch]:
    """A WAL store ends while it contains the WAL of a dead broker."""

    def wals_in(image: MetadataImage, store_id: WalStoreId) -> Any:
        return [
            wal
            for wal in image.nodes.running_wals()
            if wal.store_id == store_id and image.nodes.is_alive(wal.writer)
        ]

    return [(wal_stores, "wals_in", wals_in)]


def _ended_beside_ranges() -> list[Patch]:
    """A WAL store ends while logs reference slots in it."""
    return [(wal_stores, "placed_in", lambda *_: [])]


def _returns_dropped_during_a_drain() -> list[Patch]:
    """A broker repeats the commit of its return to a WAL store that is being drained, and continues
    in the cluster's own store although its first attempt was committed.
    """

    def is_ended(self: ControllerStreamMetadata, store_id: WalStoreId) -> bool:
        return self._follower.image.nodes.drain_of(store_id) != DrainState.USED

    return [(ControllerStreamMetadata, "is_wal_store_ended", is_ended)]


def _wal_store_not_checked_during_a_drain() -> list[Patch]:
    """A broker that opens its WAL in the cluster's own store requires no WAL store."""
    real = nodes._wal_store

    def wal_store(image: MetadataImage, request: RegisterBroker) -> WalStoreId:
        return IN_STORE if image.nodes.current_wal_store is None else real(image, request)

    return [(nodes, "_wal_store", wal_store)]


def _brokers_leave_at_once() -> list[Patch]:
    real = WalPlaceDuty.__init__

    def begin(
        self: WalPlaceDuty, storage: Any, stores: Any, *, is_leaving: Any, **options: Any
    ) -> None:
        del is_leaving

        def leaves() -> bool:
            return storage.wal_store is not None and options["current"]() is None

        real(self, storage, stores, is_leaving=leaves, **options)

    return [(WalPlaceDuty, "__init__", begin)]


def _end_of_a_drain_not_published() -> list[Patch]:
    """Readers require the WAL store until other metadata is published."""
    real = ManifestChanges.note

    def note(self: ManifestChanges, records: Any) -> bool:
        return real(self, [item for item in records if not isinstance(item, WalStoreDrain)])

    return [(ManifestChanges, "note", note)]


def _returns_to_a_drained_store_repeated() -> list[Patch]:
    """A broker gives up its return to a WAL store only if that is lost, not if it is drained."""

    def is_ended(self: ControllerStreamMetadata, store_id: WalStoreId) -> bool:
        return self._follower.image.nodes.is_wal_store_lost(store_id)

    return [(ControllerStreamMetadata, "is_wal_store_ended", is_ended)]


def _end_of_a_drain_not_backed_up() -> list[Patch]:
    return [(dispatch, "_BACKED_UP", dispatch._BACKED_UP - {DrainWalStore})]


def _moved_wals_rebuilt_from_where_they_were() -> list[Patch]:
    """Disaster recovery reads a WAL from the store that it has left."""
    real = MetadataImage.wal_store_of

    def wal_store_of(self: MetadataImage, writer: BrokerIncarnation) -> Any:
        wal = self.nodes.wal(writer)
        return self.wal_store(wal.left[0]) if wal is not None and wal.left else real(self, writer)

    return [(MetadataImage, "wal_store_of", wal_store_of)]


def _drains_forgotten_by_recoveries() -> list[Patch]:
    real = recovery.rebuild

    def rebuild(image: MetadataImage, *arguments: Any, **options: Any) -> Any:
        rebuilt = real(image, *arguments, **options)
        rebuilt.records += [
            WalStoreDrain(store.store_id, DrainState.USED) for store in image.nodes.wal_stores()
        ]
        return rebuilt

    return [(recovery, "rebuild", rebuild)]


DRAINED_WAL_STORE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "ended_beside_dead_wals": _ended_beside_dead_wals,
    "ended_beside_ranges": _ended_beside_ranges,
    "returns_dropped_during_a_drain": _returns_dropped_during_a_drain,
    "wal_store_not_checked_during_a_drain": _wal_store_not_checked_during_a_drain,
    "brokers_leave_at_once": _brokers_leave_at_once,
    "end_of_a_drain_not_published": _end_of_a_drain_not_published,
    "returns_to_a_drained_store_repeated": _returns_to_a_drained_store_repeated,
    "end_of_a_drain_not_backed_up": _end_of_a_drain_not_backed_up,
    "moved_wals_rebuilt_from_where_they_were": _moved_wals_rebuilt_from_where_they_were,
    "drains_forgotten_by_recoveries": _drains_forgotten_by_recoveries,
}

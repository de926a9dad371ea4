"""Planted bugs in WAL stores that are lost permanently, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.controller.active.dead_wals as dead_wals
import penstock.controller.active.dispatch as dispatch
import penstock.controller.managers.failover as failover
import penstock.controller.managers.lost_ranges as lost_ranges
import penstock.controller.managers.wal_stores as wal_stores
from penstock.broker.partition.leader_epochs import LeaderEpochs
from penstock.controller.active.lost_ranges import LostRanges
from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.active.periodic import Ticks
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.disaster_recovery.recovery import Recovery
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodesImage
from penstock.controller.metadata.records import KeptLogDropped
from penstock.stream.ports import IN_STORE
from penstock.stream.read.stream_reader import StreamReader

Patch = tuple[Any, str, Any]


def _dead_wals_end_without_a_decision() -> list[Patch]:
    """A dead broker's records in a WAL store are abandoned without a decision by the operator."""

    def is_lost(image: MetadataImage, wal: Any) -> bool:
        return not wal.ended and wal.store_id != IN_STORE and not image.nodes.is_alive(wal.writer)

    return [(failover, "_is_lost", is_lost)]


def _abandoned_below_live_brokers() -> list[Patch]:
    return [(wal_stores, "brokers_in", lambda *_: [])]


def _abandoned_although_it_works() -> list[Patch]:
    async def why_not_lost(*_: Any) -> str:
        return ""

    return [(dispatch, "why_not_lost", why_not_lost)]


def _leases_of_dead_writers_ignored() -> list[Patch]:
    """A store is abandoned while a dead broker may still acknowledge records."""
    return [(dead_wals, "LEASES_WAITED", 0)]


def _abandoned_stores_used_again() -> list[Patch]:
    return [(NodesImage, "is_wal_store_lost", lambda *_: False)]


def _brokers_return_to_abandoned_stores() -> list[Patch]:
    def current(self: NodesImage) -> Any:
        return next(reversed(list(self.all_wal_stores())), None)

    return [
        (NodesImage, "current_wal_store", property(current)),
        (NodesImage, "needed_wal_store", property(current)),
    ]


def _lost_wals_end_without_a_backup() -> list[Patch]:
    real = Ticks.__init__

    def begin(self: Ticks, *args: Any, backed_up: Any, **options: Any) -> None:
        del backed_up
        real(self, *args, backed_up=lambda: 1 << 60, **options)

    return [(Ticks, "__init__", begin)]


def _moves_to_abandoned_stores_repeated() -> list[Patch]:
    """A broker repeats the move to an abandoned store, which the controller refuses."""
    return [(ControllerStreamMetadata, "is_wal_store_ended", lambda *_: False)]


def _lost_ranges_stay() -> list[Patch]:
    async def step(_: LostRanges) -> bool:
        return False

    return [(LostRanges, "step", step)]


def _records_of_unknown_transactions_stay() -> list[Patch]:
    """Only the transaction stream is trimmed where the end of a transaction is lost."""
    real = lost_ranges.trims

    def trims(image: MetadataImage, lost: Any) -> Any:
        return (item for item in real(image, lost) if item.stream.kind != "data")

    return [(lost_ranges, "trims", trims)]


def _dropped_deleted_records_are_not_published() -> list[Patch]:
    """Readers require the lost store until other metadata is published."""
    real = ManifestChanges.note

    def note(self: ManifestChanges, records: Any) -> bool:
        return real(self, [item for item in records if not isinstance(item, KeptLogDropped)])

    return [(ManifestChanges, "note", note)]


def _lost_timestamps_are_found() -> list[Patch]:
    """The newest timestamp of a range is that of its lost records."""

    async def newest_ms(
        self: StreamReader, stream_id: Any, start_offset: Any, end_offset: Any, _: int
    ) -> int:
        ranges = self._metadata.objects(stream_id, start_offset, end_offset, 100)
        return max((item.range.max_timestamp_ms for item in ranges), default=-1)

    return [(StreamReader, "_newest_ms", newest_ms)]


def _empty_batches_begin_an_epoch() -> list[Patch]:
    real = LeaderEpochs.assign

    def assign(self: LeaderEpochs, epoch: Any, start_offset: Any) -> None:
        if epoch < 0 and not self._entries:
            self._entries.append((epoch, start_offset))
        real(self, epoch, start_offset)

    return [(LeaderEpochs, "assign", assign)]


def _offsets_reused_in_the_same_epoch() -> list[Patch]:
    """The end of a lost epoch is the end of the log."""
    return [(LeaderEpochs, "end_offset", lambda _, epoch, log_end_offset: (epoch, log_end_offset))]


def _recovered_without_a_record_of_the_loss() -> list[Patch]:
    """A recovery without the WAL store leaves it in the metadata as if it worked."""
    real = Recovery._survey

    async def survey(self: Recovery, *args: Any, **options: Any) -> Any:
        report, rebuilt, records = await real(self, *args, **options)
        return report, rebuilt, [item for item in records if "Lost" not in type(item).__name__]

    return [(Recovery, "_survey", survey)]


LOST_WAL_STORE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "dead_wals_end_without_a_decision": _dead_wals_end_without_a_decision,
    "abandoned_below_live_brokers": _abandoned_below_live_brokers,
    "abandoned_although_it_works": _abandoned_although_it_works,
    "leases_of_dead_writers_ignored": _leases_of_dead_writers_ignored,
    "abandoned_stores_used_again": _abandoned_stores_used_again,
    "brokers_return_to_abandoned_stores": _brokers_return_to_abandoned_stores,
    "lost_wals_end_without_a_backup": _lost_wals_end_without_a_backup,
    "moves_to_abandoned_stores_repeated": _moves_to_abandoned_stores_repeated,
    "lost_ranges_stay": _lost_ranges_stay,
    "records_of_unknown_transactions_stay": _records_of_unknown_transactions_stay,
    "dropped_deleted_records_are_not_published": _dropped_deleted_records_are_not_published,
    "lost_timestamps_are_found": _lost_timestamps_are_found,
    "empty_batches_begin_an_epoch": _empty_batches_begin_an_epoch,
    "offsets_reused_in_the_same_epoch": _offsets_reused_in_the_same_epoch,
    "recovered_without_a_record_of_the_loss": _recovered_without_a_record_of_the_loss,
}

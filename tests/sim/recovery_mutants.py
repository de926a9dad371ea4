"""Planted bugs in backup and recovery, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.controller.disaster_recovery.plan as plan
import penstock.controller.disaster_recovery.recovery as recovery
from penstock.controller.active.dispatch import Dispatch
from penstock.controller.active.janitor import Janitor
from penstock.controller.api.stream_metadata import ControllerStreamMetadata
from penstock.controller.backup.layout import LogObject
from penstock.controller.backup.log import BackupLog
from penstock.controller.metadata.records import MetadataOffset

Patch = tuple[Any, str, Any]


def _deleted_before_the_backup() -> list[Patch]:
    async def at_once(_: Any, __: int) -> None:
        pass

    return [(ControllerStreamMetadata, "backed_up", at_once), (Janitor, "_backed_up", at_once)]


def _acknowledged_before_the_backup() -> list[Patch]:
    return [(Dispatch, "_backup_offset_needed", lambda _self, _request, _reply: MetadataOffset(0))]


def _ids_and_epochs_given_out_again() -> list[Patch]:
    return [(plan, "EPOCHS_SKIPPED", 0), (plan, "IDS_SKIPPED", 1)]


def _recovered_wals_not_fenced() -> list[Patch]:
    return [(recovery, "_RECOVERER", None)]


def _old_history_not_fenced() -> list[Patch]:
    real = BackupLog.put

    async def put(self: BackupLog, item: LogObject) -> None:
        if not item.is_fence:
            await real(self, item)

    return [(BackupLog, "put", put)]


def _only_the_owners_wal_is_read() -> list[Patch]:
    """Only the owner's WAL is read, as if the backup contained every later open of a stream."""
    real = plan._pieces

    def pieces(image: Any, wals: Any, rebuilt: Any) -> Any:
        found = real(image, wals, rebuilt)
        return {
            stream_id: [
                piece
                for piece in items
                if (stream := image.streams.get(stream_id)) is not None
                and stream.owner == piece.writer
            ]
            for stream_id, items in found.items()
        }

    return [(plan, "_pieces", pieces)]


RECOVERY_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "deleted_before_the_backup": _deleted_before_the_backup,
    "acknowledged_before_the_backup": _acknowledged_before_the_backup,
    "ids_and_epochs_given_out_again": _ids_and_epochs_given_out_again,
    "recovered_wals_not_fenced": _recovered_wals_not_fenced,
    "old_history_not_fenced": _old_history_not_fenced,
    "only_the_owners_wal_is_read": _only_the_owners_wal_is_read,
}

"""Planted bugs in ACLs and delegation tokens, for `tests.sim.mutants`."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import penstock.controller.active.server as server
import penstock.controller.active.snapshotter as snapshotter
import penstock.controller.backup.snapshots as snapshots
from penstock.base.ids import Millis
from penstock.controller.active.writer import Runtime
from penstock.controller.api.messages import DeleteAcls, Reply, Status
from penstock.controller.managers.result import Result
from penstock.controller.metadata.acls import AclsImage
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    AclEntry,
    AclRecord,
    AclRemoved,
    ControllerEpoch,
    DelegationTokenRecord,
)

Patch = tuple[Any, str, Any]


def _removal_takes_the_acls_beside_it() -> list[Patch]:
    """Removing one ACL of a resource also removes the others (CVE-2024-27309)."""

    def remove(self: AclsImage, record: AclRemoved) -> None:
        real(self, record)
        for acl in list(self._acls)[1:]:
            if acl.resource_name == record.acl.resource_name:
                del self._acls[acl]

    real = AclsImage.remove
    return [(AclsImage, "remove", remove)]


def _removal_acknowledged_before_the_commit() -> list[Patch]:
    async def submit(
        self: Runtime,
        name: str,
        work: Callable[[MetadataImage, Millis], Result[Any]],
        **options: Any,
    ) -> Reply[Any]:
        asking = real(self, name, work, **options)
        if name != DeleteAcls.__name__:
            return await asking
        pending = asyncio.ensure_future(asking)
        pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = work(self._image, self._now_ms())
        return Reply(
            offset=self._quorum.committed_offset, controller_epoch=self._epoch, value=found.value
        )

    real = Runtime.submit
    return [(Runtime, "submit", submit)]


class _Remembering(dict[AclEntry, None]):
    """ACLs that also keep removed ones."""

    def __init__(self, acls: dict[AclEntry, None]) -> None:
        super().__init__(acls)
        self.removed: list[AclEntry] = []


def _snapshots_have_removed_acls() -> list[Patch]:
    def remove(self: AclsImage, record: AclRemoved) -> None:
        real_remove(self, record)
        if not isinstance(self._acls, _Remembering):
            self._acls = _Remembering(self._acls)
        self._acls.removed.append(record.acl)

    def copy_image(image: MetadataImage) -> Any:
        copied, offset = real_copy(image)
        if isinstance(image.acls._acls, _Remembering):
            removed = map(AclRecord, image.acls._acls.removed)
            copied = replace(copied, lasts=[*copied.lasts, *removed])
        return copied, offset

    real_remove, real_copy = AclsImage.remove, snapshots.copy_image
    return [
        (AclsImage, "remove", remove),
        (snapshots, "copy_image", copy_image),
        (snapshotter, "copy_image", copy_image),
        (server, "copy_image", copy_image),
    ]


class _LateAcls(list[Any]):
    """Records whose ACLs are read only when they are written."""

    def __init__(self, records: list[Any], image: MetadataImage) -> None:
        super().__init__(records)
        self._image = image

    def __iter__(self) -> Iterator[Any]:
        for record in super().__iter__():
            if not isinstance(record, AclRecord):
                yield record
        yield from map(AclRecord, list(self._image.acls))


def _acls_copied_after_the_offset_of_the_snapshot() -> list[Patch]:
    """A removal races with the replay of the snapshot, which may or may not contain the ACL."""

    def copy_image(image: MetadataImage) -> Any:
        copied, offset = real(image)
        return replace(copied, lasts=_LateAcls(copied.lasts, image)), offset

    real = snapshots.copy_image
    modules = snapshots, snapshotter, server
    return [(module, "copy_image", copy_image) for module in modules]


def _attempts_of_earlier_epochs_carried_out() -> list[Patch]:
    """A late attempt from before a leader change adds an ACL again."""

    def of_another_epoch(
        self: server.ControllerService, metadata: Mapping[str, object], epoch: ControllerEpoch
    ) -> Reply[Any] | None:
        refused = real(self, metadata, epoch)
        is_stale = refused is not None and refused.status is Status.STALE_CONTROLLER_EPOCH
        return None if is_stale else refused

    real = server.ControllerService._of_another_epoch
    return [(server.ControllerService, "_of_another_epoch", of_another_epoch)]


def _snapshots_lack_tokens() -> list[Patch]:
    def copy_image(image: MetadataImage) -> Any:
        copied, offset = real(image)
        kept = [item for item in copied.lasts if not isinstance(item, DelegationTokenRecord)]
        return replace(copied, lasts=kept), offset

    real = snapshots.copy_image
    modules = snapshots, snapshotter, server
    return [(module, "copy_image", copy_image) for module in modules]


ACL_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "removal_takes_the_acls_beside_it": _removal_takes_the_acls_beside_it,
    "removal_acknowledged_before_the_commit": _removal_acknowledged_before_the_commit,
    "snapshots_have_removed_acls": _snapshots_have_removed_acls,
    "acls_copied_after_the_offset_of_the_snapshot": _acls_copied_after_the_offset_of_the_snapshot,
    "attempts_of_earlier_epochs_carried_out": _attempts_of_earlier_epochs_carried_out,
    "snapshots_lack_tokens": _snapshots_lack_tokens,
}

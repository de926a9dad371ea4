"""Compare the bytes in the bucket with the metadata after logs have lost records in every way.

Referenced are committed objects of a range, uncommitted WAL slots, fences of WALs with referenced
slots, and slots of running WALs that a late PUT wrote again. Metadata backup and manifests are only
counted.
"""

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.doctor.inventory import PARTS, Inventory
from penstock.objectstore.ports import ObjectInfo
from penstock.stream.format.keys import (
    DATA_ROOT,
    MANIFEST_ROOT,
    META_ROOT,
    WAL_ROOT,
    parse_data_key,
    parse_wal_key,
)
from penstock.stream.ports import BrokerIncarnation

if TYPE_CHECKING:
    from tests.sim.world import World

LEAKING: Final = frozenset({"leaks"})
"""Scenarios in which logs lose records in every way, topics are forked and deleted, and the bucket
is measured.
"""

RATIO_MAX: Final = 1.05
_META_OBJECTS_LATE: Final = 200
"""Number of backup objects that may be written before a due snapshot has been taken."""

_MANIFESTS_MAX: Final = 200
"""Number of manifests in a run of a minute or two. A longer run may have one per second: they are
kept for `manifest.grace.ms`, which starts again under a new active controller.
"""


@dataclass(frozen=True, slots=True)
class Leak:
    """The result of a run."""

    bucket_bytes: int
    referred_bytes: int
    fences: int
    """Fences of WALs of which nothing else is left, and objects that paused writers put
    after them.
    """
    left_over: tuple[str, ...]
    """Keys without references."""

    @property
    def ratio(self) -> float:
        return self.bucket_bytes / max(1, self.referred_bytes)


def find_leak(
    image: MetadataImage, infos: list[ObjectInfo], returned: AbstractSet[str] = frozenset()
) -> Leak:
    """Compare a listing with the metadata. Pure.

    returned: keys that were deleted and put again.
    """
    bucket = referred = fences = 0
    left_over: list[str] = []
    used = image.objects.wals()
    for info in infos:
        if not info.key.startswith((DATA_ROOT, WAL_ROOT)):
            continue
        bucket += info.size_bytes
        if (
            _is_referred(image, info.key)
            or _is_needed_fence(image, info.key, used)
            or (info.key in returned and _is_in_running_wal(image, info.key))
        ):
            referred += info.size_bytes
        elif _is_past_end(image, info.key):
            fences += 1
        else:
            left_over.append(info.key)
    return Leak(bucket, referred, fences, tuple(left_over))


def _is_referred(image: MetadataImage, key: str) -> bool:
    object_id = parse_data_key(key)
    state = image.objects.get(object_id) if object_id is not None else image.objects.in_place(key)
    if state is not None and state.refs:
        return True
    slot = parse_wal_key(key)
    wal = None if slot is None else image.nodes.wal(slot.writer)
    return slot is not None and wal is not None and not wal.ended and slot.sequence >= wal.committed


def _is_in_running_wal(image: MetadataImage, key: str) -> bool:
    slot = parse_wal_key(key)
    wal = None if slot is None else image.nodes.wal(slot.writer)
    return wal is not None and wal.end is None


def _is_past_end(image: MetadataImage, key: str) -> bool:
    """Return whether this is the fence of an ended WAL, or an object that a paused writer put after
    it.
    """
    slot = parse_wal_key(key)
    wal = None if slot is None else image.nodes.wal(slot.writer)
    return slot is not None and wal is not None and wal.end is not None and slot.sequence >= wal.end


def _is_needed_fence(image: MetadataImage, key: str, used: set[BrokerIncarnation]) -> bool:
    """Return whether this is a fence of a WAL whose slots are objects."""
    slot = parse_wal_key(key)
    return slot is not None and slot.writer in used and _is_past_end(image, key)


async def check_leaks(world: "World", limit_s: float) -> None:
    """Wait until only needed objects are left, and report others. Record the result."""
    end = world.loop.time() + limit_s
    while True:
        image = world.metadata.image
        infos = world.bucket.infos
        leak = world.leak = find_leak(image, infos, world.bucket.returned)
        is_clean = leak.ratio <= RATIO_MAX and not leak.fences
        if is_clean and not _doctor_finds(world, infos):
            break
        if world.loop.time() >= end:
            world.fail(
                f"the bucket has {leak.bucket_bytes} bytes, the metadata refer to"
                f" {leak.referred_bytes}: {leak.fences} fences and {leak.left_over[:5]} are left;"
                f" the doctor finds {_doctor_finds(world, infos)[:5]}"
            )
            return
        await asyncio.sleep(1)
    meta, manifests = (
        sum(info.key.startswith(root) for info in infos) for root in (META_ROOT, MANIFEST_ROOT)
    )
    config = world.limits.controller
    # Each backup object contains at least one record.
    per_snapshot = min(config.backup_objects, config.snapshot_records)
    meta_max = (config.snapshots_kept + 1) * per_snapshot + _META_OBJECTS_LATE
    if meta > meta_max or manifests > max(_MANIFESTS_MAX, world.loop.time()):
        world.fail(f"{meta} objects of the backup and {manifests} manifests are left")


def _doctor_finds(world: "World", infos: list[ObjectInfo]) -> list[str]:
    """Return what `penstock doctor` would report about this listing."""
    inventory = Inventory("sim", lambda: world.metadata.image, world.now_ms(), 0)
    for part in PARTS:
        for info in infos:
            if info.key.startswith(part):
                inventory.add(part, info)
        inventory.end_part(part)
    found: list[object] = [
        *inventory.missing(),
        *inventory.damaged(),
        *inventory.orphans(),
        *inventory.unknown_wal_slots(),
        *inventory.foreign.items,
        *inventory.other_clusters,
    ]
    return [str(item) for item in found]

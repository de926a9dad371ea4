"""List the bucket into an inventory, request missing objects by name, and delete orphans.

Invariants: `LISTS_AT_ONCE` parts are listed concurrently, page by page. Only orphans of the
inventory are deleted, and only if the metadata, refreshed before each batch, still does not contain
them. Which objects are orphans is decided in `inventory`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.deploy.doctor.inventory import Expected, Inventory, Suspect, is_unknown
from penstock.deploy.doctor.metadata import Metadata
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import DELETE_BATCH_COUNT, LIST_PAGE_COUNT, ObjectStore

LISTS_AT_ONCE: Final = 8
HEADS_AT_ONCE: Final = 16
HEADS_MAX: Final = 1_000
"""Maximum number of missing objects that are requested by name. Additional ones count as missing,
because they are referenced but were not listed.
"""

Progress = Callable[[int], None]


async def list_all(store: ObjectStore, inventory: Inventory, progress: Progress) -> None:
    """List all parts into the inventory. Raises ObjectStoreError."""
    turns = asyncio.Semaphore(LISTS_AT_ONCE)

    async def one(part: str) -> None:
        async with turns:
            async for info in store.list(part):
                inventory.add(part, info)
                if inventory.object_count % LIST_PAGE_COUNT == 0:
                    progress(LIST_PAGE_COUNT)
                    await asyncio.sleep(0)
            inventory.end_part(part)

    try:
        async with asyncio.TaskGroup() as group:
            for part in inventory.parts:
                group.create_task(one(part))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def confirm_missing(store: ObjectStore, expected: Sequence[Expected]) -> list[Expected]:
    """Return the objects that HEAD requests do not find either. Raises ObjectStoreError."""
    turns = asyncio.Semaphore(HEADS_AT_ONCE)

    async def is_gone(item: Expected) -> bool:
        async with turns:
            try:
                await store.head(item.key)
            except ObjectNotFound:
                return True
            return False

    requested = expected[:HEADS_MAX]
    gone = await asyncio.gather(*(is_gone(item) for item in requested))
    return [item for item, is_missing in zip(requested, gone, strict=True) if is_missing] + list(
        expected[HEADS_MAX:]
    )


async def delete_orphans(
    store: ObjectStore, metadata: Metadata, orphans: Sequence[Suspect], progress: Progress
) -> int:
    """Delete orphans and return their number. metadata: the metadata of the running controllers.
    Raises ObjectStoreError, ControllerError, TimeoutError.
    """
    assert metadata.is_live, "a backup does not know what was committed since"
    deleted = 0
    for at in range(0, len(orphans), DELETE_BATCH_COUNT):
        await metadata.refresh()
        keys = [
            suspect.key
            for suspect in orphans[at : at + DELETE_BATCH_COUNT]
            if is_unknown(metadata.image, suspect.key)
        ]
        if keys:
            await store.delete(keys)
        deleted += len(keys)
        progress(len(keys))
    return deleted

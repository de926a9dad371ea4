"""Abandon a WAL store that is lost, and list the records lost with it."""

import asyncio
from typing import Final

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.ids import WalStoreId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import RequestRefused
from penstock.controller.api.messages import AbandonWalStore, Status
from penstock.controller.disaster_recovery.plan import Gap, gaps_of_lost_stores
from penstock.controller.managers.lost_ranges import objects_in
from penstock.controller.managers.wal_stores import brokers_in
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import WalStoreRecord
from penstock.deploy.clients.controllers import connect
from penstock.deploy.doctor.metadata import LiveMetadata

_POLL_S: Final = 0.5


class Abandonment(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a WAL store that is, or may be, abandoned.

    brokers: live brokers whose WALs are in the store, which prevent abandoning it. dead_brokers:
    dead brokers whose WALs have not ended. lost: the lost ranges; end_offset is -1 if unknown.
    removed: intact ranges, and deleted records that could be restored, which are removed as well.
    done: whether nothing refers to the store any more.
    """

    store_id: int
    url: str
    uuid: str
    abandoned: bool
    done: bool
    brokers: list[int]
    dead_brokers: list[int]
    lost: list[Gap]
    removed: list[Gap]


def assess(image: MetadataImage, store: WalStoreRecord) -> Abandonment:
    """Return the state of a WAL store. This takes O(log entries)."""
    store_id = store.store_id
    lost, removed = gaps_of_lost_stores(image, {store_id}, all_dead=False)
    dead = sorted(
        int(wal.writer.node_id)
        for wal in image.nodes.running_wals()
        if wal.store_id == store_id and not image.nodes.is_alive(wal.writer)
    )
    is_abandoned = image.nodes.is_wal_store_lost(store_id)
    return Abandonment(
        store_id=store_id,
        url=store.url,
        uuid=str(store.uuid),
        abandoned=is_abandoned,
        done=is_abandoned and not dead and not objects_in(image, {store_id}),
        brokers=brokers_in(image, store_id),
        dead_brokers=dead,
        lost=lost,
        removed=removed,
    )


def find_wal_store(image: MetadataImage, store_id: int | None) -> WalStoreRecord:
    """Return the WAL store to abandon: the only one, or the one with this id. Raises
    ExpectedError.
    """
    known = list(image.nodes.all_wal_stores())
    candidates = [store for store in known if store_id in (None, store.store_id)]
    usable = [store for store in candidates if not image.nodes.is_wal_store_ended(store.store_id)]
    if len(usable) > 1:
        named = ", ".join(f"{store.store_id} ({store.url})" for store in usable)
        raise ExpectedError(f"this cluster has several WAL stores: {named}; choose one with --id")
    if not candidates:
        named = ", ".join(str(store.store_id) for store in known) or "none"
        raise ExpectedError(f"there is no such WAL store; WAL stores of this cluster: {named}")
    return (usable or candidates)[-1]


async def abandon_wal_store(
    address: str, store_id: int | None, *, accept: bool, wait_s: float
) -> Abandonment:
    """Return the state of the WAL store: without `accept`, before it is abandoned; otherwise, after
    that. Raises ExpectedError, ControllerError and TimeoutError.
    """
    metadata, client = LiveMetadata(address), connect(address)
    try:
        await metadata.start()
        await metadata.refresh()
        store = find_wal_store(metadata.image, store_id)
        if not accept:
            return assess(metadata.image, store)
        deadline = asyncio.get_running_loop().time() + wait_s
        before = await _record(client, metadata, store, deadline)
        while True:
            await metadata.refresh()
            after = assess(metadata.image, store)
            if after.done or asyncio.get_running_loop().time() > deadline:
                return msgspec.structs.replace(after, lost=before.lost, removed=before.removed)
            await asyncio.sleep(_POLL_S)
    finally:
        await client.close()
        await metadata.close()


async def _record(
    client: ControllerClient, metadata: LiveMetadata, store: WalStoreRecord, deadline: float
) -> Abandonment:
    """Abandon the store, after the leases of dead brokers have ended. Return the state before that,
    with the losses of brokers that have died in the meantime.
    """
    request = AbandonWalStore(store_id=WalStoreId(store.store_id), uuid=store.uuid)
    while True:
        await metadata.refresh()
        before = assess(metadata.image, store)
        try:
            await client.abandon_wal_store(request)
        except RequestRefused as error:
            if (
                error.status is not Status.NODE_IN_USE
                or asyncio.get_running_loop().time() > deadline
            ):
                raise
        else:
            return before
        await asyncio.sleep(_POLL_S)

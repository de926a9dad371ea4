"""Move the WALs of a cluster out of its WAL store, and list the remaining contents."""

import asyncio
from collections import Counter
from typing import Final

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.ids import WalStoreId
from penstock.controller.api.messages import DrainWalStore
from penstock.controller.managers.wal_stores import placed_in, wals_in
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import DrainState
from penstock.controller.metadata.records import WalStoreRecord
from penstock.deploy.clients.controllers import connect
from penstock.deploy.doctor.metadata import LiveMetadata
from penstock.stream.ports import IN_STORE

STORE: Final = "store"
"""The target of a move to the cluster's own store."""
_POLL_S: Final = 0.5
_STATES: Final = {
    DrainState.USED: "used",
    DrainState.DRAINING: "draining",
    DrainState.ENDED: "drained",
}


class TopicLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The slots in a WAL store that the logs of one topic, snapshot or deleted topic refer to."""

    topic: str
    partition_count: int
    size_bytes: int


class WalMove(msgspec.Struct, frozen=True, kw_only=True):
    """The remaining contents of a WAL store.

    state: used, draining, drained or abandoned. brokers: live brokers with WALs in it.
    brokers_outside: live brokers with WALs in the cluster's own store. dead_brokers: dead brokers
    with WALs in the WAL store that wait for recovery. topics: the slots that logs reference.
    unreferenced_count: number of slots that are deleted once no reader needs them.
    """

    store_id: int
    url: str
    uuid: str
    state: str
    brokers: list[int]
    brokers_outside: list[int]
    dead_brokers: list[int]
    topics: list[TopicLeft]
    unreferenced_count: int

    @property
    def is_empty(self) -> bool:
        """Whether the WAL store can end."""
        return not (self.brokers or self.dead_brokers or self.topics or self.unreferenced_count)


def assess(image: MetadataImage, store: WalStoreRecord) -> WalMove:
    """Return the remaining contents of a WAL store. This takes O(log entries)."""
    store_id, nodes = store.store_id, image.nodes
    writers = [wal.writer for wal in wals_in(image, store_id)]
    placed = placed_in(image, store_id)
    is_lost = nodes.is_wal_store_lost(store_id)
    return WalMove(
        store_id=store_id,
        url=store.url,
        uuid=str(store.uuid),
        state="abandoned" if is_lost else _STATES[nodes.drain_of(store_id)],
        brokers=sorted(writer.node_id for writer in writers if nodes.is_alive(writer)),
        brokers_outside=sorted(
            wal.writer.node_id
            for wal in nodes.running_wals()
            if wal.store_id == IN_STORE and nodes.is_alive(wal.writer)
        ),
        dead_brokers=sorted(writer.node_id for writer in writers if not nodes.is_alive(writer)),
        topics=_topics(image, {state.object_id for state in placed if state.refs}),
        unreferenced_count=sum(not state.refs for state in placed),
    )


def _topics(image: MetadataImage, object_ids: set[int]) -> list[TopicLeft]:
    partitions: dict[str, set[int]] = {}
    sizes = Counter[str]()
    for stream in image.streams if object_ids else ():
        left_bytes = [
            entry.size_bytes
            for entry in (*stream.entries, *stream.kept_entries)
            if entry.object_id in object_ids
        ]
        if left_bytes:
            name = image.topic_name(stream.topic_id) or str(stream.topic_id)
            partitions.setdefault(name, set()).add(stream.partition)
            sizes[name] += sum(left_bytes)
    return [
        TopicLeft(topic=name, partition_count=len(partitions[name]), size_bytes=size_bytes)
        for name, size_bytes in sorted(sizes.items())
    ]


def find_wal_store(image: MetadataImage) -> WalStoreRecord:
    """Return the WAL store in use, or the one that ended last. Raises ExpectedError."""
    known = list(image.nodes.all_wal_stores())
    if not known:
        raise ExpectedError(
            "this cluster has no WAL store: to move its WALs to one, set wal.store on all"
            " controllers, then on all brokers, restart them, and run `penstock features upgrade"
            " wal.store.version=1`"
        )
    return known[-1]


def is_undone(store: WalStoreRecord, target: str) -> bool:
    """Return whether the target is the WAL store itself, which undoes a move. Raises ExpectedError
    if it is neither the WAL store nor `store`.
    """
    if target not in {STORE, store.url}:
        raise ExpectedError(
            f"WALs cannot move to {target}: choose --to store or --to {store.url}. To use another"
            " WAL store, move the WALs to `store` first; then set wal.store to the new one on all"
            " brokers, then on the controllers, and restart them"
        )
    return target == store.url


def is_done(found: WalMove, target: str) -> bool:
    """Return whether the move to this target is complete."""
    if target == STORE:
        return found.state == "drained"
    return found.state == "used" and not found.brokers_outside


async def move_wals(address: str, target: str, *, wait_s: float) -> WalMove:
    """Move the WALs of all brokers to the target: `store`, or the URL of the WAL store without
    credentials. Return the remaining contents after `wait_s`, or once another command has undone
    the move. With an empty target, nothing is moved. If the WAL store is reported as drained, the
    metadata backup already contains this. Raises ExpectedError, ControllerError and TimeoutError.
    """
    metadata, client = LiveMetadata(address), connect(address)
    try:
        await metadata.start()
        await metadata.refresh()
        store = find_wal_store(metadata.image)
        if not target:
            return assess(metadata.image, store)
        request = DrainWalStore(
            store_id=WalStoreId(store.store_id),
            uuid=store.uuid,
            is_undone=is_undone(store, target),
        )
        again = msgspec.structs.replace(request, is_repeated=True)
        deadline = asyncio.get_running_loop().time() + wait_s
        await client.drain_wal_store(request)
        while True:
            await metadata.refresh()
            found = assess(metadata.image, store)
            if target != STORE:
                if is_done(found, target):
                    return found
            elif found.state == _STATES[DrainState.ENDED]:
                await client.drain_wal_store(again)  # this returns once the backup contains the end
                return found
            elif found.state != _STATES[DrainState.DRAINING]:
                return found
            elif found.is_empty:
                await client.drain_wal_store(again)
                await metadata.refresh()
                found = assess(metadata.image, store)
            if asyncio.get_running_loop().time() > deadline:
                return found
            await asyncio.sleep(_POLL_S)
    finally:
        await client.close()
        await metadata.close()

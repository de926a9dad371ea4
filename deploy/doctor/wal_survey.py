"""Find lost or damaged slots of WALs that have not ended, and the records lost with them, for
`penstock wal repair` and `penstock doctor`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.ids import Millis, NodeEpoch, NodeId
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.wal_losses import accepted_losses, data_streams_of
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.recovery.recoverer import WalWalker
from penstock.stream.recovery.salvage import BadSlot, Loss, Salvage
from penstock.stream.wal.wal_store import WalStores, check_identity

WALKS_AT_ONCE: Final = 8
_READING: Final = StreamConfig()


class LostSlot(msgspec.Struct, frozen=True):
    sequence: int
    key: str
    problem: str
    is_accepted: bool


class LostTail(msgspec.Struct, frozen=True):
    """Records that one partition loses with these slots: those from start_offset. end_offset: one
    past the last record in later slots, or None if later slots contain none; in which case the loss
    is uncertain.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int | None
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class WalSurvey(msgspec.Struct, frozen=True):
    """One WAL with lost or damaged slots. is_alive: whether its writer is running and still has the
    records in memory.
    """

    node_id: int
    node_epoch: int
    is_alive: bool
    slots: list[LostSlot]
    partitions: list[LostTail]

    @property
    def writer(self) -> BrokerIncarnation:
        return BrokerIncarnation(NodeId(self.node_id), NodeEpoch(self.node_epoch))


async def survey_wals(stores: WalStores, image: MetadataImage) -> list[WalSurvey]:
    """Return the running WALs with lost or damaged slots, without those in abandoned WAL stores.
    Raises ObjectStoreError, NotContiguous.

    Invariants: this only reads, with the rules of recovery (`stream.recovery.recoverer`,
    `stream.recovery.salvage`), so the result is the same. A slot that is committed in the meantime
    is not lost: its writer still had the records. No loss is ever accepted here. Cost: one LIST for
    each WAL and one GET for each of its uncommitted slots.
    """
    turns = asyncio.Semaphore(WALKS_AT_ONCE)

    async def one(wal: WalState) -> WalSurvey | None:
        async with turns:
            return await _survey(stores.store, image, wal)

    usable = (
        wal for wal in image.nodes.running_wals() if not image.nodes.is_wal_store_lost(wal.store_id)
    )
    wals = sorted(usable, key=lambda wal: wal.writer)
    return [
        found for found in await asyncio.gather(*(one(wal) for wal in wals)) if found is not None
    ]


async def reach_wal_stores(stores: WalStores, image: MetadataImage) -> None:
    """Check that the WAL stores of the cluster are reachable, so that an absent slot is known to be
    lost. Raises ExpectedError if no WAL store is given, WalStoreWrong if it is the wrong one, and
    ObjectStoreError.
    """
    needed = image.nodes.needed_wal_store
    if needed is None:
        return
    if stores.configured is None:
        raise ExpectedError(
            f"the WALs are in a WAL store, which is at {needed.url} for the nodes of the cluster:"
            " specify it with --wal-store (PENSTOCK_WAL_STORE)"
        )
    stores.follow(listed.store_id for listed in image.nodes.wal_stores())
    for identity in image.wal_store_identities():
        await check_identity(stores.store, identity)


def still_lost(surveys: Sequence[WalSurvey], image: MetadataImage) -> list[WalSurvey]:
    """Drop slots that have been committed in the meantime, and WALs that have ended."""
    found: list[WalSurvey] = []
    for survey in surveys:
        wal = image.nodes.wal(survey.writer)
        slots = [
            slot
            for slot in survey.slots
            if wal is not None and not wal.ended and slot.sequence >= wal.committed
        ]
        if slots:
            keys = {slot.key for slot in slots}
            partitions = [item for item in survey.partitions if keys.intersection(item.keys)]
            found.append(msgspec.structs.replace(survey, slots=slots, partitions=partitions))
    return found


async def _survey(store: ObjectStore, image: MetadataImage, wal: WalState) -> WalSurvey | None:
    streams = (image.streams.known(stream_id) for stream_id in image.streams.opened_by(wal.writer))
    ends = {stream.stream_id: stream.next_offset for stream in streams}
    salvage = Salvage(ends, data_streams_of(image, ends))
    walker = WalWalker(
        store,
        wal.writer,
        wal.committed,
        recoverer=None,
        wal_store=image.wal_store_of(wal.writer),
        must_exist=bool(ends),
        accepted=(),
        now_ms=Millis(0),
        config=_READING,
    )
    async for _, found in walker.slots():
        if isinstance(found, BadSlot):
            salvage.add_bad(found)
        else:
            salvage.take(walker.end, found.ranges)
    if not salvage.bad_slots:
        return None
    accepted = accepted_losses(image, wal.writer)
    slots = [
        LostSlot(slot.sequence, slot.key, str(slot.error), slot.sequence in accepted)
        for slot in salvage.bad_slots
    ]
    return WalSurvey(
        wal.writer.node_id,
        wal.writer.node_epoch,
        image.nodes.is_alive(wal.writer),
        slots,
        _tails(image, salvage.losses()),
    )


def _tails(image: MetadataImage, losses: Iterable[Loss]) -> list[LostTail]:
    tails: list[LostTail] = []
    for loss in losses:
        stream = image.streams.known(loss.stream_id)
        name = image.topic_name(stream.topic_id) or "?"
        keys = tuple(slot.key for slot in loss.slots)
        tails.append(LostTail(name, stream.partition, loss.start_offset, loss.end_offset, keys))
    return sorted(tails, key=lambda item: (item.topic, item.partition))

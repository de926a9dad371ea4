"""Read the index of a WAL slot, usually with one GET of its tail."""

from collections.abc import Callable

from penstock.base.ids import WalSequence, WalStoreId
from penstock.base.log import get_logger
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.keys import WalSlot
from penstock.stream.format.layout import TAIL_BYTES
from penstock.stream.ports import BrokerIncarnation

_log = get_logger(__name__)

_READ_TRIES = 3


CacheSlot = Callable[[str, ObjectIndex, bytes], None]
"""Called with a slot that was read whole: its key, its index and all its bytes."""


async def read_slot(
    store: ObjectStore,
    writer: BrokerIncarnation,
    sequence: WalSequence,
    wal_store: WalStoreId,
    *,
    tail_bytes: int = TAIL_BYTES,
    cache_slot: CacheSlot | None = None,
) -> ObjectIndex | None:
    """Return the index of the slot, or None if the slot is free.

    Damaged slots are read again, to rule out damage in transit.

    cache_slot: called if a single GET returned the whole slot. Raises ObjectCorrupt,
    ObjectStoreError.
    """
    slot = WalSlot(writer, sequence, wal_store)
    for _ in range(_READ_TRIES - 1):
        try:
            return await _read_once(store, slot, tail_bytes, cache_slot)
        except ObjectCorrupt as error:
            _log.warning("wal_slot_damaged", key=error.key, error=str(error))
    return await _read_once(store, slot, tail_bytes, cache_slot)


async def _read_once(
    store: ObjectStore,
    slot: WalSlot,
    tail_bytes: int,
    cache_slot: CacheSlot | None,
) -> ObjectIndex | None:
    key = slot.key
    try:
        tail = await store.get_tail(key, tail_bytes)
        index = parse_tail(tail.data, tail.size_bytes, key)
        if isinstance(index, NeedMore):
            rest = await store.get_range(key, index.position, tail.size_bytes - index.position)
            index = parse_tail(rest, tail.size_bytes, key)
    except ObjectNotFound:
        return None
    if isinstance(index, NeedMore):
        raise ObjectCorrupt(key, index.position, "the index is longer than declared in the footer")
    header = index.header
    if header.sequence != slot.sequence or (not index.is_fence and header.writer != slot.writer):
        raise ObjectCorrupt(key, 0, f"contains slot {header.sequence} of {header.writer}")
    if cache_slot is not None and not index.is_fence and len(tail.data) == tail.size_bytes:
        cache_slot(key, index, tail.data)
    return index

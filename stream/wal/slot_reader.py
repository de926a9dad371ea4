"""Read the index of a WAL slot, usually with one GET of its tail."""

from collections.abc import Callable

from penstock.base.ids import WalSequence
from penstock.base.log import get_logger
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.keys import wal_key
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
    *,
    tail_bytes: int = TAIL_BYTES,
    cache_slot: CacheSlot | None = None,
) -> ObjectIndex | None:
    """Return the index of the slot, or None if the slot is free.

    Slots are read again if their bytes are damaged, to rule out damage in transit.

    cache_slot: called if one GET returned the whole slot. Raises ObjectCorrupt, ObjectStoreError.
    """
    for _ in range(_READ_TRIES - 1):
        try:
            return await _read_once(store, writer, sequence, tail_bytes, cache_slot)
        except ObjectCorrupt as error:
            _log.warning("wal_slot_read_damaged", key=error.key, error=str(error))
    return await _read_once(store, writer, sequence, tail_bytes, cache_slot)


async def _read_once(
    store: ObjectStore,
    writer: BrokerIncarnation,
    sequence: WalSequence,
    tail_bytes: int,
    cache_slot: CacheSlot | None,
) -> ObjectIndex | None:
    key = wal_key(writer, sequence)
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
    if index.header.sequence != sequence or (not index.is_fence and index.header.writer != writer):
        raise ObjectCorrupt(
            key, 0, f"contains slot {index.header.sequence} of {index.header.writer}"
        )
    if cache_slot is not None and not index.is_fence and len(tail.data) == tail.size_bytes:
        cache_slot(key, index, tail.data)
    return index

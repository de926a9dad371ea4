"""Read the index of an object in the store.

Invariant: only the footer and the index are read, never data blocks. Everything is validated before
it is used (`stream.format.decoder`).
"""

import asyncio
from typing import Final

from penstock.deploy.errors import UsageError
from penstock.objectstore.url import open_store
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import NeedMore, ObjectIndex, parse_tail
from penstock.stream.format.layout import TAIL_BYTES
from penstock.stream.wal.wal_store import WalStores

_READ_S: Final = 30.0


def need_store(url: str) -> str:
    """Return the URL. Raises UsageError if the console has no readable store."""
    if not url:
        raise UsageError(
            "this page reads the object store: start the console with --store URL (PENSTOCK_STORE)"
        )
    if url.startswith("memory:"):
        raise UsageError(
            "this cluster keeps its objects in the memory of its own process, where the console"
            " cannot read them; start it with another --store"
        )
    return url


async def read_index(url: str, key: str) -> ObjectIndex:
    """Return the index of an object. Raises ObjectStoreError, ObjectCorrupt."""
    stores = WalStores(open_store(need_store(url)))  # this also finds slots in WAL stores
    store = stores.store
    try:
        async with asyncio.timeout(_READ_S):
            tail = await store.get_tail(key, TAIL_BYTES)
            found = parse_tail(tail.data, tail.size_bytes, key)
            if isinstance(found, NeedMore):
                length = tail.size_bytes - found.position
                rest = await store.get_range(key, found.position, length)
                found = parse_tail(rest, tail.size_bytes, key)
            if isinstance(found, NeedMore):
                raise ObjectCorrupt(key, found.position, "the footer changed between two reads")
            return found
    finally:
        await stores.close()

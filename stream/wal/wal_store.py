"""A WAL store: a store that contains only WALs. An absent slot is evidence only in the right store,
so an identity object identifies the store, and a marker distinguishes an empty WAL from a lost one.
See docs/design/wal-store.md.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Final, NamedTuple
from uuid import UUID

import msgspec

from penstock.base.errors import StreamError
from penstock.base.ids import WalStoreId
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError, PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.routed import RoutedStore
from penstock.stream.errors import ObjectCorrupt, WalStoreWrong
from penstock.stream.format.keys import (
    WAL_STORE_ROOT,
    wal_marker_key,
    wal_root,
    wal_store_identity_key,
)
from penstock.stream.ports import BrokerIncarnation, WalStoreIdentity

_IDENTITY_KEY = f"{WAL_STORE_ROOT}identity"
_IDENTITY_BYTES_MAX = 4_096
_MARKER = b"{}"
_READS: Final = 3
READ_INTERVAL_S: Final = 1.0
_READ_TIMEOUT_S: Final = 5.0


class _Stored(msgspec.Struct, frozen=True):
    cluster_id: str
    store_id: Annotated[int, msgspec.Meta(ge=1, lt=1_000_000_000)]
    uuid: UUID


_decoder = msgspec.json.Decoder(_Stored)


class ConfiguredWalStore(NamedTuple):
    """The WAL store that a process is configured with. url: without credentials."""

    store: ObjectStore
    url: str


class _AnyWalStore(PrefixedStore):
    """Removes the id of the WAL store from keys. Supports only reads of single objects."""

    def _inner(self, key: str) -> str:
        return self._prefix + key.removeprefix(WAL_STORE_ROOT).partition("/")[2]


class WalStores:
    """The store of a cluster, together with its WAL store. Keys in an unknown or unconfigured WAL
    store raise StoreUnknown and are never passed to the cluster's own store.
    """

    def __init__(self, store: ObjectStore, configured: ConfiguredWalStore | None = None) -> None:
        self.configured = configured
        self._main = store
        self._routed = RoutedStore(store, WAL_STORE_ROOT)
        self._known: set[WalStoreId] = set()

    @property
    def store(self) -> ObjectStore:
        return self._routed

    @property
    def wal_store(self) -> ObjectStore | None:
        """The configured WAL store, with its own keys."""
        return None if self.configured is None else self.configured.store

    @property
    def is_used(self) -> bool:
        """Whether the metadata lists the WAL store that this process is configured with."""
        return bool(self._known)

    def follow(self, listed: Iterable[WalStoreId]) -> None:
        """Route keys of the WAL stores in the metadata to the configured WAL store, and stop
        routing keys of lost ones. Callers that rely on the right store use `check_identity`.
        """
        if self.configured is None:
            return
        wanted = set(listed)
        for store_id in self._known - wanted:
            self._routed.remove(wal_root(store_id))
        for store_id in wanted - self._known:
            root = wal_root(store_id)
            self._routed.add(
                root, PrefixedStore(self.configured.store, WAL_STORE_ROOT, replaced=root)
            )
        self._known = wanted

    def follow_any(self) -> None:
        """Route the keys of any WAL store to the configured one, for reads planned by a view that
        has identified the store. No two WALs of a cluster have the same keys.
        """
        if self.configured is not None:
            self._routed.add(WAL_STORE_ROOT, _AnyWalStore(self.configured.store, WAL_STORE_ROOT))

    async def close(self) -> None:
        """Close both stores."""
        await close_stores(self._main, self.configured)


async def close_stores(store: ObjectStore, wal_store: ConfiguredWalStore | None) -> None:
    """Close both stores, even if closing the first one fails."""
    try:
        await store.close()
    finally:
        if wal_store is not None:
            await wal_store.store.close()


async def identity_of(wal_store: ObjectStore) -> WalStoreIdentity | None:
    """Return the identity of a WAL store that is not routed yet; None if it does not exist. Raises
    ObjectCorrupt and errors of the store.
    """
    return await _identity(wal_store, _IDENTITY_KEY)


async def create_identity(wal_store: ObjectStore, wanted: WalStoreIdentity) -> WalStoreIdentity:
    """Create the identity of a WAL store that is not routed yet, unless the store already has one.
    Return its identity. Raises ObjectCorrupt and errors of the store.
    """
    stored = _Stored(wanted.cluster_id, wanted.store_id, wanted.uuid)
    with suppress(PreconditionFailed):  # by another controller, or our response was lost
        await wal_store.put_if_absent(_IDENTITY_KEY, msgspec.json.encode(stored))
    found = await identity_of(wal_store)
    if found is None:
        raise WalStoreWrong(
            wanted.uuid, "its identity object disappeared right after it was written"
        )
    return found


async def foreign_key(wal_store: ObjectStore) -> str | None:
    """Return the key of an object other than the identity in a WAL store that is not routed yet, or
    None if there is none. Raises errors of the store.
    """
    async for info in wal_store.list(WAL_STORE_ROOT, limit=2):
        if info.key != _IDENTITY_KEY:
            return info.key
    return None


async def check_identity(store: ObjectStore, expected: WalStoreIdentity) -> None:
    """Check that keys are routed to this WAL store. Raises WalStoreWrong, and errors of the
    store.
    """
    key = wal_store_identity_key(expected.store_id)
    try:
        found = await _identity(store, key)
    except ObjectCorrupt as error:
        raise WalStoreWrong(expected.uuid, str(error)) from error
    if found is None:
        raise WalStoreWrong(expected.uuid, "it has no identity object")
    if found != expected:
        raise WalStoreWrong(
            expected.uuid,
            f"it is store {found.store_id} of cluster {found.cluster_id!r}, with UUID {found.uuid}",
        )


async def is_readable(store: ObjectStore, expected: WalStoreIdentity) -> bool:
    """Return whether keys are routed to this WAL store and it is readable. Several attempts are
    made, for at most 17 s, because a WAL store that is merely slow is not lost.
    """
    for number in range(_READS):
        if number:
            await asyncio.sleep(READ_INTERVAL_S)
        with suppress(ObjectStoreError, StreamError, TimeoutError):
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await check_identity(store, expected)
            return True
    return False


async def open_wal(
    store: ObjectStore, writer: BrokerIncarnation, wal_store: WalStoreIdentity
) -> None:
    """Write the marker of a WAL, before the first slot and before its writer owns a stream. Raises
    WalStoreWrong and errors of the store.
    """
    await check_identity(store, wal_store)
    await write_marker(store, writer, wal_store.store_id)


async def write_marker(store: ObjectStore, writer: BrokerIncarnation, store_id: WalStoreId) -> None:
    """Write the marker of a WAL unless it exists; on a file system, this creates the folder of its
    slots. Raises errors of the store.
    """
    with suppress(PreconditionFailed):  # after a lost response
        await store.put_if_absent(wal_marker_key(writer, store_id), _MARKER)


async def was_opened(store: ObjectStore, writer: BrokerIncarnation, store_id: WalStoreId) -> bool:
    """Return whether the marker of the WAL exists. Raises errors of the store."""
    try:
        await store.head(wal_marker_key(writer, store_id))
    except ObjectNotFound:
        return False
    return True


async def _identity(store: ObjectStore, key: str) -> WalStoreIdentity | None:
    try:
        tail = await store.get_tail(key, _IDENTITY_BYTES_MAX)
    except ObjectNotFound:
        return None
    try:
        stored = _decoder.decode(tail.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ObjectCorrupt(key, 0, f"is not the identity of a WAL store: {error}") from None
    return WalStoreIdentity(stored.cluster_id, WalStoreId(stored.store_id), stored.uuid)

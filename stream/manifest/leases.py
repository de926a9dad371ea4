"""Leases: a long job asks the cluster to keep the objects that its manifest names.

A lease is one small JSON object that its holder renews and releases. While it lives, nothing is deleted that was destroyed after the moment
that it reads from. Invariants: a lease binds for at most `LEASE_MS_MAX` from its last renewal and from the moment it reads from, whatever
it says; a damaged one binds as if it had been written well, for that time. WAL slots do not obey leases: brokers delete them a minute after
their data was committed, and a reader plans those offsets anew (docs/adr/0017). Source: `reference/spark.md` 7.4.
"""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from objectstore.errors import ObjectNotFound, RangeNotSatisfiable
from objectstore.log import get_logger
from objectstore.ports import ObjectStore
from stream.clock import WallClock
from stream.ids import Millis
from stream.keys import lease_key, lease_prefix, parse_lease_key
from stream.manifest.errors import TooManyLeases
from stream.manifest.model import ManifestRoot

_log = get_logger()

LEASE_MS_MAX = 7 * 24 * 3_600_000
LEASES_MAX = 1_000
"""Of one cluster. Leases beyond, by the order of their keys, are not created and not obeyed."""

LEASE_BYTES_MAX = 4_096
CLOCK_SKEW_MS_MAX = 60_000
"""Controllers' clocks may differ by this: the one that published the manifest may not be the one that destroys."""


class Lease(msgspec.Struct, frozen=True):
    """What lies in the store. All times are milliseconds since 1970."""

    owner: str
    expires_ms: int
    manifest_version: int
    metadata_offset: int
    read_from_ms: int
    """`published_ms` of the manifest: what was destroyed before is not in it."""


class HeldLease:
    """A reader's own lease."""

    def __init__(self, store: ObjectStore, cluster_id: str, lease_id: UUID, owner: str, now_ms: WallClock) -> None:
        self._store = store
        self._key = lease_key(cluster_id, lease_id)
        self._prefix = lease_prefix(cluster_id)
        self._owner = owner[:256]
        self._now_ms = now_ms

    async def create(self, root: ManifestRoot, ttl_ms: int) -> Lease:
        """Before anything that the manifest names is read. Cost: a LIST and a PUT. Raises TooManyLeases, ObjectStoreError."""
        count = len([info async for info in self._store.list(self._prefix, limit=LEASES_MAX)])
        if count >= LEASES_MAX:
            raise TooManyLeases(LEASES_MAX)
        return await self.renew(root, ttl_ms)

    async def renew(self, root: ManifestRoot, ttl_ms: int) -> Lease:
        """From now on for `ttl_ms`. root: the oldest manifest whose objects are still to be read; a younger one lets older objects go."""
        if not 0 < ttl_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {ttl_ms} ms: 1 to {LEASE_MS_MAX} are allowed")
        lease = Lease(self._owner, self._now_ms() + ttl_ms, root.version, root.metadata_offset, root.published_ms)
        await self._store.put(self._key, msgspec.json.encode(lease))
        return lease

    async def release(self) -> None:
        await self._store.delete([self._key])


@dataclass(frozen=True, slots=True)
class _Known:
    etag: str
    read_from_ms: int
    until_ms: int


class LeaseBook:
    """All leases of a cluster, as its janitor sees them."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._known: dict[str, _Known] = {}

    async def keep_from(self, now_ms: int) -> Millis | None:
        """Objects destroyed at this time or later must stay; None: nothing is leased. Deletes expired leases.

        Cost: one LIST, one GET for each new or renewed lease. Raises ObjectStoreError: then nothing may be deleted.
        """
        found: dict[str, _Known] = {}
        infos = [info async for info in self._store.list(lease_prefix(self._cluster_id), limit=LEASES_MAX + 1)]
        if len(infos) > LEASES_MAX:
            _log.error("too_many_leases", obeyed=LEASES_MAX, hint="the others protect nothing; release what is not needed")
        for info in infos[:LEASES_MAX]:
            if parse_lease_key(self._cluster_id, info.key) is None:
                continue
            known = self._known.get(info.key)
            if known is None or known.etag != info.etag:
                known = await self._read(info.key, info.etag, info.modified_ms)
            if known is not None:
                found[info.key] = known
        expired = [key for key, lease in found.items() if lease.until_ms <= now_ms]
        if expired:
            await self._store.delete(expired)
            _log.info("leases_expired", count=len(expired))
        self._known = {key: lease for key, lease in found.items() if key not in expired}
        oldest = min((lease.read_from_ms for lease in self._known.values()), default=None)
        return None if oldest is None else Millis(oldest - CLOCK_SKEW_MS_MAX)

    async def _read(self, key: str, etag: str, modified_ms: int) -> _Known | None:
        try:
            data = await self._store.get_range(key, 0, LEASE_BYTES_MAX)
        except ObjectNotFound:
            return None
        except RangeNotSatisfiable:
            data = b""
        try:
            lease = msgspec.json.decode(data, type=Lease)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("lease_unreadable", key=key, error=str(error), hint="it binds for seven days unless it is deleted")
            return _Known(etag, modified_ms, modified_ms + LEASE_MS_MAX)
        until_ms = min(lease.expires_ms, modified_ms + LEASE_MS_MAX, lease.read_from_ms + LEASE_MS_MAX)
        return _Known(etag, lease.read_from_ms, until_ms)

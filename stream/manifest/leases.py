"""Leases: a long job asks the cluster to keep the objects that its manifest names.

A lease is a small JSON object for each renewal; its holder deletes the renewals before it, and all of them at the end. While one is there
and its time is not over, nothing is deleted that was destroyed at the manifest's metadata offset or behind it. Invariants: no clock is
compared with another one. The holder counts `ttl_ms` from when it asked for the renewal, the active controller from when it first saw it,
which is later, both by their monotonic clocks. Each renewal has a key of its own, and is written before the last one is deleted: deleting
an expired renewal never hits a live lease. Two bounds of seven days are taken by wall clocks, where an hour does no harm: from the
renewal's PUT and from the manifest's publication, whatever a lease says. A damaged lease holds everything for that time. WAL slots do not
obey leases: brokers delete them a minute after their data was committed, and a reader plans those offsets anew (docs/adr/0017, 0036).
Source: Gray & Cheriton, "Leases" (SOSP 1989).
"""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from objectstore.errors import ObjectNotFound, ObjectStoreError, RangeNotSatisfiable
from objectstore.log import get_logger
from objectstore.ports import ObjectInfo, ObjectStore
from stream.clock import MonotonicClock, WallClock
from stream.keys import lease_key, lease_prefix, parse_lease_key, renewals_prefix
from stream.manifest.errors import TooManyLeases
from stream.manifest.model import ManifestRoot

_log = get_logger()

LEASE_MS_MAX = 7 * 24 * 3_600_000
LEASES_MAX = 1_000
"""Of one cluster. Leases beyond, by the order of their keys, are not created and not obeyed."""

LEASE_BYTES_MAX = 4_096
_HOLDS_EVERYTHING = 0


class Lease(msgspec.Struct, frozen=True):
    """What lies in the store."""

    owner: str
    ttl_ms: int
    manifest_version: int
    metadata_offset: int
    """Of the manifest: what was destroyed below it is not named there."""
    published_ms: int
    """Of the manifest, milliseconds since 1970."""


class HeldLease:
    """A reader's own lease."""

    def __init__(self, store: ObjectStore, cluster_id: str, lease_id: UUID, owner: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._lease_id = lease_id
        self._owner = owner[:256]

    async def create(self, root: ManifestRoot, ttl_ms: int) -> Lease:
        """Before anything that the manifest names is read. Cost: two LISTs and a PUT. Raises TooManyLeases, ObjectStoreError.

        What the manifest names is safe from now on if it is still the newest one afterwards; else what it named may have gone meanwhile.
        """
        found: set[UUID] = set()
        async for info in self._store.list(lease_prefix(self._cluster_id)):
            parsed = parse_lease_key(self._cluster_id, info.key)
            if parsed is not None:
                found.add(parsed[0])
            if len(found) >= LEASES_MAX:
                raise TooManyLeases(LEASES_MAX)
        return await self.renew(root, ttl_ms)

    async def renew(self, root: ManifestRoot, ttl_ms: int) -> Lease:
        """Hold for `ttl_ms` from the moment of this call, however long it takes. Cost: a LIST, a PUT and a DELETE. Raises ObjectStoreError.

        root: the oldest manifest whose objects are still to be read; a younger one lets older objects go.
        """
        if not 0 < ttl_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {ttl_ms} ms: 1 to {LEASE_MS_MAX} are allowed")
        lease = Lease(self._owner, ttl_ms, root.version, root.metadata_offset, root.published_ms)
        before = await self._renewals()
        serial = max(before.values(), default=-1) + 1
        await self._store.put(lease_key(self._cluster_id, self._lease_id, serial), msgspec.json.encode(lease))
        if before:
            try:
                await self._store.delete(list(before))
            except ObjectStoreError as error:
                _log.warning("old_renewals_left", lease_id=str(self._lease_id), error=str(error), hint="the next renewal deletes them")
        return lease

    async def release(self) -> None:
        """Raises ObjectStoreError: it expires by itself then."""
        renewals = await self._renewals()
        if renewals:
            await self._store.delete(list(renewals))

    async def _renewals(self) -> dict[str, int]:
        """Serials of this lease's objects, by their keys."""
        infos = [info async for info in self._store.list(renewals_prefix(self._cluster_id, self._lease_id))]
        parsed = [(info.key, parse_lease_key(self._cluster_id, info.key)) for info in infos]
        return {key: found[1] for key, found in parsed if found is not None}


@dataclass(frozen=True, slots=True)
class _Known:
    etag: str
    metadata_offset: int
    until: float
    """Of the controller's monotonic clock."""
    until_ms: int
    """Of its wall clock: the bounds of seven days."""
    is_readable: bool = True
    """False: read it again, for the bytes may have been damaged on the way."""


class LeaseBook:
    """All leases of a cluster, as the janitor of one active controller sees them."""

    def __init__(self, store: ObjectStore, cluster_id: str, *, now: MonotonicClock, now_ms: WallClock) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._now = now
        self._now_ms = now_ms
        self._known: dict[str, _Known] = {}

    async def keep_from(self) -> int | None:
        """Objects destroyed at this metadata offset or later must stay; None: nothing is leased. Deletes expired renewals.

        Cost: one LIST, one GET for each new renewal. Raises ObjectStoreError: then nothing may be deleted.
        """
        found: dict[str, _Known] = {}
        lease_ids: set[UUID] = set()
        is_renewed = False
        async for info in self._store.list(lease_prefix(self._cluster_id)):
            parsed = parse_lease_key(self._cluster_id, info.key)
            if parsed is None:
                continue
            lease_ids.add(parsed[0])
            if len(lease_ids) > LEASES_MAX:
                _log.error("too_many_leases", obeyed=LEASES_MAX, hint="the others protect nothing; release what is not needed")
                break
            known = self._known.get(info.key)
            if known is None or known.etag != info.etag or not known.is_readable:
                known = await self._read(info, known)
            if known is None:
                is_renewed = True
            else:
                found[info.key] = known
        now, now_ms = self._now(), self._now_ms()
        expired = [key for key, lease in found.items() if lease.until <= now or lease.until_ms <= now_ms]
        if expired:
            await self._store.delete(expired)
            _log.info("leases_expired", count=len(expired))
        self._known = {key: lease for key, lease in found.items() if key not in expired}
        if is_renewed:
            return _HOLDS_EVERYTHING
        return min((lease.metadata_offset for lease in self._known.values()), default=None)

    async def _read(self, info: ObjectInfo, before: _Known | None) -> _Known | None:
        """None: it was deleted after the LIST. The next renewal, if there is one, may have come too late for that LIST."""
        try:
            data = await self._store.get_range(info.key, 0, LEASE_BYTES_MAX)
        except ObjectNotFound:
            return None
        except RangeNotSatisfiable:
            data = b""
        until_ms = info.modified_ms + LEASE_MS_MAX
        try:
            lease = msgspec.json.decode(data, type=Lease)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if before is not None and before.etag == info.etag:
                return before
            _log.warning(
                "lease_unreadable", key=info.key, error=str(error), hint="while it is, it holds every object, for seven days at most"
            )
            return _Known(info.etag, _HOLDS_EVERYTHING, self._now() + LEASE_MS_MAX / 1_000, until_ms, is_readable=False)
        until = self._now() + min(lease.ttl_ms, LEASE_MS_MAX) / 1_000
        return _Known(info.etag, lease.metadata_offset, until, min(until_ms, lease.published_ms + LEASE_MS_MAX))

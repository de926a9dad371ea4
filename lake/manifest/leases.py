"""Create, renew and release the leases of readers.

`stream.format.manifest.lease` defines a lease, and `controller.active.leases` honors it.
"""

from uuid import UUID

import msgspec

from penstock.base.log import get_logger
from penstock.lake.manifest.errors import TooManyLeases
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.stream.format.keys import lease_key, lease_prefix, parse_lease_key, renewals_prefix
from penstock.stream.format.manifest.lease import LEASE_MS_MAX, LEASES_MAX, Lease
from penstock.stream.format.manifest.model import ManifestRoot

_log = get_logger(__name__)


class HeldLease:
    """A lease that this reader holds."""

    def __init__(self, store: ObjectStore, cluster_id: str, lease_id: UUID, owner: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._lease_id = lease_id
        self._owner = owner[:256]

    async def create(self, root: ManifestRoot, ttl_ms: int) -> Lease:
        """Create the lease, before any object in the manifest is read. Raise TooManyLeases or
        ObjectStoreError.

        If the manifest is still the newest one after this call, all its objects are protected from
        now on. Otherwise, some of them may already have been deleted. Cost: two LISTs and a PUT.
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
        """Extend the lease to `ttl_ms` after the start of this call. Raise ObjectStoreError.

        `root` is the oldest manifest whose objects are still needed. A newer manifest releases
        older objects. Cost: a LIST, a PUT and a DELETE.
        """
        if not 0 < ttl_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {ttl_ms} ms is not allowed: 1 to {LEASE_MS_MAX}")
        lease = Lease(self._owner, ttl_ms, root.version, root.metadata_offset, root.published_ms)
        before = await self._renewals()
        serial = max(before.values(), default=-1) + 1
        await self._store.put(
            lease_key(self._cluster_id, self._lease_id, serial), msgspec.json.encode(lease)
        )
        if before:
            try:
                await self._store.delete(list(before))
            except ObjectStoreError as error:
                _log.warning(
                    "lease_renewals_not_deleted",
                    lease_id=str(self._lease_id),
                    error=str(error),
                    hint="the next renewal deletes them",
                )
        return lease

    async def release(self) -> None:
        """Delete the lease. Raise ObjectStoreError; the lease then expires."""
        renewals = await self._renewals()
        if renewals:
            await self._store.delete(list(renewals))

    async def _renewals(self) -> dict[str, int]:
        """Return the serials of this lease's objects, by key."""
        infos = [
            info
            async for info in self._store.list(renewals_prefix(self._cluster_id, self._lease_id))
        ]
        parsed = [(info.key, parse_lease_key(self._cluster_id, info.key)) for info in infos]
        return {key: found[1] for key, found in parsed if found is not None}

"""Read the read leases of a cluster, for the janitor of the active controller.
`stream.format.manifest.lease` describes the leases.
"""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from penstock.base.clock import MonotonicClock, WallClock
from penstock.base.log import get_logger
from penstock.objectstore.errors import ObjectNotFound, RangeNotSatisfiable
from penstock.objectstore.ports import ObjectInfo, ObjectStore
from penstock.stream.format.keys import lease_prefix, parse_lease_key
from penstock.stream.format.manifest.lease import LEASE_BYTES_MAX, LEASE_MS_MAX, LEASES_MAX, Lease

_log = get_logger(__name__)

_HOLDS_EVERYTHING = 0


@dataclass(frozen=True, slots=True)
class _Known:
    etag: str
    metadata_offset: int
    until: float
    """Expiration time on the controller's monotonic clock."""
    until_ms: int
    """Expiration time on the lease's wall clock, at most seven days ahead."""
    is_readable: bool = True
    """If False, the renewal is read again, because the bytes may have been damaged in transit."""


class LeaseBook:
    """Reads the leases of a cluster, and removes expired ones."""

    def __init__(
        self, store: ObjectStore, cluster_id: str, *, now: MonotonicClock, now_ms: WallClock
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._now = now
        self._now_ms = now_ms
        self._known: dict[str, _Known] = {}

    async def protected_from(self) -> int | None:
        """Return the metadata offset from which destroyed objects must be kept, or None if there
        are no leases. Expired renewals are deleted.

        This takes one LIST, and one GET for each new renewal. Raises ObjectStoreError, after which
        nothing may be deleted.
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
                _log.error(
                    "too_many_leases",
                    honored=LEASES_MAX,
                    hint="the remaining leases have no effect; release unused leases",
                )
                break
            known = self._known.get(info.key)
            if known is None or known.etag != info.etag or not known.is_readable:
                known = await self._read(info, known)
            if known is None:
                is_renewed = True
            else:
                found[info.key] = known
        now, now_ms = self._now(), self._now_ms()
        expired = [
            key for key, lease in found.items() if lease.until <= now or lease.until_ms <= now_ms
        ]
        if expired:
            await self._store.delete(expired)
            _log.info("leases_expired", count=len(expired))
        self._known = {key: lease for key, lease in found.items() if key not in expired}
        if is_renewed:
            return _HOLDS_EVERYTHING
        return min((lease.metadata_offset for lease in self._known.values()), default=None)

    async def _read(self, info: ObjectInfo, before: _Known | None) -> _Known | None:
        """Read one renewal. Return None if it was deleted after the LIST; the LIST may then lack
        the next renewal.
        """
        try:
            data = await self._store.get_range(info.key, 0, LEASE_BYTES_MAX)
        except ObjectNotFound:
            return None
        except RangeNotSatisfiable:
            data = b""
        until_ms = info.modified_ms + LEASE_MS_MAX
        try:
            lease = msgspec.json.decode(data, type=Lease)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if before is not None and before.etag == info.etag:
                return before
            _log.warning(
                "lease_unreadable",
                key=info.key,
                error=str(error),
                hint="until it is readable, it protects all objects, for at most seven days",
            )
            return _Known(
                info.etag,
                _HOLDS_EVERYTHING,
                self._now() + LEASE_MS_MAX / 1_000,
                until_ms,
                is_readable=False,
            )
        until = self._now() + min(lease.ttl_ms, LEASE_MS_MAX) / 1_000
        return _Known(
            info.etag,
            lease.metadata_offset,
            until,
            min(until_ms, lease.published_ms + LEASE_MS_MAX),
        )

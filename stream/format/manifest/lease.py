"""Read leases, which protect the objects in the manifest that a long job uses.

docs/design/manifest.md and docs/design/fencing.md describe leases and clocks. WAL slots ignore
leases: brokers delete them a minute after their data is committed, and readers then plan those
offsets again.
"""

import msgspec

LEASE_MS_MAX = 7 * 24 * 3_600_000
LEASES_MAX = 1_000
"""Maximum number of leases in one cluster. Additional leases, in key order, are neither created nor
honored.
"""

LEASE_BYTES_MAX = 4_096


class Lease(msgspec.Struct, frozen=True):
    """One stored renewal, a small JSON object. While a lease is valid, objects that were destroyed
    at or after its metadata offset are not deleted.

    Each renewal has its own key and is written before the previous one is deleted, so deleting an
    expired renewal never affects a live lease.

    Clocks are never compared: the holder counts `ttl_ms` from its request, and the active
    controller counts from the time when it first saw the renewal, which is later. Both use
    monotonic clocks. Regardless of `ttl_ms`, a renewal expires seven days after its PUT and seven
    days after the publication of its manifest, according to wall clocks. A damaged lease protects
    all objects for that time.
    """

    owner: str
    ttl_ms: int
    manifest_version: int
    metadata_offset: int
    """The metadata offset of the manifest, which does not list objects that were destroyed below
    this offset.
    """
    published_ms: int
    """Publication time of the manifest, in milliseconds since 1970."""

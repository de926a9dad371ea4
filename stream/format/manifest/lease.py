"""Define leases: a long job asks the cluster to keep the objects that its manifest names.

A lease is a small JSON object for each renewal. Its holder deletes the earlier renewals, and all of
them at the end. While one exists and its time is not over, nothing is deleted that was destroyed at
or after the metadata offset of the manifest.
Invariants: clocks are never compared with each other. The holder counts `ttl_ms` from its request
for the renewal, the active controller from when it first saw it, which is later, both by their
monotonic clocks. Each renewal has a key of its own and is written before the last one is deleted,
so that deleting an expired renewal never hits a live lease. Two bounds of seven days use wall
clocks, where an error of an hour does no harm: from the PUT of the renewal and from the publication
of the manifest, regardless of the lease. A damaged lease holds everything for that time. WAL slots
do not obey leases: brokers delete them a minute after their data was committed, and a reader plans
those offsets again (docs/design/manifest.md, docs/design/fencing.md).
Source: Gray & Cheriton, "Leases" (SOSP 1989).
"""

import msgspec

LEASE_MS_MAX = 7 * 24 * 3_600_000
LEASES_MAX = 1_000
"""Limit for one cluster. Further leases, in key order, are neither created nor obeyed."""

LEASE_BYTES_MAX = 4_096


class Lease(msgspec.Struct, frozen=True):
    """One stored renewal."""

    owner: str
    ttl_ms: int
    manifest_version: int
    metadata_offset: int
    """The metadata offset of the manifest: it names nothing that was destroyed below it."""
    published_ms: int
    """When the manifest was published, in milliseconds since 1970."""

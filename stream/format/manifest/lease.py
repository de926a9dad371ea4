"""Leases: a long job asks the cluster to keep the objects that its manifest names.

A lease is a small JSON object for each renewal; its holder deletes the renewals before it, and all
of them at the end. While one is there and its time is not over, nothing is deleted that was
destroyed at the manifest's metadata offset or behind it. Invariants: no clock is compared with
another one. The holder counts `ttl_ms` from when it asked for the renewal, the active controller
from when it first saw it, which is later, both by their monotonic clocks. Each renewal has a key of
its own, and is written before the last one is deleted: deleting an expired renewal never hits a
live lease. Two bounds of seven days are taken by wall clocks, where an hour does no harm: from the
renewal's PUT and from the manifest's publication, whatever a lease says. A damaged lease holds
everything for that time. WAL slots do not obey leases: brokers delete them a minute after their
data was committed, and a reader plans those offsets anew (docs/adr/0017, 0036).
Source: Gray & Cheriton, "Leases" (SOSP 1989).
"""

import msgspec

LEASE_MS_MAX = 7 * 24 * 3_600_000
LEASES_MAX = 1_000
"""Of one cluster. Leases beyond, by the order of their keys, are not created and not obeyed."""

LEASE_BYTES_MAX = 4_096


class Lease(msgspec.Struct, frozen=True):
    """What lies in the store."""

    owner: str
    ttl_ms: int
    manifest_version: int
    metadata_offset: int
    """Of the manifest: what was destroyed below it is not named there."""
    published_ms: int
    """Of the manifest, milliseconds since 1970."""

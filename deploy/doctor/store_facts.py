"""Examine the object store: availability, conditional writes, latencies, clock, backup and
manifest.

Invariants: objects are written only below `probe/doctor-` and always deleted. Every request has a
deadline. Facts are not evaluated here.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Final

from penstock.controller.api.errors import BackupCorrupt
from penstock.controller.backup.layout import needed_objects
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.disaster_recovery.recovery import cluster_ids
from penstock.deploy.doctor.facts import BackupFacts, ClockSpan, ManifestFacts, StoreFacts
from penstock.deploy.doctor.inventory import PROBE_ROOT, Backlog
from penstock.lake.manifest.sections import load_root
from penstock.objectstore.errors import ConditionalWritesIgnored, ObjectNotFound, ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.probe import probe_store
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format.decoder import parse_header
from penstock.stream.format.keys import (
    lease_prefix,
    manifest_prefix,
    parse_lease_key,
    parse_manifest_key,
)
from penstock.stream.format.layout import HEADER_BYTES
from penstock.stream.format.manifest.lease import LEASES_MAX
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.ports import BrokerIncarnation

STEP_S: Final = 20.0
"""Deadline of one request to the store."""

UNAVAILABLE_DELETE_S: Final = 2.0
"""Deadline for deleting probes after another request has failed."""

SAMPLES: Final = 5
LIST_SAMPLES: Final = 3
MODIFIED_RESOLUTION_MS: Final = 999
"""Resolution of modification times: S3 truncates them to whole seconds."""

WAL_PUT_MS_MAX: Final = 120_000
"""Maximum time between the timestamp in a slot and its PUT, which is retried for at most this long
(`wal.put.deadline.ms`).
"""

_PREFIX: Final = f"{PROBE_ROOT}doctor-"
HERE: Final = "this machine"


def wall_ms() -> float:
    return time.time_ns() / 1e6


async def check_store(store: ObjectStore, url: str, unique: str) -> StoreFacts:
    """Probe the store. Store errors are part of the result."""
    ignored = ""
    delete_s = UNAVAILABLE_DELETE_S
    key = f"{_PREFIX}{unique}"
    try:
        async with asyncio.timeout(STEP_S):
            ids = tuple(await cluster_ids(store))  # first, because it does not create objects
        try:
            async with asyncio.timeout(STEP_S):
                await probe_store(store, _PREFIX, unique)
        except ConditionalWritesIgnored as error:
            ignored = error.detail
        async with asyncio.timeout(STEP_S):
            latencies, clock = await _measure(store, key)
    except ObjectStoreError as error:
        return StoreFacts(url, error=str(error))
    except TimeoutError:
        return StoreFacts(url, error=f"no response within {STEP_S:.0f} s")
    else:
        delete_s = STEP_S
    finally:
        await _delete_probes(store, [f"{key}-{number}" for number in range(SAMPLES)], delete_s)
    return StoreFacts(url, "", ignored, latencies, clock, ids)


async def _measure(
    store: ObjectStore, key: str
) -> tuple[Mapping[str, tuple[float, ...]], ClockSpan]:
    """Measure latencies and the clock. The connection time is not included, because the probe has
    already opened a connection.
    """
    puts: list[float] = []
    gets: list[float] = []
    began_ms = ended_ms = 0.0
    for number in range(SAMPLES):
        began_ms = wall_ms()
        puts.append(await _measure_ms(store.put_if_absent(f"{key}-{number}", b"penstock doctor")))
        ended_ms = wall_ms()
        gets.append(await _measure_ms(store.get(f"{key}-{number}")))
    lists = [await _measure_ms(_first_key(store, key)) for _ in range(LIST_SAMPLES)]
    modified_ms = (await store.head(f"{key}-{SAMPLES - 1}")).modified_ms
    clock = ClockSpan(
        "the store", HERE, modified_ms - ended_ms, modified_ms + MODIFIED_RESOLUTION_MS - began_ms
    )
    return {"PUT": tuple(puts), "GET": tuple(gets), "LIST": tuple(lists)}, clock


async def _measure_ms(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1_000


async def _first_key(store: ObjectStore, prefix: str) -> str | None:
    return next(iter([info.key async for info in store.list(prefix, limit=1)]), None)


async def _delete_probes(store: ObjectStore, keys: list[str], timeout_s: float) -> None:
    """Delete the probes. Probes that cannot be deleted are reported by a later run."""
    try:
        async with asyncio.timeout(timeout_s):
            await store.delete(keys)
    except (ObjectStoreError, TimeoutError):
        return


async def read_backup_facts(
    store: ObjectStore, cluster_id: str, committed_offset: int, now_ms: int
) -> BackupFacts:
    """Read the state of the backup with two LISTs and one GET. committed_offset: read before this
    call, or -1. Raises ObjectStoreError.
    """
    log = BackupLog(store, cluster_id)
    newest = await SnapshotStore(store, cluster_id, kept=2).newest_offset()
    snapshot = -1 if newest is None else int(newest)
    listed = await log.listed()
    firsts = listed.first_offsets
    if not firsts:
        return BackupFacts(error=f"there is no object below meta/{cluster_id}/log/")
    needed = needed_objects(firsts, max(snapshot, 0))
    if needed[0] > max(snapshot, 0):
        return BackupFacts(
            error=(f"the object with the records [{max(snapshot, 0):,}, {needed[0]:,}) is gone")
        )
    try:
        end = (await log.read(firsts[-1])).end_offset
    except (BackupCorrupt, ObjectNotFound) as error:
        return BackupFacts(error=str(error))
    return BackupFacts("", end, committed_offset, listed.newest_ms, snapshot, len(needed), now_ms)


async def newest_manifest(store: ObjectStore, cluster_id: str) -> ManifestRoot | None:
    """Return the newest manifest, or None. Raises ObjectStoreError or StreamError."""
    for attempt in range(2):
        key = await _first_key(store, manifest_prefix(cluster_id))
        parsed = None if key is None else parse_manifest_key(key)
        if parsed is None:
            return None
        try:
            return await load_root(store, cluster_id, parsed[1])
        except ObjectNotFound:
            if attempt:
                raise
    return None


async def manifest_facts(
    store: ObjectStore, cluster_id: str, root: ManifestRoot | None, now_ms: int, *, is_behind: bool
) -> ManifestFacts:
    prefix = lease_prefix(cluster_id)
    parsed = [
        parse_lease_key(cluster_id, info.key)
        async for info in store.list(prefix, limit=2 * LEASES_MAX)
    ]
    leases = len({found[0] for found in parsed if found is not None})
    return ManifestFacts(
        root.published_ms if root else 0,
        root.version if root else 0,
        is_behind,
        leases,
        prefix,
        now_ms,
    )


async def broker_clocks(
    store: ObjectStore, backlogs: Mapping[BrokerIncarnation, Backlog]
) -> list[ClockSpan]:
    """Compare the brokers' timestamps in their newest slots with the store's modification times.
    Slots that have been deleted in the meantime are skipped.
    """
    found: list[ClockSpan] = []
    for writer, backlog in sorted(backlogs.items()):
        if backlog.newest is None:
            continue
        key, modified_ms = backlog.newest
        try:
            header = parse_header(await store.get_range(key, 0, HEADER_BYTES), key)
        except (ObjectNotFound, ObjectCorrupt, FormatUnknown):
            continue
        if header.writer == writer:  # fences contain the clock of the recoverer instead
            ahead_ms = header.created_ms - modified_ms
            who = f"broker {writer.node_id}"
            found.append(
                ClockSpan(
                    who, "the store", ahead_ms - MODIFIED_RESOLUTION_MS, ahead_ms + WAL_PUT_MS_MAX
                )
            )
    return found

"""Check metadata, bucket, leaders and logs against each other and against the history, after the
faults.

Invariants: the checks use the cluster only as clients and observers can. Whatever may take time
(moves, deletes) has a deadline. Whatever must never happen is an immediate violation.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase, ObjectState
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store
from penstock.protocol.client.errors import KafkaFailed
from penstock.stream.format.keys import parse_wal_key
from tests.chaos.moves import still_moving
from tests.chaos.patience import Patience
from tests.chaos.processes import READ_GRACE_MS, Processes
from tests.chaos.record import LEASE_S, Record
from tests.support.anomalies import ANOMALIES, find_anomalies
from tests.support.history import Part, missing_objects, orphaned_objects
from tests.support.waiting import PATIENCE_S

_SHOWN_EACH_MAX: Final = 3
_DELETE_MS: Final = 30_000
"""The time allowed for the janitor to delete an object after its grace period."""

_TROUBLE: Final = re.compile(r'Traceback|"exception":|"level": ?"critical"|was never retrieved')


async def check_end(processes: Processes, record: Record, parts: list[Part]) -> None:
    await until(lambda: _moves(processes), PATIENCE_S, record)
    await until(lambda: _leaders(processes, parts), PATIENCE_S, record)
    store = open_store(processes.store_url)
    client = ControllerClient(processes.controllers)
    follower = MetadataFollower(client)
    try:
        await follower.start(PATIENCE_S)
        await until(lambda: _bucket(follower, store, record), PATIENCE_S, record)
    except TimeoutError as error:
        record.violate(f"no controller returns the metadata: {error}")
    finally:
        await follower.stop()
        await client.close()
        await store.close()


def check_operations(record: Record, output_ends: dict[Part, int]) -> None:
    """Check transactions, groups and log ends with `tests.support.anomalies`.

    output_ends: the offsets up to which read_committed readers have read.
    """
    anomalies = find_anomalies(record.operations, LEASE_S, output_ends)
    for name in ANOMALIES:
        found = [anomaly for anomaly in anomalies if anomaly.name == name]
        for number, anomaly in enumerate(found[:_SHOWN_EACH_MAX], 1):
            record.violate(f"{anomaly.name} ({number} of {len(found)}): {anomaly.text}")


async def until(problem: Callable[[], Awaitable[str]], timeout_s: float, record: Record) -> None:
    """Wait until there is no problem. At the deadline the problem becomes a violation."""
    patience = Patience(timeout_s)
    while text := await problem():
        if not patience.lasts(text):
            record.violate(f"{timeout_s:.0f} s after the last fault: {text}"[:1500])
            return
        await asyncio.sleep(0.3)


async def _moves(processes: Processes) -> str:
    try:
        moving = await still_moving(processes.bootstrap)
    except KafkaFailed as error:
        return str(error)
    return f"still moving: {', '.join(moving)}" if moving else ""


async def _leaders(processes: Processes, parts: list[Part]) -> str:
    """Check that all brokers report the same leader for each partition, and that this leader
    exists.
    """
    responses = [
        await asyncio.to_thread(_leaders_by, f"127.0.0.1:{node.plan.port}", parts)
        for node in processes.brokers()
    ]
    for part in parts:
        leaders = {response.get(part, -1) for response in responses}
        if len(leaders) != 1 or not leaders <= {0, 1, 2}:
            return f"brokers name leaders {sorted(leaders)} of {part}"
    return ""


def _leaders_by(address: str, parts: list[Part]) -> dict[Part, int]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        topics = admin.list_topics(timeout=30).topics
    except KafkaException:
        return {}
    return {
        (name, index): topics[name].partitions[index].leader
        for name, index in parts
        if name in topics
    }


async def _bucket(follower: MetadataFollower, store: ObjectStore, record: Record) -> str:
    """Compare the bucket with the metadata before and after the LIST."""
    try:
        before = _missing_from(follower.image, set())
        keys = {info.key async for info in store.list("")}
        follower.image.check_invariants()
    except (ObjectStoreError, InvariantBroken) as error:
        return f"{type(error).__name__}: {error}"
    image = follower.image
    for missing in sorted(before & _missing_from(image, set()) & _missing_from(image, keys)):
        record.violate(missing)
    orphans = _orphans(image, keys)
    return f"{len(orphans)} objects are left over: {'; '.join(orphans[:5])}" if orphans else ""


def _missing_from(image: MetadataImage, keys: set[str]) -> set[str]:
    return set(missing_objects(image, keys.__contains__))


def _orphans(image: MetadataImage, keys: set[str]) -> list[str]:
    """Return data objects without references and unreferenced slots of ended WALs, except those
    that the janitor does not have to delete yet.
    """
    now_ms = time.time_ns() // 1_000_000
    due = {state.key for state in image.objects if not _has_time_left(state, now_ms)}
    unknown = {
        key
        for key in keys
        if image.objects.in_place(key) is None and parse_wal_key(key) is not None
    }
    found = [
        text
        for text in orphaned_objects(image, sorted(keys))
        if text.partition(" ")[0] in due or text.endswith(" None")
    ]
    for key in sorted(keys & (due | unknown)):
        slot = parse_wal_key(key)
        wal = image.nodes.wal(slot.writer) if slot is not None else None
        if slot is None or wal is None or wal.end is None:
            continue
        state = image.objects.in_place(key)
        if slot.sequence < wal.end and (state is None or not state.refs):
            found.append(f"{key} of a WAL that ended at {wal.end}")
    return found


def _has_time_left(state: ObjectState, now_ms: int) -> bool:
    """Return whether the object is prepared, or its read grace period ended less than `_DELETE_MS`
    ago.

    Prepared objects always have time left, because the active controller times them by its own
    clock.
    """
    return (
        state.phase == ObjectPhase.PREPARED or now_ms < state.since_ms + READ_GRACE_MS + _DELETE_MS
    )


def trouble_in_logs(directory: Path) -> list[str]:
    """Return log lines that only a bug in the program can cause."""
    return [
        f"{path.name}: {line.strip()[:300]}"
        for path in sorted((*directory.glob("broker-*.log"), *directory.glob("controller-*.log")))
        for line in path.read_text(errors="replace").splitlines()
        if _TROUBLE.search(line)
    ]

"""Upload the log cache as objects, commit them in WAL order, and delete the WAL slots that they
replace.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import WallClock
from penstock.base.errors import StreamError
from penstock.base.histogram import LatencyHistogram
from penstock.base.ids import WalSequence
from penstock.base.yielding import in_turns
from penstock.objectstore.errors import ObjectStoreError, StoreUnknown
from penstock.objectstore.ports import DELETE_BATCH_COUNT, ObjectStore
from penstock.stream.cache.log_cache import AppendEntry, CacheSegment
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalFailed, WalFenced
from penstock.stream.format.builder import BuiltObject, StreamRun, build_steps
from penstock.stream.format.keys import parse_wal_key, wal_root
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import (
    BrokerIncarnation,
    CommitObjects,
    NewObject,
    ObjectRole,
    PreparedObject,
    StreamMetadata,
)
from penstock.stream.upload.commits import CommitSequencer

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_DELETE_TRIES_MAX = 5
_UNDELETED_MAX = 10_000
"""Maximum number of slots whose failed deletion is retried together with the next deletion. The
janitor deletes all others, and those that remain when the WAL ends.
"""
_ATTEMPT_S_MAX = 60.0
UPLOAD_STEPS = ("prepare", "put", "commit")


@dataclass(frozen=True, slots=True)
class PlannedObject:
    role: ObjectRole
    runs: tuple[StreamRun, ...]


@dataclass(frozen=True, slots=True)
class UploadedObject:
    prepared: PreparedObject
    role: ObjectRole
    built: BuiltObject


def plan_objects(block: CacheSegment, config: StreamConfig) -> list[PlannedObject]:
    """Plan the objects of a block: streams with a lot of data get their own objects, all others
    share objects. Pure.

    An object may exceed the size limit by at most one entry.
    """
    planned: list[PlannedObject] = []
    shared: list[StreamRun] = []
    shared_bytes = 0
    for stream_id in sorted(block.runs):
        run = block.runs[stream_id]
        if run.payload_bytes >= config.stream_object_bytes_min or len(block.runs) == 1:
            planned += [
                PlannedObject(ObjectRole.STREAM, (StreamRun(stream_id, entries),))
                for entries in _split(run.entries, config.upload_object_bytes_max)
            ]
            continue
        if shared and shared_bytes + run.payload_bytes > config.upload_object_bytes_max:
            planned.append(_shared_object(shared))
            shared, shared_bytes = [], 0
        shared.append(StreamRun(stream_id, list(run.entries)))
        shared_bytes += run.payload_bytes
    if shared:
        planned.append(_shared_object(shared))
    return planned


def _shared_object(runs: list[StreamRun]) -> PlannedObject:
    return PlannedObject(
        ObjectRole.STREAM if len(runs) == 1 else ObjectRole.STREAM_SET, tuple(runs)
    )


def _split(entries: list[AppendEntry], bytes_max: int) -> list[list[AppendEntry]]:
    parts: list[list[AppendEntry]] = [[]]
    part_bytes = 0
    for entry in entries:
        if parts[-1] and part_bytes + len(entry.payload) > bytes_max:
            parts.append([])
            part_bytes = 0
        parts[-1].append(entry)
        part_bytes += len(entry.payload)
    return parts


@dataclass(slots=True)
class UploadCounts:
    """Upload counters. latencies: durations of whole steps, including retries."""

    latencies: dict[str, LatencyHistogram] = field(
        default_factory=lambda: {step: LatencyHistogram() for step in UPLOAD_STEPS}
    )
    failures: Counter[str] = field(default_factory=Counter[str])
    written_bytes: int = 0
    object_count: int = 0


class Uploader:
    """Uploads blocks in the background, each in its own task: prepare, PUT in parallel, commit in
    order.

    Blocks are committed strictly in the order in which they were cut. WAL slots are deleted only
    after their commit is in the controllers' backup and in the manifest and a grace period has
    passed, and never if they were committed in place. A stream that has been closed in the meantime
    is omitted from the commit; an object without other streams expires. All failures are retried:
    appends continue until the byte limits apply back-pressure.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: StreamMetadata,
        identity: BrokerIncarnation,
        config: StreamConfig,
        *,
        commits: CommitSequencer,
        now_ms: WallClock,
        rng: Random,
        on_committed: Callable[[CacheSegment], list[str]],
        on_failed: Callable[[StreamError], None],
    ) -> None:
        """on_committed: called while the commit lock is held; returns the keys of WAL slots to
        delete after the grace period.
        """
        self._store = store
        self._metadata = metadata
        self._identity = identity
        self._config = config
        self._commits = commits
        self._now_ms = now_ms
        self._rng = rng
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._uploads = asyncio.Semaphore(config.upload_blocks_in_flight_max)
        self._puts = asyncio.Semaphore(config.upload_puts_in_flight_max)
        self._last: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._undeleted: list[str] = []
        """Keys of slots whose deletion failed."""
        self.counts = UploadCounts()

    def submit(self, block: CacheSegment) -> None:
        """Start the upload of a block. Call this in the order in which blocks were cut."""
        self._last = self._loop.create_task(self._process(block, self._last))
        self._track(self._last)

    async def drained(self) -> None:
        """Wait until all blocks submitted so far are committed, or this broker incarnation is
        fenced.
        """
        if self._last is not None:
            await asyncio.wait([self._last])

    async def stop(self) -> None:
        """Cancel uploads and deletions in flight.

        The data is in the WAL, and recovery commits it. The janitor deletes the remaining slots.
        """
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _process(self, block: CacheSegment, before: asyncio.Task[bool] | None) -> bool:
        """Upload and commit one block; return whether it is committed.

        A block must not be committed unless the previous one was: its `wal_committed` would skip
        the slots of that block.
        """
        try:
            # Held until the commit; otherwise, prepared objects of blocks far ahead would expire
            # and have to be uploaded again.
            async with self._uploads:
                uploaded, prepared_at = await self._upload(block)
                if before is not None and not await asyncio.shield(before):
                    return False
                async with self._commits.lock:
                    await self._commit(block, uploaded, prepared_at)
                    keys = self._on_committed(block)
        except WalFenced as error:
            self._on_failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - no later block may be committed, so the storage must fail
            _log.exception("upload_failed_unexpectedly", end_sequence=block.end_sequence)
            self._on_failed(
                WalFailed(block.end_sequence, f"its data could not be uploaded: {error!r}")
            )
            return False
        if keys:
            self.delete_after_grace(keys, self._metadata.position())
        return True

    async def _commit(
        self, block: CacheSegment, uploaded: list[UploadedObject], prepared_at: float
    ) -> None:
        """Commit the objects of a block. Upload them again under new ids if they have expired.

        Prepared objects expire when the controller is unavailable for a long time. If the first
        commit succeeded and its response was lost, the controller skips the ranges of the second
        and destroys its objects; the janitor deletes expired objects.
        """
        reuse_s = self._config.prepared_reuse_ms / 1000
        began = self._loop.time()
        backoff = Backoff(
            self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._rng
        )
        while not await self._commits.send(
            partial(_commit_of, block, uploaded), until=prepared_at + reuse_s
        ):
            _log.warning(
                "prepared_objects_rewritten",
                end_sequence=block.end_sequence,
                object_count=len(uploaded),
            )
            await asyncio.sleep(backoff.next_s())
            uploaded, prepared_at = await self._upload(block)
            began = self._loop.time()
        self.counts.latencies["commit"].observe((self._loop.time() - began) * 1_000)

    async def _upload(self, block: CacheSegment) -> tuple[list[UploadedObject], float]:
        planned = plan_objects(block, self._config)
        if not planned:
            return [], self._loop.time()
        prepared = await self._until_done(
            "prepare", lambda: self._metadata.prepare_objects(len(planned))
        )
        prepared_at = self._loop.time()
        async with asyncio.TaskGroup() as group:
            puts = [
                group.create_task(self._put(target, plan))
                for target, plan in zip(prepared, planned, strict=True)
            ]
        return [put.result() for put in puts], prepared_at

    async def _put(self, target: PreparedObject, plan: PlannedObject) -> UploadedObject:
        async with self._puts:
            built = await in_turns(
                build_steps(
                    plan.role, self._identity, WalSequence(NO_SEQUENCE), self._now_ms(), plan.runs
                )
            )
            await self._until_done("put", lambda: self._store.put(target.key, built.chunks))
            self.counts.written_bytes += built.size_bytes
            self.counts.object_count += 1
            return UploadedObject(
                target, plan.role, BuiltObject([], built.size_bytes, built.ranges, built.footer)
            )

    async def _until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Retry an idempotent call until it succeeds. Raises only WalFenced.

        An attempt that times out doubles the timeout of the next one, up to a limit: otherwise no
        attempt would ever finish on a slow store, and overloaded controllers would process requests
        whose callers have given up.
        """
        backoff = Backoff(
            self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._rng
        )
        began = self._loop.time()
        attempt_s = self._config.upload_attempt_ms / 1000
        while True:
            limit = asyncio.timeout(attempt_s)
            try:
                async with limit:
                    done = await call()
            except WalFenced:
                raise
            except Exception as error:  # noqa: BLE001 - stores and controllers fail in many ways; giving up would lose acknowledged data
                self.counts.failures[what] += 1
                _log.warning(
                    "upload_step_failed",
                    step=what,
                    attempt_count=backoff.attempt_count + 1,
                    error=repr(error),
                )
                if limit.expired():
                    attempt_s = max(attempt_s, min(2 * attempt_s, _ATTEMPT_S_MAX))
            else:
                self.counts.latencies[what].observe((self._loop.time() - began) * 1_000)
                return done
            await asyncio.sleep(backoff.next_s())

    def delete_after_grace(self, keys: list[str], position: int) -> None:
        """Delete slots once neither recovery nor readers need them.

        position: the metadata position that must be backed up and in the manifest first.
        """
        self._track(self._loop.create_task(self._delete(keys, position)))

    async def _delete(self, keys: list[str], position: int) -> None:
        try:
            await self._metadata.backed_up(position)
        except Exception as error:  # noqa: BLE001 - this broker start is over; the janitor deletes the slots
            _log.info("wal_slots_left_to_janitor", slot_count=len(keys), reason=repr(error))
            return
        await asyncio.sleep(self._config.wal_delete_grace_ms / 1000)
        keys, self._undeleted = [*self._undeleted, *keys], []
        # After a WAL move, the slots are in two stores, one of which may be down.
        for in_one_store in _by_store(keys):
            await self._delete_now(in_one_store)

    async def _delete_now(self, keys: Sequence[str]) -> None:
        backoff = Backoff(
            self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._rng
        )
        last = ""
        while backoff.attempt_count < _DELETE_TRIES_MAX:
            try:
                for at in range(0, len(keys), DELETE_BATCH_COUNT):
                    await self._store.delete(keys[at : at + DELETE_BATCH_COUNT])
            except StoreUnknown:  # the WAL store has ended, so its slots are not deleted
                return
            except ObjectStoreError as error:
                last = repr(error)
                await asyncio.sleep(backoff.next_s())
            else:
                return
        _log.warning("wal_slot_deletion_failed", slot_count=len(keys), error=last)
        self._undeleted = [*self._undeleted, *keys][-_UNDELETED_MAX:]

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _by_store(keys: Iterable[str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        slot = parse_wal_key(key)
        assert slot is not None, f"{key!r} is no WAL slot"
        found.setdefault(wal_root(slot.wal_store), []).append(key)
    return list(found.values())


def _commit_of(block: CacheSegment, uploaded: list[UploadedObject]) -> CommitObjects:
    """Return the commit of the uploaded ranges whose streams are still in the block.

    If there are none, the commit only advances the committed slot of the WAL.
    """
    objects: list[NewObject] = []
    for item in uploaded:
        ranges = tuple(
            item_range for item_range in item.built.ranges if item_range.stream_id in block.runs
        )
        if ranges:
            objects.append(
                NewObject(
                    item.prepared.object_id,
                    item.prepared.key,
                    item.role,
                    item.built.size_bytes,
                    ranges,
                )
            )
    return CommitObjects(objects=tuple(objects), wal_committed=block.end_sequence)

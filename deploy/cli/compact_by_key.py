"""Run `penstock compact --by-key`: log compaction of a topic outside of the brokers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from penstock.base.clock import wall_ms
from penstock.base.errors import ExpectedError
from penstock.base.ids import Offset, StreamId
from penstock.broker.partition.cleaning import CleaningPolicy
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.cli.compact_job import ControllerRewrites, Target
from penstock.deploy.clients.controllers import connect, response_of
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    Progress,
    counted,
    report_table,
    report_with,
    say,
    size,
)
from penstock.lake.cleaning.job import PassJob, PassResult, PassTask
from penstock.lake.cleaning.run import (
    Checkpoint,
    CleaningOptions,
    CleaningRun,
    PassPlan,
    TopicCleaner,
)
from penstock.lake.manifest.errors import ManifestNotFound, UnknownPartition
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.run import PUBLISH_S
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.format.checkpoint import (
    CLEANED_KEY,
    RECOVERY_KEY,
    CleanedPart,
    decode_cleaned,
    decode_map,
    decode_recovery,
)
from penstock.stream.format.manifest.model import ManifestRoot
from penstock.stream.ports import ObjectRange
from penstock.stream.read.object_reader import ObjectReader

if TYPE_CHECKING:
    from penstock.lake.table.engines import Engine

_TIMEOUT_S: Final = 10.0
_CHECKPOINT_BYTES: Final = 4 << 20
_READS_AT_ONCE: Final = 16
_LOOK_S: Final = 0.2
_T = TypeVar("_T")


class ByKeyLimits(NamedTuple):
    """The limits of a run; see `CleaningOptions`."""

    object_bytes_max: int
    key_map_bytes_max: int
    ttl_ms: int


class ByKeyJob(NamedTuple):
    """A log compaction job: the topic, the cluster, and the engine."""

    target: Target
    controller: str
    engine: "Engine"
    limits: ByKeyLimits


# Invariant: nothing is changed if `cleanup.policy` does not contain compact, or for internal
# topics, which coordinators compact. Until the work starts, only modules needed to parse arguments
# are imported.
class ControllerCleaner(ControllerRewrites):
    """Implements `lake.cleaning.run.PassMetadata` with the controller's gRPC API."""

    def __init__(
        self, client: ControllerClient, follower: MetadataFollower, store: ObjectStore
    ) -> None:
        super().__init__(client)
        self._follower = follower
        self._store = store

    async def checkpoints(self, topic: str) -> Mapping[StreamId, Checkpoint]:
        """Return the committed checkpoints by data stream. This takes one or two GETs per
        partition. Raises ObjectStoreError, ObjectCorrupt.
        """
        return await read_checkpoints(self._follower.image, self._store, topic)


async def read_checkpoints(
    image: MetadataImage, store: ObjectStore, topic: str
) -> dict[StreamId, Checkpoint]:
    """See `ControllerCleaner.checkpoints`."""
    state = image.topics.by_name(topic)
    if state is None:
        return {}
    found: dict[StreamId, Checkpoint] = {}
    reader, turns = ObjectReader(store, BlockCache(1)), asyncio.Semaphore(_READS_AT_ONCE)

    async def read(stream_id: StreamId, ranges: Sequence[ObjectRange], end: Offset) -> None:
        async with turns:
            batches = await reader.read(ranges, end - 1, _CHECKPOINT_BYTES)
        checkpoint = _checkpoint(bytes(batches[0]))
        if checkpoint is not None:
            keep_ms = image.streams.known(stream_id).keep_ms
            found[stream_id] = checkpoint._replace(keep_ms=keep_ms)

    try:
        async with asyncio.TaskGroup() as group:
            for partition in state.partitions:
                stream = image.streams.known(partition.meta_stream_id)
                end = stream.end_offset
                if end > stream.start_offset:
                    ranges = image.find_ranges(stream.stream_id, Offset(end - 1), end, 1)
                    group.create_task(read(partition.data_stream_id, ranges, end))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await reader.close()
    return found


def _checkpoint(batch: bytes) -> Checkpoint | None:
    try:
        _, values = decode_map(batch)
        stored, cleaned = values.get(RECOVERY_KEY), values.get(CLEANED_KEY)
        if stored is None:
            return None
        recovery = decode_recovery(stored)
        part = CleanedPart() if cleaned is None else decode_cleaned(cleaned)
    except (BatchCorrupt, msgspec.MsgspecError) as error:
        raise ExpectedError(f"a checkpoint cannot be read: {error}") from None
    return Checkpoint(recovery.recovery_offset, part)


def compact_by_key(job: ByKeyJob, *, plan_only: bool, output: Format) -> None:
    """Compact the log of a topic and print the results. Raises NoController, UsageError,
    ExpectedError, StreamError, ObjectStoreError.
    """
    topic = job.target.topic
    planned = plan_by_key(job)
    if plan_only:
        _print_plan(topic, planned, output=output)
        return
    total = sum(item.log_bytes for item in planned)
    with Progress(f"compact {topic} by key", total, "bytes") as progress:
        report = run_by_key(job, progress.advance)
    report_with(output, report, lambda: _print_report(report))
    if report.damaged:
        raise ExpectedError(
            "these objects could not be read, and nothing after them was changed:\n"
            + "\n".join(report.damaged)
        )
    if report.unresolved:
        raise ExpectedError(
            f"partitions {report.unresolved} changed during every pass, or a pass took longer than"
            " --ttl allows. Nothing is lost; run the command again"
        )


def plan_by_key(job: ByKeyJob) -> list[PassPlan]:
    """Return the logs that a run would compact now, without changing anything. Raises the errors of
    `compact_by_key`.
    """
    return _run(job, TopicCleaner.plan)


def run_by_key(job: ByKeyJob, on_done: Callable[[int], None] = lambda _: None) -> CleaningRun:
    """Compact the log of a topic. Raises the errors of `compact_by_key`."""
    return _run(job, TopicCleaner.run, on_done)


def _run(
    job: ByKeyJob,
    work: Callable[[TopicCleaner], Awaitable[_T]],
    on_done: Callable[[int], None] = lambda _: None,
) -> _T:
    target, controller, engine, limits = job

    async def run() -> _T:
        stores, client = target.open(), connect(controller)
        follower = MetadataFollower(client)
        try:
            await response_of(client, controller, _TIMEOUT_S, follower.start(_TIMEOUT_S))
            view = target.view(stores)
            await _until_published(view, follower, target.topic)
            cleaning = TopicCleaner(
                view,
                target.topic,
                ControllerCleaner(client, follower, stores.store),
                run_passes,
                _options(view.root, target.topic, limits),
                now_ms=wall_ms,
                on_done=on_done,
            )
            return await work(cleaning)
        finally:
            await follower.stop()
            await client.close()
            await stores.close()

    async def run_passes(tasks: Sequence[PassTask]) -> list[PassResult]:
        job = PassJob(target.store_url, target.wal_store_url)
        return await asyncio.to_thread(lambda: list(engine.map(job, tasks)))

    return asyncio.run(run())


async def _until_published(view: ClusterView, follower: MetadataFollower, topic: str) -> None:
    """Wait until the manifest contains the topic. The manifest lags behind the controllers by
    `manifest.interval.ms`, 1 s by default. Raises UnknownPartition, ExpectedError.
    """
    deadline = asyncio.get_running_loop().time() + PUBLISH_S
    while True:
        try:
            root = await view.refresh()
        except ManifestNotFound:
            if follower.image.topics.by_name(topic) is None:
                raise
        else:
            if any(item.name == topic for item in root.topics):
                return
            if follower.image.topics.by_name(topic) is None:
                raise UnknownPartition(topic, None)
        if asyncio.get_running_loop().time() > deadline:
            raise ExpectedError(
                f"topic {topic!r} is not in the manifest of the store after {PUBLISH_S:.0f} "
                "s. Check that the controllers publish it. See manifest.interval.ms and "
                "`penstock doctor`"
            )
        await asyncio.sleep(_LOOK_S)


def _options(root: ManifestRoot, topic: str, limits: ByKeyLimits) -> CleaningOptions:
    """Return the options of a run for this topic. Raises UsageError."""
    entry = next(item for item in root.topics if item.name == topic)
    if entry.is_internal:
        raise UsageError(f"{topic} is an internal topic: its coordinators compact it")
    configs = root.configs_of(entry)
    policy = CleaningPolicy.from_configs(configs)
    if policy is None:
        raise UsageError(
            f"{topic} has cleanup.policy={configs['cleanup.policy']}, but --by-key requires "
            f"compact; without --by-key, `penstock compact {topic}` keeps all records"
        )
    return CleaningOptions(
        lag_ms_min=policy.lag_ms_min,
        tombstones_kept_ms=policy.tombstones_kept_ms,
        key_map_bytes_max=limits.key_map_bytes_max,
        object_bytes_max=limits.object_bytes_max,
        ttl_ms=limits.ttl_ms,
    )


def _print_plan(topic: str, planned: Sequence[PassPlan], *, output: Format) -> None:
    partitions = [
        {
            "partition": item.partition,
            "log_start": item.log.start,
            "dirty_from": item.log.dirty_from,
            "end": item.log.end,
            "log_bytes": item.log_bytes,
            "dirty_bytes": item.dirty_bytes,
        }
        for item in planned
    ]
    report_table(
        output,
        {"topic": topic, "partitions": partitions},
        f"{topic}: what would be compacted by key",
        ["partition", "log start", "dirty from", "end", "log", "dirty"],
        [
            (
                item.partition,
                item.log.start,
                item.log.dirty_from,
                item.log.end,
                size(item.log_bytes),
                size(item.dirty_bytes),
            )
            for item in planned
        ],
    )


def _print_report(report: CleaningRun) -> None:
    removed = sum(item.removed_records for item in report.partitions)
    if not removed:
        say(f"{report.topic}: nothing to remove below the newest checkpoints of its leaders")
        return
    before = sum(item.replaced_bytes for item in report.partitions)
    after = sum(item.written_bytes for item in report.partitions)
    say(
        f"{report.topic}: {counted(removed, 'record')} removed, {size(before)} became {size(after)}"
        f" in {counted(len(report.partitions), 'partition')}"
    )

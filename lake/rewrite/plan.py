"""Plan the bulk rewrite of a topic: the adjacent objects to merge, and the size of each round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.base.ids import (
    Millis,
    ObjectId,
    Offset,
    StreamId,
)
from penstock.stream.compaction.plan import Compaction, CompactionConfig, plan_stream
from penstock.stream.format.manifest.model import CommittedLog
from penstock.stream.ports import ObjectRange, ObjectRole, StreamRange

MIB = 1 << 20
_WINDOW_RANGES = 4_096
_BY_KEY = ObjectId(-1)
"""The object id of planned sources: the manifest and the commit identify objects by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """The limits of a run."""

    target_bytes: int = 64 * MIB
    """Approximate size of new objects; a task needs twice as much memory. Objects of at least half
    this size are not rewritten.
    """

    round_bytes_max: int = 4 << 30
    """Number of bytes rewritten between two commits of a partition. This is how much work a kill or
    a conflict may waste.
    """

    round_objects_max: int = 1_000
    """Maximum number of objects written in one round; the controller does not prepare or commit
    more at a time.
    """

    compaction_sources_max: int = 4_000
    """Maximum number of sources of one object. With a lower number, a rewrite is less likely to
    include objects that brokers compact at the end of the log.
    """

    commit_sources_max: int = 10_000
    total_bytes_max: int = 1 << 50
    ttl_ms: int = 30 * 60_000
    """The controller deletes objects that a round has not committed within this time."""

    def __post_init__(self) -> None:
        if not 2 <= self.target_bytes <= 1 << 30:
            raise ValueError(f"target_bytes={self.target_bytes} is not allowed: 2 bytes to 1 GiB")

    @property
    def compaction(self) -> CompactionConfig:
        """The compaction config. Objects of up to half the target size count as small, so that two
        of them always fit into one.
        """
        return CompactionConfig(
            small_bytes_max=self.target_bytes // 2,
            small_count_min=2,
            object_bytes_max=self.target_bytes,
            round_ranges_max=min(self.compaction_sources_max, self.commit_sources_max),
        )


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The plan of one partition. `object_count` and `size_bytes` refer to the whole partition. Each
    of the `compactions` becomes one object.
    """

    partition: int
    stream_id: StreamId
    object_count: int
    size_bytes: int
    compactions: tuple[Compaction, ...]

    @property
    def source_count(self) -> int:
        return sum(len(compaction.sources) for compaction in self.compactions)

    @property
    def compacted_bytes(self) -> int:
        return sum(compaction.size_bytes for compaction in self.compactions)


def plan_topic(logs: Iterable[CommittedLog], options: RewriteOptions) -> list[PartitionPlan]:
    """Return a plan for each partition, without compactions if none is worthwhile.

    Invariants: objects written by one run (at least half the target) are not rewritten by later
    runs, so repeated runs cost nothing. Rounds are limited in bytes and objects, commits in
    sources. The rules are the same as in `stream.compaction.plan`, with larger numbers. There is no
    I/O. Cost: a few microseconds per object.
    """
    plans: list[PartitionPlan] = []
    for log in logs:
        ranges = ranges_of(log)
        size_bytes = sum(item.range.size_bytes for item in ranges)
        plans.append(
            PartitionPlan(
                log.partition,
                log.stream_id,
                len(ranges),
                size_bytes,
                tuple(_compactions(ranges, options)),
            )
        )
    return plans


def within(plans: Iterable[PartitionPlan], size_bytes: int) -> list[PartitionPlan]:
    """Return the first compactions of the topic that fit into this number of bytes."""
    found: list[PartitionPlan] = []
    for plan in plans:
        taken: list[Compaction] = []
        for compaction in plan.compactions:
            if compaction.size_bytes > size_bytes:
                size_bytes = 0
                break
            size_bytes -= compaction.size_bytes
            taken.append(compaction)
        found.append(replace(plan, compactions=tuple(taken)))
    return found


def cut_rounds(
    plans: Iterable[PartitionPlan], options: RewriteOptions
) -> list[list[PartitionPlan]]:
    """Divide the compactions into rounds of bounded size, in order. A partition occurs at most once
    in a round, because a round has one commit per partition.
    """
    rounds: list[list[PartitionPlan]] = [[]]
    left_bytes, left_objects = options.round_bytes_max, options.round_objects_max
    for plan in plans:
        taken: list[Compaction] = []
        left_sources = options.commit_sources_max
        for compaction in plan.compactions:
            too_much = (
                compaction.size_bytes > left_bytes
                or not left_objects
                or len(compaction.sources) > left_sources
            )
            if too_much and (taken or rounds[-1]):
                _take(rounds[-1], plan, taken)
                rounds.append([])
                taken = []
                left_bytes, left_objects = options.round_bytes_max, options.round_objects_max
                left_sources = options.commit_sources_max
            taken.append(compaction)
            left_bytes -= compaction.size_bytes
            left_objects -= 1
            left_sources -= len(compaction.sources)
        _take(rounds[-1], plan, taken)
    return [round_ for round_ in rounds if round_]


def _take(
    round_: list[PartitionPlan], plan: PartitionPlan, compactions: Sequence[Compaction]
) -> None:
    if compactions:
        round_.append(replace(plan, compactions=tuple(compactions)))


def ranges_of(log: CommittedLog) -> list[ObjectRange]:
    """Return the entries of a log as compaction sources."""
    found: list[ObjectRange] = []
    for run in log.runs:
        for index, key in enumerate(run.keys):
            part = StreamRange(
                log.stream_id,
                Offset(run.bounds[index]),
                Offset(run.bounds[index + 1]),
                run.record_counts[index],
                run.sizes_bytes[index],
                Millis(run.max_timestamps_ms[index]),
            )
            found.append(
                ObjectRange(
                    _BY_KEY,
                    key,
                    ObjectRole(run.roles[index]),
                    run.object_sizes_bytes[index],
                    part,
                    StreamId(run.stored_stream_ids[index]),
                )
            )
    return found


def _compactions(ranges: Sequence[ObjectRange], options: RewriteOptions) -> Iterable[Compaction]:
    """Yield all compactions up to the end of the log."""
    config, at = options.compaction, 0
    while at < len(ranges):
        window = _window(ranges, at, 4 * options.target_bytes)
        compaction, settled = plan_stream(window, config)
        reached = settled
        if compaction is not None:
            yield compaction
            reached = compaction.end_offset
        step = next(
            (index for index, item in enumerate(window) if item.range.start_offset >= reached),
            len(window),
        )
        # There is nothing left to compact; a few small objects at the end of the log remain.
        at += step or len(window)


def _window(ranges: Sequence[ObjectRange], at: int, bytes_max: int) -> Sequence[ObjectRange]:
    """Return only enough ranges for the next compaction, because the next call examines the
    remaining ones again.
    """
    size_bytes = 0
    for end in range(at, min(at + _WINDOW_RANGES, len(ranges))):
        size_bytes += ranges[end].range.size_bytes
        if size_bytes > bytes_max:
            return ranges[at : end + 1]
    return ranges[at : at + _WINDOW_RANGES]

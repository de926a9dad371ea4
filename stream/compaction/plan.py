"""Plan compactions: select committed ranges to rewrite together, and assign them to objects. There
is no I/O.

A small range is rewritten only into a range of at least twice its size, so each byte is rewritten
at most about log2(small_bytes_max / size) times.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from penstock.base.ids import Offset, StreamId
from penstock.base.settings import Kind, Setting, check
from penstock.stream.errors import NotContiguous
from penstock.stream.ports import ObjectRange, ObjectRole, ReplacedRange, StreamRange


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    interval_ms: Annotated[
        int, Setting("compaction.interval.ms", Kind.DURATION, 1, 3_600_000, is_dynamic=True)
    ] = 20_000
    """Pause between two searches for work. WAL objects that were committed in place occupy their
    full size until compaction.
    """

    wal_store_interval_ms: Annotated[
        int,
        Setting("compaction.wal.store.interval.ms", Kind.DURATION, 1, 3_600_000, is_dynamic=True),
    ] = 5_000
    """Pause between two searches for ranges that were committed in place in a WAL store. They are
    rewritten into `store`, `compaction.round.max.bytes` at a time. While the WAL store fails, the
    pause is doubled repeatedly, up to one minute.
    """

    small_bytes_max: Annotated[
        int, Setting("compaction.small.range.max.bytes", Kind.BYTES, 1, is_dynamic=True)
    ] = 4 << 20
    """Ranges of at least this size outside WAL objects are never compacted, because readers fetch 4
    MiB per GET.
    """

    small_count_min: Annotated[
        int, Setting("compaction.small.range.min.count", Kind.INT, 1, 1_000, is_dynamic=True)
    ] = 8
    """Number of neighboring small ranges that justify a rewrite. A lower value saves GETs by
    catch-up readers but causes more rewrites.
    """

    round_bytes_max: Annotated[
        int, Setting("compaction.round.max.bytes", Kind.BYTES, 1, 1 << 30, is_dynamic=True)
    ] = 64 << 20
    """Number of bytes that one round reads, keeps in memory and writes."""

    round_ranges_max: int = 4_000
    """Maximum number of sources in one commit; the controller accepts 20,000."""

    object_bytes_max: Annotated[
        int, Setting("compaction.object.max.bytes", Kind.BYTES, 1, 1 << 30, is_dynamic=True)
    ] = 32 << 20
    """Maximum size of an object, unless a single range is larger."""

    stream_object_bytes_min: int = 8 << 20
    """A stream with at least this much data gets an object of its own."""

    page_ranges: int = 256
    """Number of ranges of one stream that are examined at a time."""

    def __post_init__(self) -> None:
        check(self)
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


@dataclass(frozen=True, slots=True)
class Compaction:
    """Neighboring ranges of one stream to be merged into one."""

    sources: tuple[ObjectRange, ...]

    @property
    def stream_id(self) -> StreamId:
        return self.sources[0].range.stream_id

    @property
    def start_offset(self) -> Offset:
        return self.sources[0].range.start_offset

    @property
    def end_offset(self) -> Offset:
        return self.sources[-1].range.end_offset

    @property
    def size_bytes(self) -> int:
        return sum(source.range.size_bytes for source in self.sources)


class StreamPlan(NamedTuple):
    """The plan for one stream.

    compaction: the next compaction, or None. settled_offset: nothing before this offset will be
    compacted again, so the next search begins here.
    """

    compaction: Compaction | None
    settled_offset: Offset


@dataclass(frozen=True, slots=True)
class Output:
    """One object to write. compactions: sorted by stream."""

    role: ObjectRole
    compactions: tuple[Compaction, ...]


def plan_stream(ranges: Sequence[ObjectRange], config: CompactionConfig) -> StreamPlan:
    """Plan the next compaction of a stream.

    ranges: one page of its log. Raises NotContiguous if the ranges are not adjacent.
    """
    _check_contiguous(ranges)
    settled = ranges[0].range.start_offset
    run: list[ObjectRange] = []
    for source in ranges:
        if _is_compactable(source, config):
            run.append(source)
            continue
        chosen = _choose(run, config)
        if chosen:
            return StreamPlan(Compaction(chosen), settled)
        # A range that is not compacted ends the current run.
        settled, run = source.range.end_offset, []
    chosen = _choose(run, config)
    return StreamPlan(Compaction(chosen) if chosen else None, settled)


def _is_compactable(source: ObjectRange, config: CompactionConfig) -> bool:
    return source.role == ObjectRole.WAL or source.range.size_bytes < config.small_bytes_max


def _choose(run: Sequence[ObjectRange], config: CompactionConfig) -> tuple[ObjectRange, ...]:
    """Return the part of a run of compactable neighbors that is currently worth rewriting: the
    whole run if it contains enough ranges, otherwise the part from its first to its last WAL range.
    """
    many = list(run)
    rest_bytes = sum(source.range.size_bytes for source in many)
    while many and many[0].role != ObjectRole.WAL and 2 * many[0].range.size_bytes > rest_bytes:
        rest_bytes -= many.pop(0).range.size_bytes
    chosen = _bounded(many, config) if len(many) >= config.small_count_min else ()
    if chosen:
        return chosen
    in_wal = [ordinal for ordinal, source in enumerate(run) if source.role == ObjectRole.WAL]
    return _bounded(run[in_wal[0] : in_wal[-1] + 1], config) if in_wal else ()


def _bounded(run: Sequence[ObjectRange], config: CompactionConfig) -> tuple[ObjectRange, ...]:
    """Return as many leading ranges as fit into one object, at least one.

    A single range is worth rewriting only if it is in a WAL object.
    """
    size_bytes = count = 0
    for source in run[: config.round_ranges_max]:
        size_bytes += source.range.size_bytes
        if count and size_bytes > config.object_bytes_max:
            break
        count += 1
    return tuple(run[:count]) if count > 1 or run[0].role == ObjectRole.WAL else ()


def plan_round(compactions: Iterable[Compaction], config: CompactionConfig) -> tuple[Output, ...]:
    """Plan the outputs of one round: as many compactions as fit, one per stream. Compactions of WAL
    ranges come first, because a single WAL range keeps its entire object alive.
    """
    taken: dict[StreamId, Compaction] = {}
    bytes_left, ranges_left = config.round_bytes_max, config.round_ranges_max
    for compaction in sorted(
        compactions,
        key=lambda compaction: all(source.role != ObjectRole.WAL for source in compaction.sources),
    ):
        size_bytes, count = compaction.size_bytes, len(compaction.sources)
        if compaction.stream_id in taken or (
            taken and (size_bytes > bytes_left or count > ranges_left)
        ):
            continue
        taken[compaction.stream_id] = compaction
        bytes_left -= size_bytes
        ranges_left -= count
    own: list[Output] = []
    shared: list[list[Compaction]] = []
    shared_bytes = 0
    for _, compaction in sorted(taken.items()):
        if compaction.size_bytes >= config.stream_object_bytes_min:
            own.append(Output(ObjectRole.STREAM, (compaction,)))
            continue
        if not shared or shared_bytes + compaction.size_bytes > config.object_bytes_max:
            shared.append([])
            shared_bytes = 0
        shared[-1].append(compaction)
        shared_bytes += compaction.size_bytes
    return (*(_shared_output(part) for part in shared), *own)


def _shared_output(compactions: Sequence[Compaction]) -> Output:
    return Output(
        ObjectRole.STREAM if len(compactions) == 1 else ObjectRole.STREAM_SET, tuple(compactions)
    )


def replaced_by(outputs: Sequence[Output]) -> tuple[ReplacedRange, ...]:
    """Return the ranges replaced by the commit."""
    return tuple(
        ReplacedRange(
            source.range.stream_id,
            source.object_id,
            source.range.start_offset,
            source.range.end_offset,
        )
        for output in outputs
        for compaction in output.compactions
        for source in compaction.sources
    )


def check_outputs(outputs: Sequence[Output], written: Sequence[tuple[StreamRange, ...]]) -> None:
    """Verify that the outputs contain exactly the offsets of their inputs, and only these streams.
    Raises NotContiguous.

    written[i]: the ranges of the object built for outputs[i].
    """
    seen: set[StreamId] = set()
    for output, ranges in zip(outputs, written, strict=True):
        for compaction, found in zip(output.compactions, ranges, strict=True):
            _check_contiguous(compaction.sources)
            if (
                found.stream_id != compaction.stream_id
                or found.stream_id in seen
                or found.start_offset != compaction.start_offset
            ):
                raise NotContiguous(
                    compaction.stream_id, compaction.start_offset, found.start_offset
                )
            if found.end_offset != compaction.end_offset:
                raise NotContiguous(compaction.stream_id, compaction.end_offset, found.end_offset)
            seen.add(found.stream_id)


def _check_contiguous(ranges: Sequence[ObjectRange]) -> None:
    stream_id, expected = ranges[0].range.stream_id, ranges[0].range.start_offset
    for source in ranges:
        found = source.range
        if (
            found.stream_id != stream_id
            or found.start_offset != expected
            or found.end_offset <= expected
        ):
            raise NotContiguous(stream_id, expected, found.start_offset)
        expected = found.end_offset

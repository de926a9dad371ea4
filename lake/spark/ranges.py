"""Choose the offsets to read: compare starts and ends with the cluster, and report losses.

Ranges stay within their planned start and end. With `failOnDataLoss`, nothing is skipped without an
error. Gaps inside a range (control records, compaction) are not losses. Source: Spark
`KafkaOffsetReaderAdmin`, `KafkaMicroBatchStream`, `KafkaOffsetRangeCalculator`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.errors import OffsetsMismatch
from penstock.lake.spark.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    TopicPartition,
    scala_set,
)

Report = Callable[[str], None]
"""Called with the reason for a data loss. It raises, or logs a warning and lets the query
continue.
"""


class Bounds(NamedTuple):
    """The offsets of a partition in the cluster: [log_start, end) for this query's isolation
    level.
    """

    log_start: int
    end: int


def ends(bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
    return {item: found.end for item, found in bounds.items()}


def beyond(known: Offsets, latest: Offsets) -> set[TopicPartition]:
    """Return the partitions that end before their known offsets."""
    return {item for item in known.keys() & latest.keys() if known[item] > latest[item]}


def check_assigned(specified: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> None:
    """Raise OffsetsMismatch unless the specified partitions are exactly the existing ones."""
    if specified.keys() != bounds.keys():
        raise OffsetsMismatch(
            "Partitions specified for Kafka start offsets don't match what are assigned. Maybe"
            " topic partitions are created or deleted while the query is running. Use -1 for"
            f" latest, -2 for earliest. Specified: {scala_set(specified)} Assigned:"
            f" {scala_set(bounds)}"
        )


def check_same_topics(specified: Mapping[str, str], topic_ids: Mapping[str, str]) -> None:
    """Raise OffsetsMismatch if a topic's id differs from the id in its specified offsets."""
    other = {
        name: (before, topic_ids[name])
        for name, before in specified.items()
        if topic_ids.get(name, before) != before
    }
    if other:
        raise OffsetsMismatch(recreated(other))


def check_timestamps_assigned(
    specified: Offsets, bounds: Mapping[TopicPartition, Bounds], position: str
) -> None:
    if specified.keys() != bounds.keys():
        raise OffsetsMismatch(
            f"Partitions specified for Kafka timestamp based {position} offsets don't match what"
            " are assigned. Maybe topic partitions are created or deleted while the query is"
            f" running, or you didn't specify all the partitions. Specified: {scala_set(specified)}"
            f" Assigned: {scala_set(bounds)}"
        )


def resolved(
    offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Replace -2 and -1 with offsets, except for partitions that do not exist."""
    found = dict(offsets)
    for item in offsets.keys() & bounds.keys():
        offset = offsets[item]
        if offset == EARLIEST:
            found[item] = bounds[item].log_start
        elif offset == LATEST:
            found[item] = bounds[item].end
    return found


def matched(
    found: Mapping[TopicPartition, int | None], timestamps_ms: Offsets, *, latest_if_no_match: bool
) -> dict[TopicPartition, int]:
    """Return the offsets of a lookup by timestamp. Raise OffsetsMismatch if a partition has no
    record that is late enough, unless `latest_if_no_match`.
    """
    offsets: dict[TopicPartition, int] = {}
    for item, offset in found.items():
        if offset is None and not latest_if_no_match:
            raise OffsetsMismatch(
                f"No offset matched from request of topic-partition {item} and timestamp"
                f" {timestamps_ms[item]}."
            )
        offsets[item] = LATEST if offset is None else offset
    return offsets


def batch_ranges(
    start: Offsets, end: Offsets, bounds: Mapping[TopicPartition, Bounds], report: Report
) -> list[OffsetRange]:
    """Return the ranges of a batch query. `start` and `end` have the same partitions and are
    resolved.
    """
    for item in sorted(end):
        if start[item] > end[item]:
            raise OffsetsMismatch(
                f"The resolved start offset {start[item]} is greater than the resolved end offset"
                f" {end[item]} for topic {item.topic} partition {item.partition}. There may be"
                " multiple reasons: 1. Start offset is set to too big a value that after"
                " resolution, end offset is smaller than it. There are multiple input cases: (a)"
                " Start offset is set to a timestamp, and the end offset is set to an index. (b)"
                " Start offset is set to an index, and the end offset is set to a timestamp. (c)"
                " Start offset is set, and the end offset is set to latest. 2. The Kafka topic"
                " partition is broken."
            )
    return [
        found
        for item in sorted(end)
        if (found := _clamped(item, start[item], end[item], bounds[item], report))
    ]


def new_starts(
    start: Offsets, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Return the next offset of each existing partition: new partitions begin at their log
    start.
    """
    return {item: start.get(item, found.log_start) for item, found in bounds.items()}


def stream_ranges(
    start: Offsets, end: Offsets, bounds: Mapping[TopicPartition, Bounds], report: Report
) -> list[OffsetRange]:
    """Return the ranges of a micro-batch, new or replayed."""
    new = end.keys() - start.keys()
    if missing := new - bounds.keys():
        report(
            f"Cannot find initial offsets for partitions {scala_set(missing)}. They may have been"
            " deleted."
        )
    if deleted := (start.keys() - end.keys()) | ((start.keys() & end.keys()) - bounds.keys()):
        report(f"Partitions {scala_set(deleted)} have been deleted.")
    ranges: list[OffsetRange] = []
    for item in sorted(end.keys() & bounds.keys()):
        begin = start.get(item, 0)
        if item in new and bounds[item].log_start > 0:
            report(f"Added partition {item} starts from {bounds[item].log_start} instead of 0.")
            begin = bounds[item].log_start
        if end[item] < begin:
            report(changed(item, begin, end[item]))
        elif found := _clamped(item, begin, end[item], bounds[item], report):
            ranges.append(found)
    return ranges


def changed(item: TopicPartition, before: int, now: int) -> str:
    return (
        f"Partition {item} offset was changed from {before} to {now}. This could either be a user"
        " error that the start offset is set too high and this is the first batch, or the kafka"
        " topic-partition is broken, and some data may have been missed. If the store or the topic"
        " is a copy that lags, increase fetchOffset.numRetries."
    )


def recreated(topics: Mapping[str, tuple[str, str]]) -> str:
    """Describe recreated topics, given their old and new ids."""
    ids = ", ".join(
        f"{name} (id {before}, now {now})" for name, (before, now) in sorted(topics.items())
    )
    return (
        f"Topics have been deleted and created again: {ids}. Offsets of the old ones mean nothing"
        " in the new ones."
    )


def _clamped(
    item: TopicPartition, start: int, end: int, bounds: Bounds, report: Report
) -> OffsetRange | None:
    """Return the existing part of the range."""
    if start == end:
        return None
    if start < min(end, bounds.log_start):
        report(
            f"Could not read records in offset [{start}, {min(end, bounds.log_start)}) for topic"
            f" partition {item}: the log starts at {bounds.log_start}. Start there, or keep records"
            " longer (retention.ms, retention.bytes)."
        )
        start = bounds.log_start
    if end > bounds.end:
        report(
            f"Could not read records in offset [{max(start, bounds.end)}, {end}) for topic"
            f" partition {item}: it ends at {bounds.end}."
        )
        end = bounds.end
    return OffsetRange(item.topic, item.partition, start, end) if start < end else None


def check_frozen(frozen: Offsets, end: Offsets, latest: Offsets) -> None:
    """Check a micro-batch of `Trigger.AvailableNow`: no partition may appear or disappear, and no
    end may exceed the end in the first view of the topics. Raise OffsetsMismatch.
    """
    again = (
        "The error could be transient - restart your query, and report if you still see the same"
        " issue."
    )
    if frozen.keys() != end.keys():
        raise OffsetsMismatch(
            "Kafka data source in Trigger.AvailableNow should provide the same topic partitions in"
            f" pre-fetched offset to end offset for each microbatch. {again} topic-partitions for"
            f" pre-fetched offset: {scala_set(frozen)}, topic-partitions for end offset:"
            f" {scala_set(end)}."
        )
    if any(end[item] > frozen[item] for item in end):
        raise OffsetsMismatch(
            "For Kafka data source with Trigger.AvailableNow, end offset should have lower or"
            f" equal offset per each topic partition than pre-fetched offset. {again} pre-fetched"
            f" offset: {_scala_map(frozen)}, end offset: {_scala_map(end)}."
        )
    if not end.keys() <= latest.keys():
        raise OffsetsMismatch(
            "Some of partitions in Kafka topic(s) have been lost during running query with"
            f" Trigger.AvailableNow. {again} topic-partitions for latest offset:"
            f" {scala_set(latest)}, topic-partitions for end offset: {scala_set(end)}"
        )
    if any(end[item] > latest[item] for item in end):
        raise OffsetsMismatch(
            "Some of partitions in Kafka topic(s) report available offset which is less than end"
            f" offset during running query with Trigger.AvailableNow. {again} latest offset:"
            f" {_scala_map(latest)}, end offset: {_scala_map(end)}"
        )


def _scala_map(offsets: Offsets) -> str:
    return f"Map({', '.join(f'{item} -> {offset}' for item, offset in sorted(offsets.items()))})"

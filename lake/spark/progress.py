"""Determine the lag of a streaming query from the progress that Spark reports.

In Spark, Python sources cannot report metrics of their own. Source: Spark
`KafkaMicroBatchStream#metrics`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, cast

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from penstock.lake.spark.offsets import OffsetsJson


class SourceLag(TypedDict):
    """The lag of one source, in offsets, under the names used by Spark's Kafka source."""

    partitions: OffsetsJson
    avgOffsetsBehindLatest: float
    maxOffsetsBehindLatest: int
    minOffsetsBehindLatest: int


Report = Callable[[str, SourceLag], object]
"""Called with the name of a query, or its id if it has no name, and the lag of one source."""


class LagListener(StreamingQueryListener):
    def __init__(self, report: Report) -> None:
        self._report = report

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for item in lags_of(progress):
            self._report(progress.name or str(progress.id), item)

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def lags_of(progress: StreamingQueryProgress | Mapping[str, Any] | str | None) -> list[SourceLag]:
    """Return the lag of each source whose offsets are topic offsets."""
    if progress is None:
        return []
    if isinstance(progress, StreamingQueryProgress):
        progress = progress.json
    parsed = json.loads(progress) if isinstance(progress, str) else progress
    found = [_lag(_offsets(item, "endOffset"), _offsets(item, "latestOffset"))
             for item in parsed["sources"]]  # fmt: skip
    return [item for item in found if item is not None]


def _lag(end: OffsetsJson, latest: OffsetsJson) -> SourceLag | None:
    behind = {
        topic: {
            partition: max(0, offset - end[topic][partition])
            for partition, offset in parts.items()
            if partition in end.get(topic, {})
        }
        for topic, parts in latest.items()
    }
    counts = [count for parts in behind.values() for count in parts.values()]
    if not counts:
        return None
    return SourceLag(
        partitions={topic: parts for topic, parts in behind.items() if parts},
        avgOffsetsBehindLatest=sum(counts) / len(counts),
        maxOffsetsBehindLatest=max(counts),
        minOffsetsBehindLatest=min(counts),
    )


def _offsets(source: Mapping[str, Any], name: str) -> OffsetsJson:
    """Return the offsets by topic and partition, or an empty dict if they are of a different
    type.
    """
    value = source.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    topics = cast("dict[str, Any]", value)
    is_offsets = all(
        isinstance(parts, dict)
        and all(isinstance(offset, int) for offset in cast("dict[str, Any]", parts).values())
        for parts in topics.values()
    )
    return cast("OffsetsJson", topics) if is_offsets else {}

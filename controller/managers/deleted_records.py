"""Retain records that DeleteRecords removed for the grace period of the topic, then drop them.

A log start never decreases, so retained records can only be restored as a fork
(`controller.managers.forks`). Txn streams are retained with their data streams, so that the fork
excludes aborted transactions.
"""

from typing import Final
from uuid import UUID

from penstock.base.ids import Millis, Offset
from penstock.controller.managers.objects import Age
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import KeptLogDropped, Record, TrimGrace
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topic_configs import DELETE_GRACE
from penstock.controller.metadata.topics import PartitionKey

DROPS_PER_TRANSACTION_MAX: Final = 10_000


def grace_ms_of(image: MetadataImage, topic_id: UUID, default_ms: int) -> int:
    """Return how long a deleted topic, or its deleted records, can be restored."""
    topic = image.topics.by_id(topic_id)
    if topic is None:
        return default_ms
    own_ms = int(image.configs.topic(topic.name).get(DELETE_GRACE, -1))
    return default_ms if own_ms < 0 else own_ms


def trim_grace(
    image: MetadataImage, stream: StreamState, now_ms: Millis, *, wanted: bool, default_ms: int
) -> TrimGrace | None:
    """Return the grace period of the records that a trim removes, or None if they are not retained.

    wanted: whether the request asks for the grace period. Retention does not; its trims also end
    the grace periods of records that were deleted earlier, because those records are older.
    default_ms: grace period of topics without their own.
    """
    if stream.kind == "txn":
        data = _data_of(image, stream)
        return None if data is None or data.kept is None else data.kept.trims[-1].grace
    keep_ms = grace_ms_of(image, stream.topic_id, default_ms)
    if not wanted or stream.kind != "data" or not keep_ms:
        return None
    return TrimGrace(image.end_offset, now_ms, keep_ms)


def drop_kept(image: MetadataImage, age_s: Age) -> list[Record]:
    """Drop retained records after their grace period. Each call drops a limited number; call again
    while it returns records.
    """
    records: list[Record] = []
    for stream in image.streams.keeping():
        end = _due(image, stream, age_s)
        if end is not None:
            records.append(KeptLogDropped(stream.stream_id, end))
        if len(records) == DROPS_PER_TRANSACTION_MAX:
            break
    return records


def _due(image: MetadataImage, stream: StreamState, age_s: Age) -> Offset | None:
    """Return the offset below which retained records can be dropped, or None if there are none."""
    assert stream.kept is not None, "the stream keeps something"
    if stream.kind == "txn":
        data = _data_of(image, stream)
        end = stream.start_offset if data is None or data.kept is None else data.kept_offset
        return end if end > stream.kept_offset else None
    over = (
        trim.end_offset
        for trim in stream.kept.trims
        if age_s(trim.grace.offset) * 1_000
        >= min(trim.grace.keep_ms, grace_ms_of(image, stream.topic_id, trim.grace.keep_ms))
    )
    return max(over, default=None)


def _data_of(image: MetadataImage, stream: StreamState) -> StreamState | None:
    """Return the data stream of the partition that this stream belongs to."""
    key = PartitionKey(stream.topic_id, stream.partition)
    partition = image.topics.partition(key) or image.frozen_topics.partition(key)
    return None if partition is None else image.streams.get(partition.data_stream_id)

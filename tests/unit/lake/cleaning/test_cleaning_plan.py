"""Which part of a log a compaction job plans to compact."""

from array import array
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from penstock.base.ids import Millis, Offset, StreamId
from penstock.lake.cleaning.job import PassResult, PassTask
from penstock.lake.cleaning.run import Checkpoint, CleaningOptions, PassMetadata, TopicCleaner
from penstock.lake.manifest.view import ClusterView, PartitionOffsets
from penstock.stream.format.checkpoint import CleanedPart
from penstock.stream.format.manifest.model import CommittedLog, Entries
from penstock.stream.ports import ObjectRole

TOPIC = "t"
BEFORE, NOW = StreamId(1), StreamId(7)
"""The streams of partition 0 before and after the topic was recreated."""


class View:
    """A view of the recreated topic, which has 20 records in one object."""

    async def refresh(self) -> None: ...

    async def partitions(self, topics: list[str], *, committed: bool) -> list[PartitionOffsets]:
        return [PartitionOffsets(TOPIC, UUID(int=2), 0, NOW, 1, 0, 20, 20, 20)]

    async def committed(self, topic: str) -> list[CommittedLog]:
        one = [array("q", [value]) for value in (20, 900, 5, 1000, -1)]
        entries = Entries(array("q", [0, 20]), *one, bytes([ObjectRole.STREAM]), ("data/1",))
        return [CommittedLog(0, NOW, 0, (entries,))]


class Checkpoints:
    """Metadata with a checkpoint of one stream, at offset 20."""

    def __init__(self, stream_id: StreamId) -> None:
        self.stream_id = stream_id

    async def checkpoints(self, topic: str) -> dict[StreamId, Checkpoint]:
        return {self.stream_id: Checkpoint(Offset(20), CleanedPart(), keep_ms=9)}


async def planned(stream_id: StreamId) -> list[tuple[Offset, int]]:
    """Return the end of each pass, and how long it keeps tombstones."""
    cleaner = TopicCleaner(
        cast("ClusterView", View()),
        TOPIC,
        cast("PassMetadata", Checkpoints(stream_id)),
        run_nothing,
        CleaningOptions(lag_ms_min=0, tombstones_kept_ms=0, ttl_ms=100),
        now_ms=lambda: Millis(0),
    )
    return [(item.log.end, item.log.tombstones_kept_ms) for item in await cleaner.plan()]


async def run_nothing(tasks: Sequence[PassTask]) -> list[PassResult]:
    return []


async def test_a_log_is_compacted_up_to_its_own_checkpoint() -> None:
    """A checkpoint of a deleted topic with the same name says nothing about the new log: the next
    leader would scan records that the pass has removed, and forget their producers.
    """
    assert await planned(NOW) == [(20, 109)]
    assert await planned(BEFORE) == []

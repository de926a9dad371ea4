"""Measure the manifest's CPU time for controllers and readers, with 100,000 objects.

`python -m benchmarks.manifest [partitions]` uses one topic in an in-memory store. Readers
additionally need one GET for the root, one for the shard and one for each 4 MiB of pages, 16 at
once.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from benchmarks.harness import Measure
from penstock.base.clock import wall_ms
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.controller.active.manifest.publisher import ManifestPublisher
from penstock.controller.active.writer import Runtime
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    ClusterRecord,
    NodeRecord,
    ObjectCommitted,
    PartitionRecord,
    RangeEntry,
    Record,
    StreamCreated,
    StreamOpened,
    TopicRecord,
    WalRecord,
)
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.memory import MemoryStore
from penstock.stream.format.keys import data_key, manifest_key
from penstock.stream.ports import ObjectRole

OBJECTS = 100_000
RECORDS_PER_OBJECT = 5_000
TOPIC_ID = UUID(int=1)
T = TypeVar("T")


class Image:
    """A runtime for the publisher with an image that can grow."""

    epoch = 1

    def __init__(self, partitions: int) -> None:
        self.image = MetadataImage()
        self.partitions = partitions
        self.longest_ms = 0.0
        self._notes: list[Callable[[Sequence[Record]], Any]] = []
        node, epoch = NodeId(1), NodeEpoch(1)
        records: list[Record] = [
            ClusterRecord("bench"),
            NodeRecord(node, epoch, TOPIC_ID, "", 1, "", None, fenced=False),
        ]
        records += [WalRecord(node, epoch, WalSequence(0)), TopicRecord(TOPIC_ID, "t")]
        for number in range(partitions):
            meta, data, txn = (StreamId(3 * number + more) for more in range(3))
            records += [
                StreamCreated(meta, TOPIC_ID, number, "meta"),
                StreamCreated(data, TOPIC_ID, number, "data"),
            ]
            records += [StreamCreated(txn, TOPIC_ID, number, "txn")]
            records += [
                PartitionRecord(
                    TOPIC_ID, number, (node,), node, epoch, StreamEpoch(0), meta, data, txn
                )
            ]
            records += [StreamOpened(data, StreamEpoch(0), node, epoch)]
        self.apply(records)

    def apply(self, records: Sequence[Record]) -> None:
        self.image.apply_all(records)
        for note in self._notes:
            note(records)

    def grow(self, count: int) -> None:
        for _ in range(count):
            number = self.image.next_object_id
            stream = self.image.streams.known(StreamId(3 * (number % self.partitions) + 1))
            end = Offset(stream.end_offset + RECORDS_PER_OBJECT)
            part = RangeEntry(
                stream.stream_id,
                stream.end_offset,
                end,
                RECORDS_PER_OBJECT,
                5_300_000 + number % 9_973,
                Millis(1_700_000_000_000 + number),
            )
            object_id = ObjectId(number)
            size_bytes = part.size_bytes + 408
            self.apply(
                [
                    ObjectCommitted(
                        object_id,
                        data_key(object_id),
                        ObjectRole.STREAM,
                        size_bytes,
                        part.max_timestamp_ms,
                        (part,),
                    )
                ]
            )

    def observe(self, note: Callable[[Sequence[Record]], Any]) -> None:
        self._notes.append(note)

    async def with_committed_image(self, look: Callable[[MetadataImage], T]) -> T:
        began = time.thread_time()
        found = look(self.image)
        self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1_000)
        return found


@contextmanager
def cpu_ms(into: list[float]) -> Iterator[None]:
    began = time.process_time()
    yield
    into.append((time.process_time() - began) * 1_000)


class LongestTurn:
    """Measures the longest event loop step, in CPU ms."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def watch(self) -> None:
        began = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_ms = max(self.longest_ms, (now - began) * 1_000)
            began = now


async def _plan_cpu_ms(source: Image, store: MemoryStore) -> list[float]:
    """Plan the whole topic three times with a new view; return the CPU time of each."""
    ends = [
        OffsetRange("t", number, 0, source.image.streams.known(StreamId(3 * number + 1)).end_offset)
        for number in range(source.partitions)
    ]
    found: list[float] = []
    for _ in range(3):
        view = ClusterView(store)
        with cpu_ms(found):
            await view.refresh()
            slices = await view.plan(ends)
        assert len(slices) == OBJECTS + 50
    return found


async def _measure(partitions: int) -> list[Measure]:
    source, store = Image(partitions), MemoryStore()
    source.grow(OBJECTS)
    config = ControllerConfig(data_dir=Path("unused"), cluster_id="bench")
    runtime = cast("Runtime", source)
    publisher = ManifestPublisher(
        config,
        runtime,
        store,
        now=time.monotonic,
        now_ms=wall_ms,
    )
    whole, idle, little = list[float](), list[float](), list[float]()
    turn = LongestTurn()
    watching = asyncio.ensure_future(turn.watch())
    await asyncio.sleep(0)
    with cpu_ms(whole):
        await publisher.publish()
    whole_turn_ms, turn.longest_ms = turn.longest_ms, 0.0
    with cpu_ms(idle):
        assert not await publisher.publish()
    for _ in range(5):
        source.grow(10)
        await asyncio.sleep(0)
        with cpu_ms(little):
            await publisher.publish()
    watching.cancel()
    sizes = [(await store.head(manifest_key("bench", version))).size_bytes for version in (1, 2)]
    plan = await _plan_cpu_ms(source, store)
    note = f"{partitions} partitions"
    return [
        Measure(
            "plan a topic of 100,000 objects, from nothing",
            min(plan) / 1_000,
            "s CPU",
            1.5,
            "lower",
            note=note,
        ),
        Measure(
            "first manifest of a new active controller, 100,000 objects",
            whole[0],
            "ms CPU",
            2_000,
            "lower",
            note=f"{sizes[0] >> 10} KiB",
        ),
        Measure(
            "... longest turn of the event loop",
            whole_turn_ms,
            "ms CPU",
            50,
            "lower",
            note=f"capture {source.longest_ms:.0f} ms",
        ),
        Measure(
            "manifest, 10 of 100,000 objects changed",
            min(little),
            "ms CPU",
            20,
            "lower",
            note=f"{sizes[1] >> 10} KiB",
        ),
        Measure("manifest, nothing changed", idle[0], "ms CPU, no PUT", 1, "lower"),
    ]


def planning() -> list[Measure]:
    """Measure one partition, then 100, for `make bench-spark`."""
    return [*asyncio.run(_measure(1)), *asyncio.run(_measure(100))]


if __name__ == "__main__":
    for measure in asyncio.run(_measure(int(sys.argv[1]))) if len(sys.argv) > 1 else planning():
        sys.stdout.write(
            f"{measure.name} ({measure.note}): {measure.value:.3g} {measure.unit},"
            f" bar {measure.bar:g}\n"
        )

"""Measure catching up over a store with slow GETs: MB/s, and bytes read per byte requested.

`python -m benchmarks.read_ahead [--get-ms 30] [--partitions 1] [--consumers 1] [--object-mb 4]`
runs `ObjectReader` with a broker's limits; consumers read 1 MB of each partition in turn.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Final

from penstock.base.buffers import Buffer
from penstock.base.ids import Millis, NodeEpoch, NodeId, ObjectId, StreamId, WalSequence
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.header import iter_headers, parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.config import StreamConfig
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import BrokerIncarnation, ObjectRange, ObjectRole
from penstock.stream.read.object_reader import ObjectReader

_BATCHES_PER_MB: Final = 4
_READ_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.002
_PLAN_COUNT: Final = 16
_AHEAD_COUNT: Final = 64


class SlowStore(MemoryStore):
    def __init__(self, get_s: float) -> None:
        super().__init__()
        self.gets_count = self.read_bytes = 0
        self._get_s = get_s

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.gets_count += 1
        self.read_bytes += length
        await asyncio.sleep(self._get_s)
        return await super().get_range(key, start, length)


async def filled(
    store: MemoryStore, stream: StreamId, megabytes: int, each: int
) -> list[ObjectRange]:
    """Write the records of a stream, one batch per offset, into objects of `each` MB."""
    ranges: list[ObjectRange] = []
    value = bytes(1_000_000 // _BATCHES_PER_MB)
    for at in range(0, megabytes * _BATCHES_PER_MB, each * _BATCHES_PER_MB):
        entries: list[RunEntry] = []
        for offset in range(at, at + each * _BATCHES_PER_MB):
            batch = bytes(encode_batch([Record(offset, 0, None, value)], base_offset=offset))
            entries.append(RunEntry.of_batch(batch, parse_header(batch)))
        built = build_object(
            ObjectRole.STREAM_SET,
            BrokerIncarnation(NodeId(1), NodeEpoch(1)),
            WalSequence(NO_SEQUENCE),
            Millis(0),
            [StreamRun(stream, entries)],
            block_bytes_max=1 << 20,
        )
        key = f"{stream}/{at}"
        await store.put(key, built.chunks)
        ranges.append(
            ObjectRange(ObjectId(at), key, ObjectRole.STREAM_SET, built.size_bytes, built.ranges[0])
        )
    return ranges


async def consume(reader: ObjectReader, ranges: Sequence[ObjectRange], pause_s: float) -> None:
    at, end = 0, ranges[-1].range.end_offset
    each = ranges[0].range.end_offset

    def planned(offset: int, _: int) -> Sequence[ObjectRange]:
        return ranges[offset // each : offset // each + _AHEAD_COUNT]

    while at < end:
        plan = ranges[at // each : at // each + _PLAN_COUNT]
        found = reader.read_loaded(plan, at, _READ_BYTES, end, planned)
        if found is None:
            found = await reader.read(plan, at, _READ_BYTES, replan=planned)
        at = max(header.next_offset for _, header in iter_headers(found[-1]))
        await asyncio.sleep(pause_s)


async def measure(options: argparse.Namespace) -> None:
    store = SlowStore(options.get_ms / 1_000)
    partitions = [
        await filled(store, StreamId(number), options.megabytes, options.object_mb)
        for number in range(options.partitions)
    ]
    reader = ObjectReader(store, BlockCache(StreamConfig().block_cache_bytes_max))
    pause_s, began = _PAUSE_S * options.partitions, time.perf_counter()
    await asyncio.gather(
        *(
            consume(reader, ranges, pause_s)
            for ranges in partitions
            for _ in range(options.consumers)
        )
    )
    seconds = time.perf_counter() - began
    wanted_mb = options.megabytes * options.partitions
    print(
        f"{wanted_mb / seconds:.0f} MB/s for each consumer, {store.gets_count} GETs,"
        f" {store.read_bytes / 1e6 / wanted_mb:.2f} bytes read for each byte"
    )
    await reader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--get-ms", type=float, default=30.0)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--consumers", type=int, default=1, help="of each partition")
    parser.add_argument("--object-mb", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=64, help="of each partition")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()

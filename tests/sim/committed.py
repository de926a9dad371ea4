"""Readers of committed records: through the leaders, and from the bucket alone.

Checked immediately: every value belongs to a transaction that may be committed, the last stable
offset in the store never decreases, and the contents of a range that was read never change.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.base.buffers import Buffer
from penstock.base.errors import StreamError
from penstock.base.ids import (
    Millis,
    NodeId,
    ObjectId,
    Offset,
    StreamId,
)
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.partition.partition import Partition
from penstock.lake.fetch.errors import ObjectGone, ReadError
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.errors import ManifestNotFound
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError
from penstock.protocol import apis
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.header import BatchHeader, iter_headers
from penstock.protocol.batch.records import decode_records
from penstock.protocol.gen import fetch as wire_fetch
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import ObjectRange, ObjectRole, StreamRange
from penstock.stream.read.object_reader import ObjectReader
from tests.sim.checkers import Part
from tests.sim.frames import decode_response, encode_request
from tests.sim.ledger import Ledger
from tests.sim.nodes import FETCH_VERSION, RACK, SimBroker
from tests.sim.transactional import TXN_TOPIC

if TYPE_CHECKING:
    from tests.sim.world import World


class Judge:
    """Judges to which transaction a record belongs, and whether it may be visible."""

    def __init__(self, ledgers: list[Ledger]) -> None:
        self._ledgers = {ledger.name: ledger for ledger in ledgers}

    def saw(self, part: Part, values: list[bytes]) -> None:
        for value in values:
            name, serial, _, _ = value.decode().split("/")
            self._ledgers[name].saw_record(part, int(serial))


class StoreReader:
    """Reads committed records from the bucket, and sometimes reads a range again."""

    def __init__(self, world: "World", judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._rng = Random(f"{world.seed}/store-reader")
        self._view = ClusterView(world.bucket)
        self._objects = ObjectReader(world.bucket, BlockCache(1))
        self._ends: dict[Part, int] = {}
        self._starts: list[int] = []
        """Starts of the slices of the last read, where a range may be cut."""
        self._known: dict[tuple[Part, int, int], list[bytes]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
            with suppress(ManifestNotFound):
                await self.look()

    async def look(self) -> dict[Part, list[bytes]]:
        """Return all committed values of each partition. Raises ManifestNotFound.

        There are no faults between this reader and the bucket, and no time passes: everything that
        the newest manifest references must exist.
        """
        try:
            return await self._read_all()
        except (ObjectGone, ObjectNotFound, ObjectCorrupt, ReadError) as error:
            self._world.fail(
                "a reader of the store, by the newest manifest (version"
                f" {self._view.root.version}): {error}"
            )
            return {}

    async def _read_all(self) -> dict[Part, list[bytes]]:
        await self._view.refresh()
        if not self._view.topics(TXN_TOPIC):
            return {}
        found: dict[Part, list[bytes]] = {}
        for state in await self._view.partitions([TXN_TOPIC], committed=True):
            part, end = (TXN_TOPIC, state.partition), state.last_stable_offset
            assert end is not None
            if end < self._ends.get(part, 0) or end > state.end_offset:
                self._world.fail(
                    f"{part}: the last stable offset of the store went from {self._ends[part]} to"
                    f" {end}"
                )
            self._ends[part] = end
            found[part] = await self._values(part, 0, end)
            self._judge.saw(part, found[part])
            cut = self._rng.choice([start for start in self._starts if start <= end] or [end])
            if await self._values(part, 0, cut) + await self._values(part, cut, end) != found[part]:
                self._world.fail(f"{part}: [0, {cut}) and [{cut}, {end}) are not [0, {end})")
            if len(self._known) < 20:
                self._known[part, 0, end] = found[part]
        for (part, low, high), values in self._known.items():
            if await self._values(part, low, high) != values:
                self._world.fail(f"{part}: [{low}, {high}) is not what it was")
        return found

    async def _values(self, part: Part, low: int, high: int) -> list[bytes]:
        requested = [OffsetRange(*part, low, high)]
        aborted = await self._view.aborted(requested)
        values: list[bytes] = []
        self._starts = []
        for item in await self._view.plan(requested):
            batches = await self._read(item)
            self._starts.append(item.start_offset)
            values += _kept(batches, aborted[item.stream_id], item.start_offset, item.end_offset)
        return values

    async def _read(self, item: Slice) -> list[Buffer]:
        """Return whole batches of the slice from the bucket. Raises ObjectNotFound,
        ObjectCorrupt.
        """
        held = StreamRange(
            StreamId(item.stream_id),
            Offset(item.start_offset),
            Offset(item.end_offset),
            item.record_count,
            item.size_bytes,
            Millis(0),
        )
        source = ObjectRange(
            ObjectId(0),
            item.key,
            ObjectRole.STREAM,
            item.object_size_bytes,
            held,
            StreamId(item.stored_stream_id),
        )
        batches: list[Buffer] = []
        position = item.start_offset
        while position < item.end_offset:
            found = await self._objects.read(
                [source], position, 1 << 20, end_offset=item.end_offset
            )
            batches += found
            position = max(header.next_offset for _, header in iter_headers(found[-1]))
        return batches


def _kept(
    batches: list[Buffer], aborted: list[AbortedTransaction], low: int, high: int
) -> list[bytes]:
    values: list[bytes] = []
    for batch in batches:
        for at, header in iter_headers(batch):
            is_aborted = header.is_transactional and any(
                item.producer_id == header.producer_id
                and item.first_offset <= header.base_offset <= item.last_offset
                for item in aborted
            )
            if not header.is_control and not is_aborted:
                values += [
                    record.value or b""
                    for record in decode_records(memoryview(batch)[at:])
                    if low <= record.offset < high
                ]
    return values


_NEAR_SHARE = 0.5
"""Share of fetches from the broker in the reader's rack, which serves partitions of other leaders
(KIP-392).
"""
_MOVE_SHARE = 0.02
"""Share of fetches after which the reader moves to another rack."""


class CommittedReader:
    """Reads committed values from the leaders' responses as a Kafka consumer does, from the
    beginning.
    """

    pauses_s: tuple[float, float] = (0.05, 0.5)
    """Pause between two rounds: from, to."""

    def __init__(self, world: "World", name: str, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._rng = Random(f"{world.seed}/committed-reader/{name}")
        self._near_id = NodeId(0)
        self._offsets: dict[Part, int] = dict.fromkeys(world.txn_parts, 0)
        self.values: dict[Part, list[bytes]] = {part: [] for part in world.txn_parts}

    async def run(self, stop: asyncio.Event) -> None:
        """Read from the broker that the reader considers the leader, sometimes from another one."""
        while not stop.is_set():
            for part in self._offsets:
                broker, epoch = self._world.leader(part, self._rng)
                if self._rng.random() < _NEAR_SHARE:
                    broker = self._near()
                if broker is not None:
                    broker.spawn(
                        lambda broker=broker, part=part, epoch=epoch: self._poll(
                            broker, part, epoch
                        )
                    )
            await asyncio.sleep(self._rng.uniform(*self.pauses_s))

    def _near(self) -> SimBroker:
        brokers = self._world.brokers
        if self._near_id not in brokers or self._rng.random() < _MOVE_SHARE:
            self._near_id = self._rng.choice(list(brokers))
        return brokers[self._near_id]

    async def to_the_end(self) -> None:
        """Read until no partition has an open transaction or more records."""
        for part in self._offsets:
            while True:
                broker, epoch = self._world.leader(part, self._rng, exact=True)
                if broker is not None and await self._poll(broker, part, epoch):
                    break
                await asyncio.sleep(0.1)

    async def _poll(self, broker: SimBroker, part: Part, epoch: int) -> bool:
        """Poll once. Return whether the end was reached, with no open transaction before it."""
        offset = self._offsets[part]
        if not broker.serving:
            return False
        leads = isinstance(broker.partitions.get(*part), Partition)
        requested = wire_fetch.FetchPartition(
            partition=part[1],
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=self._rng.choice((1, 2_000)),
        )
        topics = [wire_fetch.FetchTopic(topic=part[0], partitions=[requested])]
        request = wire_fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=topics,
            rack_id=RACK,
        )
        response = handle_fetch(
            broker,
            broker.context(
                apis.FETCH, FETCH_VERSION, encode_request(apis.FETCH, FETCH_VERSION, request)
            ),
        )
        if asyncio.iscoroutine(response):
            try:
                response = await response
            except (ObjectStoreError, StreamError, TimeoutError):
                return False
        found = decode_response(apis.FETCH, FETCH_VERSION, response).responses[0].partitions[0]
        if found.error_code:
            return False
        if leads:
            self._world.stable.told(part, epoch, found.last_stable_offset)
        if self._offsets[part] != offset:
            return False
        if not found.records:
            return leads and bool(offset >= found.last_stable_offset == found.high_watermark)
        values, self._offsets[part] = _taken(found, offset)
        self._judge.saw(part, values)
        self.values[part] += values
        return False


def returned_batches(found: Any) -> Iterator[tuple[memoryview, BatchHeader, bool]]:
    """Yield the batches of a response, and whether a consumer returns their records, because they
    are not aborted.
    """
    begun, aborting = list(found.aborted_transactions or ()), set[int]()
    data = memoryview(bytes(found.records))
    for at, header in iter_headers(data):
        while begun and begun[0].first_offset <= header.last_offset:
            aborting.add(begun.pop(0).producer_id)
        if header.is_control and not _is_commit(data[at:], header):
            aborting.discard(header.producer_id)
        yield data[at:], header, not header.is_control and header.producer_id not in aborting


def _is_commit(data: memoryview, header: BatchHeader) -> bool:
    return decode_marker(data, header.producer_id, header.producer_epoch).committed


def _taken(found: Any, fetch_offset: int) -> tuple[list[bytes], int]:
    values, offset = list[bytes](), fetch_offset
    for data, header, is_kept in returned_batches(found):
        offset = header.next_offset
        if is_kept:
            values += [
                record.value or b""
                for record in decode_records(data)
                if record.offset >= fetch_offset
            ]
    return values, offset

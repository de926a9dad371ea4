"""Transactional producers under faults, and readers of committed records: through the leaders, and (without asking anybody) in the bucket.

A producer ends each transaction by markers of its own, as a coordinator would, again and again until they are acknowledged, and takes a new
epoch for the next one: a late copy of a marker or a batch must not touch it.
Checked while it goes on: the last stable offset in the store never goes back, and what was read of a range stays so.
Checked at the end: every reader gives all records of committed transactions and no others, each once, a producer's in its order.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.handlers.fetch import handle_fetch
from broker.handlers.txn_markers import handle_write_txn_markers
from broker.partition.partition import Partition
from broker.wire import apis
from broker.wire.error_codes import ErrorCode
from broker.wire.gen import fetch as wire_fetch
from broker.wire.gen import write_txn_markers as wire_markers
from objectstore.errors import ObjectStoreError
from stream.batch.control import decode_marker
from stream.batch.header import TRANSACTIONAL_MASK, Buffer, iter_headers
from stream.batch.records import Record, decode_records, encode_batch
from stream.errors import StreamError
from stream.manifest.errors import ManifestNotFound
from stream.manifest.plan import OffsetRange
from stream.manifest.view import ClusterView
from stream.reader.errors import ObjectGone
from stream.reader.slices import AbortedTransaction
from tests.sim.checkers import Part
from tests.sim.nodes import FETCH_VERSION, SimBroker, decode_response, encode_request, produce_request

if TYPE_CHECKING:
    from tests.sim.world import World

TXN_TOPIC: Final = "x"
PARTITIONS: Final = 2
_FIRST_ID: Final = 1_000
_WAIT_S: Final = 4.0
Send: TypeAlias = "Callable[[SimBroker, asyncio.Future[ErrorCode]], None]"
_SETTLED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class TransactionalProducer:
    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/transactional/{number}")
        self._epoch = 0
        self._count = 0
        self.producer_id = _FIRST_ID + number
        self.committed: dict[Part, list[bytes]] = {part: [] for part in world.txn_parts}

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._transact()
            await asyncio.sleep(self._rng.uniform(0.01, 0.3))

    async def _transact(self) -> None:
        parts = self._rng.sample(self._world.txn_parts, self._rng.randint(1, PARTITIONS))
        written: dict[Part, list[bytes]] = {part: [] for part in parts}
        for _ in range(self._rng.randint(1, 3)):
            for part in parts:
                values = [f"{self.producer_id}/{self._count + at}".encode() for at in range(self._rng.randint(1, 3))]
                self._count += len(values)
                await self._until_settled(part, self._write(part, values, len(written[part])))
                written[part] += values
            await asyncio.sleep(self._rng.uniform(0, 0.4))
        commit = self._rng.random() < 0.6
        for part in parts:
            await self._until_settled(part, self._mark(part, commit))
            if commit:
                self.committed[part] += written[part]
        self._epoch += 1

    async def _until_settled(self, part: Part, send: Send) -> None:
        """Copies that come late are of what was sent then."""
        while True:
            broker, _ = self._world.leader(part, self._rng)
            if broker is not None:
                answer: asyncio.Future[ErrorCode] = self._world.loop.create_future()
                for _ in range(1 + (self._rng.random() < 0.2)):
                    self._world.later(self._world.network.delay_s() + self._rng.choice((0, 0, 3)), send, broker, answer)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT_S):
                        if await answer in _SETTLED:
                            return
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    def _write(self, part: Part, values: list[bytes], sequence: int) -> Send:
        records = [Record(at, self._world.now_ms(), None, value, ()) for at, value in enumerate(values)]
        batch = encode_batch(
            records, producer_id=self.producer_id, producer_epoch=self._epoch, base_sequence=sequence, attributes=TRANSACTIONAL_MASK
        )
        body = produce_request({part: bytes(batch)}, 1_000)
        self._world.checker.sent(part, values)

        def send(broker: SimBroker, answer: "asyncio.Future[ErrorCode]") -> None:
            broker.deliver(
                broker.produce, body, {part: values}, lambda results: self._answered(answer, ErrorCode(results[part].error_code))
            )

        return send

    def _mark(self, part: Part, commit: bool) -> Send:
        topics = [wire_markers.WritableTxnMarkerTopic(part[0], [part[1]])]
        marker = wire_markers.WritableTxnMarker(self.producer_id, self._epoch, commit, topics, 0)
        body = encode_request(apis.WRITE_TXN_MARKERS, 1, wire_markers.WriteTxnMarkersRequest([marker]))

        async def handle(broker: SimBroker, answer: "asyncio.Future[ErrorCode]") -> None:
            if broker.serving:
                response = await handle_write_txn_markers(broker, broker.context(apis.WRITE_TXN_MARKERS, 1, body))
                told = decode_response(apis.WRITE_TXN_MARKERS, 1, response).markers[0].topics[0].partitions[0]
                self._answered(answer, ErrorCode(told.error_code))

        return lambda broker, answer: broker.spawn(lambda: handle(broker, answer))

    def _answered(self, answer: "asyncio.Future[ErrorCode]", code: ErrorCode) -> None:
        self._world.trace("transactional", self.producer_id, self._epoch, code.name)
        if not self._world.network.chance():
            self._world.later(self._world.network.delay_s(), lambda: answer.done() or answer.set_result(code))


class StoreReader:
    """Reads committed records from the bucket. What it read of a range it reads again, now and then."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/store-reader/{number}")
        self._view = ClusterView(world.bucket)
        self._ends: dict[Part, int] = {}
        self._starts: list[int] = []
        """Of the slices that were read last: where a range may be cut."""
        self._known: dict[tuple[Part, int, int], list[bytes]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
            with suppress(ManifestNotFound, ObjectGone, ObjectStoreError):
                await self.look()

    async def look(self) -> dict[Part, list[bytes]]:
        """All committed values of each partition."""
        await self._view.refresh()
        if not self._view.topics(TXN_TOPIC):
            return {}
        found: dict[Part, list[bytes]] = {}
        for state in await self._view.partitions([TXN_TOPIC], committed=True):
            part, end = (TXN_TOPIC, state.partition), state.last_stable_offset
            assert end is not None
            if end < self._ends.get(part, 0) or end > state.end_offset:
                self._world.fail(f"{part}: the last stable offset of the store went from {self._ends[part]} to {end}")
            self._ends[part] = end
            found[part] = await self._values(part, 0, end)
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
        wanted = [OffsetRange(*part, low, high)]
        aborted = await self._view.aborted(wanted)
        values: list[bytes] = []
        self._starts = []
        for item in await self._view.plan(wanted):
            batches = await self._world.read_slice(item)
            self._starts.append(item.start_offset)
            values += _kept(batches, aborted[item.stream_id], item.start_offset, item.end_offset)
        return values


def _kept(batches: list[Buffer], aborted: list[AbortedTransaction], low: int, high: int) -> list[bytes]:
    values: list[bytes] = []
    for batch in batches:
        for at, header in iter_headers(batch):
            is_aborted = header.is_transactional and any(
                item.producer_id == header.producer_id and item.first_offset <= header.base_offset <= item.last_offset for item in aborted
            )
            if not header.is_control and not is_aborted:
                values += [record.value or b"" for record in decode_records(memoryview(batch)[at:]) if low <= record.offset < high]
    return values


async def consumed(world: "World", part: Part) -> list[bytes]:
    """Committed values, through the leader, as Kafka's consumer takes them from its answers."""
    values: list[bytes] = []
    offset = 0
    while True:
        broker, epoch = world.leader(part, world.rng, exact=True)
        led = broker.partitions.get(*part) if broker is not None and broker.serving else None
        if broker is None or not isinstance(led, Partition):
            await asyncio.sleep(0.1)
            continue
        wanted = wire_fetch.FetchPartition(
            partition=part[1], fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=world.rng.choice((1, 2_000))
        )
        request = wire_fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[wire_fetch.FetchTopic(topic=part[0], partitions=[wanted])],
        )
        response = handle_fetch(broker, broker.context(apis.FETCH, FETCH_VERSION, encode_request(apis.FETCH, FETCH_VERSION, request)))
        if asyncio.iscoroutine(response):
            with suppress(ObjectStoreError, StreamError, TimeoutError):
                response = await response
        found = decode_response(apis.FETCH, FETCH_VERSION, response).responses[0].partitions[0]
        if found.error_code:
            await asyncio.sleep(0.1)
        elif not found.records:
            if offset >= found.last_stable_offset == found.high_watermark:
                return values
            await asyncio.sleep(0.1)
        else:
            more, offset = _taken(found, offset)
            values += more


def _taken(found: Any, fetch_offset: int) -> tuple[list[bytes], int]:
    begun, aborting, values, offset = list(found.aborted_transactions or ()), set[int](), list[bytes](), fetch_offset
    data = memoryview(bytes(found.records))
    for at, header in iter_headers(data):
        while begun and begun[0].first_offset <= header.last_offset:
            aborting.add(begun.pop(0).producer_id)
        offset = header.next_offset
        if header.is_control:
            if not decode_marker(data[at:], header.producer_id, header.producer_epoch).committed:
                aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            values += [record.value or b"" for record in decode_records(data[at:]) if record.offset >= fetch_offset]
    return values, offset


async def check(world: "World", producers: list[TransactionalProducer], reader: StoreReader) -> None:
    """Everybody has ended their transactions: what was committed, all of it, and nothing else."""
    stored: dict[Part, list[bytes]] = {}
    for part in world.txn_parts:
        values = await consumed(world, part)
        while stored.get(part) != values:
            with suppress(ManifestNotFound, ObjectGone, ObjectStoreError):
                stored = await reader.look()
            await asyncio.sleep(0.5)
        for producer in producers:
            own = [value for value in values if value.startswith(b"%d/" % producer.producer_id)]
            if own != producer.committed[part]:
                world.fail(
                    f"{part}: of producer {producer.producer_id} consumers get {own[-20:]}, committed was {producer.committed[part][-20:]}"
                )
        world.trace("committed", part, len(values))

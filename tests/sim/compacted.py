"""A compacted topic whose keys are written, deleted and rewritten during log compaction.

At every read of a whole log: batches are contiguous, each record was sent and has one offset, and
no key has an older state than was acknowledged before the read. At the end, every key has its
newest state. Readers slower than `delete.retention.ms` may miss a deletion, as in Kafka.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import StreamError
from penstock.broker.handlers.fetch.handler import handle_fetch
from penstock.broker.partition.partition import Partition
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol import apis
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record, decode_records
from penstock.protocol.gen import fetch as wire_fetch
from penstock.stream.cleaning.cleaner import CleanerConfig
from penstock.stream.cleaning.key_map import ENTRY_BYTES_MAX
from tests.sim.checkers import Part
from tests.sim.clients import Batch, Producer, settle
from tests.sim.compacted_transactions import ID_HEADER, KeyedRead, KeyedTransactions
from tests.sim.frames import decode_response, encode_request
from tests.sim.nodes import FETCH_VERSION, SimBroker

if TYPE_CHECKING:
    from tests.sim.world import World

COMPACT_TOPIC: Final = "compacted"
PARTITIONS: Final = 2
_KEYS: Final = 24
"""Most records have one of the first few keys; the last ones are rarely rewritten."""
_READERS: Final = 4
"""Readers of each partition. Only a reader that rests while a pass drops a tombstone misses a
deletion.
"""
_RESTS: Final = (0, 0.6)
"""Rest time of readers, as a share of `delete.retention.ms`."""
_GUEST_KEY: Final = b"guest"
_OWN_IDS: Final = 2_000_000
"""Controllers assign transactional producers ids from 1,000."""
_TRANSACTIONAL_SHARE: Final = 0.6
"""Share of runs with transactions. Compaction stops at open transactions, so other runs
clean more.
"""
_CLEAN_LIMIT_S: Final = 120.0

State = tuple[int, bool]
"""The number of a record of its producer, and whether it is a tombstone."""


class CompactedTopic:
    """The limits of the topic, and the known states of its keys."""

    def __init__(self, world: "World") -> None:
        rng = Random(f"{world.seed}/compacted")
        self._world = world
        self.parts: list[Part] = [(COMPACT_TOPIC, index) for index in range(PARTITIONS)]
        self.tombstones_kept_ms = rng.choice((0, 1_500, 6_000))
        self.configs: dict[str, str | None] = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": rng.choice(("0", "0.3")),
            "min.compaction.lag.ms": rng.choice(("0", "0", "700")),
            "delete.retention.ms": str(self.tombstones_kept_ms),
        }
        self.cleaner = CleanerConfig(
            key_map_bytes_max=ENTRY_BYTES_MAX * rng.choice((3, 100)),
            bytes_per_s_max=rng.choice((0, 20_000)),
            group_bytes_max=rng.choice((1, 2_000, 1 << 20)),
            page_ranges=rng.choice((3, 256)),
        )
        self.brokers_clean = world.scenario != "compacted" or rng.random() < 0.7
        """Otherwise only jobs clean it, which no other scenario has."""
        self.sent: dict[Part, dict[bytes, list[State]]] = {part: {} for part in self.parts}
        self.acked: dict[Part, dict[bytes, State]] = {part: {} for part in self.parts}
        self.transactions = (
            KeyedTransactions(world, self.parts, self._fetch, self.tombstones_kept_ms)
            if world.scenario == "compacted"
            and Random(f"{world.seed}/transactions").random() < _TRANSACTIONAL_SHARE
            else None
        )

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return the work of the clients."""
        has_guests = self._world.scenario == "compacted"
        transactions = self.transactions
        return [
            *(() if transactions is None else transactions.run(stop)),
            *(KeyedProducer(self._world, self, part).run(stop) for part in self.parts),
            *(_host(self._world, self, part, stop) for part in self.parts if has_guests),
            *(self._read(part, number, stop) for part in self.parts for number in range(_READERS)),
        ]

    async def ready(self) -> None:
        """Wait until its transactional producers can write."""
        if self.transactions is not None:
            await self.transactions.ready()

    async def check(self) -> None:
        """Read every log without faults."""
        if self.transactions is not None:
            await self.transactions.check()
        for part in self.parts:
            rng = Random(f"{self._world.seed}/{part}/end")
            while await self._read_once(part, rng) is None:  # noqa: ASYNC110 - virtual time is free
                await asyncio.sleep(0.1)

    async def check_cleaned(self) -> None:
        """Read every log again. Where brokers clean immediately, wait until no record of an aborted
        transaction remains.
        """
        await self.check()
        is_clean = self.configs["min.cleanable.dirty.ratio"] == "0" and self.brokers_clean
        if self.transactions is None or not is_clean:
            return
        end_s = self._world.loop.time() + _CLEAN_LIMIT_S
        for part in self.parts:
            rng = Random(f"{self._world.seed}/{part}/clean")
            read = await self._read_once(part, rng)
            while read is None or not self.transactions.is_rid_of(read):
                if self._world.loop.time() > end_s:
                    self._world.fail(
                        f"{part}: records of aborted transactions are not cleaned within"
                        f" {_CLEAN_LIMIT_S} s of peace"
                    )
                    return
                await asyncio.sleep(1.0)
                read = await self._read_once(part, rng)

    def check_copy(self, part: Part, batches: list[bytes], acked: dict[bytes, State]) -> None:
        """Check the contents of a fork. acked: acknowledged before the fork was requested."""
        states, keyed = dict[bytes, State](), KeyedRead()
        for data in batches:
            if next(iter_headers(data))[1].is_control:
                continue
            for record in decode_records(memoryview(data)):
                if record.key is not None:  # not written by a producer of a fork
                    self._take_record(part, record, states, keyed)
        self._judge(part, acked, states, is_late=False)

    async def _read(self, part: Part, number: int, stop: asyncio.Event) -> None:
        rng = Random(f"{self._world.seed}/compacted-reader/{part}/{number}")
        while not stop.is_set():
            await self._read_once(part, rng)
            await asyncio.sleep(rng.uniform(0.05, 1.0))

    async def _read_once(self, part: Part, rng: Random) -> KeyedRead | None:
        """Read from start to end, sometimes with a long rest in between, during which the log may
        be cleaned. Return the transactions found, or None if a broker did not respond.
        """
        world = self._world
        began_s, acked = world.loop.time(), dict(self.acked[part])
        end_min = world.checker.acked_end(part)
        states, keyed = dict[bytes, State](), KeyedRead()
        open_ = [] if self.transactions is None else self.transactions.open_records(part)
        offset = end = 0
        max_bytes = rng.choice((1, 300, 1 << 20))
        pause_s = rng.choice((0, 0, 0.1))
        rests_at, rest_ms = end_min * rng.random(), rng.choice(_RESTS) * self.tombstones_kept_ms
        while offset < max(end, end_min, 1):
            broker, epoch = world.leader(part, rng, exact=True)
            found = (
                None
                if broker is None
                else await self._fetch(broker, part, epoch, offset, max_bytes)
            )
            if found is None:
                return None
            end = found.high_watermark
            if not found.records and offset >= max(end, end_min):
                break
            if not found.records:
                return None
            before, offset = offset, self._take(part, bytes(found.records), offset, states, keyed)
            rests = before <= rests_at < offset
            await asyncio.sleep(rest_ms / 1_000 if rests else pause_s)
        took_ms = 1_000 * (world.loop.time() - began_s) + 2 * world.limits.skew_ms
        self._judge(part, acked, states, is_late=took_ms >= self.tombstones_kept_ms)
        if self.transactions is not None:
            self.transactions.judge_open(part, open_, keyed)
        return keyed

    async def _fetch(
        self,
        broker: SimBroker,
        part: Part,
        epoch: int,
        offset: int,
        max_bytes: int,
        is_committed: bool = False,
    ) -> Any:
        """Return the response for the partition, or None."""
        if not broker.serving or not isinstance(broker.partitions.get(*part), Partition):
            return None
        requested = wire_fetch.FetchPartition(
            partition=part[1],
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=max_bytes,
        )
        request = wire_fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(is_committed),
            topics=[wire_fetch.FetchTopic(topic=part[0], partitions=[requested])],
        )
        body = encode_request(apis.FETCH, FETCH_VERSION, request)
        reply: asyncio.Future[Any] = self._world.loop.create_future()

        async def serve() -> None:
            response = handle_fetch(broker, broker.context(apis.FETCH, FETCH_VERSION, body))
            if asyncio.iscoroutine(response):
                try:
                    response = await response
                except (ObjectStoreError, StreamError, TimeoutError):
                    return
            settle(reply, response)

        broker.spawn(serve)
        try:
            async with asyncio.timeout(5):
                response = await reply
        except TimeoutError:
            return None
        found = decode_response(apis.FETCH, FETCH_VERSION, response).responses[0].partitions[0]
        return None if found.error_code else found

    def _take(
        self,
        part: Part,
        data: bytes,
        offset: int,
        states: dict[bytes, State],
        keyed: KeyedRead,
    ) -> int:
        """Apply the records of a response. Return the next offset."""
        start, view = offset, memoryview(data)
        for at, header in iter_headers(view):
            # A leader may skip batches without records at the start of a response.
            if header.base_offset > offset > start:
                self._world.fail(f"{part}: a fetch finds {header.base_offset} after {offset}")
            for record in () if header.is_control else decode_records(view[at:]):
                if record.offset >= start:
                    self._take_record(part, record, states, keyed)
            offset = header.next_offset
        return offset

    def _take_record(
        self, part: Part, record: Record, states: dict[bytes, State], keyed: KeyedRead
    ) -> None:
        if self.transactions is not None and self.transactions.take(part, record, keyed):
            return
        identity = dict(record.headers)[ID_HEADER]
        assert identity is not None
        assert record.key is not None
        self._world.checker.read(part, record.offset, identity)
        state = (int(identity.rpartition(b"/")[2]), record.value is None)
        if state not in self.sent[part].get(record.key, []):
            self._world.fail(f"{part}: no producer wrote {identity!r} with the key {record.key!r}")
        if states.get(record.key, (-1, False))[0] >= state[0]:
            self._world.fail(f"{part}: {identity!r} follows {states[record.key]}")
        states[record.key] = state

    def _judge(
        self, part: Part, acked: dict[bytes, State], states: dict[bytes, State], *, is_late: bool
    ) -> None:
        for key, (number, is_tombstone) in acked.items():
            found = states.get(key)
            if found is not None and found[0] >= number:
                continue
            deleted = [at for at, is_end in self.sent[part][key] if is_end and at >= number]
            if deleted and (is_late or found is None):
                continue
            self._world.fail(
                f"{part}: the key {key!r} is {found} at the end of a read, but {number}"
                f" ({'a tombstone' if is_tombstone else 'a value'}) was acknowledged before"
            )


class KeyedProducer(Producer):
    """An idempotent producer to one partition."""

    def __init__(self, world: "World", topic: CompactedTopic, part: Part) -> None:
        super().__init__(world, 1_000 + part[1], idempotent=True)
        self._id += _OWN_IDS
        self._topic = topic
        self._part = part
        self._numbers = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            before = self._numbers
            await self.write([self._part])
            self._note_acked(before)
            await asyncio.sleep(self._think_s * self._rng.random() * 2 + 0.01)

    def _batch(self, part: Part) -> Batch:
        first, count = self._numbers, self._rng.choice((1, 1, 3))
        self._numbers += count
        now_ms = self._world.now_ms()
        records: list[Record] = []
        identities: list[bytes] = []
        for number in range(first, first + count):
            key = b"%d" % int(_KEYS * self._rng.random() ** 3)
            identity = f"{self._name}/{part[1]}/{number}".encode()
            is_tombstone = self._rng.random() < 0.3
            value = None if is_tombstone else b"x" * self._rng.choice((1, 200))
            records.append(Record(number - first, now_ms, key, value, ((ID_HEADER, identity),)))
            identities.append(identity)
            self._topic.sent[part].setdefault(key, []).append((number, is_tombstone))
        self._world.checker.sent(part, identities)
        return Batch(first, records, identities)

    def _note_acked(self, first: int) -> None:
        for key, states in self._topic.sent[self._part].items():
            if states[-1][0] >= first and key != _GUEST_KEY:
                self._topic.acked[self._part][key] = states[-1]


class _Guest(Producer):
    """An idempotent producer whose records all have one key."""

    def __init__(self, world: "World", topic: CompactedTopic, part: Part, number: int) -> None:
        super().__init__(world, 2_000 + 10 * part[1] + number, idempotent=True)
        self._id += _OWN_IDS
        self._topic = topic
        self._part = part
        self._sequence = 0
        self._newest: Batch | None = None
        self._repeats = False

    async def write_next(self) -> None:
        self._repeats = False
        await self.write([self._part])
        states = self._topic.sent[self._part]
        self._topic.acked[self._part][_GUEST_KEY] = states[_GUEST_KEY][-1]

    async def repeat(self) -> None:
        """Send the newest batch again, as if its response had been late."""
        self._repeats = True
        if self._newest is not None:
            await self.write([self._part])

    def _batch(self, part: Part) -> Batch:
        if self._repeats and self._newest is not None:
            return self._newest
        states = self._topic.sent[part].setdefault(_GUEST_KEY, [])
        number, sequence = len(states), self._sequence
        states.append((number, False))
        self._sequence += 1
        identity = f"{self._name}/{part[1]}/{number}".encode()
        self._world.checker.sent(part, [identity])
        record = Record(0, self._world.now_ms(), _GUEST_KEY, b"x", ((ID_HEADER, identity),))
        self._newest = Batch(sequence, [record], [identity])
        return self._newest


async def _host(world: "World", topic: CompactedTopic, part: Part, stop: asyncio.Event) -> None:
    """Let two producers alternate; each repeats batches whose records the other one has
    replaced.
    """
    rng = Random(f"{world.seed}/guests/{part}")
    guest, other = (_Guest(world, topic, part, number) for number in range(2))
    while not stop.is_set():
        await guest.write_next()
        await asyncio.sleep(rng.choice((0.2, 1.0, 4.0)))
        await other.repeat()
        guest, other = other, guest

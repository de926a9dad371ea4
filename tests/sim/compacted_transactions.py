"""Transactional producers to a compacted topic, with commits, aborts and long open transactions.

Each application has its own keys, so the states of a key are ordered. A read_committed read
contains no record of an open or aborted transaction, and for each key the newest committed state or
a newer one. At the end, records of aborted transactions have been removed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol.batch.records import Record, decode_records
from penstock.protocol.gen import fetch as wire_fetch
from tests.sim.checkers import Part
from tests.sim.committed import returned_batches
from tests.sim.ledger import Entry, Fate
from tests.sim.nodes import SimBroker
from tests.sim.transactional import Application, Fenced, Instance

if TYPE_CHECKING:
    from tests.sim.world import World

ID_HEADER: Final = "id"
_APPLICATIONS: Final = 2
_KEYS: Final = 5
"""Keys of each application: most transactions replace the records of earlier ones."""
_READERS: Final = 2
"""Readers of each partition."""
_FETCHES_MAX: Final = 500
"""A reader that is slower than the producers gives up."""

Fetch = Callable[[SimBroker, Part, int, int, int, bool], Coroutine[Any, Any, Any]]
"""Fetch from a broker: partition, epoch, offset, bytes, and whether only committed records."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """One record of a key. entry: its transaction."""

    serial: int
    number: int
    is_tombstone: bool
    identity: bytes
    entry: Entry

    def is_older_than(self, other: "KeyState") -> bool:
        return (self.serial, self.number) < (other.serial, other.number)

    def __str__(self) -> str:
        kind = "tombstone" if self.is_tombstone else "value"
        return f"the {kind} {self.identity!r}, {self.entry.fate.value}"


@dataclass(slots=True)
class KeyedRead:
    """The transactional records that a read of a log has found so far."""

    states: dict[bytes, KeyState] = field(default_factory=dict[bytes, KeyState])
    identities: set[bytes] = field(default_factory=set[bytes])


class KeyedInstance(Instance):
    pauses_s = (0, 0, 0.3, 1.0, 6.0)
    renewed_share = 0.05
    is_mortal = False
    offset_share = 1.0
    """The offset tells the next instance whether a transaction was committed."""

    def __init__(self, application: "KeyedApplication", number: int) -> None:
        super().__init__(application, number)
        self._keyed = application
        self._open: Entry | None = None
        self._durable: dict[Part, list[bytes]] = {}

    def open_records(self, part: Part) -> list[bytes]:
        """Return the acknowledged records of a transaction that cannot have ended."""
        return [] if self._open is None or self._may_be_fenced() else self._durable.get(part, [])

    async def _produce(self, entry: Entry, part: Part, *, once: bool = False) -> None:
        before = len(entry.written.get(part, ()))
        await super()._produce(entry, part, once=once)
        if not once:
            if self._open is not entry:
                self._open, self._durable = entry, {}
            self._durable.setdefault(part, []).extend(entry.written[part][before:])

    def _records(self, entry: Entry, part: Part, values: list[bytes]) -> list[Record]:
        now_ms, rng = self._world.now_ms(), self._rng
        records: list[Record] = []
        for at, identity in enumerate(values):
            key = f"{self._keyed.name}.{int(_KEYS * rng.random() ** 2)}".encode()
            is_tombstone = rng.random() < 0.2
            number = int(identity.rpartition(b"/")[2])
            state = KeyState(entry.serial, number, is_tombstone, identity, entry)
            self._keyed.topic.note_sent(part, key, state)
            value = None if is_tombstone else b"x" * rng.choice((1, 200))
            records.append(Record(at, now_ms, key, value, ((ID_HEADER, identity),)))
        return records

    async def _end(self, entry: Entry, *, commit: bool) -> None:
        self._open = None
        await super()._end(entry, commit=commit)


class KeyedApplication(Application):
    lifetime_s = (2, 12)

    def __init__(self, world: "World", number: int, topic: "KeyedTransactions") -> None:
        super().__init__(world, number, f"k{number}")
        self.topic = topic
        self.input = topic.parts[0]
        self._instances: list[KeyedInstance] = []

    async def ready(self) -> None:
        """Wait for its coordinators."""
        with suppress(Fenced):
            await self._instance().initialize()

    @property
    def parts(self) -> list[Part]:
        return self.topic.parts

    def open_records(self, part: Part) -> list[bytes]:
        """See `KeyedInstance.open_records`. Only the newest instance has a transaction that no
        other instance ends.
        """
        return self._instances[-1].open_records(part) if self._instances else []

    def _instance(self) -> Instance:
        self._instances_count += 1
        self._instances.append(KeyedInstance(self, self._instances_count))
        return self._instances[-1]


class KeyedTransactions:
    """The transactional producers of a compacted topic, and read_committed readers."""

    def __init__(self, world: "World", parts: list[Part], fetch: Fetch, kept_ms: int) -> None:
        """kept_ms: how long the topic keeps tombstones."""
        self.parts = parts
        self._world = world
        self._fetch = fetch
        self._kept_ms = kept_ms
        self._applications = [
            KeyedApplication(world, number, self) for number in range(_APPLICATIONS)
        ]
        self._ledgers = {application.name: application.ledger for application in self._applications}
        self._sent: dict[Part, dict[bytes, list[KeyState]]] = {part: {} for part in parts}
        self._seen: dict[Part, dict[bytes, KeyState]] = {part: {} for part in parts}
        """The newest states that committed reads have ended with."""
        self._by_identity: dict[bytes, tuple[Part, bytes, KeyState]] = {}
        self._is_finished = False

    async def ready(self) -> None:
        """Wait until every application can begin a transaction."""
        await asyncio.gather(*(application.ready() for application in self._applications))

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return the work of the clients."""
        return [
            *(application.run(stop) for application in self._applications),
            *(self._read(part, number, stop) for part in self.parts for number in range(_READERS)),
        ]

    def note_sent(self, part: Part, key: bytes, state: KeyState) -> None:
        self._sent[part].setdefault(key, []).append(state)
        self._by_identity[state.identity] = (part, key, state)

    def take(self, part: Part, record: Record, read: KeyedRead) -> bool:
        """Apply a record. Return False if it belongs to another producer."""
        identity = dict(record.headers)[ID_HEADER]
        assert identity is not None
        known = self._by_identity.get(identity)
        if known is None:
            return False
        _, key, state = known
        self._world.checker.read(part, record.offset, identity)
        if known[:2] != (part, record.key) or state.is_tombstone != (record.value is None):
            self._world.fail(f"{part}: {record} is not {state} of the key {key!r}")
        last = read.states.get(key)
        if last is not None and not last.is_older_than(state):
            self._world.fail(f"{part}: {state} follows {last}")
        read.states[key] = state
        read.identities.add(identity)
        return True

    def open_records(self, part: Part) -> list[bytes]:
        """Return the acknowledged records of transactions that cannot have ended."""
        return [
            identity
            for application in self._applications
            for identity in application.open_records(part)
        ]

    def judge_open(self, part: Part, before: list[bytes], read: KeyedRead) -> None:
        """Judge a read of the whole log. before: `open_records` at its start."""
        for identity in set(before) & set(self.open_records(part)) - read.identities:
            self._world.fail(
                f"{part}: {identity!r} is not found by a read of everything, but its transaction"
                " is open"
            )

    # --- committed reads --------------------------------------------------------------------------

    async def _read(self, part: Part, number: int, stop: asyncio.Event) -> None:
        rng = Random(f"{self._world.seed}/committed-keys/{part}/{number}")
        while not stop.is_set():
            await self.read_committed(part, rng)
            await asyncio.sleep(rng.uniform(0.05, 1.0))

    async def read_committed(self, part: Part, rng: Random) -> bool:
        """Read from the start to the last stable offset. Return False if that was not reached."""
        world, read, seen = self._world, KeyedRead(), dict(self._seen[part])
        began_s, offset = world.loop.time(), 0
        max_bytes, pause_s = rng.choice((1, 300, 1 << 20)), rng.choice((0, 0, 0.1))
        for _ in range(_FETCHES_MAX):
            broker, epoch = world.leader(part, rng, exact=True)
            if broker is None:
                return False
            found = await self._fetch(broker, part, epoch, offset, max_bytes, True)
            if found is None:
                return False
            if not found.records:
                break
            offset = self._take_response(part, found, offset, read)
            await asyncio.sleep(pause_s)
        else:
            return False
        # An empty response: everything cleaned so far is below this last stable offset.
        if offset < found.last_stable_offset:
            return False
        took_ms = 1_000 * (world.loop.time() - began_s) + 2 * world.limits.skew_ms
        self._judge(part, read.states, seen, offset, is_late=took_ms >= self._kept_ms)
        self._seen[part] |= {
            key: state
            for key, state in read.states.items()
            if key not in self._seen[part] or self._seen[part][key].is_older_than(state)
        }
        return True

    def _take_response(
        self, part: Part, found: wire_fetch.PartitionData, offset: int, read: KeyedRead
    ) -> int:
        """Apply a response; return the next offset."""
        start = offset
        for data, header, is_kept in returned_batches(found):
            if header.base_offset > offset > start:
                self._world.fail(f"{part}: a fetch finds {header.base_offset} after {offset}")
            for record in decode_records(data) if is_kept else ():
                if record.offset >= start and self.take(part, record, read):
                    _, _, state = self._by_identity[dict(record.headers)[ID_HEADER] or b""]
                    self._ledger(state).saw_record(part, state.serial)
            offset = header.next_offset
        return offset

    def _ledger(self, state: KeyState) -> Any:
        return self._ledgers[state.identity.partition(b"/")[0].decode()]

    def _judge(
        self,
        part: Part,
        states: dict[bytes, KeyState],
        seen: dict[bytes, KeyState],
        end: int,
        *,
        is_late: bool,
    ) -> None:
        """Judge the result of a read_committed read of [0, end). seen: states found by finished
        reads.
        """
        for key, sent in self._sent[part].items():
            newest = self._newest_committed(sent, end)
            last = seen.get(key)
            if last is not None and (newest is None or newest.is_older_than(last)):
                newest = last
            found = states.get(key)
            if newest is None or (found is not None and not found.is_older_than(newest)):
                continue
            is_deleted = any(
                state.is_tombstone
                and not state.is_older_than(newest)
                and state.entry.fate in {Fate.COMMITTED, Fate.COMMITTING}
                for state in sent
            )
            if is_deleted and (is_late or found is None):
                continue
            self._world.fail(
                f"{part}: the key {key!r} is {found} at the end of a committed read of [0, {end}),"
                f" but {newest} was committed below it"
            )

    def _newest_committed(self, sent: list[KeyState], end: int) -> KeyState | None:
        for state in reversed(sent):
            offset = self._world.checker.offset_of(state.identity)
            if state.entry.fate is Fate.COMMITTED and offset is not None and offset < end:
                return state
        return None

    # --- at the end -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Complete open transactions, and read every log without faults."""
        if not self._is_finished:
            await asyncio.gather(*(application.finish() for application in self._applications))
            self._is_finished = True
        for part in self.parts:
            rng = Random(f"{self._world.seed}/{part}/committed-end")
            while not await self.read_committed(part, rng):  # noqa: ASYNC110 - virtual time is free
                await asyncio.sleep(0.1)

    def is_rid_of(self, read: KeyedRead) -> bool:
        """Return whether a read of the whole log finds no record of an aborted transaction."""
        return all(
            self._by_identity[identity][2].entry.fate not in {Fate.OPEN, Fate.ABORTED}
            for identity in read.identities
        )

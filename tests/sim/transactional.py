"""Applications that consume, transform and produce exactly once, with crashes and overlaps.

They behave like librdkafka. Version 1 instances end a transaction only when every batch is settled;
version 2 instances (KIP-890) may abort earlier. So a hanging transaction is a fault of the brokers
(docs/design/transactions.md).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol import apis
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    find_coordinator,
    init_producer_id,
    offset_fetch,
)
from penstock.protocol.gen import txn_offset_commit as offset_commit
from tests.sim.checkers import Part
from tests.sim.connections import Connection, NoResponse
from tests.sim.ledger import Entry, Fate, Ledger
from tests.sim.nodes import SimBroker, produce_request

if TYPE_CHECKING:
    from tests.sim.world import World

TXN_TOPIC: Final = "x"
PARTITIONS: Final = 2
INPUT: Final = (TXN_TOPIC, 0)
"""The partition whose offsets the transactions commit; any existing one will do."""

_GROUP, _TRANSACTIONAL_ID = 0, 1
_SETTLED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FIND_AGAIN: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_NOT_YET_KNOWN: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
_PRODUCE_WAIT_S: Final = 4.0
_V1, _V2 = 1, 2
_PRODUCE_VERSION: Final = {_V1: 11, _V2: 12}
_COMMIT_VERSION: Final = {_V1: 3, _V2: 5}
_END_VERSION: Final = {_V1: 3, _V2: 5}


class Fenced(Exception):
    """The transaction was ended by a newer instance, or by the coordinator after a timeout."""


@dataclass(slots=True)
class Identity:
    producer_id: int = -1
    epoch: int = -1


class Application:
    input: Part = INPUT
    lifetime_s: tuple[float, float] = (0.5, 6)
    """Time after which an instance gets a successor: from, to."""

    def __init__(self, world: "World", number: int, name: str | None = None) -> None:
        """name: its transactional id and group, if another application has the same number."""
        self.world = world
        self.rng = Random(f"{world.seed}/application/{name or number}")
        self.name = name or f"t{number}"
        self.ledger = Ledger(self.name, world.fail)
        self.timeout_ms = self.rng.choice((2_000, 6_000, 20_000))
        self.inits_count = 0
        """Requests for an epoch that were sent."""
        self.completed_inits_count = 0
        """Requests without a response may be carried out at any time."""
        self._instances_count = 0

    @property
    def parts(self) -> list[Part]:
        """Return the partitions of one topic to which it writes."""
        return self.world.txn_parts

    async def run(self, stop: asyncio.Event) -> None:
        """Run instances one after another; some end in the middle of a step, some continue
        alongside their successor.
        """
        running: list[asyncio.Task[None]] = []
        is_abandoned = self.rng.random() < 0.4
        while not stop.is_set():
            instance = self.world.loop.create_task(self._instance().run(stop))
            running.append(instance)
            stopping = self.world.loop.create_task(stop.wait())
            await asyncio.wait(
                (instance, stopping),
                timeout=self.rng.uniform(*self.lifetime_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            stopping.cancel()
            if self.rng.random() < 0.5 and not stop.is_set():
                self.world.trace("instance_dies", self.name)
                instance.cancel()
        for instance in running:
            if is_abandoned:
                instance.cancel()
            with suppress(asyncio.CancelledError):
                await instance

    async def finish(self) -> None:
        """Finish open transactions: a new instance completes one more transaction."""
        self.timeout_ms = 60_000  # a shorter one could expire repeatedly on a slow store
        while True:
            with suppress(Fenced):
                instance = self._instance()
                await instance.initialize()
                await instance.transact(is_last=True)
                return

    async def committed_offset(self) -> int:
        return await self._instance().committed_offset()

    def _instance(self) -> "Instance":
        self._instances_count += 1
        return Instance(self, self._instances_count)


class Instance:
    pauses_s: tuple[float, ...] = (0, 0, 0.3)
    """Pause before the end of a transaction."""
    timeouts_s: tuple[float, ...] = (2.0, 3.0, 5.0)
    """Response timeout; instances differ."""
    renewed_share = 0.1
    """The share of transactions after which it requests another epoch."""
    is_mortal = True
    """Whether it may be crashed while it waits for the end of a transaction."""
    offset_share = 0.7
    """The share of transactions that commit an offset of the group."""
    versions: tuple[int, ...] = (_V1, _V2)
    """Transaction versions; instances differ."""
    hasty_share = 0.2
    """The share of version 2 aborts that do not wait for batches."""

    def __init__(self, application: Application, number: int) -> None:
        self._application = application
        self._world = application.world
        self._ledger = application.ledger
        self._rng = Random(f"{application.world.seed}/{application.name}/{number}")
        self._name = f"{application.name}.{number}"
        self._identity = Identity()
        self._sequences: dict[Part, int] = {}
        self._coordinators: dict[int, Connection] = {}
        self._timeout_s = self._rng.choice(self.timeouts_s)
        self._version = Random(f"{self._name}/{application.world.seed}/version").choice(
            self.versions
        )
        self._unsettled: list[asyncio.Task[None]] = []
        self._inits_before = 0
        """Requests carried out before its own, and its own: any other may fence it."""
        self._began_s: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await self.initialize()
            while not stop.is_set():
                await self.transact()
                await asyncio.sleep(self._rng.uniform(0.01, 0.3))
        except Fenced:
            self._world.trace("fenced", self._name)

    # --- an epoch ---------------------------------------------------------------------------------

    async def initialize(self) -> None:
        begun_before = await self._take_epoch(Identity())
        at_least = self._ledger.committed_offset
        offset = await self.committed_offset()
        self._ledger.saw_offset(offset, at_least, begun_before)

    async def _take_epoch(self, expected: Identity) -> int:
        """Request an epoch. Return the number of transactions begun by then. expected: its epoch,
        which any other instance may fence until a response arrives.
        """
        application, begun_before, inits_before = self._application, 0, 0
        request = init_producer_id.InitProducerIdRequest(
            application.name,
            application.timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )

        def sending() -> None:
            nonlocal begun_before, inits_before
            begun_before = self._ledger.count
            application.inits_count += 1
            inits_before = application.completed_inits_count + 1
            if expected == Identity():
                self._inits_before = inits_before

        response = await self._until_done(
            _TRANSACTIONAL_ID, apis.INIT_PRODUCER_ID, 4, request, _code_at_top, sending
        )
        self._identity, self._inits_before = (
            Identity(response.producer_id, response.producer_epoch),
            inits_before,
        )
        self._sequences.clear()
        self._world.trace("epoch", self._name, response.producer_id, response.producer_epoch)
        return begun_before

    def _may_be_fenced(self) -> bool:
        application, world = self._application, self._world
        if application.inits_count > self._inits_before:
            return True
        timeout_s = (application.timeout_ms - 2 * world.limits.skew_ms) / 1000
        return self._began_s is not None and world.loop.time() - self._began_s >= timeout_s

    def _fenced(self, why: str) -> Fenced:
        if not self._may_be_fenced():
            self._world.fail(f"{self._name} is fenced by {why}, but no other epoch was requested")
        return Fenced(why)

    # --- a transaction ----------------------------------------------------------------------------

    async def transact(self, *, is_last: bool = False) -> None:
        rng, parts = self._rng, self._application.parts
        chosen = list(parts) if is_last else rng.sample(parts, rng.randint(1, len(parts)))
        entry = self._ledger.begin()
        self._world.trace("begin", self._name, entry.serial)
        self._began_s = self._world.loop.time()
        await self._write(entry, chosen)
        if is_last or rng.random() < self.offset_share:
            entry.has_offset = True
            await self._send_offset(entry.serial)
        await asyncio.sleep(rng.choice(self.pauses_s))
        commit = is_last or self._commits(entry)
        if self._version == _V2 and not commit and rng.random() < self.hasty_share:
            self._unsettled = [
                self._world.loop.create_task(self._send_once(entry, part)) for part in chosen
            ]
        await self._end(entry, commit=commit)
        for task in self._unsettled:
            task.cancel()
        self._began_s = None
        if rng.random() < self.renewed_share:
            await self._take_epoch(self._identity)

    def _commits(self, entry: Entry) -> bool:
        del entry
        return self._rng.random() < 0.65

    async def _write(self, entry: Entry, parts: list[Part]) -> None:
        rng = self._rng
        steps = [parts] if rng.random() < 0.5 else [[part] for part in parts]
        for step in steps:
            if self._version == _V1:
                await self._add_partitions(step)
                self._ledger.began(entry)
            for _ in range(rng.randint(1, 2)):
                await asyncio.gather(*(self._produce(entry, part) for part in step))
                self._ledger.began(entry)
                await asyncio.sleep(rng.choice((0, 0, rng.uniform(0, 0.3))))

    async def _add_partitions(self, parts: list[Part]) -> None:
        topics = [
            add_partitions_to_txn.AddPartitionsToTxnTopic(
                parts[0][0], [index for _, index in parts]
            )
        ]
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._application.name,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=topics,
        )

        def code_of(response: Any) -> int:
            codes = [
                item.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for item in topic.results_by_partition
            ]
            return max(codes)

        await self._until_done(_TRANSACTIONAL_ID, apis.ADD_PARTITIONS_TO_TXN, 3, request, code_of)

    async def _send_offset(self, offset: int) -> None:
        name, identity = self._application.name, self._identity
        topic, index = self._application.input
        if self._version == _V1:
            added = add_offsets_to_txn.AddOffsetsToTxnRequest(
                name, identity.producer_id, identity.epoch, name
            )
            await self._until_done(
                _TRANSACTIONAL_ID, apis.ADD_OFFSETS_TO_TXN, 3, added, _code_at_top
            )
        topics = [
            offset_commit.TxnOffsetCommitRequestTopic(
                topic,
                [
                    offset_commit.TxnOffsetCommitRequestPartition(
                        index, offset, committed_metadata=None
                    )
                ],
            )
        ]
        request = offset_commit.TxnOffsetCommitRequest(
            name, name, identity.producer_id, identity.epoch, topics=topics
        )
        await self._until_done(
            _GROUP,
            apis.TXN_OFFSET_COMMIT,
            _COMMIT_VERSION[self._version],
            request,
            lambda response: int(response.topics[0].partitions[0].error_code),
        )

    async def committed_offset(self) -> int:
        """Return the group's offset once no transaction can change it, or -1."""
        name, (topic, index) = self._application.name, self._application.input
        group = offset_fetch.OffsetFetchRequestGroup(
            name, topics=[offset_fetch.OffsetFetchRequestTopics(None, topic, [index])]
        )
        request = offset_fetch.OffsetFetchRequest(groups=[group], require_stable=True)

        def code_of(response: Any) -> int:
            found = response.groups[0]
            return int(found.error_code or found.topics[0].partitions[0].error_code)

        response = await self._until_done(_GROUP, apis.OFFSET_FETCH, 8, request, code_of)
        return int(response.groups[0].topics[0].partitions[0].committed_offset)

    async def _end(self, entry: Entry, *, commit: bool) -> None:
        if commit:
            self._ledger.settle(entry, Fate.COMMITTING)
        request = end_txn.EndTxnRequest(
            self._application.name, self._identity.producer_id, self._identity.epoch, commit
        )
        response = await self._until_done(
            _TRANSACTIONAL_ID,
            apis.END_TXN,
            _END_VERSION[self._version],
            request,
            _code_at_top,
            self._note_end_txn,
        )
        if self._version == _V2:
            self._take_next_epoch(Identity(response.producer_id, response.producer_epoch))
        self._ledger.settle(entry, Fate.COMMITTED if commit else Fate.ABORTED)
        self._world.trace("ended", self._name, entry.serial, commit)

    def _take_next_epoch(self, given: Identity) -> None:
        before, self._identity = self._identity, given
        self._sequences.clear()
        if given != Identity(before.producer_id, before.epoch + 1):
            self._world.fail(f"{self._name} ends the transaction of {before} and is given {given}")

    def _note_end_txn(self) -> None:
        strike, self._world.on_end_txn = self._world.on_end_txn, None
        connection = self._coordinators.get(_TRANSACTIONAL_ID)
        task = asyncio.current_task()
        if strike is not None and connection is not None and task is not None:
            strike(connection.broker, task.cancel if self.is_mortal else task.done)

    # --- batches ----------------------------------------------------------------------------------

    async def _send_once(self, entry: Entry, part: Part) -> None:
        """Send a batch without waiting for the response, because its transaction is
        being aborted.
        """
        with suppress(Fenced):
            await self._produce(entry, part, once=True)

    async def _produce(self, entry: Entry, part: Part, *, once: bool = False) -> None:
        """Send until the batch is settled. Late copies contain the records of their time."""
        world, rng = self._world, self._rng
        values = self._ledger.values(entry, part, rng.randint(1, 3))
        sequence = self._sequences.get(part, 0)
        self._sequences[part] = sequence + len(values)
        records = self._records(entry, part, values)
        identity = self._identity
        batch = encode_batch(
            records,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        version = _PRODUCE_VERSION[self._version]
        body = produce_request({part: bytes(batch)}, 1_000, self._application.name, version)
        world.checker.sent(part, values)
        while True:
            broker, _ = world.leader(part, rng, exact=world.calm)
            code = (
                await self._produce_once(broker, body, part, values) if broker is not None else None
            )
            if code in _SETTLED or once:
                return
            if code in _FENCED:
                raise self._fenced(f"{part}: {code}")
            if code is not None and not code.retriable:
                world.fail(f"{self._name} writes in order to {part} and gets {code.name}")
            await asyncio.sleep(rng.uniform(0.02, 0.2))

    def _records(self, entry: Entry, part: Part, values: list[bytes]) -> list[Record]:
        """Return the records of a batch, which identify themselves by these values."""
        del entry, part
        now_ms = self._world.now_ms()
        return [Record(at, now_ms, None, value, ()) for at, value in enumerate(values)]

    async def _produce_once(
        self, broker: SimBroker, body: bytes, part: Part, values: list[bytes]
    ) -> ErrorCode | None:
        world, rng = self._world, self._rng
        response: asyncio.Future[ErrorCode] = world.loop.create_future()

        def respond(results: dict[Part, Any]) -> None:
            code = ErrorCode(results[part].error_code)
            if not world.network.chance():
                world.later(
                    world.network.delay_s(), lambda: response.done() or response.set_result(code)
                )

        for _ in range(1 + (rng.random() < 0.2)):
            delay_s = world.network.delay_s() + rng.choice((0, 0, 3))
            version = _PRODUCE_VERSION[self._version]
            world.later(
                delay_s, broker.deliver, broker.produce, body, {part: values}, respond, version
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_PRODUCE_WAIT_S):
                return await response
        return None

    # --- coordinators -----------------------------------------------------------------------------

    async def _until_done(
        self,
        kind: int,
        api: Any,
        version: int,
        request: Any,
        code_of: Callable[[Any], int],
        sending: Callable[[], None] | None = None,
    ) -> Any:
        """Repeat until a response contains no error, and return it. Raises Fenced."""
        while True:
            try:
                connection = await self._coordinator(kind)
                if sending is not None:
                    sending()
                response = await connection.send_request(api, version, request, self._timeout_s)
            except NoResponse:
                self._coordinators.pop(kind, None)
                await asyncio.sleep(self._rng.uniform(0.02, 0.2))
                continue
            self._application.completed_inits_count += api is apis.INIT_PRODUCER_ID
            code = ErrorCode(code_of(response))
            self._world.trace("told", self._name, api.name, code.name)
            if code is ErrorCode.NONE:
                return response
            self._refused(kind, api.name, code)
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    def _refused(self, kind: int, api_name: str, code: ErrorCode) -> None:
        is_over = self._version == _V2 and code is ErrorCode.INVALID_TXN_STATE
        if code in _FENCED or (is_over and api_name == apis.END_TXN.name):
            raise self._fenced(f"{api_name}: {code.name}")
        if code in _FIND_AGAIN:
            self._coordinators.pop(kind, None)
        elif not code.retriable and code not in _NOT_YET_KNOWN:
            self._world.fail(f"{self._name} sends {api_name} in order and gets {code.name}")

    async def _coordinator(self, kind: int) -> Connection:
        """Connect to the coordinator. Raises NoResponse."""
        known = self._coordinators.get(kind)
        if known is not None and not known.is_broken:
            return known
        world, rng = self._world, self._rng
        requested = rng.choice(
            [broker for _, broker in sorted(world.brokers.items())] + world.zombies[-1:]
        )
        request = find_coordinator.FindCoordinatorRequest(
            key_type=kind, coordinator_keys=[self._application.name]
        )
        response = await world.connect(requested).send_request(
            apis.FIND_COORDINATOR, 4, request, self._timeout_s
        )
        if not response.coordinators or response.coordinators[0].error_code:
            raise NoResponse
        found = world.brokers.get(response.coordinators[0].node_id)
        if found is None:
            raise NoResponse
        self._coordinators[kind] = world.connect(found)
        return self._coordinators[kind]


def _code_at_top(response: Any) -> int:
    return int(response.error_code)

"""Clients that request log ends, offsets by time and epoch ends, also from former leaders.

A broker that responds has everything acknowledged before the request; `ListOffsets` returns no
lower end, and an acknowledged offset is never out of range. A replaced process may lag by one
session timeout. Must not run where logs are trimmed.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol import apis
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record, decode_records
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch, list_offsets, metadata, offset_for_leader_epoch
from penstock.protocol.offset_specs import EARLIEST, LATEST
from tests.sim.checkers import Part
from tests.sim.clients import Batch, Producer
from tests.sim.connections import Connection, NoResponse
from tests.sim.nodes import FETCH_VERSION, SimBroker

if TYPE_CHECKING:
    from tests.sim.world import World

ASKING: Final = frozenset({"stale"})
"""Scenarios in which these clients run."""

_LIST_VERSION: Final = 8
_EPOCH_VERSION: Final = 4
_METADATA_VERSION: Final = 12
_NEWEST: Final = -3
_ASKERS: Final = 5
_TIMED: Final = 50
"""The number of the first producer whose record timestamps are unordered."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state at the time of a request."""

    part: Part
    acked_end: int
    """End offset of everything acknowledged by then, which the broker must have."""


@dataclass(slots=True)
class Log:
    """A whole partition: timestamp and leader epoch of each record."""

    timestamps: list[int] = field(default_factory=list[int])
    epochs: list[int] = field(default_factory=list[int])

    def add(self, data: memoryview) -> None:
        """Append whole batches."""
        for at, header in iter_headers(data):
            self.timestamps += [record.timestamp_ms for record in decode_records(data[at:])]
            self.epochs += [header.partition_leader_epoch] * (
                header.next_offset - header.base_offset
            )

    def first_at(self, timestamp_ms: int) -> int:
        return next(
            (offset for offset, found in enumerate(self.timestamps) if found >= timestamp_ms), -1
        )

    def first_after_epoch(self, epoch: int) -> int:
        """Return the start of the records of later epochs, or the log end if there are none."""
        return next(
            (offset for offset, found in enumerate(self.epochs) if found > epoch), len(self.epochs)
        )


class TimedProducer(Producer):
    """Writes records whose timestamps go back and forth, also within a batch."""

    def _batch(self, part: Part) -> Batch:
        first = self._next.get(part, 0)
        count = self._rng.choice((1, 2, 5))
        self._next[part] = first + count
        identities = [
            f"{self._name}/{part[1]}/{sequence}".encode()
            for sequence in range(first, first + count)
        ]
        now_ms = self._world.now_ms()
        records = [
            Record(at, now_ms + self._rng.randint(-3_000, 500), None, name + b" t", ())
            for at, name in enumerate(identities)
        ]
        self._world.checker.sent(part, identities)
        return Batch(first, records, identities)


class Offsets:
    """All of these clients for one run; does nothing in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._responses: list[tuple[Moment, SimBroker, Any, Any]] = []
        """(moment, broker, request, response) of responses that only the whole log can judge."""
        self._ends: deque[tuple[float, dict[Part, int]]] = deque()
        self._fenced_at: dict[SimBroker, float] = {}

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        world = self._world
        if world.scenario not in ASKING:
            return []
        askers = [_Asker(world, self, number) for number in range(_ASKERS)]
        timed = [TimedProducer(world, _TIMED + number, idempotent=True) for number in range(2)]
        return [
            *(asker.run(stop) for asker in askers),
            *(producer.run(stop) for producer in timed),
            self._note_ends(stop),
        ]

    async def _note_ends(self, stop: asyncio.Event) -> None:
        world = self._world
        while not stop.is_set():
            self._ends.append(
                (world.loop.time(), {part: world.checker.acked_end(part) for part in world.parts})
            )
            for _, broker in sorted(world.brokers.items()):
                if broker.serving and not world.metadata.image.nodes.is_alive(broker.me):
                    self._fenced_at.setdefault(broker, world.loop.time())
            await asyncio.sleep(0.1)

    def is_long_fenced(self, broker: SimBroker) -> bool:
        """Return whether the broker's session is over, whatever it believes."""
        since_s = self._world.loop.time() - self._world.limits.controller.session_timeout_ms / 1000
        return self._fenced_at.get(broker, float("inf")) < since_s

    def moment(self, part: Part, broker: SimBroker) -> Moment:
        world = self._world
        if broker not in world.zombies:
            return Moment(part, world.checker.acked_end(part))
        since_s = world.loop.time() - world.limits.controller.session_timeout_ms / 1000
        return Moment(
            part, next((ends[part] for at_s, ends in reversed(self._ends) if at_s <= since_s), 0)
        )

    def keep(self, moment: Moment, broker: SimBroker, question: Any, response: Any) -> None:
        self._responses.append((moment, broker, question, response))

    async def check(self) -> None:
        if self._world.scenario not in ASKING:
            return
        logs = {part: await self._read(part) for part in self._world.parts}
        for moment, broker, question, response in self._responses:
            what = f"{broker.process.name} responds to {question} with {response}; {moment}"
            log = logs[moment.part]
            judge = (
                _judge_time
                if isinstance(question, list_offsets.ListOffsetsPartition)
                else _judge_epoch
            )
            wrong = judge(log, moment, question, response)
            if wrong:
                self._world.fail(f"{what}: {wrong}")

    async def _read(self, part: Part) -> Log:
        world, log = self._world, Log()
        rng = Random(f"{world.seed}/log")
        while True:
            broker, _ = world.leader(part, rng, exact=True)
            found: Any = None
            if broker is not None:
                with suppress(NoResponse):
                    response = await Connection(world, broker).send_request(
                        apis.FETCH, FETCH_VERSION, _fetch({part: (len(log.epochs), -1)}, 0), 5
                    )
                    found = response.responses[0].partitions[0]
            if found is None or found.error_code:
                await asyncio.sleep(0.1)
                continue
            log.add(memoryview(bytes(found.records or b"")))
            if len(log.epochs) >= found.high_watermark:
                return log


def _judge_time(log: Log, moment: Moment, question: Any, response: Any) -> str:
    """Return an error in the offset found for a time."""
    target, offset = question.timestamp, response.offset
    known = log.timestamps[: moment.acked_end]
    if target == _NEWEST:
        target = max(known, default=-1)
        if offset >= 0 and response.timestamp < target:
            return f"a record with the time {target} was acknowledged"
    elif offset >= 0 and offset != log.first_at(target):
        return f"the first record of that time is {log.first_at(target)}"
    if offset < 0:
        return (
            f"record {known.index(max(known))} is not older"
            if known and max(known) >= target
            else ""
        )
    if (log.timestamps[offset], log.epochs[offset]) != (response.timestamp, response.leader_epoch):
        return (
            f"that record has the time {log.timestamps[offset]} and the epoch {log.epochs[offset]}"
        )
    return ""


def _judge_epoch(log: Log, moment: Moment, question: Any, response: Any) -> str:
    """Return an error in the end of an epoch."""
    end = log.first_after_epoch(question.leader_epoch)
    if response.end_offset < 0:
        known = max(log.epochs[: moment.acked_end], default=-1)
        return (
            f"records of epoch {known} were acknowledged" if known >= question.leader_epoch else ""
        )
    if response.end_offset < min(end, moment.acked_end):
        return f"records up to {min(end, moment.acked_end)} are of that epoch, or an earlier one"
    return f"a later epoch begins at {end}" if response.end_offset > end else ""


def _fetch(requested: dict[Part, tuple[int, int]], max_wait_ms: int) -> fetch.FetchRequest:
    """requested: offset and leader epoch by partition, all of one topic."""
    items = [
        fetch.FetchPartition(
            partition=index,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=1 << 20,
        )
        for (_, index), (offset, epoch) in requested.items()
    ]
    topics = [fetch.FetchTopic(topic=next(iter(requested))[0], partitions=items)]
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=topics,
    )


class _Asker:
    """Requests every partition from each broker in turn; brokers refuse those that they do not
    lead.
    """

    def __init__(self, world: "World", offsets: Offsets, number: int) -> None:
        self._world = world
        self._offsets = offsets
        self._rng = Random(f"{world.seed}/asker/{number}")
        self._connections: dict[SimBroker, Connection] = {}
        self._pause_s = self._rng.choice((0.02, 0.1))

    async def run(self, stop: asyncio.Event) -> None:
        rng, world = self._rng, self._world
        asks = (self._ask_offsets, self._ask_offsets, self._ask_epochs, self._ask_for_more)
        while not stop.is_set():
            brokers = [
                *(broker for _, broker in sorted(world.brokers.items())),
                *world.zombies[-1:],
            ]
            brokers = [
                broker for broker in brokers if broker.serving and broker.process.held is None
            ]
            if brokers:
                with suppress(NoResponse):
                    await (self._query_leaders if rng.random() < 0.1 else rng.choice(asks))(
                        rng.choice(brokers)
                    )
            await asyncio.sleep(rng.uniform(0, 2) * self._pause_s)

    async def _send_request(self, broker: SimBroker, api: Any, version: int, message: Any) -> Any:
        connection = self._connections.get(broker)
        if connection is None or connection.is_broken:
            connection = self._connections[broker] = Connection(self._world, broker)
        try:
            return await connection.send_request(api, version, message, self._rng.choice((0.3, 2)))
        except NoResponse:
            self._connections.pop(broker, None)
            raise

    def _epoch(self, part: Part) -> int:
        """Return a leader epoch that the client may have seen."""
        _, epoch = self._world.leader(part, self._rng)
        return self._rng.choice((-1, -1, -1, epoch, epoch, epoch - 1, epoch + 1))

    def _judge_leader(self, part: Part, broker: SimBroker, epoch: int, response: Any) -> None:
        world = self._world
        if (
            response.error_code == ErrorCode.NONE
            and epoch >= 0
            and not world.checker.is_owner(part, epoch, broker.me)
        ):
            world.fail(
                f"{part}: {broker.process.name} responds to a client that names the leader of epoch"
                f" {epoch}, which it is not: {response}"
            )

    async def _ask_offsets(self, broker: SimBroker) -> None:
        rng, now_ms = self._rng, self._world.now_ms()
        times = (
            LATEST,
            LATEST,
            EARLIEST,
            _NEWEST,
            _NEWEST,
            now_ms - rng.randint(0, 2_000),
            now_ms - rng.randint(0, 10_000),
            0,
        )
        requested = [
            list_offsets.ListOffsetsPartition(index, self._epoch((name, index)), rng.choice(times))
            for name, index in self._world.parts
        ]
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=rng.choice((0, 1)),
            topics=[list_offsets.ListOffsetsTopic(self._world.parts[0][0], requested)],
        )
        moments = [self._offsets.moment(part, broker) for part in self._world.parts]
        responses = (
            (await self._send_request(broker, apis.LIST_OFFSETS, _LIST_VERSION, request))
            .topics[0]
            .partitions
        )
        for moment, question, response in zip(moments, requested, responses, strict=True):
            if response.error_code == ErrorCode.NONE:
                self._judge_leader(moment.part, broker, question.current_leader_epoch, response)
                self._judge_offset(moment, broker, question, response)

    def _judge_offset(
        self, moment: Moment, broker: SimBroker, question: Any, response: Any
    ) -> None:
        if question.timestamp == LATEST:
            if response.offset < moment.acked_end:
                self._world.fail(
                    f"{broker.process.name} says that the log ends at {response.offset}; {moment}"
                )
        elif question.timestamp == EARLIEST:
            if response.offset != 0:
                self._world.fail(
                    f"{broker.process.name} says that the log begins at {response.offset}; {moment}"
                )
        else:
            self._offsets.keep(moment, broker, question, response)

    async def _ask_epochs(self, broker: SimBroker) -> None:
        rng, module = self._rng, offset_for_leader_epoch
        requested: list[Any] = []
        for part in self._world.parts:
            _, epoch = self._world.leader(part, rng)
            requested.append(
                module.OffsetForLeaderPartition(
                    part[1], self._epoch(part), max(0, epoch - rng.choice((0, 0, 1, 1, 2, 5)))
                )
            )
        request = module.OffsetForLeaderEpochRequest(
            topics=[module.OffsetForLeaderTopic(self._world.parts[0][0], requested)]
        )
        moments = [self._offsets.moment(part, broker) for part in self._world.parts]
        responses = (
            (
                await self._send_request(
                    broker, apis.OFFSET_FOR_LEADER_EPOCH, _EPOCH_VERSION, request
                )
            )
            .topics[0]
            .partitions
        )
        for moment, question, response in zip(moments, requested, responses, strict=True):
            if response.error_code == ErrorCode.NONE:
                self._judge_leader(moment.part, broker, question.current_leader_epoch, response)
                self._offsets.keep(moment, broker, question, response)

    async def _ask_for_more(self, broker: SimBroker) -> None:
        """Let a consumer that has read everything from the current leader fetch from another
        broker.
        """
        moments = {part: self._offsets.moment(part, broker) for part in self._world.parts}
        requested = {
            part: (moment.acked_end, self._epoch(part)) for part, moment in moments.items()
        }
        request = _fetch(requested, self._rng.choice((0, 500)))
        responses = (
            (await self._send_request(broker, apis.FETCH, FETCH_VERSION, request))
            .responses[0]
            .partitions
        )
        for moment, (_, epoch), response in zip(
            moments.values(), requested.values(), responses, strict=True
        ):
            self._judge_leader(moment.part, broker, epoch, response)
            if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._world.fail(f"{broker.process.name} says that this is out of range: {moment}")

    async def _query_leaders(self, broker: SimBroker) -> None:
        is_fenced = self._offsets.is_long_fenced(broker)
        request = metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(name=self._world.parts[0][0])],
            allow_auto_topic_creation=False,
        )
        response = await self._send_request(broker, apis.METADATA, _METADATA_VERSION, request)
        if is_fenced and any(
            partition.leader_id == broker.node_id for partition in response.topics[0].partitions
        ):
            self._world.fail(
                f"{broker.process.name}, which the controllers fenced long ago, says that it leads:"
                f" {response}"
            )

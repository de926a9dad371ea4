"""A producer with up to five batches of a partition in flight, like librdkafka.

Batches are sent in order on one connection; unacknowledged ones are resent unchanged and in order.
`OUT_OF_ORDER_SEQUENCE_NUMBER` is never correct then, because librdkafka would start a new epoch and
duplicate batches.
"""

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import produce
from tests.sim.checkers import Part
from tests.sim.clients import may_lag
from tests.sim.connections import Connection, NoResponse
from tests.sim.nodes import PRODUCE_VERSION, SimBroker

if TYPE_CHECKING:
    from tests.sim.world import World

IN_FLIGHT_COUNT_MAX = 5
_ID_FIRST = 100
_SETTLED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class _Batch(NamedTuple):
    data: bytes
    identities: list[bytes]


class PipelinedProducer:
    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/pipelined/{number}")
        self._id = _ID_FIRST + number
        self._timeout_s = self._rng.choice((0.15, 0.5, 2.0))
        self._sent = dict.fromkeys(world.parts, 0)

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(
            *(
                self._write_all(part, stop)
                for part in self._rng.sample(self._world.parts, min(2, len(self._world.parts)))
            )
        )

    def check_order(self) -> None:
        for part in self._world.parts:
            self._world.checker.check_order(part, b"%d" % self._id)

    async def _write_all(self, part: Part, stop: asyncio.Event) -> None:
        rng, left = self._rng, deque[_Batch]()
        while left or not stop.is_set():
            while not stop.is_set() and len(left) < rng.randint(1, 12):
                left.append(self._batch(part))
            broker, _ = self._world.leader(part, rng, exact=self._world.calm)
            if broker is not None and left:
                await self._attempt(broker, part, left)
            await asyncio.sleep(rng.uniform(0.01, 0.2))

    def _batch(self, part: Part) -> _Batch:
        first, now_ms = self._sent[part], self._world.now_ms()
        count = self._rng.choice((1, 1, 3))
        self._sent[part] = first + count
        identities = [
            b"%d/%d/%d" % (self._id, part[1], number) for number in range(first, first + count)
        ]
        records = [
            Record(at, now_ms, None, identity + b" ", ()) for at, identity in enumerate(identities)
        ]
        self._world.checker.sent(part, identities)
        if self._world.log_starts is not None:
            self._world.log_starts.note_sent(identities)
        return _Batch(
            bytes(
                encode_batch(records, producer_id=self._id, producer_epoch=0, base_sequence=first)
            ),
            identities,
        )

    async def _attempt(self, broker: SimBroker, part: Part, left: "deque[_Batch]") -> None:
        """Send the batches; remove acknowledged ones."""
        connection, requested = (
            Connection(self._world, broker),
            list[asyncio.Task[produce.PartitionProduceResponse | None]](),
        )
        for batch in list(left)[:IN_FLIGHT_COUNT_MAX]:
            requested.append(
                self._world.loop.create_task(self._send_request(connection, part, batch))
            )
            await asyncio.sleep(self._rng.choice((0, 0.005, 0.1, 0.5)))
            if any(task.done() and _code(task.result()) not in _SETTLED for task in requested):
                break
        for response in await asyncio.gather(*requested):
            code = _code(response)
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not may_lag(
                self._world, part, broker, self._rng
            ):
                self._world.fail(
                    f"producer {self._id} writes in order to {part} and gets {code.name}:"
                    f" {response and response.error_message}"
                )
        done = max(
            (at for at, task in enumerate(requested, 1) if _code(task.result()) in _SETTLED),
            default=0,
        )
        for task in requested[:done]:
            response, batch = task.result(), left.popleft()
            base_offset = (
                response.base_offset
                if response is not None and _code(response) is ErrorCode.NONE
                else -1
            )
            self._world.checker.delivered(part, base_offset, batch.identities)

    async def _send_request(
        self, connection: Connection, part: Part, batch: _Batch
    ) -> produce.PartitionProduceResponse | None:
        timeout_s = 10 if self._world.calm else self._timeout_s
        data = produce.TopicProduceData(
            name=part[0], partition_data=[produce.PartitionProduceData(part[1], batch.data)]
        )
        request = produce.ProduceRequest(
            acks=-1, timeout_ms=int(timeout_s * 1_000), topic_data=[data]
        )
        self._world.trace("produce", connection.broker.process.name, part, batch.identities[0])
        try:
            response = await connection.send_request(
                apis.PRODUCE, PRODUCE_VERSION, request, 2 * timeout_s
            )
        except NoResponse:
            return None
        reply: produce.PartitionProduceResponse = response.responses[0].partition_responses[0]
        self._world.trace(
            "produced",
            connection.broker.process.name,
            part,
            batch.identities[0],
            ErrorCode(reply.error_code).name,
        )
        return reply


def _code(response: produce.PartitionProduceResponse | None) -> ErrorCode | None:
    return None if response is None else ErrorCode(response.error_code)

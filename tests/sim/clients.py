"""Producers and consumers that behave like Kafka clients: stale metadata, retries, timeouts.

An idempotent producer has one request per partition in flight and retries it with the same sequence
number; late copies of timed-out requests still arrive. A consumer sends the newest leader epoch
that it has received. Record values are unique.
"""

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from tests.sim.checkers import Part
from tests.sim.nodes import FetchResult, SimBroker, produce_request

if TYPE_CHECKING:
    from tests.sim.world import World

TOPIC = "t"

RETRIED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}


class Batch(NamedTuple):
    """A batch of a producer. first: its first sequence number in producer epoch 0."""

    first: int
    records: list[Record]
    identities: list[bytes]


class Producer:
    def __init__(
        self, world: "World", number: int, *, idempotent: bool, name: str | None = None
    ) -> None:
        """name: distinguishes records of producers with the same number."""
        self._world = world
        self._name = name or f"{'' if idempotent else '-'}{number}"
        self._rng = Random(f"{world.seed}/producer/{name or number}")
        self._id = number if idempotent else -1
        self._next: dict[Part, int] = {}
        self._epochs: Counter[Part] = Counter()
        self._epoch_starts: Counter[Part] = Counter()
        """The number of the record that has sequence 0 in the current producer epoch."""
        self._think_s = self._rng.choice((0.02, 0.06, 0.3))
        self._timeout_s = self._rng.choice((0.15, 1.0, 5.0))

    async def run(self, stop: asyncio.Event) -> None:
        parts = self._world.parts
        while not stop.is_set():
            await self.write(self._rng.sample(parts, self._rng.randint(1, min(3, len(parts)))))
            await asyncio.sleep(self._think_s * self._rng.random() * 2 + 0.01)

    async def write(self, parts: list[Part]) -> None:
        """Write until all records are acknowledged."""
        pending = {part: self._batch(part) for part in parts}
        while pending:
            by_leader: dict[SimBroker, dict[Part, Batch]] = {}
            for part, batch in pending.items():
                broker, _ = self._world.leader(part, self._rng)
                if broker is not None:
                    by_leader.setdefault(broker, {})[part] = batch
            for settled in await asyncio.gather(
                *(self._attempt(broker, batches) for broker, batches in by_leader.items())
            ):
                for part in settled:
                    del pending[part]
            if pending:
                await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    def _batch(self, part: Part) -> Batch:
        first = self._next.get(part, 0)
        count = self._rng.choice((1, 1, 2, 5))
        self._next[part] = first + count
        identities = [
            f"{self._name}/{part[1]}/{sequence}".encode()
            for sequence in range(first, first + count)
        ]
        now_ms = self._world.now_ms()
        padding = b"x" * self._rng.choice((0, 10, 300))
        records = [
            Record(at, now_ms, None, identity + b" " + padding, ())
            for at, identity in enumerate(identities)
        ]
        self._world.checker.sent(part, identities)
        if self._world.log_starts is not None:
            self._world.log_starts.note_sent(identities)
        return Batch(first, records, identities)

    def _encode(self, part: Part, batch: Batch) -> bytes:
        is_idempotent = self._id >= 0
        return bytes(
            encode_batch(
                batch.records,
                producer_id=self._id,
                producer_epoch=self._epochs[part] if is_idempotent else -1,
                base_sequence=batch.first - self._epoch_starts[part] if is_idempotent else -1,
            )
        )

    async def _attempt(self, broker: SimBroker, batches: dict[Part, Batch]) -> list[Part]:
        """Send one attempt; return the partitions that are acknowledged by now."""
        world, loop = self._world, self._world.loop
        response: asyncio.Future[dict[Part, Any]] = loop.create_future()
        body = produce_request(
            {part: self._encode(part, batch) for part, batch in batches.items()},
            int(self._timeout_s * 1000),
        )
        identities = {part: batch.identities for part, batch in batches.items()}

        def respond(results: dict[Part, Any]) -> None:
            if not world.network.chance():
                world.later(world.network.delay_s(), settle, response, results)

        copies = [0.0, self._rng.uniform(0, 5)] if world.network.chance(0.3) else [0.0]
        if not world.network.chance():
            for delay_s in copies:
                world.later(
                    delay_s + world.network.delay_s(),
                    broker.deliver,
                    broker.produce,
                    body,
                    identities,
                    respond,
                )
        results: dict[Part, Any] = {}
        with suppress(TimeoutError):
            # An impatient producer without sequence numbers would never finish; without faults all
            # producers wait.
            async with asyncio.timeout(10 if world.calm else self._timeout_s):
                results = await response
        return [
            part
            for part, item in results.items()
            if self._is_settled(part, batches[part], item, broker)
        ]

    def _is_settled(self, part: Part, batch: Batch, item: Any, broker: SimBroker) -> bool:
        code = ErrorCode(item.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return True
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and may_lag(
            self._world, part, broker, self._rng
        ):
            return False
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._may_be_forgotten(part, batch):
            self._epochs[part] += 1  # as in KIP-360
            self._epoch_starts[part] = batch.first
            return False
        if code not in RETRIED:
            self._world.fail(
                f"producer {self._name} writes in order to {part} and gets {code.name}:"
                f" {item.error_message}"
            )
        return False

    def _may_be_forgotten(self, part: Part, batch: Batch) -> bool:
        """Return whether the sequences before this batch were only in a lost checkpoint, because
        their records are below the log start.
        """
        world = self._world
        last = f"{self._name}/{part[1]}/{batch.first - 1}".encode()
        return (
            world.lost_slots is not None
            and world.lost_slots.has_lost
            and world.checker.acked(part).get(last, sys.maxsize) < world.log_start(part)
        )


def may_lag(world: "World", part: Part, broker: SimBroker, rng: Random) -> bool:
    """Return whether the broker may lag. A former leader that still considers itself the leader
    refuses newer offsets. With leases it would not respond, unless its node has restarted in
    another process or the cluster was recovered from the store in between: then its lease is
    worthless, and the WAL fence only prevents acknowledgments.
    """
    return broker.is_unsure and world.leader(part, rng, exact=True)[0] is not broker


def settle(response: "asyncio.Future[Any]", results: Any) -> None:
    if not response.done():
        response.set_result(results)


class Consumer:
    """Reads everything from the beginning, and then continues from its position."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/consumer/{number}")
        self.positions: dict[Part, int] = dict.fromkeys(world.parts, 0)
        self.starts: dict[Part, int] = dict.fromkeys(world.parts, 0)
        self.watermarks: dict[Part, int] = {}
        self._epochs: dict[Part, int] = {}
        self._max_bytes = self._rng.choice((1, 1000, 1 << 20)) if number < 9 else 1 << 20

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.poll(self._rng.choice((0, 50, 500)))
            if self._rng.random() < 0.02:
                self.positions[self._rng.choice(self._world.parts)] = 0
            await asyncio.sleep(self._rng.uniform(0.01, 0.3))

    def has_read(self, part: Part) -> bool:
        """Return whether the last response reached the end of the log."""
        return part in self.watermarks and self.positions[part] >= self.watermarks[part]

    async def poll(self, max_wait_ms: int, *, exact: bool = False) -> None:
        by_leader: dict[SimBroker, dict[Part, tuple[int, int]]] = {}
        for part, offset in self.positions.items():
            broker, epoch = self._world.leader(part, self._rng, exact=exact)
            if broker is not None and epoch >= self._epochs.get(part, 0):
                by_leader.setdefault(broker, {})[part] = (offset, epoch)
        await asyncio.gather(
            *(
                self._fetch(broker, requested, max_wait_ms)
                for broker, requested in by_leader.items()
            )
        )

    async def _fetch(
        self, broker: SimBroker, requested: dict[Part, tuple[int, int]], max_wait_ms: int
    ) -> None:
        world, loop = self._world, self._world.loop
        response: asyncio.Future[dict[Part, FetchResult]] = loop.create_future()

        def respond(results: dict[Part, FetchResult]) -> None:
            if not world.network.chance():
                world.later(world.network.delay_s(), settle, response, results)

        world.later(
            world.network.delay_s(),
            broker.deliver,
            broker.fetch,
            requested,
            max_wait_ms,
            self._max_bytes,
            respond,
        )
        try:
            async with asyncio.timeout(3):
                results = await response
        except TimeoutError:
            return
        for part, found in results.items():
            self._take(part, *requested[part], found, broker)

    def _take(
        self, part: Part, offset: int, epoch: int, found: FetchResult, broker: SimBroker
    ) -> None:
        if (
            found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            and self._world.log_start(part) > offset
        ):
            # The response's own log start may lag behind a trim that is in progress.
            self.positions[part] = self.starts[part] = self._world.log_start(part)
            self._epochs[part] = max(self._epochs.get(part, 0), epoch)
            return
        if (
            found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            and epoch >= self._epochs.get(part, 0)
            and self.positions[part] == offset
            # After a recovery from the store, this may be a log start that was not backed up.
            and not broker.has_old_history
        ):
            self._world.fail(
                f"{part}: offset {offset}, which was read up to, is out of range: {found}"
            )
        if found.error_code:
            return
        self._epochs[part] = max(self._epochs.get(part, 0), epoch)
        self.watermarks[part] = found.high_watermark
        self.starts[part] = found.log_start_offset
        if found.batches and self.positions[part] == offset:
            self.positions[part] = found.batches[-1][-1].offset + 1

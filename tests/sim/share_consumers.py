"""Members of a share group that fetch records from partition leaders and acknowledge them.

No record is delivered after a confirmed acknowledgment, more often than the limit, or while another
member has locked it. At the end, every record was acknowledged or delivered up to the limit.
Source: KIP-932.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.share.partitions.settings import ShareGroupConfig
from penstock.broker.groups.share.partitions.spans import ACCEPT, REJECT, RELEASE
from penstock.broker.groups.share.partitions.window import WindowLimits
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import share_acknowledge as acknowledging
from penstock.protocol.gen import share_fetch as fetching
from tests.sim.checkers import Part
from tests.sim.connections import Connection, NoResponse
from tests.sim.groups import LATE_MEMBERS
from tests.sim.share_states import ShareAsker, StateHistory, until_done

if TYPE_CHECKING:
    from tests.sim.world import World

WORKING: Final = frozenset({"share_consumers", LATE_MEMBERS})
LOCK_S: Final = 3.0
CONFIG: Final = ShareGroupConfig(
    lock_duration_ms=round(LOCK_S * 1_000),
    begins_earliest=True,
    limits=WindowLimits(records_max=60, deliveries_max=4),
)
_GROUP: Final = "queue"
_VERSION: Final = 2
_WORKERS_COUNT: Final = 3
_PARTS_MAX: Final = 2
_FETCH_RECORDS: Final = 8
_AT_END_ROUNDS: Final = 3
_GONE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    }
)
"""Error codes after which a member looks up the leader again."""


@dataclass(slots=True)
class Holding:
    """A record that a member has acquired."""

    member_id: str
    requested_s: float
    openings_count: int


@dataclass(slots=True)
class Deliveries:
    """The state of one share partition as its clients see it."""

    world: "World"
    part: Part
    openings_count: int = 0
    """How often a leader has opened the partition."""
    ended: dict[int, float] = field(default_factory=dict[int, float])
    """When the acknowledgment of a record was confirmed."""
    maybe_ended: set[int] = field(default_factory=set[int])
    """Records whose acknowledgment was requested."""
    delivered: dict[int, int] = field(default_factory=dict[int, int])
    """The highest delivery count of each record."""
    lost_count: int = 0
    """Fetches without a response: each may have delivered a record unseen."""
    holdings: dict[int, Holding] = field(default_factory=dict[int, Holding])

    def got(
        self, member_id: str, first: int, last: int, count: int, began: tuple[float, int]
    ) -> None:
        """Record a delivery. began: the time of the request, and how often the partition had been
        opened by then.
        """
        requested_s, openings_count = began
        if count > CONFIG.limits.deliveries_max:
            self._fail(f"{first} to {last} are delivered {count} times")
        for offset in range(first, last + 1):
            if self.ended.get(offset, requested_s + 1) <= requested_s:
                self._fail(f"{offset} is delivered to {member_id}, but ended")
            self._check_holding(offset, member_id, openings_count)
            self.delivered[offset] = max(count, self.delivered.get(offset, 0))
            self.holdings[offset] = Holding(member_id, requested_s, openings_count)

    def _check_holding(self, offset: int, member_id: str, openings_count: int) -> None:
        held = self.holdings.get(offset)
        is_held = (
            held is not None
            and held.member_id != member_id
            and held.openings_count == openings_count == self.openings_count
            and self.world.loop.time() < held.requested_s + LOCK_S
        )
        if is_held and held is not None:
            self._fail(f"{offset} is delivered to {member_id}, but {held.member_id} has it")

    def requested(self, offsets: range, kind: int) -> None:
        """Record that an acknowledgment is sent."""
        for offset in offsets:
            self.holdings.pop(offset, None)
            if kind != RELEASE:
                self.maybe_ended.add(offset)

    def confirmed(self, offsets: range, kind: int) -> None:
        if kind != RELEASE:
            for offset in offsets:
                self.ended.setdefault(offset, self.world.loop.time())

    def dropped(self, member_id: str) -> None:
        """Record that a member has disconnected."""
        self.holdings = {
            offset: held for offset, held in self.holdings.items() if held.member_id != member_id
        }

    def check_end(self) -> None:
        world = self.world
        start_offset, end_offset = world.log_start(self.part), world.checker.acked_end(self.part)
        limit = CONFIG.limits.deliveries_max
        lost = [
            offset
            for offset in range(start_offset, end_offset)
            if offset not in self.maybe_ended
            and self.delivered.get(offset, 0) + self.lost_count < limit
        ]
        if lost:
            self._fail(f"{lost} are passed over")

    def _fail(self, what: str) -> None:
        self.world.fail(f"share partition {self.part}: {what}")


class Worker:
    """A client that is one member after another."""

    def __init__(self, world: "World", deliveries: list[Deliveries], name: str) -> None:
        self._world = world
        self._all = deliveries
        self._name = name
        self._rng = Random(f"{world.seed}/{name}")
        self._lives_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            deliveries = self._rng.choice(self._all)
            with contextlib.suppress(NoResponse):
                await self.live(deliveries, self._world.loop.time() + self._rng.uniform(0.5, 8))
            await asyncio.sleep(self._rng.uniform(0.02, 0.4))

    async def live(
        self, deliveries: Deliveries, end_s: float, *, accepts: bool = False
    ) -> int | None:
        """Be a member with one connection until `end_s`. Return the number of records that it got,
        or None if it found no leader. Raises NoResponse.
        """
        world, rng = self._world, self._rng
        broker, _ = world.leader(deliveries.part, rng, exact=accepts)
        if broker is None:
            return None
        self._lives_count += 1
        member = _Member(
            world, deliveries, world.connect(broker), f"{self._name}.{self._lives_count}"
        )
        count = 0
        try:
            while world.loop.time() < end_s:
                try:
                    got_count = await self._work(member, accepts=accepts)
                except NoResponse:
                    if world.scenario != LATE_MEMBERS:
                        raise
                    member.reconnect()
                    continue
                if got_count is None:
                    return None if accepts else count
                count += got_count
            return count
        finally:
            deliveries.dropped(member.member_id)

    async def _work(self, member: "_Member", *, accepts: bool) -> int | None:
        """Fetch once, and acknowledge most of it. Return the number of records, or None if the
        broker is not the leader. Raises NoResponse.
        """
        rng = self._rng
        got = await member.fetch(rng)
        if got is None:
            return None
        if not accepts:
            # Some work for so long that their locks expire.
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.3, 1.2 * LOCK_S)))
        for first, last in got:
            kind = ACCEPT if accepts else rng.choice((ACCEPT, ACCEPT, RELEASE, REJECT, 0))
            if kind and not await member.acknowledge(first, last, kind):
                return None
        return sum(last - first + 1 for first, last in got)


class _Member:
    """One session."""

    def __init__(
        self, world: "World", deliveries: Deliveries, connection: Connection, member_id: str
    ) -> None:
        self.member_id = member_id
        self._world = world
        self._deliveries = deliveries
        self._connection = connection
        self._epoch = 0
        self._openings_count = 0
        """How often the partition had been opened before the last fetch."""
        topic = world.metadata.image.topics.by_name(deliveries.part[0])
        assert topic is not None
        self._topic_id = topic.topic_id

    def reconnect(self) -> None:
        """Start a session on a new connection. The earlier one may end before it is replaced."""
        self._deliveries.dropped(self.member_id)
        self._connection = self._world.connect(self._connection.broker)
        self._epoch = 0

    async def fetch(self, rng: Random) -> list[tuple[int, int]] | None:
        """Return the acquired records, or None if the broker is not the leader."""
        index = self._deliveries.part[1]
        request = fetching.ShareFetchRequest(
            group_id=_GROUP,
            member_id=self.member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=rng.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=rng.randint(1, _FETCH_RECORDS),
            batch_size=rng.randint(1, _FETCH_RECORDS),
            share_acquire_mode=rng.randrange(2),
            topics=[]
            if self._epoch
            else [fetching.FetchTopic(self._topic_id, [fetching.FetchPartition(index, [])])],
        )
        self._openings_count = self._deliveries.openings_count
        began = self._world.loop.time(), self._openings_count
        try:
            response = await self._send_request(apis.SHARE_FETCH, request)
        except NoResponse:
            self._deliveries.lost_count += 1
            raise
        if response.error_code:
            return self._gone(response.error_code)
        self._epoch += 1
        found: list[tuple[int, int]] = []
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    return self._gone(partition.error_code)
                for item in partition.acquired_records:
                    found.append((item.first_offset, item.last_offset))
                    self._deliveries.got(
                        self.member_id,
                        item.first_offset,
                        item.last_offset,
                        item.delivery_count,
                        began,
                    )
        self._world.trace("shared", self.member_id, self._deliveries.part, found)
        return found

    async def acknowledge(self, first: int, last: int, kind: int) -> bool:
        """Return False if the broker is not the leader."""
        offsets, index = range(first, last + 1), self._deliveries.part[1]
        self._deliveries.requested(offsets, kind)
        batch = acknowledging.AcknowledgementBatch(first, last, [kind])
        partition = acknowledging.AcknowledgePartition(index, [batch])
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=_GROUP,
            member_id=self.member_id,
            share_session_epoch=self._epoch,
            topics=[acknowledging.AcknowledgeTopic(self._topic_id, [partition])],
        )
        response = await self._send_request(apis.SHARE_ACKNOWLEDGE, request)
        if response.error_code:
            return self._gone(response.error_code) is not None
        self._epoch += 1
        code = ErrorCode(response.responses[0].partitions[0].error_code)
        self._world.trace("ended", self.member_id, first, last, kind, code.name)
        # As in Kafka, a new leader rejects offsets above those that it has acquired.
        is_past_window = (
            code is ErrorCode.INVALID_REQUEST
            and self._openings_count != self._deliveries.openings_count
        )
        if code is ErrorCode.NONE:
            self._deliveries.confirmed(offsets, kind)
        elif not is_past_window and code is not ErrorCode.INVALID_RECORD_STATE:
            return self._gone(code) is not None
        return True

    def _gone(self, code: int) -> None:
        if ErrorCode(code) not in _GONE:
            self._world.fail(f"{self.member_id} gets {ErrorCode(code).name}")

    async def _send_request(self, api: Any, request: object) -> Any:
        timeout_s = 20.0 if self._world.calm else 5.0
        return await self._connection.send_request(api, _VERSION, request, timeout_s)


class ShareConsumers:
    """The members of one group on some partitions; empty in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        parts = world.parts[:_PARTS_MAX] if world.scenario in WORKING else ()
        self._deliveries = {part: Deliveries(world, part) for part in parts}
        found = list(self._deliveries.values())
        count = _WORKERS_COUNT if found else 0
        self._workers = [Worker(world, found, f"worker{number}") for number in range(count)]

    def opened(self, part: Part) -> None:
        """Record that a broker has opened a partition: locks of earlier leaders have ended."""
        if part in self._deliveries:
            self._deliveries[part].openings_count += 1

    async def ready(self) -> None:
        for part in self._deliveries:
            asker = ShareAsker(self._world, StateHistory(self._world, part), f"first {part}")
            await until_done(asker.initialize)

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [worker.run(stop) for worker in self._workers]

    async def check(self) -> None:
        """Consume all records, and compare them with the written ones."""
        for deliveries in self._deliveries.values():
            worker = Worker(self._world, [deliveries], f"last {deliveries.part}")
            empty_count = 0
            while empty_count < _AT_END_ROUNDS:
                count = None
                with contextlib.suppress(NoResponse):
                    count = await worker.live(
                        deliveries, self._world.loop.time() + 1.5 * LOCK_S, accepts=True
                    )
                empty_count = empty_count + 1 if count == 0 else 0
                await asyncio.sleep(0.1)
            deliveries.check_end()
            self._world.trace("worked off", deliveries.part, len(deliveries.ended))

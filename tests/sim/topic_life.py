"""Topics that are created, grow, are deleted, recreated with the same name, and restored.

A record contains the incarnation of its topic and must not appear in another one. Topics change
only after a request, and keep their streams until the grace period ends. A broker whose image lacks
a topic neither acknowledges writes to it nor serves reads.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.base.ids import StreamId
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import TopicState
from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch
from tests.sim.checkers import Checker, Part
from tests.sim.clients import RETRIED, may_lag, settle
from tests.sim.connections import Connection, NoResponse
from tests.sim.leaks import LEAKING
from tests.sim.nodes import SimBroker, batches_of, produce_request
from tests.sim.places import PREFIX, SEPARATOR, place_of
from tests.sim.topic_admin import TopicAdmin
from tests.sim.topic_offsets import TopicOffsets
from tests.sim.topic_snapshots import TopicSnapshots

if TYPE_CHECKING:
    from tests.sim.world import World

LIVING: Final = frozenset({"topics"}) | LEAKING
"""Scenarios in which topics are created and deleted, in addition to those with log life."""

_NAMES: Final = tuple(f"{PREFIX}{number}" for number in range(2))
_WRITERS: Final = 3
_READERS: Final = 2
_LAST: Final = max(_WRITERS, _READERS)
"""The number of the clients that write and read at the end."""
_FETCH_BY_ID_VERSION: Final = 13
_ID_FIRST: Final = 10_000
_READ_AT_ONCE_BYTES: Final = 1 << 20


@dataclass(slots=True, eq=False)
class Incarnation:
    name: str
    topic_id: UUID
    number: int
    configs: dict[str, str]
    is_doomed: bool = False
    """Whether its deletion was requested."""
    is_gone: bool = False
    is_wanted_back: bool = False
    """Whether its restore was requested."""
    frozen_s: float = -1.0
    """When it was deleted, while it can be restored."""
    returns_count: int = 0
    epochs: list[int] = field(default_factory=list[int])
    """The leader epoch of each partition at the last deletion of the topic."""
    streams: list[tuple[StreamId, ...]] = field(default_factory=list[tuple[StreamId, ...]])
    origin: "Incarnation | None" = None
    """The incarnation from which its snapshot was taken, if it was restored."""
    inherited: list[int] = field(default_factory=list[int])
    """By partition: end offset of the records inherited from the origin."""

    def inherited_end(self, index: int) -> int:
        return self.inherited[index] if index < len(self.inherited) else 0

    def place(self, index: int) -> Part:
        return f"{self.name}{SEPARATOR}{self.topic_id}", index


class TopicLife:
    """The metadata of these topics over time."""

    def __init__(self, world: "World", checker: Checker, *, beside_others: bool) -> None:
        """beside_others: another scenario is run, with one such topic."""
        self._world = world
        self._stream_of_others = checker.stream_of
        checker.stream_of = self.stream_of
        checker.is_inherited = self.is_inherited
        self.snapshots = TopicSnapshots(world)
        self.is_alone = world.scenario in LIVING
        self.names = _NAMES if self.is_alone else _NAMES[:1] if beside_others else ()
        self.has_snapshots = beside_others or world.seed % 3 == 0
        """In other runs, topics are deleted and restored more often: a snapshot takes long."""
        self.incarnations: dict[UUID, Incarnation] = {}
        self.totals: dict[str, set[int]] = {name: set() for name in self.names}
        """Partition counts that were requested."""
        self.configs: dict[str, list[dict[str, str]]] = {name: [] for name in self.names}
        """Configurations that were requested, one for each creation."""
        self._streams: set[StreamId] = set()
        """All streams that a partition ever had."""

    @property
    def live(self) -> list[Incarnation]:
        return [known for known in self.incarnations.values() if not known.is_gone]

    @property
    def parts(self) -> list[Part]:
        """Return the partitions of the current topics."""
        return [(known.name, index) for known in self.live for index in range(len(known.streams))]

    def stream_of(self, place: Part) -> StreamId:
        """Return the data stream, also of a deleted topic, or -1 if there never was such a
        partition.
        """
        if not place[0].startswith(PREFIX):
            return self._stream_of_others(place)
        label = place[0].partition(SEPARATOR)[2]
        known = self.incarnations.get(UUID(label)) if label else None
        return (
            known.streams[place[1]][1]
            if known is not None and place[1] < len(known.streams)
            else StreamId(-1)
        )

    def is_inherited(self, place: Part, end: int) -> bool:
        """See `Checker.is_inherited`."""
        label = place[0].partition(SEPARATOR)[2]
        known = self.incarnations.get(UUID(label)) if label else None
        return known is not None and end <= known.inherited_end(place[1])

    # --- metadata ---------------------------------------------------------------------------------

    def look(self, image: MetadataImage) -> None:
        """Check a change of the committed metadata."""
        for known in self.incarnations.values():
            is_there = image.topics.by_id(known.topic_id) is not None
            if known.frozen_s >= 0:
                self._judge_frozen(known, image, is_there=is_there)
            elif not known.is_gone and not is_there:
                known.is_gone = True
                self._judge_end(known, image)
            elif known.topic_id in self._world.metadata.undeleted:
                known.returns_count += 1  # deleted and restored by one entry
        for name in self.names:
            if (topic := image.topics.by_name(name)) is not None:
                self._judge(topic, image)
        self.snapshots.look(image, self.incarnations)

    def _judge_end(self, known: Incarnation, image: MetadataImage) -> None:
        if not known.is_doomed:
            self._world.fail(
                f"topic {known.name} ({known.topic_id}) is missing, its deletion was not requested"
            )
        frozen = image.frozen_topics.deleted_by_id(known.topic_id)
        if frozen is not None:
            known.frozen_s = self._world.loop.time()
            known.epochs = [partition.leader_epoch for partition in frozen.partitions]
            if frozen.keep_ms != self._world.limits.controller.delete_grace_ms:
                self._world.fail(f"{known} is kept for {frozen.keep_ms} ms")
            self._judge_streams(known, image)
            return
        left = self._streams_left(known, image)
        if left:
            self._world.fail(
                f"topic {known.name} ({known.topic_id}) is deleted, its streams {left} are not"
            )

    def _judge_frozen(self, known: Incarnation, image: MetadataImage, *, is_there: bool) -> None:
        """Judge a topic that was deleted and could be restored."""
        if image.frozen_topics.deleted_by_id(known.topic_id) is not None:
            if known.topic_id in self._world.metadata.undeleted:
                # One entry restored the topic and, by a repeated request, deleted it again.
                known.returns_count += 1
                self._judge_end(known, image)
            self._judge_streams(known, image)
            return
        kept_s = self._world.loop.time() - known.frozen_s
        known.frozen_s = -1.0
        if is_there:
            known.is_gone = False
            known.returns_count += 1
            self._judge_return(known, image)
        elif kept_s < self._world.limits.controller.delete_grace_ms / 1_000:
            self._world.fail(f"{known} is deleted for good after {kept_s:.3f} s")
        elif left := self._streams_left(known, image):
            self._world.fail(f"{known} is deleted for good, its streams {left} are not")

    def _judge_return(self, known: Incarnation, image: MetadataImage) -> None:
        if not known.is_wanted_back:
            self._world.fail(f"{known} was restored, which was not requested")
        topic = image.topics.by_id(known.topic_id)
        partitions = [] if topic is None else topic.partitions
        if len(partitions) < len(known.epochs):
            self._world.fail(f"{known} came back with {len(partitions)} partitions")
        # One commit may restore the topic and add partitions, which `_judge` checks.
        for partition, epoch in zip(partitions, known.epochs, strict=False):
            if partition.leader >= 0 and partition.leader_epoch <= epoch:
                self._world.fail(
                    f"{known} came back under leader epoch {partition.leader_epoch}, it was deleted"
                    f" under {epoch}"
                )

    def _judge_streams(self, known: Incarnation, image: MetadataImage) -> None:
        """Check that a deleted topic keeps its streams."""
        requested = [stream_id for ids in known.streams for stream_id in ids]
        if lost := set(requested) - set(self._streams_left(known, image)):
            self._world.fail(f"{known} can be restored, its streams {lost} are missing")

    def _streams_left(self, known: Incarnation, image: MetadataImage) -> list[StreamId]:
        return [
            stream_id
            for ids in known.streams
            for stream_id in ids
            if image.streams.get(stream_id) is not None
        ]

    def _judge(self, topic: TopicState, image: MetadataImage) -> None:
        known = self.incarnations.get(topic.topic_id)
        configs = dict(image.configs.topic(topic.name))
        if known is None:
            known = self.incarnations[topic.topic_id] = Incarnation(
                topic.name, topic.topic_id, len(self.incarnations), configs
            )
            self._judge_begin(known, topic)
        if known.is_gone or configs != known.configs:
            self._world.fail(f"{known} has configurations {configs} now")
        streams = [partition.stream_ids for partition in topic.partitions]
        if streams[: len(known.streams)] != known.streams:
            self._world.fail(f"{known} has the streams {streams} now")
        for added in streams[len(known.streams) :]:
            if any(stream_id in self._streams for stream_id in added):
                self._world.fail(
                    f"{known} has a new partition with streams {added}, which were used before"
                )
            self._streams.update(added)
        if len(streams) not in self.totals[topic.name]:
            self._world.fail(
                f"topic {topic.name} has {len(streams)} partitions, requested were"
                f" {self.totals[topic.name]}"
            )
        known.streams = streams

    def _judge_begin(self, known: Incarnation, topic: TopicState) -> None:
        """Check the initial records of a new topic."""
        snapshot = self.snapshots.restored(topic)
        expected = self.configs[topic.name]
        if snapshot is not None:
            known.origin, known.inherited = snapshot.origin, list(snapshot.ends)
            expected = [self.snapshots.configs(snapshot)]
        if known.configs not in expected:
            self._world.fail(
                f"topic {topic.name} begins with {known.configs}, expected were {expected}"
            )


class _Batch:
    """Records of one request; their content depends on where it arrives."""

    def __init__(self, who: str, first: int, count: int, producer_id: int, padding: bytes) -> None:
        self._who, self._first, self._count, self._producer_id, self._padding = (
            who,
            first,
            count,
            producer_id,
            padding,
        )

    def encode(self, incarnation: str, now_ms: int) -> tuple[bytes, list[bytes]]:
        identities = [
            f"{self._who}/{incarnation}/{self._first + at}".encode() for at in range(self._count)
        ]
        records = [
            Record(at, now_ms, None, identity + b" " + self._padding, ())
            for at, identity in enumerate(identities)
        ]
        if self._producer_id < 0:
            return bytes(encode_batch(records)), identities
        return (
            bytes(
                encode_batch(
                    records,
                    producer_id=self._producer_id,
                    producer_epoch=0,
                    base_sequence=self._first,
                )
            ),
            identities,
        )


class _Writer:
    """Writes to one partition after another. It interrupts a batch only while the topic is deleted,
    and continues with it if the topic is restored. Number 0 uses no sequence numbers.
    """

    def __init__(self, world: "World", life: TopicLife, number: int) -> None:
        self._world = world
        self._life = life
        self._number = number
        self._rng = Random(f"{world.seed}/topic writer/{number}")
        self._next: dict[Part, int] = {}
        self._left: dict[Part, _Batch] = {}
        self._think_s = self._rng.choice((0.02, 0.1, 0.3))
        self._timeout_s = self._rng.choice((0.15, 1.0, 5.0))

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if self._life.live:
                known = self._rng.choice(self._life.live)
                await self.write(known, self._rng.randrange(len(known.streams)))
            await asyncio.sleep(self._think_s * self._rng.random() * 2 + 0.01)

    async def write(self, known: Incarnation, index: int) -> None:
        rng, place = self._rng, known.place(index)
        batch = self._left.pop(place, None) or self._batch(known, index)
        while not known.is_gone:
            broker, _ = self._world.leader((known.name, index), rng)
            if broker is not None and await self._attempt(
                broker, place, (known.name, index), batch
            ):
                return
            await asyncio.sleep(rng.uniform(0.02, 0.2))
        self._left[place] = batch

    def _batch(self, known: Incarnation, index: int) -> _Batch:
        rng, place = self._rng, known.place(index)
        first, count = self._next.get(place, 0), rng.choice((1, 1, 2, 5))
        self._next[place] = first + count
        producer_id = _ID_FIRST + known.number * 100 + self._number if self._number else -1
        who = f"{'' if self._number else '-'}w{self._number}/{known.number}/{index}"
        return _Batch(who, first, count, producer_id, b"x" * rng.choice((0, 10, 300)))

    async def _attempt(self, broker: SimBroker, place: Part, part: Part, batch: _Batch) -> bool:
        """Send the batch once. Return whether it is acknowledged in this incarnation."""
        world = self._world
        response: asyncio.Future[tuple[Part, Any]] = world.loop.create_future()
        timeout_ms = int(self._timeout_s * 1_000)

        def arrive() -> None:
            if not broker.serving:
                return
            there = place_of(broker.image, part)
            data, identities = batch.encode(there[0].partition(SEPARATOR)[2], world.now_ms())
            world.checker.sent(there, identities)

            def respond(results: dict[Part, Any]) -> None:
                if not world.network.chance():
                    world.later(world.network.delay_s(), settle, response, (there, results[part]))

            broker.produce(produce_request({part: data}, timeout_ms), {part: identities}, respond)

        copies = [0.0, self._rng.uniform(0, 5)] if world.network.chance(0.3) else [0.0]
        if not world.network.chance():
            for delay_s in copies:
                world.later(delay_s + world.network.delay_s(), broker.deliver, arrive)
        try:
            async with asyncio.timeout(10 if world.calm else self._timeout_s):
                there, item = await response
        except TimeoutError:
            return False
        return self._is_settled(broker, place, there, part, item)

    def _is_settled(
        self, broker: SimBroker, place: Part, there: Part, part: Part, item: Any
    ) -> bool:
        code = ErrorCode(item.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return place == there
        is_gap = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_gap and (place != there or may_lag(self._world, part, broker, self._rng)):
            return False
        if code not in RETRIED:
            self._world.fail(
                f"topic writer {self._number} writes in order to {place} and gets {code.name}:"
                f" {item.error_message}"
            )
        return False


class _Reader:
    """Reads by topic id, from the beginning of each partition, also from deleted topics."""

    def __init__(self, world: "World", life: TopicLife, number: int) -> None:
        self._world = world
        self._life = life
        self._rng = Random(f"{world.seed}/topic reader/{number}")
        self._max_bytes = (
            self._rng.choice((1, 1_000, _READ_AT_ONCE_BYTES))
            if number < _LAST
            else _READ_AT_ONCE_BYTES
        )
        self._positions: dict[Part, int] = {}
        self._epochs: dict[Part, int] = {}
        self._ends: dict[Part, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if self._life.incarnations:
                known = self._rng.choice(list(self._life.incarnations.values())[-4:])
                await self.poll(known, self._rng.choice((0, 50, 500, 2_500)))
            await asyncio.sleep(self._rng.uniform(0.01, 0.3))

    async def read_all(self) -> None:
        """Read everything acknowledged to live topics so far."""
        for known in self._life.live:
            places = [known.place(index) for index in range(len(known.streams))]
            acked = {place: self._world.checker.acked(place) for place in places}
            while not all(
                place in self._ends and self._positions[place] >= self._ends[place]
                for place in places
            ):
                await self.poll(known, 10, exact=True)
                await asyncio.sleep(0.05)
            for place in places:
                start = known.inherited_end(place[1])
                self._world.checker.check_all_read(place, start, self._ends[place], acked[place])

    async def poll(self, known: Incarnation, max_wait_ms: int, *, exact: bool = False) -> None:
        by_leader: dict[SimBroker, dict[int, tuple[int, int]]] = {}
        for index in range(len(known.streams)):
            broker, epoch = self._world.leader((known.name, index), self._rng, exact=exact)
            place = known.place(index)
            if broker is not None and broker.serving and epoch >= self._epochs.get(place, 0):
                by_leader.setdefault(broker, {})[index] = (
                    self._positions.setdefault(place, 0),
                    epoch,
                )
        await asyncio.gather(
            *(
                self._fetch(broker, known, requested, max_wait_ms)
                for broker, requested in by_leader.items()
            )
        )

    async def _fetch(
        self,
        broker: SimBroker,
        known: Incarnation,
        requested: dict[int, tuple[int, int]],
        max_wait_ms: int,
    ) -> None:
        items = [
            fetch.FetchPartition(
                partition=index,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=self._max_bytes,
            )
            for index, (offset, epoch) in requested.items()
        ]
        request = fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[fetch.FetchTopic(topic_id=known.topic_id, partitions=items)],
        )
        was_gone = known.is_gone and broker.image.topics.by_id(known.topic_id) is None
        returns_count = known.returns_count
        try:
            response = await Connection(self._world, broker).send_request(
                apis.FETCH, _FETCH_BY_ID_VERSION, request, 3
            )
        except NoResponse:
            return
        for topic in response.responses:
            for item in topic.partitions:
                stays_gone = was_gone and known.returns_count == returns_count
                if stays_gone and item.error_code == ErrorCode.NONE:
                    self._world.fail(
                        f"{broker.process.name} has no topic {known.topic_id} and serves it: {item}"
                    )
                self._take(known, item.partition_index, *requested[item.partition_index], item)

    def _take(self, known: Incarnation, index: int, offset: int, epoch: int, item: Any) -> None:
        place = known.place(index)
        is_newest = epoch >= self._epochs.get(place, 0) and self._positions[place] == offset
        if item.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and is_newest:
            self._world.fail(
                f"{place}: offset {offset}, which was read up to, is out of range: {item}"
            )
        if item.error_code:
            return
        batches = batches_of(item.records)
        own_from = known.inherited_end(index)
        inherited = [records for records in batches if records[0].offset < own_from]
        self._life.snapshots.read(known, index, offset, inherited)
        self._world.checker.fetched(
            place,
            item.high_watermark,
            inherited[-1][-1].offset + 1 if inherited else offset,
            batches[len(inherited) :],
        )
        self._epochs[place] = max(self._epochs.get(place, 0), epoch)
        self._ends[place] = item.high_watermark
        if batches and self._positions[place] == offset:
            self._positions[place] = batches[-1][-1].offset + 1


class TopicClients:
    """All of these clients for one run; does nothing without such topics."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._life = world.life
        self._admin = TopicAdmin(world) if world.life.names else None
        self._last = _Writer(world, world.life, _LAST)

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        if self._admin is None:
            return []
        world, life = self._world, self._life
        writers = [
            _Writer(world, life, number) for number in range(_WRITERS if life.is_alone else 2)
        ]
        readers = [
            _Reader(world, life, number) for number in range(_READERS if life.is_alone else 1)
        ]
        return [
            *self._admin.run(stop),
            *(writer.run(stop) for writer in writers),
            *(reader.run(stop) for reader in readers),
        ]

    async def check(self) -> None:
        """Without faults, check that live topics work, and that a topic can be deleted and
        recreated, undeleted or restored from a snapshot.
        """
        if self._admin is None:
            return
        await self._admin.create_missing()
        await self._use()
        renewed, revived = self._life.names[0], self._life.names[-1]
        offsets = TopicOffsets(self._world) if self._life.is_alone else None
        if offsets is not None:
            await offsets.commit(renewed)
        await self._admin.renew(renewed)
        if offsets is not None:
            await offsets.check(renewed, -1)
            await offsets.check(renewed, await offsets.commit(renewed))
            kept = await offsets.commit(revived)
            is_back = await self._admin.revive(revived)
            await offsets.check(revived, kept if is_back else -1)
        else:
            await self._admin.revive(revived)
        await self._use()
        if self._life.is_alone and self._life.has_snapshots:
            # With the smallest limits, the upload for which a snapshot waits takes minutes.
            await self._admin.put_back(self._life.names[0])
            await self._use()

    async def check_cleaned(self) -> None:
        """Check that unreferenced objects are deleted, including WAL slots that served as objects,
        and that referenced ones can be read.
        """
        objects = self._world.metadata.image.objects
        while self._admin is not None and any(  # noqa: ASYNC110 - virtual time
            state.wal is not None and not state.refs for state in objects
        ):
            await asyncio.sleep(0.5)
        await self._read_all()

    async def _read_all(self) -> None:
        await _Reader(self._world, self._life, _LAST).read_all()

    async def _use(self) -> None:
        await asyncio.gather(
            *(
                self._last.write(known, index)
                for known in self._life.live
                for index in range(len(known.streams))
            )
        )
        await self._read_all()

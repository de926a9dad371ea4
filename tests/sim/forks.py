"""Topics are forked during all other activity: normal, transactional, compacted and forked ones.

A new fork contains everything acknowledged before the request, or ends at the requested offset. At
the end, it has the batches of its source below the fork point, then its own records and aborts of
open transactions. Snapshots never change.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.handlers.topics.forks import FORK_DELETED_RECORDS, FORK_OFFSETS
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.controller.metadata.topics import TopicState
from penstock.protocol import apis
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.header import BatchHeader, iter_headers
from penstock.protocol.batch.records import decode_records
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_topics, delete_topics
from penstock.protocol.gen import fetch as wire_fetch
from penstock.stream.format.manifest.model import SNAPSHOT_SEPARATOR, in_snapshot
from tests.sim.checkers import Part, identity_of
from tests.sim.clients import Producer
from tests.sim.compacted import COMPACT_TOPIC, State
from tests.sim.connections import NoResponse
from tests.sim.leaks import LEAKING
from tests.sim.loop import Process
from tests.sim.nodes import FETCH_VERSION, SimBroker
from tests.sim.transactional import INPUT, TXN_TOPIC

if TYPE_CHECKING:
    from tests.sim.world import World

FORK_PREFIX: Final = "fork"
FORKS_MAX: Final = 5
_OWN_IDS: Final = 1_000_000
_CREATE_VERSION: Final = 7
_DELETE_VERSION: Final = 6


@dataclass(slots=True)
class Batch:
    header: BatchHeader
    data: bytes


@dataclass(slots=True, eq=False)
class KnownFork:
    """One fork: the request, and its outcome in the metadata."""

    name: str
    source: str
    acked_ends: list[int]
    """By partition: end offset of the records acknowledged before the request."""
    wanted: dict[int, int]
    """The requested offsets."""
    starts: list[int]
    """By partition: log start offset of the source before the request, then the fork's
    first one.
    """
    origin: str = ""
    """The topic at the start of its chain of sources."""
    keys: list[dict[bytes, State]] = field(default_factory=list[dict[bytes, State]])
    """For a compacted source, by partition: states acknowledged before the request."""
    group_offsets: dict[str, int] = field(default_factory=dict[str, int])
    """For a snapshot: offsets of transactional groups committed before the request."""
    with_deleted: bool = False
    """Whether deleted records were requested."""
    ends: list[int] = field(default_factory=list[int])
    """Fork points, once the metadata contains them."""
    is_acknowledged: bool = False
    """Whether a client got an acknowledgment of its creation."""
    is_doomed: bool = False

    @property
    def is_snapshot(self) -> bool:
        return SNAPSHOT_SEPARATOR in self.name

    @property
    def is_of_transactions(self) -> bool:
        return self.origin == TXN_TOPIC

    @property
    def is_of_compacted(self) -> bool:
        return self.origin == COMPACT_TOPIC

    @property
    def parts(self) -> list[Part]:
        return [(self.name, index) for index in range(len(self.ends))]


class Forks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/forks")
        self._kinds = Random(f"{world.seed}/kinds of forks")
        self._pace_s = max(self._rng.choice((0.3, 1.0, 2.5)), world.chaos_s / (2 * FORKS_MAX))
        self.known: dict[str, KnownFork] = {}
        self._process = Process("forker")
        self._process.network = world.network
        world.processes.append(self._process)
        self._is_inherited_elsewhere = world.checker.is_inherited
        world.checker.is_inherited = self.is_inherited
        self._checks_count = 0

    @property
    def names(self) -> list[str]:
        return [
            name for name, fork in self.known.items() if not fork.is_doomed and not fork.is_snapshot
        ]

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        return [self._fork(stop), *(self._write(number, stop) for number in range(FORKS_MAX))]

    def is_inherited(self, part: Part, end: int) -> bool:
        """See `Checker.is_inherited`. Records of a topic that is being deleted do not count."""
        fork = self.known.get(part[0])
        if fork is None:
            return self._is_inherited_elsewhere(part, end)
        return fork.is_doomed or not fork.ends or end <= fork.ends[part[1]]

    def look(self, image: MetadataImage) -> None:
        """Take the fork points of new forks from the metadata."""
        for fork in self.known.values():
            topic = self._find(fork.name, image)
            if fork.is_snapshot and fork.ends and not fork.is_doomed:
                self._judge_frozen(fork, topic, image)
            if topic is None or fork.ends:
                continue
            for record in topic.partitions:
                point = record.fork
                assert point is not None
                fork.ends.append(point.end_offset)
                self._judge_end(fork, record.partition)
                start = image.streams.known(record.data_stream_id).start_offset
                self._judge_start(fork, record.partition, start)
                fork.starts[record.partition] = start
            if isinstance(topic, FrozenTopic):
                self._judge_groups(fork, topic)
            self._world.trace("forked", fork.name, fork.source, fork.ends)

    def rebuilt(self, image: MetadataImage) -> None:
        """Handle the loss of all controllers' disks, after which they start from `image`. Only
        forks without a response may be absent.
        """
        for fork in self.known.values():
            if not fork.ends or fork.is_doomed or self._find(fork.name, image) is not None:
                continue
            if fork.is_acknowledged:
                self._world.fail(f"{fork.name} was created and is missing after a recovery")
            fork.is_doomed = True

    def _find(
        self, name: str, image: MetadataImage | None = None
    ) -> TopicState | FrozenTopic | None:
        image = self._world.metadata.image if image is None else image
        if SNAPSHOT_SEPARATOR in name:
            return image.frozen_topics.by_full_name(name)
        return image.topics.by_name(name)

    def _judge_frozen(
        self, fork: KnownFork, topic: TopicState | FrozenTopic | None, image: MetadataImage
    ) -> None:
        """Check that a snapshot exists and is unchanged."""
        streams = [
            image.streams.known(record.data_stream_id)
            for record in (() if topic is None else topic.partitions)
        ]
        found = [(stream.start_offset, stream.end_offset) for stream in streams]
        if found != list(zip(fork.starts, fork.ends, strict=True)):
            self._world.fail(f"{fork.name} is {found}, it began as {fork.starts} to {fork.ends}")

    def _judge_groups(self, fork: KnownFork, topic: FrozenTopic) -> None:
        """Check the offsets of the transactional groups."""
        found = {item.group: dict(item.offsets) for item in topic.group_offsets}
        for ledger in self._world.ledgers if fork.source == INPUT[0] else ():
            offset = found.get(ledger.name, {}).get(INPUT[1], -1)
            ledger.saw_offset(offset, fork.group_offsets[ledger.name], 0)

    def _judge_end(self, fork: KnownFork, index: int) -> None:
        part, end, acked_end = (fork.name, index), fork.ends[index], fork.acked_ends[index]
        source = self.known.get(fork.source)
        if index in fork.wanted:
            if end > fork.wanted[index]:
                self._world.fail(f"{part} was forked at {end}, not at {fork.wanted}")
        elif end < acked_end:
            self._world.fail(f"{part} was forked at {end}, but {acked_end} was acknowledged before")
        elif source is not None and source.is_snapshot and end != source.ends[index]:
            self._world.fail(f"{part} was forked at {end}, the snapshot ends at {source.ends}")

    def _judge_start(self, fork: KnownFork, index: int, start: int) -> None:
        world, source = self._world, (fork.source, index)
        if not fork.with_deleted:
            is_snapshot = SNAPSHOT_SEPARATOR in fork.source
            is_there = self._find(fork.source) is not None
            limit = fork.starts[index] if is_snapshot else world.log_start(source)
            if start < fork.starts[index] or (is_there and start > limit):
                world.fail(
                    f"{fork.name}-{index} begins at {start}, its source between"
                    f" {fork.starts[index]} and {limit}"
                )
            return
        assert world.log_starts is not None
        requested = world.log_starts.restorable_from(source, world.loop.time())
        if start > requested:
            world.fail(
                f"{fork.name}-{index} begins at {start}, but what was deleted from {requested} can"
                " come back"
            )

    # --- clients ----------------------------------------------------------------------------------

    async def _fork(self, stop: asyncio.Event) -> None:
        world, rng = self._world, self._rng
        for number in range(FORKS_MAX):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace_s * rng.random() * 2):
                    await stop.wait()
                return
            brings_back = world.log_starts is not None and self._kinds.random() < 0.6
            if brings_back and not await self._deleted_records(stop):
                return
            source = self._world.parts[0][0] if brings_back else self._choose_source()
            is_snapshot = not brings_back and self._kinds.random() < 0.4
            if is_snapshot and SNAPSHOT_SEPARATOR not in source:
                fork = self._note(in_snapshot(source, f"s{number}"), source)
            else:
                fork = self._note(f"{FORK_PREFIX}{number}", source)
            fork.with_deleted = brings_back
            can_choose = not (fork.with_deleted or SNAPSHOT_SEPARATOR in fork.name + source)
            # An earlier offset has an older state of its keys.
            can_choose &= not fork.is_of_compacted
            if rng.random() < 0.3 and can_choose:
                index = rng.randrange(len(fork.acked_ends))
                fork.wanted[index] = rng.randint(
                    world.log_start((source, index)),
                    max(fork.acked_ends[index], world.log_start((source, index))),
                )
            await self._ask_for(fork)
            made = [item for item in self.known.values() if item.ends and not item.is_doomed]
            if made and rng.random() < (0.7 if world.scenario in LEAKING else 0.25):
                await self._delete(rng.choice(made))

    def _note(self, name: str, source: str) -> KnownFork:
        """Record the known state before the fork is requested."""
        world = self._world
        fork = KnownFork(name, source, self._acked_ends(source), {}, self._starts(source))
        fork.origin = self.known[source].origin if source in self.known else source
        fork.group_offsets = {ledger.name: ledger.applied_offset for ledger in world.ledgers}
        if source in self.known:
            fork.keys = self.known[source].keys
        elif world.compacted is not None and fork.is_of_compacted:
            fork.keys = [dict(world.compacted.acked[part]) for part in world.compacted.parts]
        self.known[name] = fork
        return fork

    def _choose_source(self) -> str:
        sources = [name for name in self._sources() if self._find(name) is not None]
        snapshots = [name for name in sources if SNAPSHOT_SEPARATOR in name]
        if snapshots and self._kinds.random() < 0.4:
            return self._kinds.choice(snapshots)
        return self._rng.choice(sources)

    def _sources(self) -> list[str]:
        world = self._world
        forks = [fork.name for fork in self.known.values() if fork.ends and not fork.is_doomed]
        return [
            *(part[0] for part in world.parts[:1]),
            *(part[0] for part in world.txn_parts[:1]),
            *((COMPACT_TOPIC,) if world.compacted is not None else ()),
            *forks,
        ]

    async def _deleted_records(self, stop: asyncio.Event) -> bool:
        """Wait until deleted records can be restored. Return False if the run ends earlier."""
        log_starts = self._world.log_starts
        assert log_starts is not None
        while not stop.is_set():
            if any(log_starts.can_restore(part) for part in self._world.parts):
                return True
            await asyncio.sleep(0.05)
        return False

    def _starts(self, topic: str) -> list[int]:
        if SNAPSHOT_SEPARATOR in topic:
            return list(self.known[topic].starts)
        state = self._find(topic)
        assert state is not None
        return [self._world.log_start((topic, index)) for index in range(len(state.partitions))]

    def _acked_ends(self, topic: str) -> list[int]:
        state = self._find(topic)
        assert state is not None
        return [
            max(
                self._world.checker.acked_end((topic, index)),
                self.known[topic].ends[index] if topic in self.known else 0,
            )
            for index in range(len(state.partitions))
        ]

    async def _ask_for(self, fork: KnownFork) -> None:
        """Repeat until the fork exists or its source is deleted. A response may be lost."""
        world = self._world
        while not fork.ends:
            source = self.known.get(fork.source)
            if source is not None and source.is_doomed:
                del self.known[fork.name]
                return
            requested_s = world.loop.time()
            topic = create_topics.CreatableTopic(fork.name, -1, -1, [], self._configs(fork))
            request = create_topics.CreateTopicsRequest([topic], 5_000, validate_only=False)
            response = await self._send_request(apis.CREATE_TOPICS, _CREATE_VERSION, request)
            if response is not None:
                made = response.topics[0]
                world.trace("fork", fork.name, made.error_code, made.error_message)
                fork.is_acknowledged = fork.is_acknowledged or made.error_code == ErrorCode.NONE
                if fork.with_deleted and made.error_code == ErrorCode.INVALID_CONFIG:
                    self._refused(fork, requested_s)
            if fork.wanted and any(
                world.log_start((fork.source, index)) > offset
                for index, offset in fork.wanted.items()
            ):
                if not fork.ends:
                    del self.known[fork.name]
                return
            await asyncio.sleep(0.2)

    def _configs(self, fork: KnownFork) -> list[Any]:
        configs: dict[str, str] = {FORK_SOURCE: fork.source}
        if fork.wanted:
            offsets = ",".join(f"{index}:{offset}" for index, offset in fork.wanted.items())
            configs[FORK_OFFSETS] = offsets
        if fork.with_deleted:
            configs[FORK_DELETED_RECORDS] = "true"
        if self._world.log_starts is not None and not fork.is_snapshot:
            # The fork keeps records that its source loses.
            configs |= dict.fromkeys(self._world.log_starts.configs, "-1")
        if fork.is_of_compacted and not fork.is_snapshot:
            # Its producers write records without keys.
            configs["cleanup.policy"] = "delete"
        return [create_topics.CreatableTopicConfig(*item) for item in configs.items()]

    def _refused(self, fork: KnownFork, requested_s: float) -> None:
        """A controller reports that no deleted records can be restored; continue without them."""
        log_starts = self._world.log_starts
        assert log_starts is not None
        for index in range(len(fork.starts)):
            part = (fork.source, index)
            start, requested = (
                self._world.log_start(part),
                log_starts.restorable_from(part, requested_s),
            )
            if requested < start:
                self._world.fail(
                    f"{fork.name}: no records can be restored, but [{requested}, {start}) of {part}"
                    " was deleted within the grace"
                )
        fork.with_deleted = False
        # An earlier request may still be executed.
        fork.starts = [0] * len(fork.starts)

    async def _delete(self, fork: KnownFork) -> None:
        topic = self._find(fork.name)
        fork.is_doomed = True
        # A snapshot cannot exist again under the same name.
        while topic is not None and (
            self._world.metadata.image.topics.by_id(topic.topic_id)
            or self._find(fork.name) is topic
        ):
            state = delete_topics.DeleteTopicState(None, topic.topic_id)
            request = delete_topics.DeleteTopicsRequest(topics=[state], timeout_ms=5_000)
            await self._send_request(apis.DELETE_TOPICS, _DELETE_VERSION, request)
            await asyncio.sleep(0.2)

    async def _send_request(self, api: Any, version: int, request: Any) -> Any:
        serving = [
            broker
            for _, broker in sorted(self._world.brokers.items())
            if broker.serving and not broker.process.dead
        ]
        if not serving:
            return None
        connection = self._process.context().run(
            lambda: self._world.connect(self._rng.choice(serving))
        )
        try:
            return await connection.send_request(api, version, request, 10)
        except NoResponse:
            return None

    async def _write(self, number: int, stop: asyncio.Event) -> None:
        """Write to a fork with an id that may also write to the source."""
        name = f"{FORK_PREFIX}{number}"
        producer: Producer | None = None
        while not stop.is_set():
            fork = self.known.get(name)
            if fork is not None and fork.ends and not fork.is_doomed:
                if producer is None:
                    # Transactional producers already use these ids with their own epochs.
                    own = number + _OWN_IDS if self._has_transactions(fork) else number
                    producer = Producer(self._world, own, idempotent=True, name=name)
                writing = asyncio.ensure_future(producer.write([self._rng.choice(fork.parts)]))
                while not writing.done() and not fork.is_doomed:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.05)
                if not writing.done():
                    writing.cancel()
                    return
            await asyncio.sleep(0.05 + self._rng.random() * 0.3)

    def _has_transactions(self, fork: KnownFork) -> bool:
        compacted = self._world.compacted
        return fork.is_of_transactions or (
            fork.is_of_compacted and compacted is not None and compacted.transactions is not None
        )

    # --- at the end -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Read every fork without faults, including new forks of snapshots, and compare it with its
        source.
        """
        self._checks_count += 1
        for number, fork in enumerate(list(self.known.values())):
            if fork.is_snapshot and fork.ends and not fork.is_doomed:
                await self._check_not_served(fork)
                name = f"{FORK_PREFIX}-at-end-{self._checks_count}-{number}"
                await self._ask_for(self._note(name, fork.name))
        served = [
            fork
            for fork in self.known.values()
            if fork.ends and not fork.is_doomed and not fork.is_snapshot
        ]
        parts = [part for fork in served for part in fork.parts]
        sources = [
            (self._served_source(fork), part[1])
            for fork in served
            for part in fork.parts
            if not fork.is_of_compacted and self._find(self._served_source(fork)) is not None
        ]
        logs = await self._read_all([*parts, *sources], is_committed=False)
        committed = await self._read_all(parts, is_committed=True)
        for fork in served:
            for part in fork.parts:
                source = (self._served_source(fork), part[1])
                if source in logs:
                    self._compare(part, logs[part], logs[source], fork.ends[part[1]])
                self._check_own(part, logs[part], fork.ends[part[1]])
                if fork.is_of_compacted:
                    self._check_keys(fork, part[1], logs[part])
                elif not fork.is_of_transactions:
                    self._check_inherited(part, logs[part])
                self._check_committed(part, logs[part], committed[part])

    def _served_source(self, fork: KnownFork) -> str:
        """Return its source, or the source of the snapshot that is its source."""
        source = self.known.get(fork.source)
        return source.source if source is not None and source.is_snapshot else fork.source

    async def _check_not_served(self, fork: KnownFork) -> None:
        for _, broker in sorted(self._world.brokers.items()):
            for part in fork.parts if broker.serving else ():
                found = await self._fetch(broker, part, -1, 0, is_committed=False)
                if found is not None:
                    self._world.fail(f"{part} of a snapshot is served: {found}")

    def _check_keys(self, fork: KnownFork, index: int, log: list[Batch]) -> None:
        """Check that it contains the newest acknowledged state of every key."""
        compacted, part = self._world.compacted, (COMPACT_TOPIC, index)
        assert compacted is not None
        below = [batch for batch in log if batch.header.base_offset < fork.ends[index]]
        compacted.check_copy(part, [batch.data for batch in below], fork.keys[index])

    def _compare(self, part: Part, log: list[Batch], source: list[Batch], end: int) -> None:
        """Compare the contents of both logs below the fork point."""
        start = max(self._world.log_start(part), source[0].header.base_offset if source else end)
        shared = [
            {
                item.header.base_offset: item.data
                for item in batches
                if start <= item.header.base_offset < end
            }
            for batches in (log, source)
        ]
        if shared[0] != shared[1]:
            self._world.fail(
                f"{part}: below its fork point {end} it has {sorted(shared[0])}, its source has"
                f" {sorted(shared[1])}, or their batches differ"
            )

    def _check_own(self, part: Part, log: list[Batch], end: int) -> None:
        found: dict[bytes, int] = {}
        offset = self._world.log_start(part)
        is_whole = not self.known[part[0]].is_of_compacted
        for batch in log:
            header = batch.header
            if header.base_offset > offset and is_whole:
                self._world.fail(f"{part}: nothing from {offset} to {header.base_offset}")
            offset = header.next_offset
            if header.base_offset < end:
                if header.next_offset > end:
                    self._world.fail(f"{part}: a batch lies across the fork point {end}: {header}")
            elif header.is_control:
                marker = decode_marker(memoryview(batch.data), header.producer_id, 0)
                if marker.committed:
                    self._world.fail(f"{part}: a commit after the fork point {end}: {header}")
            else:
                for record in decode_records(memoryview(batch.data)):
                    found[identity_of(record)] = record.offset
        for identity, at in self._world.checker.acked(part).items():
            if found.get(identity) != at and at >= self._world.log_start(part):
                self._world.fail(
                    f"{part}: {identity!r} was acknowledged at {at}, it lies at"
                    f" {found.get(identity)}"
                )

    def _check_inherited(self, part: Part, log: list[Batch]) -> None:
        """Check that it contains the acknowledged records of its source below its fork point."""
        acked, end, name = dict[bytes, int](), self.known[part[0]].ends[part[1]], part[0]
        while (fork := self.known.get(name)) is not None:
            end, name = min(end, fork.ends[part[1]]), fork.source
            own = self._world.checker.acked((name, part[1]))
            acked |= {identity: at for identity, at in own.items() if at < end}
        found = {
            record.offset: identity_of(record)
            for batch in log
            if not batch.header.is_control
            for record in decode_records(memoryview(batch.data))
        }
        for identity, at in acked.items():
            if at >= self._world.log_start(part) and found.get(at) != identity:
                self._world.fail(
                    f"{part}: {identity!r} was acknowledged to a source at {at}, there lies"
                    f" {found.get(at)!r}"
                )

    def _check_committed(self, part: Part, log: list[Batch], committed: list[Batch]) -> None:
        """Compare a read_committed read with the markers in the log."""
        kept: dict[int, Batch] = {}
        open_: dict[int, list[Batch]] = {}
        for batch in log:
            header = batch.header
            if header.is_control:
                ended = open_.pop(header.producer_id, [])
                if decode_marker(memoryview(batch.data), header.producer_id, 0).committed:
                    kept |= {item.header.base_offset: item for item in ended}
            elif header.is_transactional:
                open_.setdefault(header.producer_id, []).append(batch)
            else:
                kept[header.base_offset] = batch
        # Brokers may omit batches that log compaction has emptied.
        found = [batch.header.base_offset for batch in committed if batch.header.record_count]
        expected = sorted(offset for offset, batch in kept.items() if batch.header.record_count)
        if found != expected:
            self._world.fail(f"{part}: {found} are read as committed, not {expected}")

    async def _read_all(
        self, parts: Sequence[Part], *, is_committed: bool
    ) -> dict[Part, list[Batch]]:
        """Read these logs concurrently, because with the smallest limits a read takes many
        requests.
        """
        requested = list(dict.fromkeys(parts))
        reads = (self._read(part, is_committed=is_committed) for part in requested)
        return dict(zip(requested, await asyncio.gather(*reads), strict=True))

    async def _read(self, part: Part, *, is_committed: bool) -> list[Batch]:
        """Return the batches of the whole log. is_committed: without control batches and aborted
        batches, as a Kafka consumer drops them.
        """
        rng, batches = Random(f"{self._world.seed}/{part}/forks"), list[Batch]()
        offset = self._world.log_start(part)
        while True:
            broker, epoch = self._world.leader(part, rng, exact=True)
            found = None
            if broker is not None and broker.serving:
                found = await self._fetch(broker, part, epoch, offset, is_committed=is_committed)
            if found is None:
                await asyncio.sleep(0.1)
                if self._world.log_start(part) > offset:
                    offset = self._world.log_start(part)
                    batches.clear()
                continue
            begun = [] if found.aborted_transactions is None else list(found.aborted_transactions)
            aborting = set[int]()
            data = bytes(found.records or b"")
            for at, header in iter_headers(data):
                batch = Batch(header, data[at : at + header.size_bytes])
                while begun and begun[0].first_offset <= header.last_offset:
                    aborting.add(begun.pop(0).producer_id)
                if is_committed and header.is_control:
                    marker = decode_marker(memoryview(batch.data), header.producer_id, 0)
                    if not marker.committed:
                        aborting.discard(header.producer_id)
                elif not is_committed or header.producer_id not in aborting:
                    batches.append(batch)
                offset = header.next_offset
            if not data:
                if part[0] not in self.known or found.last_stable_offset == found.high_watermark:
                    return batches
                # A leader aborts open transactions when it opens the fork.
                await asyncio.sleep(0.1)

    async def _fetch(
        self, broker: SimBroker, part: Part, epoch: int, offset: int, *, is_committed: bool
    ) -> Any:
        requested = wire_fetch.FetchPartition(
            partition=part[1],
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=1 << 20,
        )
        request = wire_fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(is_committed),
            topics=[wire_fetch.FetchTopic(topic=part[0], partitions=[requested])],
        )
        try:
            response = await self._world.connect(broker).send_request(
                apis.FETCH, FETCH_VERSION, request, 10
            )
        except NoResponse:
            return None
        found = response.responses[0].partitions[0]
        return None if found.error_code else found

"""Simulator runs without random faults, in which a script decides what happens and when.

A script finds a bug that requires a few events in a certain order. Requests are Kafka frames and
are repeated until they succeed. Nothing is lost or slow unless the script pauses a broker.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.ids import NodeId
from penstock.base.principal import ANONYMOUS
from penstock.broker.handlers.table import API_RIGHTS
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.acl_authorizer import Authorizer
from penstock.broker.requests.audit import AuditLog
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import NewTopic
from penstock.controller.metadata.topic_configs import FORK_SOURCE, UNDELETE
from penstock.controller.metadata.topics import TopicState
from penstock.protocol import apis
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_topics, delete_records, delete_topics, find_coordinator
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.gen import produce as wire_produce
from penstock.stream.cleaning.cleaner import CleanerConfig
from tests.sim.checkers import Part
from tests.sim.committed import returned_batches
from tests.sim.connections import Connection, NoResponse
from tests.sim.limits import quick_limits
from tests.sim.nodes import FETCH_VERSION, PRODUCE_VERSION, RACK, SimBroker
from tests.sim.world import World

_TIMEOUT_S: Final = 30.0
"""Timeout of each request with all its repetitions, in virtual time."""
_RETRY_INTERVAL_S: Final = 0.05
JANITOR_S: Final = 50.0
"""Longer than the time for which unreferenced objects are kept."""
GROUP, TRANSACTIONAL_ID = 0, 1
"""Key types that have a coordinator."""
_CREATE_VERSION: Final = 7
_DELETE_VERSION: Final = 6
_DELETE_RECORDS_VERSION: Final = 2
_FIND_VERSION: Final = 4
CONTROLLER: Final = "c0"
"""The link of the only controller."""


ScriptFunction: TypeAlias = "Callable[[Script], Awaitable[None]]"


_CLUSTERS: dict[ScriptFunction, dict[str, int]] = {}


def in_cluster(**settings: int) -> Callable[[ScriptFunction], ScriptFunction]:
    """Run the script in a different cluster. brokers, controllers, racks, wal_stores: their
    numbers. compacting: 1 if brokers compact objects. Others are controller settings.
    """

    def mark(script: ScriptFunction) -> ScriptFunction:
        _CLUSTERS[script] = settings
        return script

    return mark


@cache
def violation_of(script: ScriptFunction) -> str | None:
    """Return the finding of the script without a planted bug."""
    return violation_now(script)


def violation_now(script: ScriptFunction) -> str | None:
    """Run a cluster of one controller and a few brokers until the script ends. Return the violation
    that the script or a checker of the simulator found.
    """

    async def live(world: World) -> None:
        for number in range(world.limits.controllers):
            world.start_controller(number)
        for node_id in range(1, world.limits.brokers + 1):
            world.start_broker(node_id)
        while not all(broker.serving for broker in world.brokers.values()):  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(_RETRY_INTERVAL_S)
        await script(Script(world))
        world.checker.check_metadata()

    world = World(0, "directed", limits=quick_limits(**_CLUSTERS.get(script, {})), live=live)
    world.calm = True
    world.checker.is_inherited = lambda part, end: _is_inherited(world, part, end)
    # One range is rewritten at a time, so that a fork may lie between two cleaned ranges.
    world.cleaner = CleanerConfig(group_bytes_max=1)
    return world.run().violation


def _is_inherited(world: World, part: Part, end: int) -> bool:
    """See `Checker.is_inherited`."""
    topic = world.metadata.image.topics.by_name(part[0])
    point = None if topic is None else topic.partitions[part[1]].fork
    return point is not None and end <= point.end_offset


class Held:
    """Requests to the store that wait until they are released, while later ones pass."""

    def __init__(self, count_max: int | None) -> None:
        self.count = 0
        """Requests that came here."""
        self._count_max = count_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = False

    async def pass_through(self) -> None:
        self.count += 1
        if self._is_open or (self._count_max is not None and self.count > self._count_max):
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def release(self, count: int | None = None) -> None:
        """Release all requests including later ones, or only the first waiting ones."""
        self._is_open = count is None
        for _ in range(len(self._waiting) if count is None else count):
            if not (waiting := self._waiting.popleft()).done():  # its sender may have died
                waiting.set_result(None)


class Script:
    """Cluster operations for scripts. Every method returns when its operation is complete."""

    def __init__(self, world: World) -> None:
        self.world = world

    def broker(self, node_id: int) -> SimBroker:
        return self.world.brokers[node_id]

    def leader(self, part: Part) -> SimBroker | None:
        topic = self.world.metadata.image.topics.by_name(part[0])
        return None if topic is None else self.world.brokers.get(topic.partitions[part[1]].leader)

    @contextmanager
    def paused(self, node_id: int) -> Generator[None]:
        """Pause the process of a broker. Must be shorter than its session."""
        process = self.broker(node_id).process
        process.pause()
        try:
            yield
        finally:
            process.resume(self.world.loop)

    @contextmanager
    def isolated(self, node_id: int) -> Generator[None]:
        """Cut the links between a broker and the controller. Clients and the store
        still reach it.
        """
        links, link = self.world.network.links, self.broker(node_id).process.link
        links.cut(link, CONTROLLER)
        links.cut(CONTROLLER, link)
        try:
            yield
        finally:
            links.mend(link, CONTROLLER)
            links.mend(CONTROLLER, link)

    @contextmanager
    def apart(self, one: int, other: int) -> Generator[None]:
        """Cut the links between two brokers."""
        links = self.world.network.links
        ends = self.broker(one).process.link, self.broker(other).process.link
        for pair in (ends, ends[::-1]):
            links.cut(*pair)
        try:
            yield
        finally:
            for pair in (ends, ends[::-1]):
                links.mend(*pair)

    def authorize(self) -> None:
        """Give all brokers an authorizer that allows everything, because ACL APIs require an
        authorizer.
        """
        config = SecurityConfig(authorizer=STANDARD_AUTHORIZER, super_users=str(ANONYMOUS))
        for broker in self.world.brokers.values():
            broker.authorizer = Authorizer(config, AuditLog(self.world.loop.time), API_RIGHTS)

    async def restart(self, node_id: int) -> None:
        """Kill the process of a broker, and wait until the next one serves."""
        self.kill(node_id)
        broker = self.world.start_broker(node_id)
        await self.until(lambda: broker.serving)

    def kill(self, node_id: int) -> None:
        self.world.kill(self.broker(node_id), resets=True)

    async def restart_controller(self) -> None:
        """Crash the only controller, and wait until the next one leads."""
        (controller,) = self.world.controllers.values()
        self.world.crash_controller(controller, 0.01)
        await self.until(lambda: self.world.active_controller() not in {None, controller})

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is met."""
        end_s = self.world.loop.time() + _TIMEOUT_S
        while not condition():
            if self.world.loop.time() > end_s:
                raise AssertionError(f"a condition of the script does not hold in {_TIMEOUT_S} s")
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def until_led(self, part: Part, node_id: int) -> None:
        """Wait until this broker leads the partition and has opened it."""
        await self.until(
            lambda: (
                self.leader(part) is self.broker(node_id)
                and isinstance(self.broker(node_id).partitions.get(*part), Partition)
            )
        )

    async def move(self, part: Part, node_id: int) -> None:
        """Let another broker lead a partition."""
        self.world.admin.move(part, NodeId(node_id))
        await self.until_led(part, node_id)

    def hold(
        self, node_id: int, operation: str = "put_if_absent", *, first: int | None = None
    ) -> Held:
        """Hold a broker's requests to the store, or only the first ones."""
        held = Held(first)
        self.broker(node_id).raw_store.gates[operation] = held
        return held

    def hold_responses(
        self, node_id: int, operation: str = "put_if_absent", *, first: int | None = None
    ) -> Held:
        """Hold the responses of the store."""
        held = Held(first)
        self.broker(node_id).raw_store.response_gates[operation] = held
        return held

    def hold_in_wal_store(self, node_id: int, *, first: int | None = None) -> Held:
        """Hold a broker's conditional PUTs to the WAL store."""
        held = Held(first)
        client = self.broker(node_id).raw_wal_store
        assert client is not None
        client.gates["put_if_absent"] = held
        return held

    @contextmanager
    def cut(self, one: int, other: int) -> Generator[None]:
        """Lose the requests from one broker to another."""
        links = self.world.network.links
        ends = self.broker(one).process.link, self.broker(other).process.link
        links.cut(*ends)
        try:
            yield
        finally:
            links.mend(*ends)

    @contextmanager
    def deaf_clients(self, broker: SimBroker) -> Generator[None]:
        """Lose a broker's responses to clients."""
        links = self.world.network.links
        links.cut(broker.process.link, "client")
        try:
            yield
        finally:
            links.mend(broker.process.link, "client")

    @contextmanager
    def refused(self, node_id: int) -> Generator[None]:
        """Put a firewall between a broker and the controller that refuses connections, as the
        address of a dead controller does.
        """
        link = self.broker(node_id).process.link
        self.world.network.reject(link, CONTROLLER)
        try:
            yield
        finally:
            self.world.network.links.admit(link, CONTROLLER)

    # --- topics -----------------------------------------------------------------------------------

    async def create(self, name: str, leaders: Sequence[int] = (1,), **configs: str) -> None:
        """Create a topic with one partition for each of these leaders. configs: with underscores
        instead of dots.
        """
        assignment = [[NodeId(node_id)] for node_id in leaders]
        topic = NewTopic(name=name, assignment=assignment, configs={**_dotted(configs)})
        await self.world.admin.create_topics([topic])

    async def fork(self, name: str, source: str, by: int = 1, **configs: str) -> None:
        """Create a fork of a topic with a request to this broker. configs: as in `create`."""
        await self._create_from(name, {FORK_SOURCE: source, **_dotted(configs)}, by)

    async def undelete(self, name: str, topic_id: UUID) -> None:
        await self._create_from(name, {UNDELETE: str(topic_id)}, 1)

    async def _create_from(self, name: str, configs: Mapping[str, str], by: int) -> None:
        items = [create_topics.CreatableTopicConfig(*item) for item in configs.items()]
        topic = create_topics.CreatableTopic(name, -1, -1, [], items)
        request = create_topics.CreateTopicsRequest([topic], 10_000, validate_only=False)
        await self.repeat(
            lambda: self.broker(by),
            (apis.CREATE_TOPICS, _CREATE_VERSION, request),
            lambda response: response.topics[0],
            done=(ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS),
        )

    async def delete_records(self, part: Part, offset: int) -> None:
        """Delete the records below an offset."""
        wanted = delete_records.DeleteRecordsPartition(part[1], offset)
        topic = delete_records.DeleteRecordsTopic(part[0], [wanted])
        request = delete_records.DeleteRecordsRequest([topic], timeout_ms=5_000)
        await self.repeat(
            lambda: self.leader(part),
            (apis.DELETE_RECORDS, _DELETE_RECORDS_VERSION, request),
            lambda response: response.topics[0].partitions[0],
        )

    def topic(self, name: str) -> TopicState:
        found = self.world.metadata.image.topics.by_name(name)
        assert found is not None, f"topic {name} does not exist"
        return found

    async def delete(self, name: str) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name)], timeout_ms=10_000
        )
        await self.repeat(
            lambda: self.broker(1),
            (apis.DELETE_TOPICS, _DELETE_VERSION, request),
            lambda response: response.responses[0],
            done=(ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )

    # --- records ----------------------------------------------------------------------------------

    async def write(
        self,
        part: Part,
        *pairs: tuple[bytes, bytes | None],
        producer_id: int = -1,
        sequence: int = -1,
    ) -> int:
        """Append one batch of keys and values. Return its base offset. sequence: that of an
        idempotent producer.
        """
        epoch = -1 if producer_id < 0 else 0
        request = produce_request_of(
            part, self.batch(*pairs, producer_id=producer_id, epoch=epoch, sequence=sequence)
        )
        response = await self.repeat(
            lambda: self.leader(part),
            (apis.PRODUCE, PRODUCE_VERSION, request),
            lambda response: response.responses[0].partition_responses[0],
        )
        return int(response.base_offset)

    async def produce(
        self, broker: SimBroker, part: Part, batch: bytes, timeout_s: float = _TIMEOUT_S
    ) -> Any:
        """Send a batch once to this broker, and return the response for the partition. Raises
        NoResponse.
        """
        request = produce_request_of(part, batch)
        response = await self.world.connect(broker).send_request(
            apis.PRODUCE, PRODUCE_VERSION, request, timeout_s
        )
        return response.responses[0].partition_responses[0]

    def producing(self, broker: SimBroker, part: Part, batch: bytes) -> "asyncio.Task[Any]":
        """Send a batch once without waiting for the response. The result is None if there is no
        response.
        """

        async def send() -> Any:
            with suppress(NoResponse):
                return await self.produce(broker, part, batch)

        return self.world.loop.create_task(send())

    def batch(
        self,
        *pairs: tuple[bytes, bytes | None],
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        attributes: int = 0,
    ) -> bytes:
        now_ms = self.world.now_ms()
        records = [Record(at, now_ms, key, value, ()) for at, (key, value) in enumerate(pairs)]
        return bytes(
            encode_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                attributes=attributes,
            )
        )

    async def read(
        self, part: Part, *, committed: bool = False, start_offset: int = 0
    ) -> list[Record]:
        """Return the records of the log. committed: up to the last stable offset, without aborted
        transactions.
        """
        records, offset = list[Record](), start_offset
        while True:
            found = await self._fetch(part, offset, committed=committed)
            if not bytes(found.records or b""):
                return records
            for data, header, is_kept in returned_batches(found):
                if is_kept:
                    records += [item for item in decode_records(data) if item.offset >= offset]
                offset = header.next_offset

    async def _fetch(self, part: Part, offset: int, *, committed: bool) -> Any:
        request = self.fetch_request(part, offset, committed=committed)
        return await self.repeat(
            lambda: self.leader(part),
            (apis.FETCH, FETCH_VERSION, request),
            lambda response: response.responses[0].partitions[0],
        )

    def fetch_request(self, part: Part, offset: int, *, committed: bool) -> wire_fetch.FetchRequest:
        requested = wire_fetch.FetchPartition(
            partition=part[1], fetch_offset=offset, partition_max_bytes=1 << 20
        )
        return wire_fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            topics=[wire_fetch.FetchTopic(topic=part[0], partitions=[requested])],
        )

    async def read_near(
        self, part: Part, node_id: int, end: int, *, committed: bool
    ) -> list[Record]:
        """Return the response of a broker in the client's rack that is not the leader, once it
        knows the log up to this end.
        """
        while True:
            request = self.fetch_request(part, 0, committed=committed)
            request.rack_id = RACK
            response = await self.send_request(
                self.broker(node_id), apis.FETCH, FETCH_VERSION, request
            )
            found = response.responses[0].partitions[0]
            if found.error_code == ErrorCode.NONE and found.high_watermark >= end:
                return [
                    record
                    for data, _, is_kept in returned_batches(found)
                    if is_kept
                    for record in decode_records(data)
                ]
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def high_watermark(self, part: Part) -> int:
        """Return the high watermark that the leader returns to consumers."""
        return int((await self._fetch(part, 0, committed=False)).high_watermark)

    async def values(self, part: Part, *, committed: bool = False) -> dict[bytes, bytes | None]:
        """Return the last value of each key."""
        records = await self.read(part, committed=committed)
        return {record.key or b"": record.value for record in records}

    async def upload(self, node_id: int) -> None:
        """Upload the records that are only in this broker's WAL."""
        broker = self.broker(node_id)
        await self._within(broker, broker.storage.upload)

    async def checkpoint(self, part: Part) -> None:
        """Store the producer states of a partition."""
        broker = self.leader(part)
        assert broker is not None
        partition = broker.partitions.get(*part)
        assert isinstance(partition, Partition)
        await self._within(broker, lambda: broker.partitions.checkpoint_durably(partition))

    async def clean(self, node_id: int) -> int:
        """Clean the logs that this broker leads. Return the number of removed records."""
        broker = self.broker(node_id)
        before = broker.cleaning.removed_records
        await self._within(broker, broker.cleaning.check)
        return broker.cleaning.removed_records - before

    # --- requests ---------------------------------------------------------------------------------

    async def _within(self, broker: SimBroker, work: Callable[[], Any]) -> None:
        await self.world.loop.create_task(work(), context=broker.process.context())

    def record(self, requested: Any) -> "list[tuple[Any, int, Any]]":
        """Return a list that collects all requests of an API from now on."""
        recorded: list[tuple[Any, int, Any]] = []

        class Recording(Connection):
            async def send_request(
                self, api: Any, version: int, message: Any, timeout_s: float
            ) -> Any:
                if api is requested:
                    recorded.append((api, version, message))
                return await super().send_request(api, version, message, timeout_s)

        self.world.connect = lambda broker: Recording(self.world, broker)
        return recorded

    def begin(self, broker: SimBroker, work: Callable[[], Any]) -> "asyncio.Task[Any]":
        """Start an operation in the process of a broker, which may fail."""

        async def run() -> None:
            with suppress(Exception):
                await work()

        return self.world.loop.create_task(run(), context=broker.process.context())

    async def send_request(self, broker: SimBroker, api: Any, version: int, request: Any) -> Any:
        """Send a request once on a separate connection. Raises NoResponse."""
        return await self.world.connect(broker).send_request(api, version, request, _TIMEOUT_S)

    async def coordinator(self, key: str, kind: int = GROUP) -> SimBroker:
        """Return the coordinator of a group or a transactional id, according to any broker."""
        request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        found = await self.repeat(
            lambda: next(filter(self._is_reliable, self.world.brokers.values()), None),
            (apis.FIND_COORDINATOR, _FIND_VERSION, request),
            lambda response: response.coordinators[0],
        )
        return self.broker(found.node_id)

    def _is_reliable(self, broker: SimBroker) -> bool:
        links = self.world.network.links
        return (
            broker.serving
            and broker.process.held is None
            and not links.blocked(broker.process.link, CONTROLLER)
            and not links.rejects(broker.process.link, CONTROLLER)
        )

    async def repeat(
        self,
        find: Callable[[], SimBroker | Awaitable[SimBroker] | None],
        request: tuple[Any, int, Any],
        item_of: Callable[[Any], Any],
        done: Sequence[ErrorCode] = (ErrorCode.NONE,),
        field: str = "error_code",
    ) -> Any:
        """Repeat a request until the error code of its item is final. Return the item.

        field: that of the item with the code.
        """
        code, end_s = None, self.world.loop.time() + _TIMEOUT_S
        while self.world.loop.time() < end_s:
            broker = find()
            if isinstance(broker, Awaitable):
                broker = await broker
            if broker is not None:
                with suppress(NoResponse):
                    item = item_of(await self.send_request(broker, *request))
                    code = ErrorCode(getattr(item, field))
                    if code in done:
                        return item
            await asyncio.sleep(_RETRY_INTERVAL_S)
        raise AssertionError(f"{request[0].name}: {code!r} after {_TIMEOUT_S} s")


def _dotted(configs: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in configs.items()}


def produce_request_of(
    part: Part, batch: bytes, transactional_id: str | None = None
) -> wire_produce.ProduceRequest:
    item = wire_produce.PartitionProduceData(part[1], batch)
    topics = [wire_produce.TopicProduceData(name=part[0], partition_data=[item])]
    return wire_produce.ProduceRequest(transactional_id, -1, 10_000, topics)

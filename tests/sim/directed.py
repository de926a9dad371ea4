"""Runs of the simulator without random faults, in which one script decides what happens and when.

A script finds a bug that needs a few events in one order. Requests are Kafka frames, and are
repeated until they succeed. Nothing is lost or slow, unless the script pauses a broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.base.ids import NodeId
from penstock.broker.partition.partition import Partition
from penstock.broker.wire import apis
from penstock.broker.wire.error_codes import ErrorCode
from penstock.broker.wire.gen import create_topics, delete_topics
from penstock.broker.wire.gen import fetch as wire_fetch
from penstock.broker.wire.gen import produce as wire_produce
from penstock.controller.api.messages import NewTopic
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.stream.batch.header import iter_headers
from penstock.stream.batch.records import Record, decode_records, encode_batch
from penstock.stream.cleaning.cleaner import CleanerConfig
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from tests.sim.checkers import Part
from tests.sim.connections import Unanswered
from tests.sim.limits import LATE_PUT_GRACE_MS, Limits, draw
from tests.sim.nodes import FETCH_VERSION, PRODUCE_VERSION, SimBroker
from tests.sim.world import World

_TIMEOUT_S: Final = 30.0
"""Of each request, and of all its repetitions, in virtual time."""
_RETRY_INTERVAL_S: Final = 0.05
_CREATE_VERSION: Final = 7
_DELETE_VERSION: Final = 6


def violation_of(script: "Callable[[Script], Awaitable[None]]") -> str | None:
    """Run a cluster of one controller and two brokers until the script ends. Return what it, or a
    checker of the simulator, found wrong.
    """

    async def live(world: World) -> None:
        world.start_controller(0)
        for node_id in range(1, world.limits.brokers + 1):
            world.start_broker(node_id)
        while not all(broker.serving for broker in world.brokers.values()):  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(_RETRY_INTERVAL_S)
        await script(Script(world))
        world.checker.check_metadata()

    world = World(0, "directed", limits=_limits(), live=live)
    world.calm = True
    world.checker.is_inherited = lambda part, end: _is_inherited(world, part, end)
    # One range is exchanged at a time, so that a fork may lie between two that were cleaned.
    world.cleaner = CleanerConfig(group_bytes_max=1)
    return world.run().violation


def _is_inherited(world: World, part: Part, end: int) -> bool:
    """See `Checker.is_inherited`."""
    topic = world.metadata.image.topics.by_name(part[0])
    point = None if topic is None else topic.partitions[part[1]].fork
    return point is not None and end <= point.end_offset


def _limits() -> Limits:
    """Return the limits of the product, with a quick store and network that never fail."""
    return replace(
        draw(Random(0)),
        stream=StreamConfig(),
        controller=ControllerConfig(
            data_dir=Path("/nowhere"),
            cluster_id="sim",
            late_put_grace_ms=LATE_PUT_GRACE_MS,
            delete_grace_ms=0,
            backup_interval_ms=50,
        ),
        compaction=CompactionConfig(),
        compacting=False,
        checkpoint_bytes=64 << 20,
        metadata_timeout_s=30.0,
        retrying_store=False,
        brokers=2,
        controllers=1,
        skew_ms=0,
        store_p50_ms=2,
        store_p99_ms=3,
        store_faults=0.0,
        network_ms=1,
        network_lossy=0.0,
        disk_sync_ms=1,
    )


class Script:
    """What a script does to the cluster. Every method returns when it is done."""

    def __init__(self, world: World) -> None:
        self.world = world

    def broker(self, node_id: int) -> SimBroker:
        return self.world.brokers[node_id]

    def leader(self, part: Part) -> SimBroker | None:
        topic = self.world.metadata.image.topics.by_name(part[0])
        return None if topic is None else self.world.brokers.get(topic.partitions[part[1]].leader)

    @contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """Pause the process of a broker. Must be shorter than its session."""
        process = self.broker(node_id).process
        process.pause()
        try:
            yield
        finally:
            process.resume(self.world.loop)

    async def restart(self, node_id: int) -> None:
        """Kill the process of a broker, and wait until its next one serves."""
        world = self.world
        world.kill(self.broker(node_id), resets=True)
        broker = world.start_broker(node_id)
        while not broker.serving:  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(_RETRY_INTERVAL_S)

    # --- topics -----------------------------------------------------------------------------------

    async def create(self, name: str, leaders: Sequence[int] = (1,), **configs: str) -> None:
        """Create a topic with one partition for each of these leaders. configs: with underscores
        for dots.
        """
        assignment = [[NodeId(node_id)] for node_id in leaders]
        named: dict[str, str | None] = {
            key.replace("_", "."): value for key, value in configs.items()
        }
        topic = NewTopic(name=name, assignment=assignment, configs=named)
        await self.world.admin.create_topics([topic])

    async def fork(self, name: str, source: str, by: int = 1) -> None:
        """Create a fork of a topic by a request to this broker."""
        configs = [create_topics.CreatableTopicConfig(FORK_SOURCE, source)]
        topic = create_topics.CreatableTopic(name, -1, -1, [], configs)
        request = create_topics.CreateTopicsRequest([topic], 10_000, validate_only=False)
        await self._repeat(
            lambda: self.broker(by),
            (apis.CREATE_TOPICS, _CREATE_VERSION, request),
            lambda response: response.topics[0],
            done=(ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS),
        )

    async def delete(self, name: str) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name)], timeout_ms=10_000
        )
        await self._repeat(
            lambda: self.broker(1),
            (apis.DELETE_TOPICS, _DELETE_VERSION, request),
            lambda response: response.responses[0],
            done=(ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )

    # --- records ----------------------------------------------------------------------------------

    async def write(
        self, part: Part, *pairs: tuple[bytes, bytes], producer_id: int = -1, sequence: int = -1
    ) -> int:
        """Append one batch of keys and values. Return its base offset. sequence: of an idempotent
        producer.
        """
        records = [
            Record(at, self.world.now_ms(), key, value, ()) for at, (key, value) in enumerate(pairs)
        ]
        data = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
        )
        item = wire_produce.PartitionProduceData(part[1], bytes(data))
        topics = [wire_produce.TopicProduceData(name=part[0], partition_data=[item])]
        request = wire_produce.ProduceRequest(None, -1, 10_000, topics)
        response = await self._repeat(
            lambda: self.leader(part),
            (apis.PRODUCE, PRODUCE_VERSION, request),
            lambda response: response.responses[0].partition_responses[0],
        )
        return int(response.base_offset)

    async def read(self, part: Part) -> list[Record]:
        """Return the records of the log."""
        records, offset = list[Record](), 0
        while True:
            wanted = wire_fetch.FetchPartition(
                partition=part[1], fetch_offset=offset, partition_max_bytes=1 << 20
            )
            request = wire_fetch.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                topics=[wire_fetch.FetchTopic(topic=part[0], partitions=[wanted])],
            )
            found = await self._repeat(
                lambda: self.leader(part),
                (apis.FETCH, FETCH_VERSION, request),
                lambda response: response.responses[0].partitions[0],
            )
            data = memoryview(bytes(found.records or b""))
            if not data:
                return records
            for at, header in iter_headers(data):
                if not header.is_control:
                    records += decode_records(data[at:])
                offset = header.next_offset

    async def upload(self, node_id: int) -> None:
        """Upload what only the WAL of this broker has."""
        broker = self.broker(node_id)
        await self._within(broker, broker.storage.upload)

    async def checkpoint(self, part: Part) -> None:
        """Store the producers of a partition."""
        broker = self.leader(part)
        assert broker is not None
        partition = broker.partitions.get(*part)
        assert isinstance(partition, Partition)
        await self._within(broker, lambda: broker.partitions.checkpoint_durably(partition))

    async def clean(self, node_id: int) -> int:
        """Clean the logs that this broker leads. Return how many records it has removed."""
        broker = self.broker(node_id)
        before = broker.cleaning.removed_records
        await self._within(broker, broker.cleaning.check)
        return broker.cleaning.removed_records - before

    # --- requests ---------------------------------------------------------------------------------

    async def _within(self, broker: SimBroker, work: Callable[[], Any]) -> None:
        await self.world.loop.create_task(work(), context=broker.process.context())

    async def _repeat(
        self,
        find: Callable[[], SimBroker | None],
        request: tuple[Any, int, Any],
        item_of: Callable[[Any], Any],
        done: Sequence[ErrorCode] = (ErrorCode.NONE,),
    ) -> Any:
        """Send a request until its item has a code that says that it is done. Return the item."""
        code, end_s = None, self.world.loop.time() + _TIMEOUT_S
        while self.world.loop.time() < end_s:
            broker = find()
            if broker is not None:
                try:
                    response = await self.world.connect(broker).ask(*request, _TIMEOUT_S)
                except Unanswered:
                    response = None
                if response is not None:
                    item = item_of(response)
                    code = ErrorCode(item.error_code)
                    if code in done:
                        return item
            await asyncio.sleep(_RETRY_INTERVAL_S)
        raise AssertionError(f"{request[0].name}: {code!r} after {_TIMEOUT_S} s")

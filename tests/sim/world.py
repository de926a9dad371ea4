"""One simulated cluster, from a seed: brokers, a controller, a store, clients, and somebody who breaks things for a while.

Invariants: everything that happens follows from (seed, scenario); the same run twice has the same `trace hash`. A run ends by a `Violation`
or after the cluster had its peace again, served every partition, and was read and cleaned completely.
"""

import asyncio
import gc
import hashlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import structlog

import controller.managers.objects as objects_manager
import controller.rpc.client as client_module
import controller.rpc.follower as follower_module
import controller.rpc.server as server_module
from controller.errors import BackupFenced, LogBehindBackup
from controller.managers.reassign import alter_reassignments
from controller.managers.result import Result
from controller.metadata.image import MetadataImage
from controller.rpc.client import ControllerClient
from controller.rpc.messages import AlterReassignments, CreateTopics, ItemResults, NewTopic, PartitionTarget
from stream.ids import Millis, NodeEpoch, NodeId
from tests.sim.checkers import Checker, Part, Violation
from tests.sim.clients import Consumer, Producer
from tests.sim.control import ADDRESS, OVER, Disk, run_controller
from tests.sim.limits import PREPARED_TTL_MS, draw
from tests.sim.loop import Process, VirtualLoop, process_name
from tests.sim.network import Network, SimChannel, SimListener
from tests.sim.nodes import SimBroker
from tests.sim.scenarios import SCENARIOS, WITHOUT_LEASE, Chaos
from tests.sim.store import Bucket, SimStore, StoreWeather

TOPIC = "t"
_HISTORY_OVER = (BackupFenced, LogBehindBackup)
_START_MS = 1_700_000_000_000
_QUIET_LIMIT_S = 120.0
_DEFECTS = frozenset({"request_failed", "append_callback_failed", "wal_slot_failed_unexpectedly", "upload_failed_unexpectedly",
                      "controller_writer_failed", "metadata_follower_failed"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    scenario: str
    violation: str | None
    virtual_s: float
    steps: int
    trace_hash: str
    acked_count: int
    read_count: int
    tail: tuple[str, ...]
    """The last events before the end, for whoever looks into a failure."""


class World:
    def __init__(self, seed: int, scenario: str, *, chaos_s: float | None = None) -> None:
        self.seed = seed
        self.scenario = scenario
        self.rng = Random(f"{seed}/{scenario}")
        self.limits = draw(self.rng)
        self.loop = VirtualLoop()
        self.leases = scenario not in WITHOUT_LEASE
        self.no_epoch = NodeEpoch(-1)
        self._hash = hashlib.blake2b(digest_size=16)
        self._tail: deque[str] = deque(maxlen=20_000)
        limits = self.limits
        self.bucket = Bucket(self.now_ms)
        self.weather = StoreWeather(self.rng, fault_share=limits.store_faults, p50_ms=limits.store_p50_ms, p99_ms=limits.store_p99_ms)
        self.network = Network(Random(f"{seed}/network"), self.trace, latency_ms=limits.network_ms, lossy=limits.network_lossy)
        self.disk = Disk()
        self.checker = Checker(self.bucket, lambda: self.disk.image, self.fail)
        self.parts: list[Part] = [(TOPIC, index) for index in range(limits.partitions)]
        self.brokers: dict[int, SimBroker] = {}
        self.zombies: list[SimBroker] = []
        self.chaos_s = chaos_s if chaos_s is not None else self.rng.uniform(8, 25)
        self.calm = False
        self._over = False
        self._starts = 0
        self.processes: list[Process] = []
        self.controller: Process | None = None
        self._runtime: Any = None
        self._violation: asyncio.Future[None] = self.loop.create_future()
        self._images: deque[tuple[float, dict[Part, tuple[int, int]]]] = deque()
        self.disk.on_commit = self.note_leaders
        self.has_disk = True
        """Not between the loss of the controllers' disks and the end of the recovery."""

    # --- what everybody uses -----------------------------------------------------------------------------------------------------------

    def now_ms(self) -> Millis:
        return Millis(_START_MS + int(self.loop.time() * 1000))

    def trace(self, kind: str, *parts: Any) -> None:
        line = f"{self.loop.time():.6f} {kind} {parts}"
        self._hash.update(line.encode())
        self._tail.append(line)

    def later(self, delay_s: float, what: Callable[..., object], *args: Any) -> None:
        """Outside of every process, whoever asks for it."""
        self.loop.call_later(delay_s, what, *args, context=Context())

    def note(self, event: dict[str, Any]) -> None:
        """What the product logs: shown after a failure, not part of the hash."""
        name = event.pop("event")
        self._tail.append(f"{self.loop.time():.6f}   [{process_name()}] {name} {event}")
        if name in _DEFECTS and not self._over:
            self.fail(f"the product reports a defect: {name} {event}")

    def fail(self, what: str) -> None:
        if not self._over and not self._violation.done():
            self._tail.append(f"{self.loop.time():.6f} VIOLATION {what}")
            self._violation.set_exception(Violation(what))
            self._violation.exception()

    # --- who leads ----------------------------------------------------------------------------------------------------------------------

    def note_leaders(self) -> None:
        topic = self.disk.image.topics.by_name(TOPIC)
        if topic is not None:
            leaders = {(TOPIC, record.partition): (record.leader, record.leader_epoch) for record in topic.partitions}
            if not self._images or self._images[-1][1] != leaders:
                self._images.append((self.loop.time(), leaders))
                while len(self._images) > 5:
                    self._images.popleft()

    def leader(self, part: Part, rng: Random, *, exact: bool = False) -> tuple[SimBroker | None, int]:
        """Whom a client takes for the leader, and the epoch: often from old metadata, sometimes an old process under the same address."""
        if not self._images:
            return None, -1
        age = 0 if exact or rng.random() < 0.8 else rng.randrange(len(self._images))
        node_id, epoch = self._images[-1 - age][1].get(part, (-1, -1))
        old = [zombie for zombie in self.zombies if zombie.node_id == node_id]
        if old and not exact and rng.random() < 0.3:
            return old[-1], epoch
        return self.brokers.get(node_id), epoch

    def log_start(self, part: Part) -> int:
        topic = self.disk.image.topics.by_name(part[0])
        return 0 if topic is None else self.disk.image.streams.known(topic.partitions[part[1]].data_stream_id).start_offset

    # --- processes ----------------------------------------------------------------------------------------------------------------------

    def start_broker(self, node_id: int) -> SimBroker:
        self._starts += 1
        broker = SimBroker(self, node_id, self._starts)
        self.processes.append(broker.process)
        self.brokers[node_id] = broker
        self.trace("start", broker.process.name)
        broker.start()
        return broker

    def broker_ended(self, broker: SimBroker, reason: str) -> None:
        """The process exits by itself; its supervisor starts it anew."""
        if broker.process.dead or self._over:
            return
        self.trace("ended", broker.process.name, reason.split(":")[0])
        self._tail.append(f"      because {reason}")
        self.kill(broker, resets=True)
        self._restart_later(broker)

    def _restart_later(self, broker: SimBroker, delay_s: float = -1) -> None:
        delay_s = self.rng.choice((0.05, 1.0, 8.0)) if delay_s < 0 else delay_s
        if self.brokers.get(broker.node_id) is broker:
            self.later(delay_s, self._restart, broker)

    def _restart(self, broker: SimBroker) -> None:
        if self.brokers.get(broker.node_id) is broker and not self._over:
            self.start_broker(broker.node_id)

    def kill(self, broker: SimBroker, *, resets: bool) -> None:
        broker.process.kill()
        broker.raw_store.process_died()
        self.network.process_died(broker.process, resets=resets)

    def crash(self, broker: SimBroker, delay_s: float) -> None:
        self.trace("crash", broker.process.name)
        self.kill(broker, resets=self.rng.random() < 0.7)
        self._restart_later(broker, delay_s)

    def replace(self, broker: SimBroker) -> None:
        """The process is stopped, and taken for dead: another start of the same node takes its place while it still exists."""
        broker.process.pause()
        self.zombies.append(broker)
        self.start_broker(broker.node_id)

    def start_controller(self) -> None:
        disk = self.disk
        process = Process(f"c{disk.epoch + 1}")
        process.network = self.network
        self.processes.append(process)
        self.controller = process
        rng = Random(f"{self.seed}/controller/{disk.epoch}")
        store = SimStore(self.bucket, self.weather, rng, self.trace)

        async def run() -> None:
            self._runtime, tasks = await run_controller(disk, store, self.limits.controller, rng, self.now_ms, self.limits.disk_sync_ms)
            for task in tasks:
                task.add_done_callback(lambda task: self._controller_task_over(process, task))

        self.loop.call_soon(lambda: self.loop.create_task(run()), context=process.context())

    def _controller_task_over(self, process: Process, task: "asyncio.Task[None]") -> None:
        if not self._over and not task.cancelled() and isinstance(task.exception(), _HISTORY_OVER) and self._is_left_behind(process):
            process.kill()  # as its process ends, of a history that is over
            self.network.process_died(process, resets=True)
        elif not self._over and not task.cancelled() and not isinstance(task.exception(), OVER):
            self.fail(f"a task of the controller ended: {task.exception()!r}")

    def _is_left_behind(self, process: Process) -> bool:
        """A controller of a history that a recovery has ended, or is about to."""
        return process is not self.controller or not self.has_disk

    def crash_controller(self, delay_s: float) -> None:
        if self.controller is None or self.controller.dead or not self.has_disk:
            return
        self.kill_controller()
        self.later(delay_s, self.start_controller)

    def kill_controller(self) -> None:
        assert self.controller is not None
        self.trace("crash", self.controller.name)
        self.controller.kill()
        self.network.process_died(self.controller, resets=True)

    def move(self, part: Part, target: NodeId) -> None:
        """Reassign a partition to one broker, dead or alive; to where it is already, what moves is cancelled."""
        settings = self.limits.controller.move_timeout_ms

        def work(image: MetadataImage, now_ms: Millis) -> Result[ItemResults]:
            topic = image.topics.by_name(part[0])
            is_back = topic is not None and topic.partitions[part[1]].replicas[0] == target
            wanted = PartitionTarget(topic=part[0], partition=part[1], replicas=None if is_back else [target])
            live = [node.node_id for node in image.nodes if not node.fenced]
            return alter_reassignments(image, AlterReassignments(partitions=[wanted]), now_ms, live=live, timeout_ms=settings)

        async def submit() -> None:
            try:
                await self._runtime.submit("Move", work)
            except (TimeoutError, *OVER):
                return

        if self.controller is not None and self._runtime is not None and not self.controller.dead:
            self.trace("move", part, target)
            self.loop.call_soon(lambda: self.loop.create_task(submit()), context=self.controller.context())

    # --- the run ------------------------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        violation: str | None = None
        with _patched(self), _quiet_collector():
            self.loop.set_exception_handler(self._on_loop_error)
            try:
                self.loop.run_until_complete(self._main())
            except Exception as error:  # noqa: BLE001 - whatever ended the run is its outcome
                violation = f"{type(error).__name__}: {error}"
            finally:
                self._dispose()
        return Outcome(
            self.seed, self.scenario, violation, self.loop.time(), self.loop.steps, self._hash.hexdigest(),
            self.checker.acked_count, self.checker.read_count, tuple(self._tail),
        )  # fmt: skip

    async def _main(self) -> None:
        life = self.loop.create_task(self._live())
        await asyncio.wait((life, self._violation), return_when=asyncio.FIRST_COMPLETED)
        if self._violation.done():
            self._violation.result()
        life.result()

    async def _live(self) -> None:
        self.start_controller()
        for node_id in range(1, self.limits.brokers + 1):
            self.start_broker(node_id)
        await self._create_topic()
        stop = asyncio.Event()
        producers = [Producer(self, number, idempotent=number > 0) for number in range(self.limits.producers + 1)]
        consumers = [Consumer(self, number) for number in range(2)]
        writing = [self.loop.create_task(producer.run(stop)) for producer in producers]
        reading = [self.loop.create_task(consumer.run(stop)) for consumer in consumers]
        watching = self.loop.create_task(self._watch())
        await Chaos(self, SCENARIOS[self.scenario]).run(self.chaos_s)
        self._calm_down()
        stop.set()
        await self._within(_QUIET_LIMIT_S, "clients got no answer", asyncio.gather(*writing, *reading))
        await self._within(_QUIET_LIMIT_S, "not every partition is writable", producers[-1].write(self.parts))
        await self._within(_QUIET_LIMIT_S, "not everything can be read", self._read_all(9))
        await asyncio.sleep(self._grace_s())
        end = self.loop.time() + _QUIET_LIMIT_S
        while self.checker.orphans() and self.loop.time() < end:  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(1)
        if orphans := self.checker.orphans():
            self.fail(f"objects are left over: {orphans[:5]}")
        watching.cancel()
        self.checker.check_metadata()
        await self._within(_QUIET_LIMIT_S, "not everything can be read after the clean-up", self._read_all(10))

    async def _create_topic(self) -> None:
        process = Process("admin")
        process.network = self.network
        self.processes.append(process)
        request = CreateTopics(topics=[NewTopic(name=TOPIC, partitions=self.limits.partitions)])

        async def create() -> None:
            client = ControllerClient([ADDRESS], rng=Random(f"{self.seed}/admin"))
            while self.disk.image.topics.by_name(TOPIC) is None:
                await client.create_topics(request, timeout_s=60)
                await asyncio.sleep(0.2)

        while not self.disk.image.nodes:  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(0.1)
        await self.loop.create_task(create(), context=process.context())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                self.checker.check_metadata()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self.fail(f"the metadata is broken: {error}")

    def _calm_down(self) -> None:
        """From here on everything works; what is stopped goes on, what is dead starts."""
        self.trace("calm")
        self.calm = True
        self.weather.faults = self.weather.down = False
        self.weather.slow_factor = 1.0
        self.network.lossy = 0.0
        self.network.cut.clear()
        for process in self.processes:
            process.resume(self.loop)

    async def _within(self, limit_s: float, what: str, work: Any) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            self.fail(f"{what} within {limit_s} s of peace")
            await asyncio.Event().wait()

    async def _read_all(self, number: int) -> None:
        """A new consumer, from the beginning to the end of every partition."""
        consumer = Consumer(self, number)
        while not all(consumer.has_read(part) for part in self.parts):
            await consumer.poll(10, exact=True)
            await asyncio.sleep(0.05)
        for part in self.parts:
            self.checker.check_all_read(part, consumer.starts[part], consumer.watermarks[part])

    def _grace_s(self) -> float:
        stream, config = self.limits.stream, self.limits.controller
        graces_ms = stream.block_age_max_ms + stream.wal_delete_grace_ms + 3 * config.read_grace_ms + 4 * config.janitor_interval_ms
        return (PREPARED_TTL_MS + graces_ms + 4 * config.maintenance_interval_ms + 20 * self.limits.store_p99_ms) / 1000 + 10

    def _on_loop_error(self, _: Any, context: dict[str, Any]) -> None:
        self.fail(f"the loop reports: {context.get('message')} {context.get('exception')!r}")

    def _dispose(self) -> None:
        """Let every task end in order, also those of dead processes: nothing of this run may reach into the next one."""
        self._over = True
        with warnings.catch_warnings():
            # A task that is cancelled before its first step leaves the coroutine that was handed to it unawaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._end_tasks()
            gc.collect()

    def _end_tasks(self) -> None:
        self.bucket.listener = None
        for _ in range(50):
            tasks = sorted((task for task in asyncio.all_tasks(self.loop) if not task.done()), key=hash)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            for process in self.processes:
                process.dispose(self.loop)
            self.loop.run_until_complete(self._settle())
        self.loop.close()

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@contextmanager
def _patched(world: World) -> Iterator[None]:
    """The product's borders: transport, ids, logs, and the life of prepared objects (an hour is too long to wait for)."""
    rng = Random(f"{world.seed}/ids")
    real_prepare = objects_manager.prepare_objects
    replaced: list[tuple[Any, str, Any]] = [
        (client_module, "Channel", SimChannel),
        (follower_module, "Channel", SimChannel),
        (server_module, "Listener", SimListener),
        (client_module, "uuid4", lambda: UUID(int=rng.getrandbits(128))),
        (objects_manager, "prepare_objects", lambda *args: real_prepare(*args, ttl_ms=PREPARED_TTL_MS)),
    ]
    originals = [getattr(target, name) for target, name, _ in replaced]
    for target, name, value in replaced:
        setattr(target, name, value)
    structlog.configure(processors=[_log_to(world)], wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        yield
    finally:
        structlog.reset_defaults()
        for (target, name, _), original in zip(replaced, originals, strict=True):
            setattr(target, name, original)


def _log_to(world: World) -> Callable[..., Any]:
    def processor(_: Any, __: str, event: Any) -> Any:
        world.note(dict(event))
        raise structlog.DropEvent

    return processor


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Finalizers run when memory happens to be full: not inside a run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

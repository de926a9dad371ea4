"""One simulated cluster: processes, store, network and checkers. `tests.sim.run` contains the
events.

A run depends only on (seed, scenario): repeating it yields the same `trace hash`. It ends with a
`Violation`, or after the cluster has recovered without faults and was read and cleaned completely.
"""

import asyncio
import gc
import hashlib
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from penstock.base.ids import Millis, NodeEpoch
from penstock.controller.api.errors import JournalFailed
from penstock.controller.backup.snapshots import LoadedSnapshot
from penstock.stream.ports import BrokerIncarnation
from tests.sim import scenarios
from tests.sim.acls import AclAdmins
from tests.sim.admin import Admin
from tests.sim.borders import patched_borders, quiet_collector, step_limit
from tests.sim.checkers import Checker, Part, StableOffsets, Violation
from tests.sim.clients import TOPIC
from tests.sim.clock_steps import Graces
from tests.sim.compacted import COMPACT_TOPIC, CompactedTopic
from tests.sim.connections import Connection
from tests.sim.control import SimController, addresses
from tests.sim.disk import Disk
from tests.sim.forks import Forks
from tests.sim.late import LateConnection, Reorderings
from tests.sim.leaks import LEAKING, Leak
from tests.sim.ledger import Ledger
from tests.sim.limits import FENCE_KEPT_MS, QUIET_LIMIT_S, Limits, draw, draw_coordination
from tests.sim.log_starts import LogStarts
from tests.sim.loop import Process, VirtualLoop, process_name
from tests.sim.lost_slots import LostSlots
from tests.sim.metadata_log import MetadataLog
from tests.sim.network import Network
from tests.sim.nodes import SimBroker
from tests.sim.overtaken import OVERTAKEN, Overtaken, RepeatingConnection
from tests.sim.rollback import Rollbacks
from tests.sim.run import Run
from tests.sim.scenario_limits import scenario_limits, with_log_life
from tests.sim.share_consumers import WORKING, ShareConsumers
from tests.sim.share_members import JOINING
from tests.sim.share_states import SHARING
from tests.sim.store import Bucket, DirectoryBucket, SimStore, Stored, StoreWeather
from tests.sim.topic_life import TopicLife
from tests.sim.transactional import PARTITIONS, TXN_TOPIC

_START_MS = 1_700_000_000_000
_PEACE_LIMIT_S = 3_600.0
"""Limit for all waits outside of the faults, in virtual time: about a minute of CPU. A run without
an end would hold up every test after it.
"""

_DEFECTS = frozenset(
    {
        "request_failed",
        "append_callback_failed",
        "wal_slot_failed_unexpectedly",
        "upload_failed_unexpectedly",
        "controller_writer_failed",
        "metadata_follower_failed",
    }
)


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
    reorderings: Mapping[str, int]
    """Requests that arrived after later ones of their sender, by API."""
    tail: tuple[str, ...]
    """The last events before the end, to debug a failure."""


class World:
    def __init__(
        self,
        seed: int,
        scenario: str,
        *,
        chaos_s: float | None = None,
        limits: Limits | None = None,
        live: Callable[["World"], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """limits: used instead of drawn ones. live: the course of the run, instead of `Run`."""
        if scenario == OVERTAKEN:
            # That module imports this one.
            from tests.sim.overtaken_run import exchange_requests

            live = live or exchange_requests
        self.seed = seed
        self.scenario = scenario
        self.rng = Random(f"{seed}/{scenario}")
        self._live = live
        self.limits = limits or scenario_limits(scenario, draw(self.rng), self.rng)
        has_log_life = (
            scenarios.has_log_life(seed) and live is None and scenario not in scenarios.WAL_STORING
        )
        if has_log_life:
            self.limits = with_log_life(scenario, self.limits, Random(f"{seed}/log life"))
        self.coordination = draw_coordination(
            Random(f"{seed}/groups"),
            self.limits.skew_ms,
            has_groups=scenario in scenarios.COORDINATED,
            compacts=scenario in scenarios.COMPACTING,
            has_states=scenario in SHARING | WORKING | JOINING,
        )
        self.loop = VirtualLoop()
        self.leases = scenario not in scenarios.WITHOUT_LEASE
        self.no_epoch = NodeEpoch(-1)
        self._hash = hashlib.blake2b(digest_size=16)
        self._tail: deque[str] = deque(maxlen=20_000)
        limits = self.limits
        self.bucket = Bucket(self._store_ms)
        self.weather = StoreWeather(
            self.rng,
            fault_share=limits.store_faults,
            p50_ms=limits.store_p50_ms,
            p99_ms=limits.store_p99_ms,
            put_lingers_s=limits.controller.read_grace_ms / 1000,
        )
        self.wal_bucket = DirectoryBucket(self._store_ms) if limits.wal_store else None
        self.wal_weather = StoreWeather(
            Random(f"{seed}/wal store"),
            fault_share=limits.store_faults,
            p50_ms=limits.store_p50_ms,
            p99_ms=limits.store_p99_ms,
            put_lingers_s=limits.controller.read_grace_ms / 1000,
        )
        self.stored = Stored(self.bucket, self.wal_bucket)
        self.network = Network(
            Random(f"{seed}/network"),
            self.trace,
            latency_ms=limits.network_ms,
            lossy=limits.network_lossy,
        )
        self.disks = {
            number: Disk(Random(f"{seed}/disk/{number}"), limits.disk_sync_ms)
            for number in range(limits.controllers)
        }
        self.metadata = MetadataLog(self.disks, self.fail, self.note_leaders, self.loop.time)
        self.has_disks = True
        """False between the loss of the controllers' disks and the end of the recovery."""
        self.checker = Checker(self.stored, lambda: self.metadata.image, self.fail)
        self.checker.is_needed_fence = self._is_young
        self.checker.has_wal_store = limits.wal_store
        self.life = TopicLife(
            self,
            self.checker,
            beside_others=has_log_life and scenario not in scenarios.WITHOUT_TOPIC_LIFE,
        )
        self.acl_admins = AclAdmins(self)
        self.graces = Graces(self) if scenario in scenarios.STEPPING else None
        self.stable = StableOffsets(self.fail)
        cleans, forks = (
            has_log_life or scenario in some for some in (scenarios.CLEANING, scenarios.FORKING)
        )
        deletes = scenario in scenarios.DELETING or (
            has_log_life and scenario not in scenarios.WHOLE_LOGS
        )
        has_age = scenario not in scenarios.STEPPING
        self.log_starts = LogStarts(self, has_age=has_age) if deletes else None
        self.compacted = CompactedTopic(self) if cleans else None
        self.cleaner = None if self.compacted is None else self.compacted.cleaner
        self.lost_slots = LostSlots(self) if scenario in scenarios.LOSING_SLOTS else None
        self.parts: list[Part] = [(TOPIC, index) for index in range(limits.partitions)]
        self.share_consumers = ShareConsumers(self)
        self.txn_parts: list[Part] = (
            [(TXN_TOPIC, index) for index in range(PARTITIONS)]
            if scenario in scenarios.TRANSACTIONAL
            else []
        )
        self.ledgers: list[Ledger] = []
        """What transactional producers did, by transactional id."""
        self.on_end_txn: Callable[[SimBroker, Callable[[], object]], None] | None = None
        """Called once, when a client asks this coordinator to end a transaction, with a function
        that ends the client.
        """
        self.on_marker: Callable[[SimBroker], None] | None = None
        """Called once, when markers of transactions arrive at this broker."""
        self.connection_ids = count(1)
        self.reorderings = Reorderings()
        self.overtaken = Overtaken()
        self.brokers: dict[int, SimBroker] = {}
        self.zombies: list[SimBroker] = []
        self.chaos_s = (
            chaos_s
            if chaos_s is not None
            else self.rng.uniform(4, 14) * (2 if scenario in scenarios.LONG else 1)
        )
        self.leak: Leak | None = None
        """What was found in the bucket at the end."""
        self.phases: list[tuple[str, float, int]] = []
        self.calm = False
        self.suspected: set[BrokerIncarnation] = set()
        """The brokers that others suspect, rightly or not: see `broker.network.peer_watch`."""
        self.is_over = False
        self._starts = 0
        self.processes: list[Process] = []
        self.forks = Forks(self) if forks else None
        self.controllers: dict[int, SimController] = {}
        self.rollbacks = Rollbacks(self)
        self._violation: asyncio.Future[None] = self.loop.create_future()
        self.admin = Admin(self)
        self._images: deque[tuple[float, dict[Part, tuple[int, int]]]] = deque()

    # --- shared helpers ----------------------------------------------------------------------

    def now_ms(self, skew_ms: int = 0) -> Millis:
        return Millis(_START_MS + int(self.loop.time() * 1000) + skew_ms)

    def draw_skew_ms(self, rng: Random) -> int:
        """Return the error of one process's wall clock."""
        return rng.randint(-self.limits.skew_ms, self.limits.skew_ms)

    def trace(self, kind: str, *parts: Any) -> None:
        line = f"{self.loop.time():.6f} {kind} {parts}"
        self._hash.update(line.encode())
        self._tail.append(line)

    def phase(self, name: str) -> None:
        """Record the phase in the trace, and for time measurements."""
        self.trace("phase", name)
        self.phases.append((name, self.loop.time(), self.loop.steps))

    def later(self, delay_s: float, what: Callable[..., object], *args: Any) -> None:
        """Call the function later, outside every process."""
        self.loop.call_later(delay_s, what, *args, context=Context())

    def note(self, event: dict[str, Any]) -> None:
        """Keep an event that the product logs. It is shown after a failure, and is not part of the
        hash.
        """
        name = event.pop("event")
        self._tail.append(f"{self.loop.time():.6f}   [{process_name()}] {name} {event}")
        if self.graces is not None:
            self.graces.logged(name, event)
        if (
            name in _DEFECTS
            and event.get("error_type") != JournalFailed.__name__
            and not self.is_over
        ):
            self.fail(f"the product reports a defect: {name} {event}")

    def fail(self, what: str) -> None:
        if not self.is_over and not self._violation.done():
            self._tail.append(f"{self.loop.time():.6f} VIOLATION {what}")
            self._violation.set_exception(Violation(what))
            self._violation.exception()

    async def within(self, what: str, work: Awaitable[Any], *, patience: int = 1) -> None:
        """Await it for this many times `QUIET_LIMIT_S`; then the run fails because of `what`."""
        limit_s = patience * QUIET_LIMIT_S
        # No cancellation, because a client that swallows it would keep the run alive.
        task = asyncio.ensure_future(work)
        await asyncio.wait((task,), timeout=limit_s)
        if not task.done():
            self.fail(f"{what} within {limit_s} s of peace")
            await asyncio.Event().wait()
        task.result()

    def connect(self, broker: SimBroker) -> Connection:
        """Return a connection of the calling process."""
        if self.scenario == OVERTAKEN:
            return RepeatingConnection(self, broker)
        return (LateConnection if self.scenario in scenarios.LATE else Connection)(self, broker)

    # --- leaders --------------------------------------------------------------------------------

    def note_leaders(self) -> None:
        self.life.look(self.metadata.image)
        self.acl_admins.look(self.metadata.image)
        if self.log_starts is not None:
            self.log_starts.observe(self.metadata.image)
        if self.forks is not None:
            self.forks.look(self.metadata.image)
        forked = [] if self.forks is None else self.forks.names
        topics = [
            topic
            for name in (TOPIC, TXN_TOPIC, COMPACT_TOPIC, *self.life.names, *forked)
            if (topic := self.metadata.image.topics.by_name(name)) is not None
        ]
        if topics:
            leaders = {
                (topic.name, record.partition): (record.leader, record.leader_epoch)
                for topic in topics
                for record in topic.partitions
            }
            if not self._images or self._images[-1][1] != leaders:
                self._images.append((self.loop.time(), leaders))
                while len(self._images) > 5:
                    self._images.popleft()

    def leader(
        self, part: Part, rng: Random, *, exact: bool = False
    ) -> tuple[SimBroker | None, int]:
        """Return the broker that a client believes to be the leader, and the epoch: often from
        outdated metadata, sometimes an old process under the same address.
        """
        if not self._images:
            return None, -1
        age = 0 if exact or rng.random() < 0.8 else rng.randrange(len(self._images))
        node_id, epoch = self._images[-1 - age][1].get(part, (-1, -1))
        old = [
            zombie
            for zombie in self.zombies
            if zombie.node_id == node_id and not (self.calm and zombie.process.dead)
        ]
        if old and not exact and rng.random() < 0.3:
            return old[-1], epoch
        if self.suspected and not exact and rng.random() < 0.5:
            others = [broker for broker in self.brokers.values() if broker.me not in self.suspected]
            if others and any(node.node_id == node_id for node in self.suspected):
                return rng.choice(others), epoch
        return self.brokers.get(node_id), epoch

    def suspect(self, peer: BrokerIncarnation, is_gone: bool) -> None:
        """Let all other brokers suspect this one, or stop suspecting it."""
        (self.suspected.add if is_gone else self.suspected.discard)(peer)
        for _, other in sorted(self.brokers.items()):
            if other.serving and other.me != peer:
                other.deliver(other.partitions.on_gone, peer)

    def log_start(self, part: Part) -> int:
        topic = self.metadata.image.topics.by_name(part[0])
        return (
            0
            if topic is None
            else self.metadata.image.streams.known(
                topic.partitions[part[1]].data_stream_id
            ).start_offset
        )

    def _store_ms(self) -> Millis:
        """Return the timestamp that the store gives to objects, so old that fences are deleted
        within a run.
        """
        kept_ms = self.limits.controller.fence_kept_ms
        return Millis(self.now_ms() - (kept_ms - FENCE_KEPT_MS if self.scenario in LEAKING else 0))

    def _is_young(self, key: str) -> bool:
        """Return whether the object is younger than the minimum age of deleted fences."""
        age_ms = self.now_ms() - self.stored.modified_ms(key)
        return age_ms < self.limits.controller.fence_kept_ms - self.limits.skew_ms

    def wal_client(self, rng: Random) -> SimStore | None:
        """Return a client of the WAL store for one process."""
        if self.wal_bucket is None:
            return None
        return SimStore(self.wal_bucket, self.wal_weather, rng, self.trace)

    def new_process(self, name: str) -> Process:
        process = Process(name)
        process.network = self.network
        self.processes.append(process)
        return process

    # --- processes --------------------------------------------------------------------------------

    def start_broker(self, node_id: int) -> SimBroker:
        self._starts += 1
        broker = SimBroker(self, node_id, self._starts)
        self.processes.append(broker.process)
        self.brokers[node_id] = broker
        self.trace("start", broker.process.name)
        broker.start()
        return broker

    def broker_ended(self, broker: SimBroker, reason: str) -> None:
        """Handle the exit of the process; its supervisor restarts it."""
        if broker.process.dead or self.is_over:
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
        if self.brokers.get(broker.node_id) is broker and not self.is_over:
            self.start_broker(broker.node_id)

    def kill(self, broker: SimBroker, *, resets: bool) -> None:
        broker.process.kill()
        broker.raw_store.process_died()
        if broker.raw_wal_store is not None:
            broker.raw_wal_store.process_died()
        self.network.process_died(broker.process, resets=resets)

    def crash(self, broker: SimBroker, delay_s: float) -> None:
        self.trace("crash", broker.process.name)
        self.kill(broker, resets=self.rng.random() < 0.7)
        self._restart_later(broker, delay_s)

    def replace(self, broker: SimBroker) -> None:
        """Pause the process so that it is declared dead. Another start of the same node takes its
        place while it still exists.
        """
        broker.process.pause()
        self.zombies.append(broker)
        self.start_broker(broker.node_id)

    def start_controller(self, number: int) -> None:
        running = self.controllers.get(number)
        if (
            self.is_over
            or not self.has_disks
            or (
                running is not None
                and not running.process.dead
                and not self.is_left_behind(running)
            )
        ):
            return
        self._starts += 1
        controller = SimController(self, number, self._starts, self.disks[number])
        self.processes.append(controller.process)
        self.controllers[number] = controller
        self.trace("start", controller.process.name)
        controller.start()

    def is_left_behind(self, controller: SimController) -> bool:
        """Return whether its history was ended by a recovery, or is about to be."""
        return controller.metadata is not self.metadata or not self.has_disks

    def rebuilt(self, begin: LoadedSnapshot) -> None:
        """Record the loss of all controllers' disks: new ones start with this snapshot and nothing
        else.
        """
        self.trace("rebuilt", begin.base.index, begin.offset)
        self.disks = {
            number: Disk(
                Random(f"{self.seed}/disk/{number}/{begin.offset}"), self.limits.disk_sync_ms
            )
            for number in self.disks
        }
        self.metadata.successor = MetadataLog(
            self.disks, self.fail, self.note_leaders, self.loop.time, begin
        )
        self.metadata = self.metadata.successor
        if self.log_starts is not None:
            self.log_starts.rebuilt(begin.image)
        if self.forks is not None:
            self.forks.rebuilt(begin.image)
        self.note_leaders()
        self.has_disks = True
        for number, address in enumerate(addresses(len(self.disks))):
            # The address belongs to the new controller before it listens.
            self.network.listeners.pop(address, None)
            self.start_controller(number)

    def controller_ended(self, controller: SimController, reason: str) -> None:
        """Handle the exit of the process; its supervisor restarts it."""
        self._tail.append(f"      because {reason}")
        self.crash_controller(controller, self.rng.choice((0.05, 1.0)))

    def crash_controller(self, controller: SimController, delay_s: float) -> None:
        if not controller.process.dead and not self.is_over:
            self.stop_controller(controller)
            if not self.is_left_behind(controller):
                self.later(delay_s, self.start_controller, controller.number)

    def stop_controller(self, controller: SimController) -> None:
        """Crash the controller like `crash_controller`, but do not restart it."""
        self.trace("crash", controller.process.name)
        controller.process.kill()
        controller.disk.crash()
        controller.store.process_died()
        if controller.wal_store is not None:
            controller.wal_store.process_died()
        self.network.process_died(controller.process, resets=self.rng.random() < 0.7)

    def active_controller(self) -> SimController | None:
        """Return a controller that believes to lead; the newest if there are two."""
        leading = [
            controller
            for _, controller in sorted(self.controllers.items())
            if controller.is_leading and not controller.process.dead
        ]
        return max(leading, key=lambda controller: controller.epoch, default=None)

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        violation: str | None = None
        with patched_borders(self), quiet_collector(), step_limit(self):
            self.loop.set_exception_handler(self._on_loop_error)
            try:
                self.loop.run_until_complete(self._main())
            except Exception as error:  # noqa: BLE001 - whatever ended the run is its outcome
                violation = f"{type(error).__name__}: {error}"
            finally:
                self._dispose()
        return Outcome(
            self.seed,
            self.scenario,
            violation,
            self.loop.time(),
            self.loop.steps,
            self._hash.hexdigest(),
            self.checker.acked_count,
            self.checker.read_count,
            self.reorderings.counts + self.overtaken.counts,
            tuple(self._tail) if violation else (),
        )

    async def _main(self) -> None:
        live = Run(self).live() if self._live is None else self._live(self)
        life = self.loop.create_task(live)
        await asyncio.wait(
            (life, self._violation),
            timeout=self.chaos_s + _PEACE_LIMIT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not life.done() and not self._violation.done():
            self.fail(f"the run does not end within {_PEACE_LIMIT_S} s of peace")
        if self._violation.done():
            self._violation.result()
        life.result()

    def _on_loop_error(self, _: Any, context: dict[str, Any]) -> None:
        self.fail(f"the loop reports: {context.get('message')} {context.get('exception')!r}")

    def _dispose(self) -> None:
        """End every task in order, also those of dead processes: nothing of this run may affect the
        next one.
        """
        self.is_over = True
        with warnings.catch_warnings():
            # A task that is canceled before its first step leaves its coroutine unawaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._end_tasks()
            gc.collect()

    def _end_tasks(self) -> None:
        self.bucket.listener = None
        if self.wal_bucket is not None:
            self.wal_bucket.listener = None
        for _ in range(50):
            tasks = sorted(
                (task for task in asyncio.all_tasks(self.loop) if not task.done()), key=hash
            )
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


def outcome_of(scenario: str | None, seed: int) -> Outcome:
    """Run once. The seed chooses the scenario unless one is given."""
    names = list(scenarios.SCENARIOS)
    return World(seed, scenario or names[seed % len(names)]).run()

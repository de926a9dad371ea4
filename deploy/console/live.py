"""Follow a cluster for the pages: its metadata continuously, and its load while a page displays it.

Invariants: nothing in the cluster is changed. The load is measured every two seconds until a minute
after a page last needed it. If values cannot be measured, the last ones are kept, and `health`
returns their age. Belongs to one event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.log import get_logger
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import MoveTrace, QuorumStatus, TraceMove
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import PartitionKey
from penstock.deploy.admin.cost import prices_of
from penstock.deploy.admin.views import view_cluster
from penstock.deploy.clients.controllers import connect, no_controller
from penstock.deploy.console.broker_watch import REQUEST_S, BrokerWatch
from penstock.deploy.console.health import SILENT_S, STALE_S, BrokerHealth, Health, diagnose
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.samples import INTERVAL_S, SAMPLES_MAX, Sample, sample_of
from penstock.deploy.console.store_probe import StoreProbe
from penstock.deploy.console.views import open_sessions
from penstock.deploy.errors import NoController
from penstock.deploy.top.counts import RecordCounts
from penstock.deploy.top.offsets import EndOffsets
from penstock.deploy.top.view import TopView, stored_topics, view_top, wal_store_urls_of
from penstock.deploy.top.watch import broker_addresses, broker_loads, led_partitions

if TYPE_CHECKING:
    from penstock.base.ids import NodeEpoch, NodeId
    from penstock.controller.api.load_messages import BrokerLoad, BrokerSession, UntunedClient
    from penstock.controller.metadata.delta import MetadataDelta

WANTED_S: Final = 60.0
TIMEOUT_S: Final = 5.0
LOADS_S: Final = 1.5
"""Maximum wait for the loads of brokers; the next measurement requests them again."""
SEEN_S: Final = 2.0
QUEUED_MAX: Final = 8
_PAUSE_S: Final = 0.5

_log = get_logger(__name__)


class LiveCluster:
    """One cluster. wall_ms: the time of day, for charts. `start` does not wait for the cluster."""

    def __init__(self, options: ConsoleOptions, wall_ms: Callable[[], int]) -> None:
        self._options = options
        self._wall_ms = wall_ms
        self._prices = prices_of(options.store)
        self._ends = EndOffsets(options.security, REQUEST_S)
        self._watch = BrokerWatch(self._ends.of_broker)
        self._counts = RecordCounts()
        self._loads: Mapping[NodeId, BrokerLoad] = {}
        self._loads_at = 0.0
        self._alive: Collection[tuple[NodeId, NodeEpoch]] = ()
        """The brokers that were not fenced when the loads were requested."""
        self._store = StoreProbe(options.store)
        self._probing: asyncio.Task[None] | None = None
        self._client: ControllerClient | None = None
        self._follower: MetadataFollower | None = None
        self._wanted_until = 0.0
        self._measuring: asyncio.Task[None] | None = None
        self._view: TopView | None = None
        self._leaderless = 0
        self._listeners: set[asyncio.Queue[Sample]] = set()
        self._changes: set[Callable[[MetadataDelta], None]] = set()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        """The samples of the last 15 minutes, oldest first."""

    async def start(self) -> None:
        if not self._options.controller:
            return
        self._client = connect(self._options.controller)
        self._follower = MetadataFollower(self._client)
        self._follower.subscribe(self._changed)
        with suppress(TimeoutError):
            await self._follower.start(TIMEOUT_S)

    async def stop(self) -> None:
        for task in (self._measuring, self._probing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._store.close()
        if self._follower is not None:
            await self._follower.stop()
        if self._client is not None:
            await self._client.close()
        self._ends.close()
        await self._watch.close()

    # --- metadata ---------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The current metadata. Raises NoController."""
        follower = self._follower
        if follower is None or self._client is None:
            raise NoController(
                "this page needs the controllers: start the console with --controller HOST:PORT"
                " (PENSTOCK_CONTROLLER)"
            )
        if follower.image.end_offset == 0:
            raise no_controller(self._client, self._options.controller, TIMEOUT_S)
        return follower.image

    @property
    def silent_s(self) -> float:
        """Seconds since the last message from a controller."""
        return 0.0 if self._follower is None else self._follower.silent_s

    async def sees_topic(self, name: str) -> None:
        """Wait at most SEEN_S until the local metadata contains a topic that was just created."""

        def exists(_delta: "MetadataDelta | None" = None) -> bool:
            return self.image.topics.by_name(name) is not None

        if not self._options.controller or exists():
            return
        with self._changes_with(exists) as seen, suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S):
                await seen.wait()

    async def quorum(self) -> QuorumStatus:
        """Return the quorum as reported by its leader. Raises NoController."""
        client = self._known_client()
        if self.silent_s > STALE_S:
            raise no_controller(client, self._options.controller, self.silent_s)
        try:
            return await client.describe_quorum(timeout_s=TIMEOUT_S)
        except (TimeoutError, ControllerError):
            raise no_controller(client, self._options.controller, TIMEOUT_S) from None

    async def traces(self, topic_id: UUID, partition: int) -> Sequence[MoveTrace]:
        """Return the reported moves of the partition, or nothing if there is no leading
        controller.
        """
        try:
            response = await self._known_client().trace_move(
                TraceMove(topic_id=topic_id, partition=partition), timeout_s=TIMEOUT_S
            )
        except (TimeoutError, ControllerError):
            return ()
        return response.items

    def changes_of(self, key: PartitionKey) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set at each change of a partition's metadata."""
        return self._changes_with(
            lambda delta: bool(delta.everything or key in delta.partitions or delta.stream_ids)
        )

    @contextmanager
    def _changes_with(
        self, concerns: "Callable[[MetadataDelta], bool]"
    ) -> Generator[asyncio.Event, None, None]:
        """Yield an event that is set at each change for which `concerns` returns True."""
        event = asyncio.Event()

        def note(delta: "MetadataDelta") -> None:
            if concerns(delta):
                event.set()

        self._changes.add(note)
        try:
            yield event
        finally:
            self._changes.discard(note)

    # --- figures ----------------------------------------------------------------------------------

    async def top(self) -> TopView:
        """Return the values of the last measurement; before the first one, those in the metadata.
        Raises NoController.
        """
        image = self.image
        self.want()
        if self._view is None:
            return view_top(
                view_cluster(image, self._options.controller, {}),
                stored_topics(image),
                {},
                prices=self._prices,
                wal_store_urls=wal_store_urls_of(image),
            )
        return self._view

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return the last known end offsets of a topic by partition."""
        return self._counts.ends(topic)

    @property
    def is_measured(self) -> bool:
        return self._view is not None

    def health(self) -> Health:
        """Return the current problems and the age of values."""
        follower = self._follower
        if follower is None:
            return diagnose(0.0, {}, self._store.health(), 0)
        leaderless = self._leaderless if self._measuring is not None else 0
        return diagnose(self.silent_s, self.brokers(), self._store.health(), leaderless)

    def brokers(self) -> dict[int, BrokerHealth]:
        """Return the state of each registered broker, by id."""
        if self._follower is None:
            return {}
        since_loads = time.monotonic() - self._loads_at
        found: dict[int, BrokerHealth] = {}
        for node in self._follower.image.nodes:
            load = self._loads.get(node.node_id)
            session = None if load is None else load.session
            age = None if session is None else session.heartbeat_age_ms
            # This is the age as of the last report. Later heartbeats are unknown, so a small age
            # proves nothing.
            is_silent = age is not None and age > SILENT_S * 1_000
            is_outstanding = self._measuring is not None and not node.fenced
            found[node.node_id] = BrokerHealth(
                node.node_id,
                node.fenced,
                age / 1_000 + since_loads if is_silent and age is not None else None,
                session.ends_in_ms / 1_000 - since_loads if session is not None else None,
                self._watch.waiting_s(node.node_id) if is_outstanding else 0.0,
                self._watch.age_s(node.node_id) if is_outstanding else None,
                None if load is None else load.append_p99_ms,
                self._watch.refusal(node.node_id) if is_outstanding else "",
            )
        return found

    def sessions(self) -> dict[int, "BrokerSession"]:
        """Return the reported sessions by broker, without those that have ended since."""
        return open_sessions(self.image, self._loads, self._alive)

    def untuned_clients(self) -> list["UntunedClient"]:
        """Return the clients that brokers reported as untuned, by name and host."""
        found = {
            (client.client_id, client.host): client
            for load in self._loads.values()
            if load.problems is not None
            for client in load.problems.untuned
        }
        return [client for _, client in sorted(found.items())]

    def silent_brokers(self) -> frozenset[int]:
        """Return the ids of brokers that are not expected to respond."""
        return frozenset(at for at, broker in self.brokers().items() if broker.is_silent)

    def addresses(self) -> dict[int, str]:
        """Return the addresses of brokers that are not fenced, by id; empty if there are no
        controllers.
        """
        return {} if self._follower is None else broker_addresses(self._follower.image)

    def bootstrap(self) -> str:
        """Return the bootstrap addresses without brokers that do not respond."""
        given = self._options.bootstrap
        if self._follower is None:
            return given
        addresses: dict[int, str] = {
            node.node_id: f"{node.host or node.machine_host}:{node.port}"
            for node in self._follower.image.nodes
        }
        silent = {addresses[at] for at in self.silent_brokers()}
        others = [at for at in given.split(",") if at.strip() not in silent]
        return ",".join(others or sorted(set(addresses.values()) - silent)) or given

    def want(self) -> None:
        """Measure the load for another minute."""
        loop = asyncio.get_running_loop()
        self._wanted_until = loop.time() + WANTED_S
        if self._follower is not None and self._measuring is None:
            self._loads_at = time.monotonic()
            self._watch.restart()
            self._measuring = loop.create_task(self._measure_regularly())
            self._probing = loop.create_task(self._store.run())

    @contextmanager
    def listen(self) -> Generator[asyncio.Queue[Sample], None, None]:
        """Receive new samples in a queue of at most QUEUED_MAX, which drops the oldest."""
        queue: asyncio.Queue[Sample] = asyncio.Queue(QUEUED_MAX)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    async def _measure_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while loop.time() < self._wanted_until:
                began = loop.time()
                try:
                    await self._measure()
                except NoController:
                    pass
                except Exception:  # noqa: BLE001 - the next measurement may work
                    _log.exception("console_measurement_failed")
                await asyncio.sleep(max(_PAUSE_S, INTERVAL_S - (loop.time() - began)))
        finally:
            self._measuring = None
            if self._probing is not None:
                self._probing.cancel()

    async def _measure(self) -> None:
        image, began_at = self.image, time.monotonic()
        alive = {(node.node_id, node.node_epoch) for node in image.nodes if not node.fenced}
        ends = asyncio.create_task(
            self._watch.measured(broker_addresses(image), led_partitions(image))
        )
        loads = await self._fresh_loads()
        measured = await ends
        image = self.image
        if loads is not None:
            self._loads, self._loads_at, self._alive = loads, began_at, alive
        view = view_top(
            view_cluster(image, self._options.controller, self._loads),
            stored := stored_topics(image),
            self._counts.add(stored, measured, time.monotonic()),
            prices=self._prices,
            wal_store_urls=wal_store_urls_of(image),
        )
        self._view = view
        self._leaderless = sum(topic.without_leader for topic in view.topics)
        sample = sample_of(
            view,
            self._wall_ms(),
            self._counts.records_s if any(found.responded for found in measured) else None,
            has_loads=loads is not None,
        )
        self.samples.append(sample)
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(sample)

    async def _fresh_loads(self) -> "Mapping[NodeId, BrokerLoad] | None":
        """Return the loads of brokers, or None if no controller responds."""
        client = self._known_client()
        if self.silent_s > SILENT_S:
            return None
        return await broker_loads(client, LOADS_S)

    def _known_client(self) -> ControllerClient:
        _ = self.image
        assert self._client is not None
        return self._client

    def _changed(self, delta: "MetadataDelta", _image: MetadataImage) -> None:
        for note in list(self._changes):
            note(delta)

"""Follow one cluster for the pages: its metadata all the time, its figures while they are watched.

Invariants: an observer changes nothing. Figures are measured every two seconds, and only for a
minute after they were last wanted. A listener that is slow misses old samples, never delays others.
Belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.log import get_logger
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import MoveTrace, QuorumStatus, TraceMove
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import PartitionKey
from penstock.deploy.admin.cost import Prices
from penstock.deploy.admin.views import view_cluster
from penstock.deploy.clients.controllers import connect, no_controller
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.samples import INTERVAL_S, Sample, Samples, sample_of
from penstock.deploy.errors import NoController
from penstock.deploy.top.offsets import EndOffsets, Ends
from penstock.deploy.top.view import Offsets, TopView, stored_topics, view_top
from penstock.deploy.top.watch import broker_addresses, broker_loads

if TYPE_CHECKING:
    from penstock.controller.metadata.delta import MetadataDelta

WANTED_S: Final = 60.0
TIMEOUT_S: Final = 5.0
SEEN_S: Final = 2.0
LISTENERS_MAX: Final = 64
QUEUED_MAX: Final = 8
_PAUSE_S: Final = 0.5

_log = get_logger(__name__)


class LiveCluster:
    """One cluster. wall_ms: the time of day, for charts. `start` does not wait for the cluster."""

    def __init__(
        self, options: ConsoleOptions, wall_ms: Callable[[], int], prices: Prices | None = None
    ) -> None:
        self._options = options
        self._wall_ms = wall_ms
        self._prices = prices or Prices()
        self._ends = EndOffsets(options.security)
        self._client: ControllerClient | None = None
        self._follower: MetadataFollower | None = None
        self._wanted_until = 0.0
        self._measuring: asyncio.Task[None] | None = None
        self._view: TopView | None = None
        self._measured = asyncio.Condition()
        self._before: Offsets | None = None
        self._measured_at = 0.0
        self._listeners: set[asyncio.Queue[Sample]] = set()
        self._changes: set[Callable[[MetadataDelta], None]] = set()
        self.samples = Samples()
        self.ends: Ends = {}
        """The end offsets of the last measurement."""

    async def start(self) -> None:
        if not self._options.controller:
            return
        self._client = connect(self._options.controller)
        self._follower = MetadataFollower(self._client)
        self._follower.subscribe(self._changed)
        with suppress(TimeoutError):
            await self._follower.start(TIMEOUT_S)

    async def stop(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
            with suppress(asyncio.CancelledError):
                await self._measuring
        if self._follower is not None:
            await self._follower.stop()
        if self._client is not None:
            await self._client.close()
        self._ends.close()

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
        """Seconds since the controllers were last heard."""
        return 0.0 if self._follower is None else self._follower.silent_s

    async def sees_topic(self, name: str) -> None:
        """Wait until the metadata here have a topic that was just created, at most SEEN_S."""
        seen = asyncio.Event()

        def note(_delta: "MetadataDelta") -> None:
            if self.image.topics.by_name(name) is not None:
                seen.set()

        if not self._options.controller or self.image.topics.by_name(name) is not None:
            return
        self._changes.add(note)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SEEN_S):
                    await seen.wait()
        finally:
            self._changes.discard(note)

    async def quorum(self) -> QuorumStatus:
        """Return the quorum as its leader sees it. Raises NoController."""
        client = self._known_client()
        try:
            return await client.describe_quorum(timeout_s=TIMEOUT_S)
        except (TimeoutError, ControllerError):
            raise no_controller(client, self._options.controller, TIMEOUT_S) from None

    async def traces(self, topic_id: UUID, partition: int) -> Sequence[MoveTrace]:
        """Return what brokers reported of the partition's moves; nothing without a leader of the
        controllers.
        """
        try:
            answer = await self._known_client().trace_move(
                TraceMove(topic_id=topic_id, partition=partition), timeout_s=TIMEOUT_S
            )
        except (TimeoutError, ControllerError):
            return ()
        return answer.items

    @contextmanager
    def changes_of(self, key: PartitionKey) -> Generator[asyncio.Event, None, None]:
        """Set an event at each change of a partition's metadata."""
        event = asyncio.Event()

        def note(delta: "MetadataDelta") -> None:
            if delta.everything or key in delta.partitions or delta.stream_ids:
                event.set()

        self._changes.add(note)
        try:
            yield event
        finally:
            self._changes.discard(note)

    # --- figures ----------------------------------------------------------------------------------

    async def top(self) -> TopView:
        """Return the figures, measured at most a few seconds ago. Raises NoController."""
        _ = self.image
        is_fresh = self._measuring is not None and self._view is not None
        self.want()
        if is_fresh and self._view is not None:
            return self._view
        async with self._measured, asyncio.timeout(TIMEOUT_S + INTERVAL_S):
            await self._measured.wait()
        assert self._view is not None
        return self._view

    def want(self) -> None:
        """Measure for a minute from now on."""
        loop = asyncio.get_running_loop()
        self._wanted_until = loop.time() + WANTED_S
        if self._measuring is None or self._measuring.done():
            self._measuring = loop.create_task(self._measure_regularly())

    @contextmanager
    def listen(self) -> Generator[asyncio.Queue[Sample], None, None]:
        """Get the samples from now on, at most QUEUED_MAX that were not taken yet."""
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
            self._before = None

    async def _measure(self) -> None:
        loads = await broker_loads(self._known_client())
        image = self.image
        ends = await asyncio.to_thread(self._ends.measure, list(broker_addresses(image).values()))
        now = asyncio.get_running_loop().time()
        image = self.image
        offsets = {name: sum(partitions.values()) for name, partitions in ends.items()}
        view = view_top(
            view_cluster(image, self._options.controller, loads),
            stored_topics(image),
            offsets,
            self._before,
            now - self._measured_at,
            prices=self._prices,
        )
        self._before, self._measured_at, self.ends = offsets, now, ends
        self._view = view
        sample = sample_of(view, self._wall_ms())
        self.samples.add(sample)
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(sample)
        async with self._measured:
            self._measured.notify_all()

    def _known_client(self) -> ControllerClient:
        _ = self.image
        assert self._client is not None
        return self._client

    def _changed(self, delta: "MetadataDelta", _image: MetadataImage) -> None:
        for note in list(self._changes):
            note(delta)

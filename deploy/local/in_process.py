"""Run the whole cluster in one process with an in-memory store. It starts faster than several
processes, and all data is lost at exit.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Final

import msgspec
import structlog

from penstock.base.allocator import keep_freed_memory
from penstock.base.backoff import Backoff
from penstock.base.collector import tune_collector
from penstock.base.errors import StreamError
from penstock.base.listening import ListenFailed
from penstock.base.open_files import raise_open_files_limit
from penstock.broker.config import BrokerConfig
from penstock.broker.network.server import PortTaken as ListenerPortTaken
from penstock.broker.node import Broker
from penstock.broker.requests.long_requests import SWITCH_INTERVAL_S
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.errors import ControllerError
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.deploy.errors import ClusterFailed, PortTaken, UsageError
from penstock.deploy.local.plan import PORT_FLAGS, ClusterPlan, ProcessPlan
from penstock.deploy.node.client_metrics import sender_of
from penstock.deploy.node.config.definition import ProcessConfig
from penstock.deploy.node.config.effective import Effective
from penstock.deploy.node.config.exposure import exposures
from penstock.deploy.node.insecure import reminding
from penstock.deploy.node.process import open_tls
from penstock.deploy.node.traces.set_up import of_moves, of_requests
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from penstock.stream.wal.tracing import Tracing

log = structlog.get_logger(__name__)

_RESTART_FIRST_MS: Final = 100
_RESTART_MAX_MS: Final = 5_000
_START_FAILURES: Final = (ListenerPortTaken, ControllerError, StreamError, TimeoutError)


def _load(process: ProcessPlan) -> Effective:
    """Return the configuration of a node. Raises UsageError."""
    config = process.load(os.environ)
    if config.part(ProcessConfig).wal_store:
        raise UsageError("wal.store is not possible with --store memory: use --store moto")
    return config


async def run_in_process(
    plan: ClusterPlan,
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve until `stop` is set. ready: called with the cluster id. Raises PortTaken, or
    ClusterFailed when a node exits.

    Invariants: brokers and controllers are the same classes as in separate processes, and
    communicate over sockets. A broker that exits is restarted, because the exit of the process
    would lose all data; if a controller exits, the cluster stops. This is not suitable for failure
    tests, because single nodes cannot be killed.
    """
    keep_freed_memory()
    raise_open_files_limit()
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        controllers = [
            await _controller(process, store, stack) for process in plan.of_role("controller")
        ]
        for controller in controllers:
            stack.push_async_callback(controller.stop)
        try:
            await asyncio.gather(*(controller.start() for controller in controllers))
        except ListenFailed as error:
            raise PortTaken(
                plan.of_role("controller")[0].host, error.port, PORT_FLAGS["controller"]
            ) from None
        hosts = [InProcessBroker(process, store) for process in plan.of_role("broker")]
        for host in hosts:
            stack.push_async_callback(host.stop)
        started = (host.start(stack) for host in hosts)
        for outcome in await asyncio.gather(*started, return_exceptions=True):
            if outcome is not None:
                raise outcome
        # Without this, a full collection of 100,000 objects or more pauses the process for 0.1 to
        # 0.3 s.
        tune_collector()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ready(controllers[0].cluster_id)
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, *(host.task for host in hosts if host.task)]
        ends += [controller.failed for controller in controllers if controller.failed is not None]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            raise ClusterFailed("a node of the cluster ended unexpectedly; its log is above")


class InProcessBroker:
    """One broker, which is restarted whenever an incarnation exits by itself."""

    def __init__(self, process: ProcessPlan, store: ObjectStore) -> None:
        self._process = process
        self._config = _load(process)
        self._store = store
        self._tracing: Tracing | None = None
        self._broker: Broker | None = None
        """None between two incarnations."""
        self.task: asyncio.Task[None] | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(reminding(exposures(self._config.parts)))
        self._tracing = stack.enter_context(of_requests(self._config.part(ProcessConfig)))
        broker = self._broker = await self._first_broker()
        self.task = asyncio.get_running_loop().create_task(self._keep(broker))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        if self._broker is not None:
            await self._broker.stop()

    async def _keep(self, broker: Broker) -> None:
        while True:
            await asyncio.shield(broker.ended)
            self._broker = None
            await broker.abandon()
            broker = self._broker = await self._restart_broker()
            tune_collector()
            log.warning("broker_restarted", node_id=broker.node_id, node_epoch=broker.node_epoch)

    async def _restart_broker(self) -> Broker:
        backoff = Backoff(_RESTART_FIRST_MS, _RESTART_MAX_MS, Random())  # noqa: S311 - jitter
        while True:
            try:
                return await self._start_broker()
            except _START_FAILURES as error:
                log.warning("broker_start_failed", reason=str(error) or repr(error))
            await asyncio.sleep(backoff.next_s())

    async def _first_broker(self) -> Broker:
        """Raises PortTaken if the port has been taken since it was chosen, or ClusterFailed."""
        try:
            return await self._start_broker()
        except ListenerPortTaken as error:
            raise PortTaken(self._process.host, error.port, PORT_FLAGS["broker"]) from None
        except _START_FAILURES as error:
            raise ClusterFailed(f"a broker did not start: {error or repr(error)}") from None

    async def _start_broker(self) -> Broker:
        config = self._config
        return await Broker.start(
            config.part(BrokerConfig),
            self._store,
            config.part(StreamConfig),
            config.part(CompactionConfig),
            security=config.part(SecurityConfig),
            tracing=self._tracing,
            metrics_sender=sender_of(config.part(BrokerConfig), os.environ),
            tls=open_tls(config),
        )


async def _controller(
    process: ProcessPlan, store: ObjectStore, stack: AsyncExitStack
) -> ControllerServer:
    config = _load(process)
    await stack.enter_async_context(reminding(exposures(config.parts)))
    controllers = config.part(ControllerConfig)
    # A broker in this process cannot die alone, so a broken stream merely indicates a blocked event
    # loop.
    controllers = msgspec.structs.replace(
        controllers, session_grace_ms=controllers.session_timeout_ms
    )
    return ControllerServer(
        controllers,
        store,
        moved=stack.enter_context(of_moves(config.part(ProcessConfig))),
        tls=open_tls(config),
    )

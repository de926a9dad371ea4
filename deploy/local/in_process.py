"""Run the whole cluster in one process, with one store in memory: it starts fastest, and all data
are lost at the end.

Invariant: brokers and controllers are the same classes as in separate processes, and talk over
sockets. If one of them ends, all end. Must not be used to test failures: no node can be killed
alone.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from penstock.base.allocator import keep_freed_memory
from penstock.base.collector import tune_collector
from penstock.base.open_files import raise_open_files_limit
from penstock.broker.config import BrokerConfig
from penstock.broker.handlers.long_requests import SWITCH_INTERVAL_S
from penstock.broker.node import Broker
from penstock.broker.security.config import SecurityConfig
from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.deploy.clients.state_file import ProcessState
from penstock.deploy.errors import ClusterFailed
from penstock.deploy.local.plan import ClusterPlan, ProcessPlan
from penstock.deploy.node.client_metrics import sender_of
from penstock.deploy.node.config.definition import ProcessConfig
from penstock.deploy.node.config.exposure import exposures
from penstock.deploy.node.insecure import reminding
from penstock.deploy.node.process import open_tls
from penstock.deploy.node.traces.set_up import of_moves, of_requests
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig


async def run_in_process(
    plan: ClusterPlan,
    stop: asyncio.Event,
    ready: Callable[[Sequence[ProcessState]], None],
) -> None:
    """Serve until `stop` is set. Raises ClusterFailed when a node ends."""
    keep_freed_memory()
    raise_open_files_limit()
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        controllers = [
            await _controller(process, store, stack) for process in plan.of_role("controller")
        ]
        for controller in controllers:
            stack.push_async_callback(controller.stop)
        await asyncio.gather(*(controller.start() for controller in controllers))
        brokers = await asyncio.gather(
            *(_start_broker(process, store, stack) for process in plan.of_role("broker"))
        )
        for broker in brokers:
            stack.push_async_callback(broker.stop)
        # Without this, a full collection of 100,000 and more objects stops all for 0.1 to 0.3 s.
        tune_collector()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ready(
            [
                _state(process.role, process.node_id, process.host, process.port)
                for process in plan.processes
            ]
        )
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, *(broker.ended for broker in brokers)]
        ends += [controller.failed for controller in controllers if controller.failed is not None]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            raise ClusterFailed("a node of the cluster ended unexpectedly; its log is above")


async def _start_broker(process: ProcessPlan, store: ObjectStore, stack: AsyncExitStack) -> Broker:
    config = process.load(os.environ)
    await stack.enter_async_context(reminding(exposures(config.parts)))
    tracing = stack.enter_context(of_requests(config.part(ProcessConfig)))
    return await Broker.start(
        config.part(BrokerConfig),
        store,
        config.part(StreamConfig),
        config.part(CompactionConfig),
        security=config.part(SecurityConfig),
        tracing=tracing,
        metrics_sender=sender_of(config.part(BrokerConfig), os.environ),
        tls=open_tls(config),
    )


async def _controller(
    process: ProcessPlan, store: ObjectStore, stack: AsyncExitStack
) -> ControllerServer:
    config = process.load(os.environ)
    await stack.enter_async_context(reminding(exposures(config.parts)))
    return ControllerServer(
        config.part(ControllerConfig),
        store,
        moved=stack.enter_context(of_moves(config.part(ProcessConfig))),
        tls=open_tls(config),
    )


def _state(role: str, node_id: int | None, host: str, port: int) -> ProcessState:
    return ProcessState(
        role=role, node_id=node_id, pid=os.getpid(), host=host, port=port, phase="serving", starts=1
    )

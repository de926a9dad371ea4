"""The whole cluster in one process, over one store in memory: the quickest way to try something, and gone at the end.

Invariant: brokers and controller are the same classes as in processes of their own; they still talk over sockets. When one of
them ends by itself, all end. Must not be used to try out failures: nothing here can be killed alone.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from broker.config import BrokerConfig
from broker.main import stream_config_for
from broker.node import Broker
from controller.config import ControllerConfig
from controller.main import ControllerServer
from deploy.cluster.plan import SESSION_GRACE_MS, SESSION_TIMEOUT_MS, SHUTDOWN_TIMEOUT_MS, ClusterOptions, ClusterPlan
from deploy.cluster.state import ProcessState
from deploy.errors import ClusterFailed
from objectstore.memory import MemoryStore
from objectstore.ports import ObjectStore


async def run_in_process(
    plan: ClusterPlan,
    options: ClusterOptions,
    directory: str,
    stop: asyncio.Event,
    ready: Callable[[Sequence[ProcessState]], None],
) -> None:
    """Serve until `stop`. Raises ClusterFailed when the controller ends by itself."""
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        controller = ControllerServer(_controller_config(plan, options, directory), store)
        await controller.start()
        stack.push_async_callback(controller.stop)
        brokers = await asyncio.gather(*(_start_broker(plan, options, index, store) for index in range(options.brokers)))
        for broker in brokers:
            stack.push_async_callback(broker.stop)
        ready([_state(process.role, process.node_id, process.host, process.port) for process in plan.processes])
        assert controller.failed is not None
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, controller.failed, *(broker.ended for broker in brokers)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            raise ClusterFailed("a node of the cluster ended by itself; its log is above")


async def _start_broker(plan: ClusterPlan, options: ClusterOptions, node_id: int, store: ObjectStore) -> Broker:
    process = plan.of_role("broker")[node_id]
    config = BrokerConfig(
        node_id=node_id,
        listen_host=options.host,
        listen_port=process.port,
        controllers=(plan.controller,),
        shutdown_timeout_ms=SHUTDOWN_TIMEOUT_MS,
        group_initial_rebalance_delay_ms=0,
    )
    return await Broker.start(config, store, stream_config_for("memory:"))


def _controller_config(plan: ClusterPlan, options: ClusterOptions, directory: str) -> ControllerConfig:
    return ControllerConfig(
        data_dir=Path(directory),
        host=options.host,
        port=plan.of_role("controller")[0].port,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        session_grace_ms=SESSION_GRACE_MS,
    )


def _state(role: str, node_id: int | None, host: str, port: int) -> ProcessState:
    return ProcessState(role=role, node_id=node_id, pid=os.getpid(), host=host, port=port, phase="serving", starts=1)

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
from deploy.cluster.plan import (
    CLUSTER_ID,
    ELECTION_TIMEOUT_MS,
    SESSION_GRACE_MS,
    SESSION_TIMEOUT_MS,
    SHUTDOWN_TIMEOUT_MS,
    ClusterOptions,
    ClusterPlan,
    data_directory,
    quorum_peers,
)
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
        controllers = [
            ControllerServer(_controller_config(plan, options, number, directory), store) for number in range(options.controllers)
        ]
        for controller in controllers:
            stack.push_async_callback(controller.stop)
        await asyncio.gather(*(controller.start() for controller in controllers))
        brokers = await asyncio.gather(*(_start_broker(plan, options, index, store) for index in range(options.brokers)))
        for broker in brokers:
            stack.push_async_callback(broker.stop)
        ready([_state(process.role, process.node_id, process.host, process.port) for process in plan.processes])
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, *(broker.ended for broker in brokers)]
        ends += [controller.failed for controller in controllers if controller.failed is not None]
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
        controllers=tuple(plan.controller.split(",")),
        shutdown_timeout_ms=SHUTDOWN_TIMEOUT_MS,
        group_initial_rebalance_delay_ms=0,
    )
    return await Broker.start(config, store, stream_config_for("memory:"))


def _controller_config(plan: ClusterPlan, options: ClusterOptions, number: int, directory: str) -> ControllerConfig:
    peers = quorum_peers(plan.controller.split(","))
    return ControllerConfig(
        data_dir=Path(data_directory(directory, number, options.controllers)),
        host=options.host,
        port=plan.of_role("controller")[number].port,
        controller_id=number,
        peers=peers,
        cluster_id=CLUSTER_ID if peers else "",
        election_timeout_ms=ELECTION_TIMEOUT_MS,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        session_grace_ms=SESSION_GRACE_MS,
        auto_balance=options.auto_balance,
    )


def _state(role: str, node_id: int | None, host: str, port: int) -> ProcessState:
    return ProcessState(role=role, node_id=node_id, pid=os.getpid(), host=host, port=port, phase="serving", starts=1)

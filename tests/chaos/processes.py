"""Run the cluster's processes with the commands of `penstock dev`, and their proxies.

A process that exits is restarted unless a fault keeps it down. An exit without a fault is a bug,
unless the broker was fenced. All processes exit with this one (`deploy.node.lifeline`, so only the
main thread may start them).
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Self

from penstock.controller.api.client import ControllerClient
from penstock.deploy.clients.ping import is_serving
from penstock.deploy.local.moto_store import listen
from penstock.deploy.local.plan import (
    CLUSTER_ID,
    ClusterOptions,
    Ports,
    ProcessPlan,
    plan_cluster,
    quorum_peers,
)
from penstock.deploy.local.ports import find_ports
from penstock.deploy.node import lifeline
from tests.chaos.links import Network
from tests.chaos.patience import Patience
from tests.chaos.store_proxy import StoreProxy

READ_GRACE_MS: Final = 3_000
"""Short, so that unreferenced objects are deleted during a run."""

START_TIMEOUT_S: Final = 180.0
"""The deadline for brokers to serve, generous for busy machines."""
FENCED: Final = 3
"""The exit code of a fenced broker, which is expected after a pause or a cut."""

_FEW_COORDINATORS: Final = (
    "--offsets-topic-num-partitions",
    "3",
    "--transaction-state-log-num-partitions",
    "3",
)
_RESTART_S: Final = 0.2
_LOOK_S: Final = 0.1


@dataclass(eq=False, slots=True)
class Node:
    """A process of the cluster.

    held_down: a fault prevents its restart. caused: a fault causes its next exit. port: the node's
    own port, behind its proxy.
    """

    plan: ProcessPlan
    port: int
    process: subprocess.Popen[bytes] | None = None
    held_down: bool = False
    caused: bool = False
    starts: int = 0
    ended_by_itself: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


class Processes:
    """All processes: `async with Processes(directory, seed, defect) as processes`.

    defect: called for every exit that no fault explains. planted: the name of a bug in
    `tests.sim.mutants` that is planted in all nodes, to check that the run finds it.
    """

    def __init__(
        self, directory: Path, seed: int, defect: Callable[[str], None], planted: str = ""
    ) -> None:
        self.directory = directory
        self._environment = (
            os.environ
            | {lifeline.PARENT_VARIABLE: str(os.getpid())}
            | _planting(directory, planted)
        )
        self._defect = defect
        options = ClusterOptions(brokers=3, controllers=3, log_level="info")
        found = find_ports(ClusterOptions(brokers=6, controllers=6, port=0), Random())
        plan = plan_cluster(
            options,
            Ports(found.brokers[:3], found.controllers[:3], found.store),
            str(directory / "controllers"),
        )
        self.bootstrap = plan.bootstrap
        self.controllers = plan.controller.split(",")
        self.store_url = plan.store_url
        """The store without its proxy, for checks of the bucket. Nodes have other URLs."""
        own = {
            "store": (found.store,),
            "controller": found.controllers[3:],
            "broker": found.brokers[3:],
        }
        self.nodes = {
            process.name: Node(process, own[process.role][process.node_id or 0])
            for process in plan.processes
        }
        self.network = Network(self._pids)
        self.store = StoreProxy(found.store, Random(f"store/{seed}"))
        self._store_port = found.store
        self._store_ports: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            if node.plan.role != "store":
                self.network.add(node.name, node.plan.port, node.port)
                self._store_ports[node.name] = await self.store.open(node.name)
        for node in self.nodes.values():
            await self.start(node)
        self._tasks = [asyncio.ensure_future(self._keep(node)) for node in self.nodes.values()]
        try:
            await self.until_serving()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def node(self, name: str) -> Node:
        return self.nodes[name]

    def brokers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.plan.role == "broker"]

    async def start(self, node: Node) -> None:
        """Start the process. Must be called in the main thread, because a child ends with the
        thread that started it (see `deploy.node.lifeline`).
        """
        node.starts += 1
        log = self.directory / f"{node.name.replace(' ', '-')}.{node.starts}.log"
        inherited = listen(node.port) if node.plan.role == "store" else None
        with log.open("wb") as output:
            node.process = subprocess.Popen(  # noqa: ASYNC220 - see above
                (
                    sys.executable,
                    "-P",
                    *node.plan.arguments,
                    *self._overrides(node, inherited.fileno() if inherited else -1),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self._environment, **node.plan.environment},
                pass_fds=(inherited.fileno(),) if inherited else (),
                process_group=0,
            )
        if inherited is not None:
            inherited.close()
        else:
            await self.network.node_runs(node.name)

    def signal(self, node: Node, number: signal.Signals) -> None:
        """Send the signal. SIGKILL and SIGTERM mark the next exit as caused by a fault."""
        if node.process is not None and node.process.poll() is None:
            node.caused = node.caused or number in (signal.SIGKILL, signal.SIGTERM)
            node.process.send_signal(number)

    async def until_gone(self, node: Node, timeout_s: float) -> bool:
        process = node.process
        patience = Patience(timeout_s)
        while process is not None and process.poll() is None and patience.lasts():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return process is None or process.poll() is not None

    async def until_serving(self) -> None:
        """Wait until all brokers serve. After a timeout, make the others dump their stacks to their
        logs (SIGQUIT) and raise TimeoutError with their names.
        """
        patience = Patience(START_TIMEOUT_S)
        while missing := [
            node for node in self.brokers() if not await is_serving("127.0.0.1", node.port)
        ]:
            if not patience.lasts():
                for node in missing:
                    self.signal(node, signal.SIGQUIT)
                raise TimeoutError(
                    f"{', '.join(node.name for node in missing)}: no response within"
                    f" {START_TIMEOUT_S:.0f} s"
                )
            await asyncio.sleep(0.1)

    async def leading_controller(self) -> str:
        """Return the name of the active controller. If there is none, retry for a few seconds, then
        return `controller 0`.
        """
        for _ in range(20):
            for node in self.nodes.values():
                if node.plan.role == "controller" and await _leads(node.port):
                    return node.name
            await asyncio.sleep(0.1)
        return "controller 0"

    def _pids(self) -> dict[str, int | None]:
        return {node.name: node.pid for node in self.nodes.values()}

    async def _keep(self, node: Node) -> None:
        """Restart the process after each exit."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if node.process is None or (code := node.process.poll()) is None:
                continue
            pid, node.process = node.process.pid, None
            if node.plan.role != "store":
                self.network.node_ended(node.name)
            if not node.caused:
                node.ended_by_itself.append(
                    f"{node.name} (pid {pid}, start {node.starts}) ended with {code}"
                )
                if node.plan.role != "broker" or code != FENCED:
                    self._defect(node.ended_by_itself[-1])
            node.caused = False
            while node.held_down:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            await asyncio.sleep(_RESTART_S)
            await self.start(node)

    def _overrides(self, node: Node, store_fd: int) -> tuple[str, ...]:
        """Return flags that override those of the plan: the last occurrence of a flag counts."""
        if node.plan.role == "store":
            return ("--fd", str(store_fd))
        store = (
            "--store",
            self.store_url.replace(str(self._store_port), str(self._store_ports[node.name])),
        )
        if node.plan.role == "broker":
            advertised = ("--advertised-listeners", f"127.0.0.1:{node.plan.port}")
            return (
                *store,
                "--listeners",
                f"127.0.0.1:{node.port}",
                *advertised,
                *("--broker-rack", node.name),
                *_FEW_COORDINATORS,
            )
        return (
            *store,
            *("--listeners", f"127.0.0.1:{node.port}"),
            *(
                "--cluster-id",
                CLUSTER_ID,
                "--controller-quorum-voters",
                ",".join(quorum_peers(self.controllers)),
            ),
            *(
                "--object-delete-grace-ms",
                str(READ_GRACE_MS),
                "--object-delete-interval-ms",
                "1000",
            ),
        )

    async def _stop(self) -> None:
        """Kill all processes. No more checks follow."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes.values():
            if node.process is not None:
                with suppress(ProcessLookupError):
                    node.process.kill()
                node.process.wait()
        await self.network.close()
        await self.store.close()


def _planting(directory: Path, name: str) -> dict[str, str]:
    """Return the environment that plants the bug through `sitecustomize`, which Python imports at
    its start.
    """
    if not name:
        return {}
    (directory / "sitecustomize.py").write_text(
        f"from tests.sim.mutants import planted\n\nbug = planted({name!r})\nbug.__enter__()\n"
    )
    return {
        "PYTHONPATH": os.pathsep.join(
            (str(directory), os.environ.get("PYTHONPATH", str(Path.cwd())))
        )
    }


async def _leads(port: int) -> bool:
    client = ControllerClient([f"127.0.0.1:{port}"])
    try:
        return (await client.describe(timeout_s=0.5)).active
    except (TimeoutError, OSError):
        return False
    finally:
        await client.close()

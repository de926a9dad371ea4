"""Run a broker as a separate process in a cluster whose controller runs in this process."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.deploy.node import lifeline
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

_START_S = PATIENCE_S
_STOP_S = PATIENCE_S


@dataclass
class BrokerProcess:
    """port: of the first listener. lines: its stderr, line by line."""

    process: asyncio.subprocess.Process
    port: int = 0
    lines: list[str] = field(default_factory=list)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the log lines with these events."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line for line in found if line["event"] in names]

    @property
    def pid(self) -> int:
        return self.process.pid

    async def read(self, started: asyncio.Event) -> None:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode(errors="replace"):
            self.lines.append(line.rstrip("\n"))
            if '"broker_started"' in line:
                self.port = int(json.loads(line)["port"])
                started.set()
        started.set()


@contextlib.asynccontextmanager
async def broker_process(
    cluster: Cluster,
    store: str,
    settings: Mapping[str, str],
    *,
    node_id: int = 7,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[BrokerProcess]:
    """Start a broker, and stop it at the end. settings: additional settings by name."""
    assert cluster.controller is not None
    needed = {
        "store": store,
        "node.id": str(node_id),
        "listeners": "127.0.0.1:0",
        "controller.quorum.bootstrap.servers": cluster.controller.address,
    }
    variables = {
        f"PENSTOCK_{name.replace('.', '_').upper()}": value
        for name, value in (needed | dict(settings)).items()
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "penstock.deploy.cli", "broker"),
        env={
            **os.environ,
            lifeline.PARENT_VARIABLE: str(os.getpid()),
            **variables,
            **(environment or {}),
        },
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    broker, started = BrokerProcess(process), asyncio.Event()
    reading = asyncio.create_task(broker.read(started))
    try:
        async with asyncio.timeout(_START_S):
            await started.wait()
        assert broker.port, "\n".join(broker.lines)
        yield broker
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading

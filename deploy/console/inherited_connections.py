"""Serve connections that a node passes over a Unix socket (SCM_RIGHTS).

Each datagram contains a connection and the part of its first request that the node has read. Every
connection is closed after its first response, so that the next request is sent to the node again.
The process exits after `IDLE_S` without a connection.
"""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvicorn

from penstock.deploy.console.connection import ConsoleConnection
from penstock.deploy.node.console import READY, REQUEST_BYTES_MAX

IDLE_S: Final = 1_800.0
"""Idle time after which the process exits. It equals the idle timeout of logins."""
NICENESS: Final = 10
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")


def yield_to_node() -> None:
    """Give the node priority for CPU time, and make the kernel kill this process rather than the
    node if memory runs out.
    """
    os.nice(NICENESS)
    with suppress(OSError):
        _OOM_SCORE.write_text("1000")


class HandedConnection(ConsoleConnection):
    """A connection whose first request was partly read by the node."""

    request = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.data_received(self.request)


class HandedServer(uvicorn.Server):
    """Serves the connections from a node. source: the socket to the node."""

    def __init__(self, config: uvicorn.Config, source: socket.socket) -> None:
        super().__init__(config)
        self._source = source
        self._opening: set[asyncio.Task[None]] = set()
        self._idle_since = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets or [])
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        self._source.setblocking(False)
        loop.add_reader(self._source, self._take)
        self._source.send(READY)

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if self.server_state.connections or self._opening:
            self._idle_since = now
        return await super().on_tick(counter) or now - self._idle_since > IDLE_S

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._source)
        await super().shutdown(sockets)

    def _take(self) -> None:
        try:
            request, numbers, _, _ = socket.recv_fds(self._source, REQUEST_BYTES_MAX, 1)
        except BlockingIOError:
            return
        for number in numbers:
            connection = socket.socket(fileno=number)
            connection.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._open(request, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, request: bytes, connection: socket.socket) -> None:
        protocol = HandedConnection(self.config, self.server_state, self.lifespan.state)
        protocol.request = request
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)

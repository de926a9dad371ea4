"""Node ports in front of the chart's brokers, as a network of pods forwards them: while a pod is
away, its address accepts connections and never responds.

Connections to a process that has ended are refused, which clients notice immediately. If an address
disappears with its pod, clients wait until their own timeouts.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Self

from tests.support.waiting import PATIENCE_S

_PIECE_BYTES: Final = 1 << 16
_Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class NodePorts:
    """Forwards each port to the port of a broker. Use it in a `with` block."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        """targets: the ports of the brokers, by node port."""
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self.refused: Counter[int] = Counter()
        """The number of connections that arrived while no pod was running, by node port."""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(self._accept_at(port), "127.0.0.1", port)
            for port in self._targets
        ]

    def _accept_at(self, port: int) -> _Accept:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)
            try:
                pod = await asyncio.open_connection("127.0.0.1", self._targets[port])
            except OSError:
                self.refused[port] += 1
                while await reader.read(_PIECE_BYTES):
                    pass  # until the client gives up
                writer.close()
                return
            self._open.add(pod[1])
            await asyncio.gather(_pass_on(reader, pod[1]), _pass_on(pod[0], writer))

        return accept

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._open:
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(tasks, timeout=PATIENCE_S) if tasks else None


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward all bytes, and then the end of the stream."""
    with suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()

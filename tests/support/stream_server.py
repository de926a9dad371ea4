"""Serve connections in a test, and close all of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamServer:
    """A server on 127.0.0.1 that calls `serve` for each connection and closes it afterwards.

    asyncio.Server leaves connections open when it closes, and loses those that it has accepted but
    not yet passed on. The warnings of their destructors then fail a later test.
    """

    def __init__(self, serve: Serve, *, limit_bytes: int = 1 << 16) -> None:
        self.port = 0
        self._serve = serve
        self._limit_bytes = limit_bytes
        self._listening: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> int:
        """Listen and return the port: a free port at first, and the same port later. Raises
        OSError.
        """
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        return self.port

    def close(self) -> None:
        """Refuse new connections and abort existing ones. Calling it again has no effect."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for task in self._tasks:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = listening.accept()
            task = asyncio.ensure_future(self._converse(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: connection.close())  # the server may not have started

    async def _converse(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit_bytes)
        try:
            with suppress(OSError, EOFError):
                await self._serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

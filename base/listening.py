"""Start listening with reliable error reporting, and stop listening without losing connections."""

import asyncio
import socket
from typing import Final

EXIT_NOT_LISTENING: Final = 4
"""Exit code of a node that cannot listen on its port."""


class ListenFailed(OSError):
    """Raised if a node cannot listen, usually because another process listens on its port."""

    def __init__(self, message: str, port: int) -> None:
        super().__init__(message)
        self.port = port


async def start_listening(server: asyncio.Server, backlog_count: int) -> None:
    """Accept connections of a server that was created with `start_serving=False`. Raises OSError if
    another process listens on the port.

    Several processes may bind a port with SO_REUSEADDR before the first of them listens. uvloop
    then closes the sockets of the others without raising an error.
    """
    for bound in server.sockets:
        with socket.fromfd(bound.fileno(), bound.family, bound.type) as listening:
            listening.listen(backlog_count)
    await server.start_serving()


async def stop_listening(server: asyncio.Server) -> None:
    """Close the sockets of the server. Accepted connections still reach their protocols.

    asyncio passes an accepted connection on in the next event loop iteration. If the server is
    closed by then, the connection is lost, but stays open until it is garbage collected, while its
    client waits (CPython issue 109564).
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    await asyncio.sleep(0)
    server.close()

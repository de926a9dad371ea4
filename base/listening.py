"""Stop listening without losing connections."""

import asyncio


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

"""Stop listening without losing connections."""

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Close the sockets of the server. Connections that it has accepted reach their protocols.

    asyncio hands an accepted connection over in the next turn of the event loop. If the server has
    closed by then, the connection is lost, but it stays open until its memory is collected, and its
    client waits for all that time. Source: CPython issue 109564.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    await asyncio.sleep(0)
    server.close()

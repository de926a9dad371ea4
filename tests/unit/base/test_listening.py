"""Listeners that close while clients connect, over real sockets."""

import asyncio
import gc
import socket

import pytest

from penstock.base.listening import stop_listening
from tests.support.waiting import PATIENCE_S


class Kept(asyncio.Protocol):
    """A connection that stays open until the test closes it."""

    def __init__(self, transports: list[asyncio.Transport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transports.append(transport)


@pytest.mark.parametrize("turns", range(6))
async def test_each_connection_is_served_or_refused_while_the_listener_closes(turns: int) -> None:
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Kept(transports), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop_listening(server)
        await asyncio.sleep(0)  # the protocol is told about its connection
        for transport in transports:
            transport.abort()
        client.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await loop.sock_recv(client, 1) == b""
        except ConnectionResetError:
            assert not transports
    gc.collect()  # warns about lost connections

"""Clients, dispatchers and timers of listeners without Kafka requests."""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.broker.network.request import ConnectionInfo, Respond, Response
from tests.support.waiting import PATIENCE_S


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *payloads: bytes) -> None:
        self.writer.write(framed(*payloads))

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65_536):
                    pass


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


class Echo:
    """A dispatcher that responds with the frame."""

    def is_blocked(self, frame: bytearray) -> bool:
        return False

    async def wait_unblocked(self) -> None: ...

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        respond(framed(bytes(frame)))
        return None


@dataclass
class ManualTimer:
    """A timer that the test fires."""

    due_s: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.due_s

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        assert not self.is_cancelled
        self.call()

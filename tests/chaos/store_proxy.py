"""An HTTP proxy in front of the S3 server that injects faults, with a port for each process.

It returns 503, delays or truncates requests and responses, and drops responses to completed
requests. A held request may arrive after its sender has died.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.base.listening import stop_listening
from tests.chaos.links import reset
from tests.chaos.schedule import ALL, Fault, Kind

_HEAD_BYTES_MAX: Final = 64 * 1024
_SLOW_DOWN: Final = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request"
    b" rate.</Message></Error>"
)


@dataclass(frozen=True, slots=True)
class _Message:
    """A request or response. `head` ends with the empty line."""

    head: bytes
    body: bytes

    @property
    def whole(self) -> bytes:
        return self.head + self.body

    @property
    def is_for_head(self) -> bool:
        return self.head.startswith(b"HEAD ")


class _Broken(Exception):
    """The proxy must close the connection."""


class StoreProxy:
    def __init__(self, target_port: int, rng: Random) -> None:
        self._target_port = target_port
        self._rng = rng
        self._weather: list[tuple[Fault, asyncio.Event]] = []
        """Active faults, each with an event for its end."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.hit_count = 0
        """Requests that met a fault."""

    async def open(self, source: str) -> int:
        """Open a port for one process and return it."""

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer, source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(
                lambda _: None if writer.is_closing() else writer.transport.abort()
            )

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for server in self._servers:
            await stop_listening(server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, fault: Fault) -> None:
        self._weather.append((fault, asyncio.Event()))

    def end(self, fault: Fault) -> None:
        for item in [item for item in self._weather if item[0] is fault]:
            self._weather.remove(item)
            item[1].set()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str
    ) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            upstream = await asyncio.open_connection(
                "127.0.0.1", self._target_port, limit=_HEAD_BYTES_MAX
            )
            while True:
                request = await _read_message(reader)
                await self._respond(request, source, writer, upstream)
        except (OSError, _Broken, asyncio.IncompleteReadError):
            pass
        finally:
            reset(writer)
            if upstream is not None:
                upstream[1].close()

    async def _respond(
        self,
        request: _Message,
        source: str,
        writer: asyncio.StreamWriter,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Handle one request. Raises _Broken if its connection must be closed."""
        lose_response = cut_response = False
        for fault, over in list(self._weather):
            if fault.whom[0] not in (ALL, source) or self._rng.random() >= fault.chance:
                continue
            self.hit_count += 1
            match fault.kind:
                case Kind.STORE_LATENCY:
                    await asyncio.sleep(fault.delay_ms * self._rng.lognormvariate(0, 0.7) / 1_000)
                case Kind.STORE_SLOW_DOWN:
                    head = (
                        "HTTP/1.1 503 Slow Down\r\nContent-Type:"
                        f" application/xml\r\nContent-Length: {len(_SLOW_DOWN)}\r\n\r\n".encode()
                    )
                    await _write(writer, head if request.is_for_head else head + _SLOW_DOWN)
                    return
                case Kind.STORE_CUT_REQUEST:
                    await _write(
                        upstream[1], request.whole[: self._rng.randrange(len(request.whole))]
                    )
                    raise _Broken
                case Kind.STORE_HOLE:
                    await over.wait()
                    if not fault.late:
                        raise _Broken
                case Kind.STORE_LOSE_RESPONSE:
                    lose_response = True
                case _:
                    cut_response = True
        await _write(upstream[1], request.whole)
        response = await _read_message(upstream[0], has_body=not request.is_for_head)
        if lose_response:
            raise _Broken
        if cut_response:
            await _write(writer, response.whole[: self._rng.randrange(len(response.whole))])
            raise _Broken
        await _write(writer, response.whole)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Broken from None


async def _read_message(reader: asyncio.StreamReader, *, has_body: bool = True) -> _Message:
    head = await _read_head(reader)
    return _Message(head, await reader.readexactly(_length(head)) if has_body else b"")


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            with suppress(ValueError):
                return int(value)
    return 0

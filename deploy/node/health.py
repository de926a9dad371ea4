"""Serve `/startz`, `/livez` and `/readyz` over HTTP, for probes of orchestrators; `/metrics`
comes from `deploy.node.metrics`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import structlog

from penstock.base.connections_by_address import ConnectionsByAddress
from penstock.base.health import Health, ServeHealth
from penstock.base.listening import start_listening, stop_listening
from penstock.deploy.errors import PortTaken

if TYPE_CHECKING:
    from penstock.deploy.node.console import NodeConsole

REQUEST_TIMEOUT_S: Final = 10.0
REQUEST_BYTES_MAX: Final = 8 << 10
CONNECTIONS_MAX: Final = 64
_BACKLOG_COUNT: Final = 100

_log = structlog.get_logger(__name__)


class HttpResponse(NamedTuple):
    status: int
    content_type: str
    text: str


Route = Callable[[], Awaitable[HttpResponse]]


def yes_or_no(reasons: list[str]) -> HttpResponse:
    """Return 200 if there are no reasons, otherwise 503 with the reasons."""
    if reasons:
        return HttpResponse(503, "text/plain", "\n".join(reasons) + "\n")
    return HttpResponse(200, "text/plain", "ok\n")


def routes_of(health: Health) -> dict[str, Route]:
    """Return the routes of the probes. Other parts of a process may add routes."""

    async def started() -> HttpResponse:
        return yes_or_no(health.not_started())

    async def alive() -> HttpResponse:
        return yes_or_no(health.not_alive())

    async def ready() -> HttpResponse:
        return yes_or_no(await health.not_ready())

    return {"/startz": started, "/livez": alive, "/readyz": ready}


class HttpServer:
    """Serves GET and HEAD for a few paths. console: handles all requests for its paths. `start`
    raises OSError if the port is in use.

    Invariants: 200 means yes; 503 means no, and lists one reason per line. Requests have limits:
    `REQUEST_TIMEOUT_S`, `REQUEST_BYTES_MAX` and `CONNECTIONS_MAX`. Beyond the last limit, the
    oldest connection of the address with the most connections is closed, so that probes can connect
    during a flood. Each connection is closed after one response. Requests for the web console are
    passed on with their connection (`deploy.node.console`). Depends only on `base.health.Health`,
    not on brokers or controllers.
    """

    def __init__(self, routes: dict[str, Route], console: "NodeConsole | None" = None) -> None:
        self._routes = routes
        self._console = console
        self._server: asyncio.Server | None = None
        self._open = ConnectionsByAddress[asyncio.StreamWriter]()
        self._is_stopped = False

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the bound port. port: 0 for any free port."""
        self._server = await asyncio.start_server(
            self._connected, host, port, limit=REQUEST_BYTES_MAX, start_serving=False
        )
        await start_listening(self._server, _BACKLOG_COUNT)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._is_stopped = True
        if self._server is not None:
            await stop_listening(self._server)
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Coroutine[None, None, None] | None:
        if self._is_stopped:
            writer.transport.abort()
            return None
        peer = writer.get_extra_info("peername")
        self._open.add(writer, str(peer[0]) if peer else "")
        if len(self._open) > CONNECTIONS_MAX:
            self._open.pop().transport.abort()
        return self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                if self._console is None or not self._console.has(_line_of(head)[1]):
                    await _send(writer, await self._respond(head))
                    return
            await _hand_over(self._console, head, reader, writer)
        except (
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ConnectionError,
        ):
            pass  # Do not respond to an invalid or slow request.
        finally:
            self._open.discard(writer)
            writer.close()

    async def _respond(self, head: bytes) -> bytes:
        method, path = _line_of(head)
        route = self._routes.get(path)
        if method not in {"GET", "HEAD"}:
            status = 405 if method.isalpha() else 400
            response = HttpResponse(status, "text/plain", "GET or HEAD\n")
        elif route is None:
            response = HttpResponse(404, "text/plain", "\n".join(self._routes) + "\n")
        else:
            response = await route()
        return _encoded(response, with_body=method != "HEAD")


def _line_of(head: bytes) -> tuple[str, str]:
    """Return the method and path of a request."""
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    return method, rest.partition(" ")[0].partition("?")[0]


async def _hand_over(
    console: "NodeConsole", head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass a connection on with the data read from it, or respond with the reason."""
    reader.feed_eof()
    request = head + await reader.read()
    # Pause again: `read` may have resumed reading. No other task has run since then, because `read`
    # did not have to wait.
    cast("asyncio.Transport", writer.transport).pause_reading()
    if reason := await console.take(request, writer.get_extra_info("socket").fileno()):
        response = HttpResponse(503, "text/plain", f"{reason}\n")
        await _send(writer, _encoded(response, with_body=True))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send the response, unless the client has disconnected: uvloop raises RuntimeError for a write
    after a reset.
    """
    if not writer.is_closing():
        writer.write(data)
        await writer.drain()


def _encoded(response: HttpResponse, *, with_body: bool) -> bytes:
    body = response.text.encode()
    status = HTTPStatus(response.status)
    head = (
        f"HTTP/1.1 {status:d} {status.phrase}\r\n"
        f"Content-Type: {response.content_type}; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


MoreRoutes = Callable[[Health], AbstractAsyncContextManager[dict[str, Route]]]
"""Routes of another part of the process, which runs while they are served."""


def serve_at(
    host: str,
    port: int,
    more: MoreRoutes = lambda _health: nullcontext({}),
    console: "NodeConsole | None" = None,
) -> ServeHealth:
    """Return a context manager that serves the health of brokers and controllers."""

    @asynccontextmanager
    async def serve(health: Health) -> AsyncGenerator[int, None]:
        async with more(health) as routes:
            server = HttpServer(routes_of(health) | routes, console)
            try:
                bound = await server.start(host, port)
            except OSError as error:
                raise PortTaken(host, port, "--health-listener") from error
            _log.info("health_served", host=host, port=bound)
            try:
                yield bound
            finally:
                await server.stop()
                if console is not None:
                    await console.stop()

    return serve

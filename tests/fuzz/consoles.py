"""Fuzz the console with browser input: a connection handed over by a node, from its first bytes to
its end. There is no network; `tests.fuzz.console_world` provides the cluster.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, cast
from unittest.mock import patch
from urllib.parse import quote
from uuid import UUID

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from penstock.controller.api.load_messages import UntunedClient
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console.application import application
from penstock.deploy.console.console import Console
from penstock.deploy.console.decoding import SchemaCache
from penstock.deploy.console.inherited_connections import HandedConnection
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.pages import doctor, groups, snapshots
from penstock.deploy.console.records import find_records
from penstock.deploy.console.samples import sample_of
from penstock.deploy.console.server import config_of
from penstock.deploy.console.sessions import Sessions
from penstock.deploy.errors import NoController
from penstock.deploy.node.console_plan import BASE
from penstock.deploy.top.view import TopView
from penstock.protocol.client.errors import KafkaFailed
from tests.fuzz import console_world
from tests.fuzz.parts import Connection

CSRF = "token-of-forms"
TURNS_S = 0.2
"""How long a client waits for a response. Event streams end after this time."""
END_S = 60.0
_NO_NETWORK = "there is no network"
_WITH_NETWORK: Final = (groups._reset, doctor._examine, snapshots._plan, snapshots._restore)
"""Functions that connect without `WireClient`, like all of `Kafka`."""
_SECONDS = count(0.0, 60.0)
"""Each read of the clock returns a time one minute later, so that failed logins expire."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_HOSTILE: Final = quote(console_world.HOSTILE, safe="")
_FORM = (
    "Host: localhost\r\nOrigin: http://localhost\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n"
)


class _StillCluster(LiveCluster):
    """A cluster without controllers whose state never changes."""

    @property
    def image(self) -> MetadataImage:
        return console_world.IMAGE

    async def top(self) -> TopView:
        return console_world.top()

    def want(self) -> None: ...

    def ends(self, topic: str) -> Mapping[int, int]:
        return console_world.ENDS.get(topic, {})

    def untuned_clients(self) -> list[UntunedClient]:
        hostile = console_world.HOSTILE
        client = UntunedClient(
            client_id=hostile, host=hostile, settings="linger.ms=50", reason="slow", for_ms=1
        )
        return [client]

    async def quorum(self) -> NoReturn:
        raise NoController(_NO_NETWORK)

    async def traces(self, _topic_id: UUID, _partition: int) -> tuple[()]:
        return ()


class _OfflineConsole(Console):
    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the function directly, without a thread."""
        if function in _WITH_NETWORK or isinstance(getattr(function, "__self__", None), Kafka):
            raise KafkaFailed(_NO_NETWORK)
        if function is find_records:
            return cast("_T", console_world.hostile_records(*cast("Any", args)))
        with patch(
            "penstock.protocol.client.connection.Connection._connect",
            lambda *_: console_world.BrokerSocket(),
        ):
            return function(*args, **kwargs)

    async def search(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.call(function, *args, **kwargs)


class _Watched:
    """Record the exceptions of a page. uvicorn would log them and respond with 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.raised: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            self.raised.append(error)
            raise


def _console() -> Console:
    options = ConsoleOptions(
        bootstrap="127.0.0.1:1",
        store=console_world.STORE,
        base=BASE,
        is_behind_node=True,
        allow_changes=True,
    )
    live = _StillCluster(options, lambda: 0)
    live.samples.append(sample_of(console_world.top(), 0, 1.0, has_loads=True))
    return _OfflineConsole(
        options, live, Sessions(_SECONDS.__next__, lambda: "session"), SchemaCache(None), CSRF
    )


_APP = _Watched(application(_console()))
_CONFIG = config_of(_APP)


def console(data: bytes) -> None:
    if b"\r\n\r\n" not in data:
        return  # The node hands over only connections with a complete request head.
    _APP.raised.clear()
    response = asyncio.run(_response_of(data))
    for error in _APP.raised:
        raise error
    assert not response or response.startswith(b"HTTP/1.1 "), f"the response is {response[:80]!r}"


async def _response_of(data: bytes) -> bytes:
    """Return what the console sends to a client that sends this request, waits briefly and
    disconnects.
    """
    state = ServerState()
    handed = HandedConnection(_CONFIG, state, {})
    handed.request = data
    connection = Connection()
    handed.connection_made(cast("asyncio.Transport", connection))
    if state.tasks and not handed.cycle.more_body:
        await asyncio.wait(state.tasks, timeout=TURNS_S)
    elif state.tasks:
        await asyncio.sleep(0)
    handed.connection_lost(None)
    if state.tasks:
        _, left = await asyncio.wait(state.tasks, timeout=END_S)
        assert not left, "a page keeps running after its client disconnected"
    return bytes(connection.written)


def requests() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each seed."""
    for path in (
        *("/", "/topics?filter=a&page=2", "/topics/t", "/topics/t/0/move", "/streams/7"),
        *("/topics/t/messages?partition=0&at=offset&offset=5", "/groups/one?group=g", "/moves"),
        *("/topics/payments", "/topics/payments/0", "/topics/payments/0/move", "/objects/2"),
        *("/topics/payments/messages?partition=0&start=offset&offset=5&limit=50", "/groups"),
        *("/topics/payments/messages?value=zzzz", "/topics/jobs/messages?key=a", "/snapshots"),
        *("/topics/payments/messages?start=time&since=2026-11-20T10:00&value=%7B", "/nodes"),
        *(f"/groups/one?id={_HOSTILE}", f"/transactions/one?id={_HOSTILE}", "/streams/0"),
        *("/transactions", "/configs?broker=0&q=a", "/security", "/security/users"),
        *(f"/security/user?name={_HOSTILE}", "/security/quotas", "/live/moves/payments/0"),
        *(f"/snapshots/one?name={_HOSTILE}", "/topics/payments/fork?name=f&at=latest"),
        *("/security?principal=User:a", "/security/users", "/snapshots/restore?name=s"),
        *("/live/overview", "/static/../console.py", "/static/%2e%2e/x", "//evil", "/sql"),
    ):
        head = f"GET {BASE}{path} HTTP/1.1\r\nHost: localhost\r\n"
        name = path.translate(str.maketrans("/?=&%", "-----"))
        cookies = "Cookie: penstock_theme=dark; penstock_notice=done%20\r\n"
        yield f"get{name}", f"{head}{cookies}\r\n".encode()
    for path, fields in (
        ("/topics", "name=t&partitions=3&configs=retention.ms%3D5"),
        ("/topics/t/configs", "key=retention.ms&value=5"),
        ("/groups/reset", "group=g&topic=t&to=2026-11-26T14:00"),
        (
            "/security/acls",
            "principal=User:a&resource=topic&name=t&pattern=literal&operation=read&permission=allow",
        ),
        ("/security/users", "name=a&password=secret&mechanism=SCRAM-SHA-512"),
        ("/security/quotas", "user=a&key=producer_byte_rate&value=5"),
        ("/snapshots", "name=s&topics=t"),
        ("/login", "user=a&password=b"),
    ):
        body = f"csrf={CSRF}&{fields}"
        head = f"POST {BASE}{path} HTTP/1.1\r\n{_FORM}Content-Length: {len(body)}\r\n\r\n"
        yield f"post{path.replace('/', '-')}", f"{head}{body}".encode()
    chunked = f"POST {BASE}/topics HTTP/1.1\r\n{_FORM}Transfer-Encoding: chunked\r\n\r\n"
    yield "chunked", f"{chunked}6\r\nname=t\r\n0\r\n\r\n".encode()
    yield "other-host", f"GET {BASE}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode()

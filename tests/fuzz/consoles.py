"""Send the console what browsers send: a connection that a node has handed over, from its first
bytes to its end. Without a network: the cluster is empty, and its brokers do not answer.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import NoReturn, ParamSpec, TypeVar, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from controller.metadata.image import MetadataImage
from deploy.console.application import application
from deploy.console.console import Console
from deploy.console.decoding import SchemaCache
from deploy.console.handed import HandedConnection
from deploy.console.live import LiveCluster
from deploy.console.options import ConsoleOptions
from deploy.console.server import config_of
from deploy.console.sessions import Sessions
from deploy.errors import KafkaFailed, NoController
from deploy.node.console_plan import BASE
from tests.fuzz.parts import Connection

CSRF = "token-of-forms"
TURNS_S = 0.2
"""How long a client waits for an answer. A stream of events ends then."""
END_S = 10.0
_NO_NETWORK = "there is no network"
_SECONDS = count(0.0, 60.0)
"""Each look at the clock is a minute later, so that failed logins are forgotten."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_FORM = (
    "Host: localhost\r\nOrigin: http://localhost\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n"
)


class _StillCluster(LiveCluster):
    """An empty cluster without figures."""

    @property
    def image(self) -> MetadataImage:
        return _IMAGE

    def want(self) -> NoReturn:
        raise NoController(_NO_NETWORK)

    _known_client = want


class _OfflineConsole(Console):
    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        raise KafkaFailed(_NO_NETWORK)


class _Watched:
    """Keep what a page raises. uvicorn would log it, and answer with 500."""

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
        bootstrap="127.0.0.1:1", base=BASE, is_behind_node=True, allow_changes=True
    )
    live = _StillCluster(options, lambda: 0)
    return _OfflineConsole(
        options, live, Sessions(_SECONDS.__next__, lambda: "session"), SchemaCache(""), CSRF
    )


_IMAGE = MetadataImage()
_APP = _Watched(application(_console()))
_CONFIG = config_of(_APP)


def console(data: bytes) -> None:
    if b"\r\n\r\n" not in data:
        return  # The node hands over only what has a whole head.
    _APP.raised.clear()
    answer = asyncio.run(_answer_of(data))
    for error in _APP.raised:
        raise error
    assert not answer or answer.startswith(b"HTTP/1.1 "), f"the answer is {answer[:80]!r}"


async def _answer_of(data: bytes) -> bytes:
    """Return what the console writes to a client that sends this, waits a little and goes."""
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
        assert not left, "a page keeps running after its client has gone"
    return bytes(connection.written)


def requests() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each seed."""
    for path in (
        *("/", "/topics?filter=a&page=2", "/topics/t", "/topics/t/0/move", "/streams/7"),
        *("/topics/t/messages?partition=0&at=offset&offset=5", "/groups/one?group=g", "/moves"),
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

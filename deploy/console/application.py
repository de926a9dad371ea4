"""Assemble the web console: routes, guard and error pages.

Invariant: every response has the headers of `guard`, and no page is sent before the host, session
and rights have been checked.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.base.errors import ExpectedError, StreamError
from penstock.deploy.clients.security import use
from penstock.deploy.console import login
from penstock.deploy.console.console import REQUEST_S, Console, console_of, page
from penstock.deploy.console.deferred import Handler, checked, deferred, is_use
from penstock.deploy.console.guard import HEADERS, is_known_host
from penstock.deploy.console.login import COOKIE, to_login
from penstock.deploy.console.pages import (
    acls,
    configs,
    doctor,
    forks,
    groups,
    messages,
    moves,
    nodes,
    objects,
    overview,
    quotas,
    snapshots,
    sql,
    tables,
    topics,
    transactions,
    users,
)
from penstock.deploy.console.rights import NotAllowed
from penstock.deploy.console.rights_checks import SessionOver
from penstock.deploy.errors import Busy, Missing, NoController, UsageError
from penstock.lake.manifest.errors import ManifestNotFound, UnknownPartition, WalStoreRequired
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import (
    NOT_FOUND,
    DoesNotExist,
    KafkaFailed,
    NoResponse,
    Refused,
)
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.errors import UnencodableValue

HEALTH: Final = "/live/health"
_UNCHECKED: Final = (HEALTH, "/login", "/logout")
"""Paths for which rights are not checked, or are used only if they are already known."""
_OPEN_PATHS: Final = ("/login", "/static/")
_STATIC: Final = Path(__file__).with_name("static")
_FAILURES: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (Missing, 404, "This does not exist"),
    (DoesNotExist, 404, "This does not exist"),
    (UnknownPartition, 404, "This does not exist"),
    (NotAllowed, 403, "This is not allowed"),
    (UsageError, 400, "This cannot be done"),
    (UnencodableValue, 400, "This cannot be done"),
    (WalStoreRequired, 400, "Records of this cluster need its WAL store"),
    (Busy, 503, "Too busy"),
    (NoController, 502, "The controllers do not respond"),
    (NoResponse, 502, "The brokers do not respond"),
    (KafkaFailed, 502, "The brokers refused the request"),
    (TimeoutError, 504, "No response"),
)
"""Status and title of the page for an error; the first match applies."""


def application(console: Console) -> ASGIApp:
    """Return the application of one console."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None, None]:
        await console.live.start()
        try:
            yield
        finally:
            await console.close()
            await console.live.stop()

    app = Starlette(
        routes=_at(console.options.base, _routes()),
        exception_handlers={
            ExpectedError: _explain,
            ObjectStoreError: _explain,
            StreamError: _explain,
            ManifestNotFound: _explain,
            UnencodableValue: _explain,
            TimeoutError: _explain,
            HTTPException: _explain,
        },
        lifespan=lifespan,
    )
    app.state.console = console
    return _Guard(app, console)


def _routes() -> list[BaseRoute]:
    get: tuple[tuple[str, Handler], ...] = (
        ("/", overview.overview),
        ("/live/overview", overview.live),
        (HEALTH, overview.health),
        ("/nodes", nodes.nodes),
        ("/topics", topics.topics),
        ("/topics/{topic}", topics.topic),
        ("/topics/{topic}/messages", messages.messages),
        ("/topics/{topic}/fork", forks.preview),
        ("/topics/{topic}/{partition:int}", topics.partition),
        ("/topics/{topic}/{partition:int}/move", moves.move),
        ("/live/moves/{topic}/{partition:int}", moves.live),
        ("/streams/{stream:int}", objects.stream),
        ("/objects/{object:int}", objects.stored_object),
        ("/moves", moves.moves),
        ("/groups", groups.groups),
        ("/groups/one", groups.group),
        ("/transactions", transactions.transactions),
        ("/transactions/one", transactions.transaction),
        ("/tables", tables.tables),
        ("/snapshots", snapshots.snapshots),
        ("/snapshots/one", snapshots.snapshot),
        ("/snapshots/restore", snapshots.preview_restore),
        ("/configs", configs.configs),
        ("/security", acls.acls),
        ("/security/acls/remove", acls.confirm_removal),
        ("/security/users", users.users),
        ("/security/user", users.user),
        ("/security/quotas", quotas.quotas),
        ("/doctor", doctor.doctor),
        ("/sql", sql.show),
        ("/login", login.form),
    )
    post: tuple[tuple[str, Handler], ...] = (
        ("/login", login.log_in),
        ("/logout", login.log_out),
        ("/topics", topics.create),
        ("/topics/{topic}/delete", topics.delete),
        ("/topics/{topic}/configs", topics.alter_config),
        ("/topics/{topic}/elect", topics.elect),
        ("/topics/{topic}/fork", forks.make),
        ("/topics/{topic}/{partition:int}/move", moves.begin),
        ("/groups/delete", groups.delete),
        ("/groups/reset", groups.reset),
        ("/snapshots", snapshots.create),
        ("/snapshots/delete", snapshots.delete),
        ("/snapshots/restore", snapshots.make_topics),
        ("/undelete", snapshots.undelete),
        ("/configs", configs.alter),
        ("/security/acls", acls.add),
        ("/security/acls/remove", acls.remove),
        ("/security/users", users.create),
        ("/security/users/password", users.change_password),
        ("/security/users/delete", users.delete),
        ("/security/quotas", quotas.alter),
        ("/doctor", doctor.examine),
        ("/sql", sql.run),
    )
    return [
        *(Route(path, _with_rights(path, call, deferred)) for path, call in get),
        *(Route(path, _with_rights(path, call, checked), methods=["POST"]) for path, call in post),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]


def _with_rights(
    path: str, call: Handler, way: Callable[[Handler, Request], Awaitable[Response]]
) -> Handler:
    """Return a handler that checks the rights of the user first. way: `deferred` or `checked`."""
    if path in _UNCHECKED:
        return call
    return partial(checked if path.startswith("/live/") else way, call)


def _at(base: str, routes: list[BaseRoute]) -> list[BaseRoute]:
    """Return the routes with a path prefix added."""
    if not base:
        return routes
    home = RedirectResponse(f"{base}/", 308)
    return [Route(base, home), Mount(base, routes=routes)]


class _Guard:
    """Checks host and session before a page, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = self._console.options.inner(scope["path"])

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if not path.startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
                if self._console.options.is_behind_node:
                    headers["Connection"] = "close"
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response if the request must not reach a page; otherwise set its session and
        return None.
        """
        console, headers = self._console, Headers(scope=scope)
        if not is_known_host(headers.get("host", ""), console.options.names):
            return PlainTextResponse(
                "This console does not know the host name of this address. Use an IP address or"
                " localhost, or start it with --name and the host name.\n",
                421,
            )
        if not console.options.has(scope["path"]):
            return PlainTextResponse(f"the console is at {console.options.base}/\n", 404)
        request = Request(scope)
        session = console.open_session
        if scope["method"] == "GET":
            wait_at_most(REQUEST_S)
        if console.options.login:
            path = console.options.inner(scope["path"])
            token = request.cookies.get(COOKIE, "")
            counts = is_use(path, headers)
            found = console.sessions.find(token) if counts else console.sessions.peek(token)
            if found is None and token:
                console.forget(token)
            if found is None and not path.startswith(_OPEN_PATHS):
                return to_login(console, request)
            session = found or session
        scope.setdefault("state", {})["session"] = session
        use(session.security)
        return None


async def _explain(request: Request, error: Exception) -> Response:
    """Return a page with the problem and a remedy."""
    if isinstance(error, SessionOver):
        return to_login(console_of(request), request)
    status, title = _status_of(error)
    text = error.detail if isinstance(error, HTTPException) else str(error)
    if isinstance(error, HTTPException) and status == HTTPStatus.NOT_FOUND:
        text = f"This console has no page {request.url.path}; check the address, or follow a link."
    if isinstance(error, TimeoutError) and not isinstance(error, ExpectedError):
        text = text or "the cluster did not respond in time"
    return page(
        request,
        "error.html",
        status,
        title=title,
        text=text,
        may_work_later=isinstance(error, NoResponse | NoController | TimeoutError | Busy),
        may_retry=status >= 500,
    )


def _status_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        is_missing = error.status_code == HTTPStatus.NOT_FOUND
        title = "There is no such page" if is_missing else "This request is not allowed"
        return error.status_code, title
    kind = _kind_of(error.code) if isinstance(error, Refused) else type(error)
    for listed, status, title in _FAILURES:
        if issubclass(kind, listed):
            return status, title
    return 502, "The object store did not respond as expected"


def _kind_of(code: int) -> type[Exception]:
    """Return the error of the console that corresponds to the error code of a broker."""
    known = known_code(code)
    if known in NOT_FOUND:
        return DoesNotExist
    if known.name.endswith("_AUTHORIZATION_FAILED"):
        return NotAllowed
    is_failure = known.retriable or known is ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaFailed if is_failure else UsageError

"""State shared by all pages of a console, and the rendering of templates.

Blocking calls run in threads, at most `CALLS_MAX` concurrently; if `CALLS_WAITING_MAX` calls are
waiting, additional ones are rejected with 503. A call occupies its slot until its thread has
finished, even if its request is canceled.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar, cast
from urllib.parse import parse_qs, quote, unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console import formats
from penstock.deploy.console.config_choices import unit_of
from penstock.deploy.console.decoding import SchemaCache
from penstock.deploy.console.group_list import LastGroups
from penstock.deploy.console.guard import BODY_BYTES_MAX, is_same_origin, is_token
from penstock.deploy.console.health import STALE_S, STORE, Health
from penstock.deploy.console.kept_pages import KeptPages
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.page_builds import PageBuilds
from penstock.deploy.console.paging import Page, page_of
from penstock.deploy.console.records import can_browse
from penstock.deploy.console.rights import NotAllowed, Rights, request_rights
from penstock.deploy.console.rights_checks import RightsChecks
from penstock.deploy.console.sessions import Session, Sessions
from penstock.deploy.console.statements import is_available
from penstock.deploy.console.tasks import take_exception
from penstock.deploy.console.terms import TERMS
from penstock.deploy.doctor.report import Report
from penstock.deploy.errors import Busy, UsageError
from penstock.deploy.records.decode_process import DecodeProcess
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import NoResponse

CALLS_MAX: Final = 6
CALLS_WAITING_MAX: Final = 32
SEARCHES_MAX: Final = 4
SEARCH_S_MAX: Final = 20.0
"""Timeout of a search, which is longer than a search takes if the store responds."""
REQUEST_S: Final = 2.0
"""Maximum wait for a response from a broker while a page is built."""
STATEMENTS_MAX: Final = 2
FIELDS_MAX: Final = 100
FORM_S_MAX: Final = 30.0
PROBLEMS_SHOWN_MAX: Final = 5
NOTICE_COOKIE: Final = "penstock_notice"
THEME_COOKIE: Final = "penstock_theme"
THEMES: Final = ("light", "dark")
_NOTICE_CHARS_MAX: Final = 500
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A navigation entry. needs: "cluster": DESCRIBE on the cluster; "owner": a console without
    login; "sql": a console without login, with SQL and a store.
    """

    path: str
    title: str
    needs: str = ""


TABS: Final = (
    NavigationEntry("/", "Overview", "cluster"),
    NavigationEntry("/nodes", "Nodes", "cluster"),
    NavigationEntry("/topics", "Topics"),
    NavigationEntry("/moves", "Moves", "cluster"),
    NavigationEntry("/groups", "Groups"),
    NavigationEntry("/transactions", "Transactions"),
    NavigationEntry("/tables", "Tables"),
    NavigationEntry("/snapshots", "Snapshots"),
    NavigationEntry("/configs", "Configs"),
    NavigationEntry("/security", "Security"),
    NavigationEntry("/doctor", "Doctor", "owner"),
    NavigationEntry("/sql", "SQL", "sql"),
)


class Console:
    """csrf: the form token of sessions without login."""

    def __init__(
        self,
        options: ConsoleOptions,
        live: LiveCluster,
        sessions: Sessions,
        schemas: SchemaCache,
        csrf: str,
    ) -> None:
        self.options = options
        self.live = live
        self.sessions = sessions
        self.schemas = schemas
        self.decoding = DecodeProcess()
        self.groups = LastGroups()
        self.builds: PageBuilds[Response] = PageBuilds()
        self.kept = KeptPages(time.monotonic)
        self.checks = RightsChecks(sessions, self._rights, self.forget)
        self.open_session = Session("", csrf, "", options.security)
        """The session of everyone without login."""
        self.streams = 0
        """Number of open streams of events."""
        self.report: Report | None = None
        """The report of the last examination by the doctor."""
        self.examining = asyncio.Lock()
        self._searches = ThreadPoolExecutor(SEARCHES_MAX, "console-search")
        self._search_turns = asyncio.Semaphore(SEARCHES_MAX)
        self._calls = ThreadPoolExecutor(CALLS_MAX, "console-call")
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._waiting = 0
        self._statements = asyncio.Semaphore(STATEMENTS_MAX)
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).with_name("templates")),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._shown = {"terms": TERMS, "problems_max": PROBLEMS_SHOWN_MAX}
        self._templates.filters.update(formats.FILTERS)
        self._templates.filters |= {"path": _quoted, "code": _with_code, "unit": unit_of}

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a blocking function as the user of this request. Raises Busy."""
        if self._waiting >= CALLS_WAITING_MAX:
            raise Busy("the console is busy; try again in a moment")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        return await self._run(self._calls, self._turns, partial(function, *args, **kwargs))

    async def call_brokers(
        self,
        function: Callable[Concatenate[WireClient, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a blocking function with a connection to a broker. Raises Busy, KafkaFailed."""
        bootstrap = self.bootstrap

        def connected() -> _T:
            with WireClient(bootstrap) as client:
                return function(client, *args, **kwargs)

        return await self.call(connected)

    async def search(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function that reads the store, in a separate thread pool. Raises Busy, and
        NoResponse if the store does not respond.
        """
        store = self.live.health().ages_s.get(STORE, 0.0)
        if store > STALE_S:
            raise NoResponse(f"the object store has not responded for {store:.0f} s")
        if self._search_turns.locked():
            raise Busy("other searches are waiting for the object store; try again in a moment")
        await self._search_turns.acquire()
        bound = partial(function, *args, **kwargs)
        try:
            async with asyncio.timeout(SEARCH_S_MAX):
                return await self._run(self._searches, self._search_turns, bound)
        except TimeoutError:
            raise NoResponse(f"the object store did not respond for {SEARCH_S_MAX:.0f} s") from None

    def _run(
        self, pool: ThreadPoolExecutor, turns: asyncio.Semaphore, function: Callable[[], _T]
    ) -> "asyncio.Future[_T]":
        """Run a function in the pool as the user of this request, and release the slot when it
        returns.
        """
        running = asyncio.get_running_loop().run_in_executor(pool, copy_context().run, function)
        running.add_done_callback(lambda _: turns.release())
        running.add_done_callback(take_exception)
        return asyncio.shield(running)

    @asynccontextmanager
    async def statement_turn(self) -> AsyncGenerator[None, None]:
        """Reserve a slot for an SQL statement. Raises Busy if STATEMENTS_MAX are running."""
        if self._statements.locked():
            raise Busy(f"{STATEMENTS_MAX} statements are running; try again when one has ended")
        async with self._statements:
            yield

    @property
    def has_sql(self) -> bool:
        """Return whether SQL is available. It is not available in a node's process, because it
        needs memory.
        """
        return is_available() and not self.options.is_behind_node

    def _shows(self, tab: NavigationEntry, rights: Rights) -> bool:
        if tab.needs == "cluster":
            return rights.sees_cluster
        if tab.needs == "sql":
            return "sql" in self.offered(rights)
        return not (tab.needs == "owner" and rights.is_bounded)

    def render(self, template: str, request: Request, **values: object) -> str:
        session = session_of(request)
        theme = request.cookies.get(THEME_COOKIE, "")
        return self._templates.get_template(template).render(
            tabs=[tab for tab in TABS if self._shows(tab, session.rights)],
            base=self.options.base,
            current=_current(path_of(request)),
            session=session,
            options=self.options,
            theme=theme if theme in THEMES else "",
            notice=unquote(request.cookies.get(NOTICE_COOKIE, ""))[:_NOTICE_CHARS_MAX],
            here=request.url.path,
            here_query=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            query=dict(request.query_params),
            changes=self.options.allow_changes,
            health=self._health_for(session),
            sees_details=self.sees_details(session),
            offered=self.offered(session.rights),
            **self._shown,
            **values,
        )

    def _health_for(self, session: Session) -> Health | None:
        """Return the health of the cluster, or None before login."""
        if self.options.login and session is self.open_session:
            return None
        return self.live.health()

    def offered(self, rights: Rights) -> Collection[str]:
        """Return the available optional pages: "messages", "objects", "sql"."""
        has_store = bool(self.options.store) and not self.options.store.startswith("memory:")
        return {
            name
            for name, works in (
                ("messages", has_store and can_browse()),
                ("objects", has_store),
                ("sql", has_store and self.has_sql and not rights.is_bounded),
            )
            if works
        }

    @property
    def bootstrap(self) -> str:
        """Return the addresses of brokers that respond."""
        return self.live.bootstrap()

    # --- sessions ---------------------------------------------------------------------------------

    def is_open(self, session: Session) -> bool:
        """Return whether the session is still valid."""
        return session is self.open_session or self.sessions.is_open(session)

    def sees_details(self, session: Session) -> bool:
        """Return whether the user is currently known to have DESCRIBE on the cluster."""
        return session.rights.sees_cluster and self.sessions.has_rights(session)

    def forget(self, token: str) -> None:
        """Drop all pages and responses of a session that has ended or whose rights have changed."""
        self.builds.drop(token)
        self.kept.drop(token)
        self.groups.drop(token)

    async def close(self) -> None:
        """Cancel pending page builds."""
        await self.builds.close()
        await asyncio.to_thread(self.decoding.close)
        for executor in (self._calls, self._searches):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _rights(self, session: Session) -> Rights:
        wait_at_most(REQUEST_S)
        return await self.call(request_rights, self.bootstrap, session.security)


def console_of(request: Request) -> Console:
    return cast("Console", request.app.state.console)


def session_of(request: Request) -> Session:
    return cast("Session", request.state.session)


def rights_of(request: Request) -> Rights:
    return session_of(request).rights


def page(
    request: Request,
    template: str,
    status: int = 200,
    *,
    keeps_notice: bool = False,
    **values: object,
) -> Response:
    """Render a page. keeps_notice: whether to keep the notice of the last change for the next
    page.
    """
    response = HTMLResponse(console_of(request).render(template, request, **values), status)
    if NOTICE_COOKIE in request.cookies and not keeps_notice:
        response.delete_cookie(NOTICE_COOKIE)
    return response


def paged(request: Request, items: Sequence[_T]) -> Page[_T]:
    """Return the page of a list that the query selects."""
    return page_of(items, integer(request.query_params.get("page", ""), 1))


def path_of(request: Request) -> str:
    """Return the path within this console."""
    return console_of(request).options.inner(request.url.path)


def done(request: Request, path: str, notice: str) -> Response:
    """Redirect to a page after a change, with a notice. path: the path within this console."""
    console = console_of(request)
    console.sessions.changed(session_of(request))
    response = RedirectResponse(console.options.base + path, 303)
    response.set_cookie(
        NOTICE_COOKIE,
        quote(notice[:_NOTICE_CHARS_MAX]),
        max_age=30,
        httponly=True,
        samesite="strict",
    )
    return response


async def form_of(request: Request, *, changes: bool = True) -> Mapping[str, str]:
    """Return the fields of a form from a page of this console. changes: whether the form changes
    the cluster.

    Raises NotAllowed for other forms, UsageError for a form that is too long.
    """
    body = await _body_of(request)
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=FIELDS_MAX
        )
    except (ValueError, UnicodeDecodeError):
        raise UsageError("the form cannot be read") from None
    form = {name: values[-1] for name, values in fields.items()}
    if not is_same_origin(request.headers) or not is_token(
        form.get("csrf", ""), session_of(request).csrf
    ):
        raise NotAllowed(
            "this form is not from a page of this console, or its session has ended: reload the"
            " page and try again"
        )
    if changes and not console_of(request).options.allow_changes:
        raise NotAllowed(
            "this console is read-only; start it with --allow-changes to allow changes"
        )
    return form


async def _body_of(request: Request) -> bytearray:
    """Return the body of a form. Raises UsageError if it is too long, too slow or incomplete."""
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S_MAX):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise UsageError(f"the form has more than {BODY_BYTES_MAX:,} bytes")
    except TimeoutError:
        raise UsageError(f"the form took more than {FORM_S_MAX:.0f} s") from None
    except ClientDisconnect:  # Not re-raised, because each would be logged with a traceback.
        raise UsageError("the connection was closed before the form was complete") from None
    return body


def confirmed(form: Mapping[str, str], name: str) -> None:
    """Raise UsageError unless the user has typed the name of the object to be destroyed."""
    if form.get("confirm", "") != name:
        raise UsageError(f"not done: type {name!r} into the field to confirm")


def integer(text: str, otherwise: int = 0) -> int:
    """Parse a number in a query; return `otherwise` if it is not a number."""
    return (
        int(text)
        if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 19
        else otherwise
    )


def utc_time(text: str) -> datetime:
    """Parse a UTC time since 1970 as sent by browsers. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        found = None
    if found is None or found.timestamp() < 0:
        raise UsageError(f"{text!r} is not a time in UTC since 1970, as in 2026-11-26T14:00")
    return found


def _current(path: str) -> str:
    """Return the tab of a page."""
    first = "/" + path.split("/")[1]
    return {"/streams": "/topics", "/objects": "/topics"}.get(first, first)


def _with_code(text: str) -> Markup:
    """Escape a text, and format its parts in backticks as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def _quoted(text: object) -> str:
    """Quote a text for one segment of a path, or for a value of a query."""
    return quote(str(text), safe="")

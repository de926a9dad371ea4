"""Respond to requests for pages in time, however long the cluster takes.

A page that is not ready within WAIT_S is built on, and the browser gets a skeleton that asks again.
A page that cannot be built because brokers or controllers do not respond is replaced by the last
one that could, marked with its age.
Limits: PAGES_MAX pages are kept, of at most PAGE_BYTES_MAX. Requests to brokers for a page wait at
most REQUEST_S.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock.deploy.console.console import NOTICE_COOKIE, console_of, page, session_of
from penstock.deploy.errors import NoController, NoResponse

WAIT_S: Final = 0.2
PATIENT_WAIT_S: Final = 3.0
"""For parts of a page that is shown, and after a change by this user, whose page should show it."""
UNFETCHED_S: Final = 10.0
"""How long a page that was built after its skeleton waits for the browser."""
REQUEST_S: Final = 2.0
PAGES_MAX: Final = 128
PAGE_BYTES_MAX: Final = 256 << 10
AGE_PLACE: Final = b"<!-- age of the page -->"
"""Where a template marks a page that is shown again."""

Handler = Callable[[Request], Awaitable[Response]]
_NO_RESPONSE: Final = (NoResponse, NoController, TimeoutError)


@dataclass(slots=True)
class _Page:
    """building: the page that a request waits for, since began_at. body: of the last page that was
    built, at built_at.
    """

    building: asyncio.Task[Response] | None = None
    began_at: float = 0.0
    body: bytes = b""
    built_at: float = 0.0


class DeferredPages:
    """The pages of one console, by user and address."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, str], _Page] = OrderedDict()

    async def respond(self, request: Request, handler: Handler) -> Response:
        """Return the page of a handler, a skeleton, or the last page. Raises as the handler."""
        session, sessions = session_of(request), console_of(request).sessions
        kept = self._kept((session.token, f"{request.url.path}?{request.url.query}"))
        # A page that is already on the screen waits for its next values.
        may_wait = "hx-request" in request.headers or sessions.is_settling(session)
        wait_s = PATIENT_WAIT_S if may_wait else WAIT_S
        building = self._building(kept, request, handler, session.changed_at)
        await asyncio.wait((building,), timeout=wait_s)
        if not building.done():
            return page(request, "skeleton.html", keeps_notice=True)
        if kept.building is building:
            kept.building = None
        if building.cancelled():
            raise NoResponse("the page was requested too often; reload it")
        try:
            response = building.result()
        except _NO_RESPONSE as error:
            if not kept.body:
                raise
            return _again(request, kept.body, time.monotonic() - kept.built_at, str(error))
        except BaseException:
            kept.body = b""
            raise
        kept.body = b""
        if _is_page(request, response):
            kept.body, kept.built_at = bytes(response.body), time.monotonic()
        return response

    @staticmethod
    def _building(
        kept: _Page, request: Request, handler: Handler, changed_at: float
    ) -> asyncio.Task[Response]:
        """Return the page that is being built, or begin to build one: what was begun before a
        change of this user, or was not fetched for long, is out of date.
        """
        building, loop = kept.building, asyncio.get_running_loop()
        if building is not None and building.get_loop() is loop:
            age_s = time.monotonic() - kept.began_at
            is_old = building.done() and age_s > UNFETCHED_S
            if kept.began_at >= changed_at and not is_old:
                return building
            building.cancel()
        kept.began_at = time.monotonic()
        kept.building = loop.create_task(_built(request, handler))
        kept.building.add_done_callback(_take_exception)
        return kept.building

    def _kept(self, key: tuple[str, str]) -> _Page:
        kept = self._pages.setdefault(key, _Page())
        self._pages.move_to_end(key)
        while len(self._pages) > PAGES_MAX:
            _, oldest = self._pages.popitem(last=False)
            if oldest.building is not None:
                oldest.building.cancel()
        return kept

    async def close(self) -> None:
        for kept in self._pages.values():
            if kept.building is not None:
                kept.building.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await kept.building
        self._pages.clear()


def deferred(handler: Handler) -> Handler:
    """Return a handler that responds in time."""

    async def respond(request: Request) -> Response:
        pages: DeferredPages = request.app.state.pages
        return await pages.respond(request, handler)

    return respond


def _take_exception(building: asyncio.Task[Response]) -> None:
    """Take the exception of a page that no browser may fetch; asyncio would log it."""
    if not building.cancelled():
        building.exception()


async def _built(request: Request, handler: Handler) -> Response:
    return await handler(request)


def _is_page(request: Request, response: Response) -> bool:
    return (
        response.status_code == 200
        and NOTICE_COOKIE not in request.cookies
        and isinstance(response, HTMLResponse)
        and len(response.body) <= PAGE_BYTES_MAX
    )


def _again(request: Request, body: bytes, age_s: float, why: str) -> Response:
    mark = console_of(request).render("stale_page.html", request, age_s=age_s, why=why)
    return HTMLResponse(body.replace(AGE_PLACE, mark.encode(), 1))

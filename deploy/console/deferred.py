"""Respond to page requests within WAIT_S, even if the cluster does not respond.

A page that is not ready becomes a skeleton, which fetches the page later (`page_builds`). If
brokers or controllers do not respond, or the rights of the user are unknown, the last page is
displayed with its age (`kept_pages`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock.deploy.console.console import (
    NOTICE_COOKIE,
    console_of,
    page,
    path_of,
    session_of,
)
from penstock.deploy.console.kept_pages import KeptPage
from penstock.deploy.errors import Busy, NoController
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol.client.errors import NoResponse

WAIT_S: Final = 0.12
PATIENT_WAIT_S: Final = 3.0
"""A longer limit, for parts of a displayed page and after a change by the user, which the next page
should include.
"""
AGE_PLACE: Final = b"<!-- age of the page -->"
"""Placeholder for the age in the template of a page."""

Handler = Callable[[Request], Awaitable[Response]]


async def checked(handler: Handler, request: Request) -> Response:
    """Check the rights of the user, and return the response of a handler."""
    await console_of(request).checks.wait(session_of(request), is_use=_is_use(request))
    return await handler(request)


def is_use(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether the user made the request, rather than a script of an open page. path: within
    the console.
    """
    return "hx-request" not in headers and not path.startswith("/live/")


def _is_use(request: Request) -> bool:
    return is_use(path_of(request), request.headers)


async def deferred(handler: Handler, request: Request) -> Response:
    """Check the rights of the user, and return the page of a handler, a skeleton, or the last page.
    Raises the errors of the handler.
    """
    console, session = console_of(request), session_of(request)
    address = f"{request.url.path}?{request.url.query}"
    # A page that is already displayed waits for its next values.
    may_wait = "hx-request" in request.headers or console.sessions.is_settling(session)
    ends_at = time.monotonic() + (PATIENT_WAIT_S if may_wait else WAIT_S)
    try:
        check = console.checks.begin(session, is_use=_is_use(request))
        if check is not None:
            if not await _is_done(check, ends_at):
                return _skeleton(request)
            check.result()
        key = (session.token, address)
        rights = session.rights
        build = console.builds.begin(key, lambda: handler(request), session.changed_at)
        if not await _is_done(build.task, ends_at):
            return _skeleton(request)
        console.builds.fetched(key, build)
        if build.task.cancelled() or session.rights != rights or not console.is_open(session):
            raise NoResponse("your rights or the cluster changed while the page was built")
        response = build.task.result()
    except Exception as error:
        if not _may_work_later(error):
            console.kept.discard(session, address)
            raise
        kept = console.kept.find(session, address)
        if kept is None:
            raise
        return _again(request, kept, str(error))
    console.kept.discard(session, address)
    if _is_page(request, response):
        console.kept.keep(session, address, bytes(response.body), build.began_at)
    return response


async def _is_done(task: "asyncio.Task[object]", ends_at: float) -> bool:
    await asyncio.wait((task,), timeout=max(0.0, ends_at - time.monotonic()))
    return task.done()


def _skeleton(request: Request) -> Response:
    return page(request, "skeleton.html", keeps_notice=True)


def _may_work_later(error: Exception) -> bool:
    if isinstance(error, ObjectStoreError):
        return error.retriable
    return isinstance(error, NoResponse | NoController | TimeoutError | Busy)


def _is_page(request: Request, response: Response) -> bool:
    return (
        response.status_code == 200
        and NOTICE_COOKIE not in request.cookies
        and isinstance(response, HTMLResponse)
    )


def _again(request: Request, kept: KeptPage, why: str) -> Response:
    age_s = time.monotonic() - kept.began_at
    mark = console_of(request).render("stale_page.html", request, age_s=age_s, why=why)
    return HTMLResponse(kept.body.replace(AGE_PLACE, mark.encode(), 1))

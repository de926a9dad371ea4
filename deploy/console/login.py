"""Log in users of the cluster: a broker checks the user and password, and the console then sends
requests as that user.

The password stays in the memory of this process until the session ends, because brokers
authenticate every connection.
"""

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from penstock.deploy.console import rights
from penstock.deploy.console.console import Console, console_of, form_of, page, session_of
from penstock.deploy.console.sessions import SESSION_S_MAX
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import AuthenticationRefused, KafkaFailed

COOKIE: Final = "penstock_session"
REQUEST_S: Final = 10.0
"""Maximum wait for each response from a broker during a login."""


def to_login(console: Console, request: Request) -> Response:
    """Return the response to a request without a session."""
    path = console.options.inner(request.url.path)
    place = f"{console.options.base}/login?next={quote(path, safe='')}"
    if "hx-request" in request.headers:  # redirect the whole page, not just the fragment
        return PlainTextResponse("log in first\n", 401, {"HX-Redirect": place})
    if request.method != "GET" or path.startswith("/live/"):
        return PlainTextResponse("log in first\n", 401)
    return RedirectResponse(place, 303)


async def form(request: Request) -> Response:
    return page(request, "login.html", problem="")


async def log_in(request: Request) -> Response:
    """Open a session for a user that a broker accepts."""
    console = console_of(request)
    given = await form_of(request, changes=False)
    address = "" if request.client is None else request.client.host
    user = given.get("user", "")
    if not console.sessions.may_try(address):
        return page(
            request, "login.html", 429, problem="Too many failed logins; wait for a minute."
        )
    wait_at_most(REQUEST_S)
    try:
        security = await console.call(
            rights.log_in,
            console.bootstrap,
            console.options.security,
            user,
            given.get("password", ""),
        )
        allowed = await console.call(rights.request_rights, console.bootstrap, security)
    except AuthenticationRefused as error:
        console.sessions.failed(address)
        return page(request, "login.html", 401, problem=str(error))
    except KafkaFailed as error:  # The password may still be correct.
        return page(request, "login.html", 502, problem=str(error))
    session = console.sessions.open(user, security, allowed)
    response = RedirectResponse(
        console.options.base + _inner(request.query_params.get("next", "/"), allowed), 303
    )
    response.set_cookie(
        COOKIE,
        session.token,
        max_age=int(SESSION_S_MAX),
        httponly=True,
        samesite="strict",
        secure=console.options.has_tls,
    )
    return response


async def log_out(request: Request) -> Response:
    """End the session, and drop everything that is cached for it."""
    await form_of(request, changes=False)
    console, session = console_of(request), session_of(request)
    console.sessions.close(session)
    console.forget(session.token)
    response = RedirectResponse(f"{console.options.base}/login", 303)
    response.delete_cookie(COOKIE)
    return response


def _inner(path: str, allowed: rights.Rights) -> str:
    """Return a redirect target within this console, never another site."""
    is_inner = path.startswith("/") and not path.startswith(("//", "/\\", "/log"))
    chosen = path if is_inner else "/"
    return chosen if chosen != "/" or allowed.sees_cluster else "/topics"

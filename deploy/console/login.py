"""Let users of the cluster log in: a broker checks user and password, and from then on the console
acts as that user.

The password stays in the memory of this process until the session ends, because brokers ask for it
on every connection.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.deploy.console import rights
from penstock.deploy.console.console import Console, console_of, form_of, page, session_of
from penstock.deploy.console.sessions import SESSION_S_MAX, Session
from penstock.deploy.errors import KafkaFailed

COOKIE: Final = "penstock_session"


async def session_at(console: Console, token: str, *, is_use: bool = True) -> Session | None:
    """Return the session of a cookie, with rights that are recent enough. is_use: the user did
    something, so the session lasts longer.
    """
    session = console.sessions.find(token) if is_use else console.sessions.peek(token)
    if session is None:
        return None
    if session.has_old_rights:
        try:
            session.rights = await console.call(
                rights.ask_rights, console.bootstrap, session.security
            )
        except KafkaFailed:
            if not console.sessions.is_open(session):
                return None
            # The user may be gone; without an answer nothing is shown.
            session.rights = rights.Rights()
        session.rights_at = session.used_at
    return session


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
    try:
        security = await console.call(
            rights.log_in,
            console.bootstrap,
            console.options.security,
            user,
            given.get("password", ""),
        )
        allowed = await console.call(rights.ask_rights, console.bootstrap, security)
    except KafkaFailed as error:
        console.sessions.failed(address)
        return page(request, "login.html", 401, problem=str(error))
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
    await form_of(request, changes=False)
    console_of(request).sessions.close(session_of(request))
    response = RedirectResponse(f"{console_of(request).options.base}/login", 303)
    response.delete_cookie(COOKIE)
    return response


def _inner(path: str, allowed: rights.Rights) -> str:
    """Return a path of this console to go to, never another site."""
    is_inner = path.startswith("/") and not path.startswith(("//", "/\\", "/log"))
    chosen = path if is_inner else "/"
    return chosen if chosen != "/" or allowed.sees_cluster else "/topics"

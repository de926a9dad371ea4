"""Show the users in the metadata, and a user with its ACLs and quotas; create and delete users, and
change passwords.

Invariant: a password is sent in the body of a form, and is never in a response, log or URL.
"""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.principal import USER as USER_KIND
from penstock.base.scram import ITERATIONS_MIN, SCRAM_BY_NAME, ScramMechanism
from penstock.controller.metadata.quotas import USER
from penstock.deploy.clients.acls import AclSelection, known, listed_acls
from penstock.deploy.clients.quotas import list_quotas, shown
from penstock.deploy.clients.users import UserView, create_user, delete_credential, list_users
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.console import (
    confirmed,
    console_of,
    done,
    form_of,
    page,
    paged,
    session_of,
)
from penstock.deploy.console.optional_lists import listed
from penstock.deploy.console.paging import page_of
from penstock.deploy.errors import Missing, UsageError

_DEFAULT = ScramMechanism.SCRAM_SHA_512.sasl_name


async def users(request: Request) -> Response:
    """List all users, or those whose name contains `q`."""
    wanted = request.query_params.get("q", "").strip()
    found, problem = await listed(console_of(request), list_users)
    found = [user for user in found if wanted.lower() in user.name.lower()]
    return page(
        request,
        "users.html",
        page=paged(request, found),
        problem=problem,
        q=wanted,
        mechanisms=sorted(SCRAM_BY_NAME, key=lambda name: name != _DEFAULT),
    )


async def user(request: Request) -> Response:
    """Show one user. It may have ACLs and quotas without being in the metadata."""
    console, name = console_of(request), request.query_params.get("name", "")
    if not name:
        raise UsageError("name the user")
    found, problem = await listed(console, lambda client: list_users(client, name))
    acls, no_acls = await listed(
        console,
        lambda client: listed_acls(client, AclSelection(principal=f"{USER_KIND}:{name}")),
    )
    quotas, no_quotas = await listed(console, lambda client: list_quotas(client, {USER: name}))
    return page(
        request,
        "user.html",
        name=name,
        mechanisms=found[0].mechanisms if found else {},
        problem=problem,
        acls=page_of(acls, 1),
        no_acls=no_acls,
        quotas=[(shown(view.entity), view.quotas) for view in quotas],
        no_quotas=no_quotas,
    )


# --- changes --------------------------------------------------------------------------------------


async def create(request: Request) -> Response:
    """Create a user; an existing user keeps its password."""
    form = await form_of(request)
    name, password = form.get("name", "").strip(), form.get("password", "")
    mechanism = known("mechanism", SCRAM_BY_NAME, form.get("mechanism", _DEFAULT))
    if not (name and password):
        raise UsageError("a user needs a name and a password")
    await console_of(request).call_brokers(_create, name, password, mechanism)
    return done(request, _page_of(name), f"Created {name}, who logs in by {mechanism.sasl_name}.")


def _create(client: WireClient, name: str, password: str, mechanism: ScramMechanism) -> None:
    if _found(client, name):
        raise UsageError(f"user {name!r} exists; change its password on its page")
    create_user(client, name, password, mechanism, ITERATIONS_MIN)


async def change_password(request: Request) -> Response:
    """Change the password in all mechanisms of a user, so that the old one is no longer valid."""
    form = await form_of(request)
    console, name = console_of(request), form.get("name", "")
    confirmed(form, name)
    if not form.get("password", ""):
        raise UsageError("the password is empty")
    await console.call_brokers(_change, name, form["password"])
    session = session_of(request)
    if session.user == name:
        console.sessions.close(session)
    return done(request, _page_of(name), f"{name} has a new password.")


def _change(client: WireClient, name: str, password: str) -> None:
    for found in _existing(client, name):
        for mechanism, iterations in found.mechanisms.items():
            create_user(client, name, password, SCRAM_BY_NAME[mechanism], iterations)


async def delete(request: Request) -> Response:
    form = await form_of(request)
    name = form.get("name", "")
    confirmed(form, name)
    await console_of(request).call_brokers(_delete, name)
    return done(request, "/security/users", f"Deleted {name}.")


def _delete(client: WireClient, name: str) -> None:
    for found in _existing(client, name):
        for mechanism in found.mechanisms:
            delete_credential(client, name, SCRAM_BY_NAME[mechanism])


def _found(client: WireClient, name: str) -> list[UserView]:
    return [found for found in list_users(client, name) if found.name == name]


def _existing(client: WireClient, name: str) -> list[UserView]:
    found = _found(client, name)
    if not found:
        raise Missing(f"user {name!r} does not exist; it may have been deleted")
    return found


def _page_of(name: str) -> str:
    return f"/security/user?name={quote(name, safe='')}"

"""List, add and remove ACLs on behalf of the user, with that user's rights."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.acls import CLUSTER_NAME, WILDCARD
from penstock.deploy.clients.acls import (
    OPERATIONS,
    PATTERNS,
    PERMISSIONS,
    RESOURCES,
    AclSelection,
    AclView,
    add_acls,
    known,
    listed_acls,
    remove_acls,
    selection_of,
)
from penstock.deploy.console.console import confirmed, console_of, done, form_of, page, paged
from penstock.deploy.console.optional_lists import listed
from penstock.deploy.errors import UsageError

_FILTERS: Final = ("principal", "resource", "name", "operation")
_FIELDS: Final = tuple(field.name for field in fields(AclView))


async def acls(request: Request) -> Response:
    """List all ACLs, or those selected by the form. With a name, list those that apply to the
    resource of this name, including prefixes and wildcards.
    """
    console, query = console_of(request), request.query_params
    requested = {name: query.get(name, "").strip() for name in _FILTERS}
    wanted = AclSelection(
        resource=known("resource", RESOURCES, requested["resource"])
        if requested["resource"]
        else None,
        name=requested["name"] or None,
        principal=requested["principal"] or None,
        operation=known("operation", OPERATIONS, requested["operation"])
        if requested["operation"]
        else None,
        matches=bool(requested["name"]),
    )
    found, problem = await listed(console, lambda client: listed_acls(client, wanted))
    return page(
        request,
        "acls.html",
        page=paged(request, found),
        problem=problem,
        requested=requested,
        resources=list(RESOURCES),
        operations=list(OPERATIONS),
        patterns=list(PATTERNS),
        permissions=list(PERMISSIONS),
    )


async def confirm_removal(request: Request) -> Response:
    """Show one ACL and the effect of removing it."""
    return page(request, "acl_removal.html", acl=_acl_of(request.query_params))


# --- changes --------------------------------------------------------------------------------------


async def add(request: Request) -> Response:
    form = await form_of(request)
    given = _acl_of({name: value.strip() for name, value in form.items()})
    given = replace(given, host=given.host or WILDCARD)
    if given.resource == "cluster":
        given = replace(given, name=CLUSTER_NAME, pattern="literal")
    await console_of(request).call_brokers(add_acls, [selection_of(given)])
    return done(
        request,
        "/security",
        f"Added: {given.permission} {given.principal} {given.operation} on {given.resource}"
        f" {given.name}.",
    )


async def remove(request: Request) -> Response:
    """Remove one ACL, after the user has typed its principal."""
    form = await form_of(request)
    given = _acl_of(form)
    confirmed(form, given.principal)
    if not await console_of(request).call_brokers(remove_acls, selection_of(given)):
        raise UsageError("this ACL does not exist; it may have been removed in the meantime")
    return done(
        request,
        "/security",
        f"Removed: {given.permission} {given.principal} {given.operation} on {given.resource}"
        f" {given.name}.",
    )


def _acl_of(given: Mapping[str, str]) -> AclView:
    return AclView(**{name: given.get(name, "") for name in _FIELDS})

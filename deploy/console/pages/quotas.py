"""Show quotas of users, clients and addresses; set and remove them."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.quotas import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    IP,
    USER,
)
from penstock.deploy.clients.quotas import DEFAULT, alter_quotas, list_quotas, parse_value, shown
from penstock.deploy.console.console import console_of, done, form_of, page, paged
from penstock.deploy.console.optional_lists import listed
from penstock.deploy.errors import UsageError

QUOTAS = (*CLIENT_QUOTAS, CONNECTION_CREATION_RATE)


async def quotas(request: Request) -> Response:
    """List all quotas, or those of entities whose names contain `q`."""
    wanted = request.query_params.get("q", "").strip()
    found, problem = await listed(console_of(request), lambda client: list_quotas(client, {}))
    views = [(shown(view.entity), view.quotas) for view in found]
    views = [view for view in views if wanted.lower() in view[0].lower()]
    return page(
        request,
        "quotas.html",
        page=paged(request, views),
        problem=problem,
        q=wanted,
        names=QUOTAS,
        default=DEFAULT,
    )


# --- changes --------------------------------------------------------------------------------------


async def alter(request: Request) -> Response:
    """Set one quota of an entity, or remove it if the value is left empty."""
    form = await form_of(request)
    given = {kind: form.get(kind, "").strip() for kind in (USER, CLIENT_ID, IP)}
    entity = {kind: None if name == DEFAULT else name for kind, name in given.items() if name}
    if not entity or (IP in entity and len(entity) > 1):
        raise UsageError("specify a user, a client id, both, or only an address")
    key, text = form.get("key", ""), form.get("value", "").strip()
    if key not in QUOTAS:
        raise UsageError(f"quota {key!r} is unknown: choose one of {', '.join(QUOTAS)}")
    try:
        value = parse_value(text) if text else None
    except ValueError:
        raise UsageError(f"{text!r} is not a number, as in 1000000") from None
    await console_of(request).call_brokers(alter_quotas, entity, {key: value})
    change = "removed" if value is None else f"set to {value:,.15g}"
    return done(request, "/security/quotas", f"{key} of {shown(entity)} is {change}.")

"""Show ACLs, users and quotas, as far as the brokers let this user see them."""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from deploy.clients.acls import AclSelection, listed_acls
from deploy.clients.quotas import list_quotas, shown
from deploy.clients.users import list_users
from deploy.clients.wire import WireClient
from deploy.console.console import console_of, integer, page
from deploy.console.paging import page_of
from deploy.errors import KafkaFailed

_T = TypeVar("_T")


async def security(request: Request) -> Response:
    console = console_of(request)
    bootstrap, number = console.options.bootstrap, integer(request.query_params.get("page", ""), 1)
    acls, no_acls = await console.call(
        _asked, bootstrap, lambda client: listed_acls(client, AclSelection())
    )
    users, no_users = await console.call(_asked, bootstrap, list_users)
    quotas, no_quotas = await console.call(
        _asked, bootstrap, lambda client: list_quotas(client, {})
    )
    return page(
        request,
        "security.html",
        acls=page_of(acls, number),
        no_acls=no_acls,
        users=page_of(users, 1),
        no_users=no_users,
        quotas=[(shown(view.entity), view.quotas) for view in quotas],
        no_quotas=no_quotas,
    )


def _asked(bootstrap: str, ask: Callable[[WireClient], list[_T]]) -> tuple[list[_T], str]:
    """Return what a broker answers, or nothing and why."""
    with WireClient(bootstrap) as client:
        try:
            return ask(client), ""
        except KafkaFailed as error:
            return [], str(error)

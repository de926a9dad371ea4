"""Show brokers and controllers: epochs, sessions, load, and how far followers lag."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.clients.quorum import status_lines
from penstock.deploy.console.console import console_of, page, rights_of


async def nodes(request: Request) -> Response:
    rights_of(request).need_cluster()
    live = console_of(request).live
    view = await live.top()
    quorum = await live.quorum()
    return page(
        request,
        "nodes.html",
        view=view,
        quorum=quorum,
        figures=dict(status_lines(quorum)),
        silent_s=live.silent_s,
    )

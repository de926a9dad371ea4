"""Show brokers and controllers: epochs, sessions, load, and the lag of followers."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.clients.quorum import status_lines
from penstock.deploy.console.console import console_of, page, rights_of
from penstock.deploy.console.views import broker_states
from penstock.deploy.errors import NoController


async def nodes(request: Request) -> Response:
    rights_of(request).need_cluster()
    live = console_of(request).live
    view = await live.top()
    quorum, no_quorum = None, ""
    try:
        quorum = await live.quorum()
    except NoController as error:
        no_quorum = str(error)
    return page(
        request,
        "nodes.html",
        view=view,
        untuned=live.untuned_clients(),
        sessions=live.sessions(),
        states=broker_states(view, live.brokers(), live.silent_s),
        quorum=quorum,
        no_quorum=no_quorum,
        figures={} if quorum is None else dict(status_lines(quorum)),
        silent_s=live.silent_s,
    )

"""Show the topics that are exported to tables."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import console_of, integer, page, rights_of
from penstock.deploy.console.exports import enabled_in, read_exports
from penstock.deploy.console.paging import page_of


async def tables(request: Request) -> Response:
    console = console_of(request)
    image = console.live.image
    enabled = enabled_in(image, rights_of(request).sees)
    found = await read_exports(image, console.options.store, enabled)
    number = integer(request.query_params.get("page", ""), 1)
    return page(
        request,
        "tables.html",
        enabled=len(enabled),
        problem=found.problem,
        page=page_of(found.topics, number),
    )

"""Show the topics that are exported to tables."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import console_of, page, paged, rights_of
from penstock.deploy.console.exports import enabled_in, read_exports


async def tables(request: Request) -> Response:
    console = console_of(request)
    image = console.live.image
    enabled = enabled_in(image, rights_of(request).sees)
    found = await read_exports(image, console.options.store, enabled)
    return page(
        request,
        "tables.html",
        enabled=len(enabled),
        problem=found.problem,
        page=paged(request, found.topics),
    )
